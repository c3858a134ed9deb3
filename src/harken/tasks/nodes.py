"""Tasks on graphs: labels or numbers of nodes or graphs (loss in nats, or squared error).

Every step computes all nodes and evaluates those of the split; with many graphs a batch holds some of them. Link
prediction is in links.py, pairs of graphs in graph_pairs.py.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.core.similarity import precise
from harken.data.batch import Array
from harken.data.graphs.batch import (
    Graph,
    GraphBatch,
    add_positional_encoding,
    build_graph,
    feature_tensor,
    typed_edges,
)
from harken.data.graphs.files import Ints, SparseFeatures
from harken.data.graphs.source import GraphData
from harken.data.rng import RngStream, rng_for
from harken.models.graph import GraphModel, GraphModelSettings

from . import Loss, OutputScoredTask, Score, TaskSettings, evaluating
from .baselines.ablation import MAX_COLUMNS, Columns
from .label_task import ClassWeights, LabelTask
from .metrics import labels

EVAL_BATCH = 256  # graphs


class GraphTaskSettings(TaskSettings[GraphData, GraphModelSettings]):
    """Settings of tasks on graphs."""

    kind: Literal["nodes"] = "nodes"
    metric: Literal["auto", "loss", "accuracy", "f1", "matthews", "auc", "pearson", "spearman"] = Field(
        "auto", description="metric that selects the best weights; auto: accuracy, of edges auc, of numbers pearson"
    )
    class_weights: ClassWeights = "none"
    l2: float = Field(0.0, ge=0, description="L2 penalty in the loss, as in the GCN and GAT papers (not weight decay)")
    l2_of: Literal["first", "all"] = Field("first", description="weights with L2 penalty: the first layer, or all")

    def bind(self, data: GraphData, model: GraphModelSettings, *, batch: int, seed: int) -> "GraphTask":
        from .graph_pairs import GraphPairTask  # these modules import this one
        from .links import LinkTask

        kinds: dict[str, type[GraphTask]] = {"edge": LinkTask, "pair": GraphPairTask}
        kind = kinds.get(data.processor.target_level, GraphLabelTask)
        return kind(self, data, model, batch=batch, seed=seed)


class GraphTask(OutputScoredTask[GraphTaskSettings, GraphData, GraphModel, GraphBatch]):
    """Base of the tasks on graphs: the graph as model input on its device, and the L2 penalty."""

    def __init__(
        self, settings: GraphTaskSettings, data: GraphData, model: GraphModelSettings, *, batch: int, seed: int
    ) -> None:
        self.settings, self.data, self.processor, self.seed = settings, data, data.processor, seed
        self.n_nodes, self.options, self.symmetric = len(data.tables.node_names), model.graph_options, model.symmetric
        self.splits, self.steps, self.tokens_per_batch = tuple(data.splits), 1, self.n_nodes
        self.prepare(batch)

    def prepare(self, rows: int) -> None:
        """The subclass's part of the construction; `rows` is the batch size."""
        raise NotImplementedError

    @property
    def graph(self) -> Graph:
        """The graph with the node pairs within the model's reach, and the positional encoding."""
        cache, options = self.data.cache, self.options
        if options not in cache:
            tables, rows, types = self.data.tables, self._input_rows(), self.processor.edge_type_ids(self.data.tables)
            edges = self.data.message_edges(tables.edges[rows])
            weight = None if self.processor.target_level == "edge" else tables.weight
            weight = None if weight is None else np.resize(weight, len(edges))
            features = self.processor.read(tables)
            ids, reach, distance = self.data.graph_ids, options.reach, options.distance
            graph = build_graph(features, edges, weight, ids, reach=reach, distance=distance)
            if types is not None:
                of_messages, n_types = np.resize(types[rows], len(edges)), len(self.processor.edge_types)
                graph = replace(graph, typed_edges=typed_edges(edges, weight, of_messages, graph.n, n_types))
            cache[options] = add_positional_encoding(graph, options.positions, options.pe_dim)
        return cache[options]

    def _input_rows(self) -> Ints:
        """The edges that the model sees, as indices of those in the file."""
        return np.arange(len(self.data.tables.edges))

    def node_outputs(self, model: GraphModel) -> Tensor:  # N C
        """Outputs of all nodes."""
        inputs: Any = self.graph_inputs(model)
        return model(**inputs)

    def graph_inputs(self, model: GraphModel) -> dict[str, object]:
        """The whole graph as input of the model, on its device; cached."""
        like, cache = next(model.parameters()), self.data.cache
        if (key := (*self.options, like.device, like.dtype)) not in cache:
            cache[key] = self.graph.model_inputs(like) | {"n_graphs": 0}
        inputs: dict[str, object] = cache[key]
        return inputs

    def with_l2(self, model: GraphModel, loss: Loss, batch: GraphBatch) -> Loss:
        """The loss with the L2 penalty, l2/2 per target times the squared weights; the reported loss has none."""
        if not self.settings.l2:
            return loss
        parameters = (model.input_layer() if self.settings.l2_of == "first" else model).parameters()
        squares = torch.stack([p.square().sum() for p in parameters]).sum()
        reported = loss.total.detach() if loss.reported is None else loss.reported
        return Loss(loss.total + len(batch.tokens) * self.settings.l2 / 2 * squares, reported=reported)


