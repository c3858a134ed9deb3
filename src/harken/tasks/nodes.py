"""Classification or regression of nodes or graphs. Loss in nats, or squared error.

Every step computes all nodes and evaluates those of the split; with many graphs a batch holds some of them.
"""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.graphs.batch import Graph, GraphBatch, add_positional_encoding, build_graph, feature_tensor
from harken.data.graphs.files import Ints, SparseFeatures
from harken.data.rng import RngStream, rng_for

from . import Loss, Metrics, OutputScoredTask, Score, TaskSettings, evaluating
from .baselines.linear import Features, MatrixFeatures, fit_linear
from .label_task import LabelTask, label_loss
from .metrics import classification

if TYPE_CHECKING:
    from harken.data.graphs.source import GraphData
    from harken.models.graph import GraphModelSettings

EVAL_BATCH = 256  # graphs


class GraphTaskSettings(TaskSettings):
    """Settings of tasks on graphs."""

    kind: Literal["nodes"] = "nodes"
    metric: Literal["auto", "loss", "accuracy", "f1", "matthews", "auc", "pearson", "spearman"] = Field(
        "auto", description="metric that selects the best weights; auto: accuracy, of edges auc, of numbers pearson"
    )
    l2: float = Field(
        0.0, ge=0, description="L2 penalty in the loss (not decoupled weight decay), as in the GCN and GAT papers"
    )
    l2_of: Literal["first", "all"] = Field("first", description="weights with L2 penalty: the first layer, or all")

    def bind(self, data: "GraphData", model: "GraphModelSettings", *, batch: int, seed: int) -> "GraphTask":
        from .links import LinkTask

        kind = LinkTask if data.processor.target_level == "edge" else GraphLabelTask
        return kind(self, data, model, batch=batch, seed=seed)


class GraphTask(OutputScoredTask):
    """Base of the tasks on graphs: the graph as model input on its device, and the L2 penalty."""

    def __init__(
        self, settings: GraphTaskSettings, data: "GraphData", model: "GraphModelSettings", *, batch: int, seed: int
    ) -> None:
        self.settings, self.data, self.processor, self.seed = settings, data, data.processor, seed
        self.splits, self.steps, self.tokens_per_batch = tuple(data.splits), 1, len(data.tables.node_names)
        self.options = model.graph_options

    @property
    def graph(self) -> Graph:
        """The graph with the node pairs within the model's reach, and the positional encoding."""
        cache, options = self.data.laid, self.options
        if tuple(options) not in cache:
            tables, edges = self.data.tables, self.data.message_edges(self._input_edges())
            weighted = tables.weight is not None and self.processor.target_level != "edge"
            weight = np.resize(tables.weight, len(edges)) if weighted else None
            features = self.processor.read(tables)
            graph = build_graph(features, edges, weight, self.data.graph_ids, reach=options.reach)
            cache[tuple(options)] = add_positional_encoding(graph, options.positions, options.pe_dim)
        graph = cache[tuple(options)]
        return graph

    def _input_edges(self) -> Ints:
        """The edges that the model sees."""
        return self.data.tables.edges

    def model_inputs(self, model: Any) -> dict[str, Any]:
        """The graph as input of this model, on its device."""
        like, cache = next(model.parameters()), self.data.laid
        if (key := (*self.options, like.device, like.dtype)) not in cache:
            cache[key] = self.graph.model_inputs(like) | {"n_graphs": 0}
        inputs: dict[str, Any] = cache[key]
        return inputs

    def with_l2(self, model: Any, loss: Tensor, batch: GraphBatch) -> Loss:
        """The loss with the L2 penalty, l2/2 per target times the squared weights; the reported loss has none."""
        if not self.settings.l2:
            return Loss(loss)
        parameters = (model.input_layer() if self.settings.l2_of == "first" else model).parameters()
        squares = torch.stack([p.square().sum() for p in parameters]).sum()
        return Loss(loss + len(batch.tokens) * self.settings.l2 / 2 * squares, reported=loss.detach())


