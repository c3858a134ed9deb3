"""Tasks on graphs: labels or numbers of nodes or graphs (loss in nats, or squared error), and link prediction.

Every step computes all nodes and evaluates those of the split; with many graphs a batch holds some of them. The score
of an edge is <h_i, h_j>; training uses the edges and as many random negative pairs. The model does not see held-out
edges, in training and in evaluation.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from harken.core.similarity import precise
from harken.data.batch import Array
from harken.data.graphs.batch import Graph, GraphBatch, add_positional_encoding, build_graph, feature_tensor
from harken.data.graphs.files import Ints, SparseFeatures
from harken.data.graphs.source import GraphData
from harken.data.rng import RngStream, rng_for
from harken.errors import BadSetting
from harken.models.graph import GraphModel, GraphModelSettings

from . import Baseline, Loss, OutputScoredTask, Score, TaskSettings, evaluating
from .baselines.ablation import MAX_COLUMNS, Columns
from .label_task import ClassWeights, LabelTask, choose_metric, label_predictions
from .metrics import labels, weighted

EVAL_BATCH = 256  # graphs
SAMPLING_ROUNDS = 8  # of negative pairs


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
        kind = LinkTask if data.processor.target_level == "edge" else GraphLabelTask
        return kind(self, data, model, batch=batch, seed=seed)


class GraphTask(OutputScoredTask[GraphTaskSettings, GraphData, GraphModel, GraphBatch]):
    """Base of the tasks on graphs: the graph as model input on its device, and the L2 penalty."""

    def __init__(
        self, settings: GraphTaskSettings, data: GraphData, model: GraphModelSettings, *, batch: int, seed: int
    ) -> None:
        self.settings, self.data, self.processor, self.seed = settings, data, data.processor, seed
        self.n_nodes, self.options = len(data.tables.node_names), model.graph_options
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
            tables, edges = self.data.tables, self.data.message_edges(self._input_edges())
            weight = None if self.processor.target_level == "edge" else tables.weight
            weight = None if weight is None else np.resize(weight, len(edges))
            features = self.processor.read(tables)
            ids, reach, distance = self.data.graph_ids, options.reach, options.distance
            graph = build_graph(features, edges, weight, ids, reach=reach, distance=distance)
            cache[options] = add_positional_encoding(graph, options.positions, options.pe_dim)
        return cache[options]

    def _input_edges(self) -> Ints:
        """The edges that the model sees."""
        return self.data.tables.edges

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
        self.unit, self.of_graphs = f"{data.processor.target_level}s", data.processor.target_level == "graph"
        self.set_targets(data.processor.labels, data.processor.target_type, self.settings.metric)
        self.regression_name = "linear regression" if self.target_type == "number" else "logistic regression"
        self.targets = torch.from_numpy(data.targets)
        if data.train:
            self.set_class_weights(self.settings.class_weights)
        self.fixed_shapes = not self.of_graphs  # graphs differ in their number of nodes
        self.rows = rows if self.of_graphs else max(1, len(data.train))
        self.steps = max(1, -(-len(data.train) // self.rows))
        if self.of_graphs:
            self.graph_sizes = np.bincount(data.graph_ids, minlength=len(data.tables.graph_names))
            self.tokens_per_batch = max(1, int(self.graph_sizes[data.train].sum()) // self.steps)

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
        tables = self.data.tables
        return (tables.graph_names if self.of_graphs else tables.node_names)[self.data.parts[split][n]]

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


class LinkTask(GraphTask):
    """Edges of one graph."""

    explains_mistakes = True

    def prepare(self, rows: int) -> None:
        if self.settings.class_weights != "none":
            raise BadSetting("task.class_weights: edges and pairs without one are equally frequent; remove it")
        self.primary_metric = choose_metric(self.settings.metric, ("auc", "accuracy"), "edges")
        both_directions = np.concatenate([self.data.targets, self.data.targets[:, ::-1]])  # the score is symmetric
        self.edge_codes = np.unique(self._pair_codes(both_directions))

    def _pair_codes(self, pairs: Ints) -> Ints:
        """One integer per pair."""
        return pairs[:, 0] * self.n_nodes + pairs[:, 1]

    def _input_edges(self) -> Ints:
        """All edges except the held-out ones; all of them for a graph without training edges."""
        held_out = [n for indices in self.data.splits.values() for n in indices] if self.data.train else []
        return np.delete(self.data.targets, held_out, 0)

    def batch(self, epoch: int, step: int) -> GraphBatch:
        edges = self.data.targets[self.data.train]
        negatives = self._sample_negatives(len(edges), rng_for(self.seed, RngStream.LINK_NEGATIVES, epoch))
        targets = torch.cat([torch.ones(len(edges)), torch.zeros(len(negatives))])
        return GraphBatch(torch.from_numpy(np.concatenate([edges, negatives])), targets, n_nodes=self.n_nodes)

    def _sample_negatives(self, count: int, rng: np.random.Generator) -> Ints:
        """Random node pairs of one graph without an edge; fewer than `count` if the graph has few of them."""
        graph_ids, negatives = self.data.graph_ids, np.empty((0, 2), np.int64)
        for _ in range(SAMPLING_ROUNDS):
            pairs = rng.integers(self.n_nodes, size=(2 * count, 2))
            if graph_ids[-1]:
                graph = graph_ids[pairs[:, 0]]
                first, end = np.searchsorted(graph_ids, graph), np.searchsorted(graph_ids, graph, "right")
                pairs[:, 1] = rng.integers(first, end)
            valid = (pairs[:, 0] != pairs[:, 1]) & ~np.isin(self._pair_codes(pairs), self.edge_codes)
            negatives = np.concatenate([negatives, pairs[valid]])[:count]
            if len(negatives) == count:
                break
        return negatives

    def loss(self, model: GraphModel, batch: GraphBatch, start: int = 0) -> Loss:
        y = self.outputs(model, batch.tokens)
        loss = F.binary_cross_entropy_with_logits(y, batch.targets.to(y.dtype), reduction="sum")
        return self.with_l2(model, Loss(loss), batch)

    def outputs(self, model: GraphModel, pairs: Tensor) -> Tensor:  # B 2 -> B
        """The score of an edge between the nodes of each pair."""
        h = self.node_outputs(model)
        return precise((h[pairs[:, 0]] * h[pairs[:, 1]]).sum(-1))

    def predict(self, model: GraphModel, pairs: Ints) -> Tensor:
        """The same in evaluation mode."""
        with evaluating(model):
            return self.outputs(model, torch.from_numpy(pairs).to(next(model.parameters()).device)).cpu()

    def split_outputs(self, model: GraphModel, split: str, *, quick: bool = False) -> Tensor:  # N
        return self.predict(model, self._eval_pairs(split)[0])

    def score_outputs(self, y: Tensor, split: str, *, quick: bool = False) -> Score:
        targets = self._eval_pairs(split)[1]
        counts = {"edges": int(targets.sum()), "negative_pairs": int((~targets).sum())}
        outcomes = self._outcomes(y, targets)
        outputs = torch.stack([torch.zeros_like(y), y], 1)
        predictions = None if quick else label_predictions(self.processor.labels, outputs, targets.astype(np.int64))
        protocol = counts | {"primary_metric": self.primary_metric}
        score = Score(
            weighted.evaluate(outcomes), protocol, primary_metric=self.primary_metric, predictions=predictions
        )
        return score if quick else replace(score, outcomes=outcomes)

    def _outcomes(self, y: Tensor, targets: Array) -> dict[str, weighted.WeightedMetric]:
        losses = F.binary_cross_entropy_with_logits(y, torch.from_numpy(targets).float(), reduction="none")
        correct = weighted.mean(targets == (y > 0).numpy())
        return {"loss": weighted.mean(losses.numpy()), "auc": weighted.auc(targets, y.numpy()), "accuracy": correct}

    def label_counts(self) -> dict[str, dict[str, int]]:
        """The edges of each split; negative pairs are drawn, as many as there are edges."""
        return {name: {"edge": len(indices)} for name, indices in self.data.parts.items() if indices}

    def input_text(self, split: str, n: int) -> str:
        names = self.data.tables.node_names
        return "--".join(names[end] for end in self._eval_pairs(split)[0][n].tolist())

    def _eval_pairs(self, split: str) -> tuple[Ints, Array]:
        """The edges of a split and as many fixed negative pairs; and which of them are edges."""
        edges = self.data.targets[self.data.parts[split]]
        negatives = self._sample_negatives(len(edges), rng_for(0, RngStream.LINK_EVAL_NEGATIVES, split == "test"))
        return np.concatenate([edges, negatives]), np.arange(len(edges) + len(negatives)) < len(edges)

    def evaluate_baselines(self, split: str) -> dict[str, Baseline]:
        """The product of the degrees, and the number of shared neighbors."""
        if not self.data.train:
            return {}
        (pairs, targets), neighbors = self._eval_pairs(split), self._neighbors
        ends = [(neighbors[a], neighbors[b]) for a, b in pairs.tolist()]
        scores = {"product of degrees": np.array([len(a) * len(b) for a, b in ends])}
        scores["shared neighbors"] = np.array([len(a & b) for a, b in ends])
        outcomes = {name: {"auc": weighted.auc(targets, values)} for name, values in scores.items()}
        return {name: Baseline(weighted.evaluate(auc), auc) for name, auc in outcomes.items()}

    @cached_property
    def _neighbors(self) -> list[set[int]]:
        neighbors: list[set[int]] = [set() for _ in self.data.tables.node_names]
        for a, b in self.data.message_edges(self._input_edges()).tolist():
            neighbors[a].add(b)
        return neighbors