class GraphLabelTask(GraphTask, LabelTask[GraphTaskSettings, list[int], GraphModel, GraphBatch]):
    """Labels or numbers of nodes or graphs."""

    def prepare(self, rows: int) -> None:
        data = self.data
        self.unit, self.of_graphs = f"{data.processor.target_level}s", data.processor.target_level != "node"
        self.set_targets(data.processor.labels, data.processor.target_type, self.settings.metric)
        self.regression_name = "linear regression" if self.target_type == "number" else "logistic regression"
        self.targets = torch.from_numpy(data.targets)
        if data.train:
            self.set_class_weights(self.settings.class_weights)
        self.fixed_shapes = not self.of_graphs  # graphs differ in their number of nodes
        self.rows = rows if self.of_graphs else max(1, len(data.train))
        self.steps = max(1, -(-len(data.train) // self.rows))
        if self.of_graphs:
            self.graph_sizes = self.count_nodes()
            self.tokens_per_batch = max(1, int(self.graph_sizes[data.train].sum()) // self.steps)

    def count_nodes(self) -> Array:
        """The number of nodes of each graph target."""
        return np.bincount(self.data.graph_ids, minlength=len(self.data.tables.graph_names))

    def batch(self, epoch: int, step: int) -> GraphBatch:
        indices, sizes = np.array(self.data.train), None
        if self.of_graphs:
            order = rng_for(self.seed, RngStream.NODE_ORDER, epoch).permutation(self.data.train)
            indices = order[step * self.rows : (step + 1) * self.rows]
            sizes = torch.from_numpy(self.graph_sizes[indices])
        index = torch.from_numpy(indices)
        return GraphBatch(index[:, None], self.targets[index], n_nodes=self.n_nodes, graph_sizes=sizes)

    def loss(self, model: GraphModel, batch: GraphBatch, start: int = 0) -> Loss:
        return self.with_l2(model, self.smoothed_loss(self.outputs(model, batch.tokens[:, 0]), batch.targets), batch)

    def outputs(self, model: GraphModel, index: Tensor) -> Tensor:  # B C
        """Outputs of these nodes or graphs."""
        if not self.of_graphs:
            return precise(self.node_outputs(model)[index])
        return precise(model(**self.graph.subset(index.cpu().numpy()).model_inputs(next(model.parameters()))))

    def predict(self, model: GraphModel, indices: list[int]) -> Tensor:  # N C
        """Outputs in evaluation mode; graphs in batches."""
        device, size = next(model.parameters()).device, EVAL_BATCH if self.of_graphs else len(indices)
        with evaluating(model):
            return torch.cat([self.outputs(model, i.to(device)).cpu() for i in torch.tensor(indices).split(size)])

    def split_outputs(self, model: GraphModel, split: str, *, quick: bool = False) -> Tensor:  # N C
        return self.predict(model, self.data.parts[split])

    def score_outputs(self, y: Tensor, split: str, *, quick: bool = False) -> Score:
        return self.score(y, self.data.targets[self.data.parts[split]], parts=not quick)

    def input_text(self, split: str, n: int) -> str:
        return self.data.unit_names()[self.data.parts[split][n]]

    def input_sizes(self, split: str) -> tuple[str, Array] | None:
        """The number of nodes of each graph, or of neighbors of each node."""
        if self.of_graphs:
            return "nodes", self.graph_sizes[self.data.parts[split]]
        edges = self.data.message_edges(self.data.tables.edges)
        return "neighbors", np.bincount(edges[:, 1], minlength=self.n_nodes)[self.data.parts[split]]

    # --- baselines ----------------------------------------------------------------------------------------------------

    def _targets_of(self, part: list[int]) -> Array:
        return self.data.targets[part]

    def _other_baselines(self, part: list[int]) -> dict[str, Tensor]:
        """Mean target of the training nodes among the neighbors, with the mean of all nodes as one more neighbor."""
        if self.of_graphs:
            return {}
        number, adjacent = self.target_type == "number", self.graph.hops == 1
        targets = self.data.targets[self.data.train]
        values = targets if number else labels.one_hot(targets, self.n_outputs).astype(np.float32)  # N C
        sent = np.zeros((self.graph.n, self.n_outputs + 1), np.float32)  # the last column counts
        sent[self.data.train] = np.c_[values, np.ones(len(values))]
        received = np.zeros_like(sent)
        np.add.at(received, self.graph.i[adjacent], sent[self.graph.j[adjacent]])
        mean = (received[:, :-1] + values.mean(0)) / (received[:, -1:] + 1)
        y = torch.from_numpy(mean if number else np.log(np.maximum(mean, 1e-6)))
        return {"mean of neighbors" if number else "neighbors' majority": y[part]}

    def features(self, part: list[int]) -> Tensor:
        """Features of these nodes; of graphs the mean over the nodes, and the log number of nodes and pairs."""
        graph = self.graph
        binary = graph.x._replace(val=np.ones_like(graph.x.val)) if isinstance(graph.x, SparseFeatures) else graph.x
        x = feature_tensor(binary, len(graph.graph_ids))
        if not self.of_graphs:
            return x.index_select(0, torch.tensor(part)).double()
        n_nodes = np.bincount(graph.graph_ids, minlength=graph.n_graphs)
        n_pairs = np.bincount(graph.graph_ids[graph.i], minlength=graph.n_graphs)
        size = torch.from_numpy(np.log1p(np.stack([n_nodes, n_pairs], 1)))
        total = torch.zeros(graph.n_graphs, x.shape[1]).index_add(0, torch.from_numpy(graph.graph_ids), x.to_dense())
        return torch.cat([total / torch.from_numpy(n_nodes)[:, None], size], 1).double()[part]

    def columns(self) -> Columns | None:
        names = self.data.tables.feature_names
        if self.processor.feature_source != "file" or not 0 < len(names) <= MAX_COLUMNS:
            return None
        features = {name: (n,) for n, name in enumerate(names)}
        return Columns(self.features(self.data.train).to_dense(), features, "data.features", required=False)