class GraphLabelTask(GraphTask, LabelTask):
    """Labels or numbers of nodes or graphs."""

    def __init__(
        self, settings: GraphTaskSettings, data: "GraphData", model: "GraphModelSettings", *, batch: int, seed: int
    ) -> None:
        super().__init__(settings, data, model, batch=batch, seed=seed)
        self.unit, self.of_graphs = f"{data.processor.target_level}s", data.processor.target_level == "graph"
        self.set_targets(data.processor.labels, data.processor.target_type, settings.metric)
        self.targets = torch.from_numpy(data.targets)
        self.fixed_shapes = not self.of_graphs  # graphs differ in their number of nodes
        self.rows = batch if self.of_graphs else max(1, len(data.train))
        self.steps = max(1, -(-len(data.train) // self.rows))
        if self.of_graphs:
            self.graph_sizes = np.bincount(data.graph_ids, minlength=len(data.tables.graph_names))
            self.tokens_per_batch = max(1, int(self.graph_sizes[data.train].sum()) // self.steps)

    def batch(self, epoch: int, step: int) -> GraphBatch:
        if not self.of_graphs:
            return self._collate(np.array(self.data.train))
        order = rng_for(self.seed, RngStream.NODE_ORDER, epoch).permutation(self.data.train)
        return self._collate(order[step * self.rows : (step + 1) * self.rows])

    def _collate(self, indices: Ints) -> GraphBatch:
        index, n_nodes = torch.from_numpy(indices), len(self.data.tables.node_names)
        sizes = torch.from_numpy(self.graph_sizes[indices]) if self.of_graphs else None
        return GraphBatch(index[:, None], self.targets[index], n_nodes=n_nodes, graph_sizes=sizes)

    def loss(self, model: Any, batch: GraphBatch, start: int = 0) -> Loss:
        loss = label_loss(self.outputs(model, batch.tokens[:, 0]), batch.targets, self.target_type)
        return self.with_l2(model, loss, batch)

    def outputs(self, model: Any, index: Tensor) -> Tensor:  # B C
        """Outputs of these nodes or graphs."""
        if self.of_graphs:
            y: Tensor = model(**self.graph.subset(index.cpu().numpy()).model_inputs(next(model.parameters())))
        else:
            y = model(**self.model_inputs(model))[index]
        return y if y.dtype == torch.float64 else y.float()

    @torch.no_grad()
    def predict(self, model: Any, indices: list[int]) -> Tensor:  # N C
        """Outputs in evaluation mode; graphs in batches."""
        device, size = next(model.parameters()).device, EVAL_BATCH if self.of_graphs else len(indices)
        with evaluating(model):
            return torch.cat([self.outputs(model, i.to(device)).cpu() for i in torch.tensor(indices).split(size)])

    def split_outputs(self, model: Any, split: str, *, quick: bool = False) -> Tensor:  # N C
        return self.predict(model, self.data.parts[split])

    def score_outputs(self, y: Tensor, split: str, *, quick: bool = False) -> Score:
        return self.score(y, self.data.targets[self.data.parts[split]], parts=not quick)

    # --- baselines ----------------------------------------------------------------------------------------------------

    def baselines(self, split: str) -> dict[str, Metrics]:
        """The most frequent label, the majority of the neighbors, and regression on the features; or means."""
        if not self.data.train:
            return {}
        indices, number = self.data.splits[split], self.target_type == "number"
        prior = self.prior_outputs(self.data.targets[self.data.train]).expand(len(indices), -1)
        outputs = {"mean of all" if number else "most frequent label": prior}
        if not self.of_graphs:
            outputs["mean of neighbors" if number else "neighbors' majority"] = self._neighbor_means[indices]
        regression = self._regression(self._features(indices)).float()
        outputs["linear regression" if number else "logistic regression"] = regression
        return {name: self.metrics(y, self.data.targets[indices]) for name, y in outputs.items()}

    @cached_property
    def _neighbor_means(self) -> Tensor:  # N C
        """Mean target of the training nodes among the neighbors, with the mean of all nodes as one more neighbor."""
        number, adjacent = self.target_type == "number", self.graph.hops == 1
        targets = self.data.targets[self.data.train]
        values = targets if number else classification.one_hot(targets, self.n_outputs).astype(np.float32)  # N C
        sent = np.zeros((self.graph.n, self.n_outputs + 1), np.float32)  # the last column counts
        sent[self.data.train] = np.c_[values, np.ones(len(values))]
        received = np.zeros_like(sent)
        np.add.at(received, self.graph.i[adjacent], sent[self.graph.j[adjacent]])
        mean = (received[:, :-1] + values.mean(0)) / (received[:, -1:] + 1)
        return torch.from_numpy(mean if number else np.log(np.maximum(mean, 1e-6)))

    def _features(self, indices: list[int]) -> MatrixFeatures:
        """Features of these nodes; of graphs the mean over the nodes, and the log number of nodes and pairs."""
        graph = self.graph
        binary = graph.x._replace(val=np.ones_like(graph.x.val)) if isinstance(graph.x, SparseFeatures) else graph.x
        x = feature_tensor(binary, len(graph.graph_ids))
        if not self.of_graphs:
            return MatrixFeatures(x.index_select(0, torch.tensor(indices)).double())
        n_nodes = np.bincount(graph.graph_ids, minlength=graph.n_graphs)
        n_pairs = np.bincount(graph.graph_ids[graph.i], minlength=graph.n_graphs)
        size = torch.from_numpy(np.log1p(np.stack([n_nodes, n_pairs], 1)))
        total = torch.zeros(graph.n_graphs, x.shape[1]).index_add(0, torch.from_numpy(graph.graph_ids), x.to_dense())
        features = torch.cat([total / torch.from_numpy(n_nodes)[:, None], size], 1).double()
        return MatrixFeatures(features[indices])

    @cached_property
    def _regression(self) -> Callable[[Features], Tensor]:
        train = self.data.train
        targets = self.targets[train] if self.target_type == "label" else self.targets[train].double()
        return fit_linear(self._features(train), self.n_outputs, lambda y: label_loss(y, targets, self.target_type))
