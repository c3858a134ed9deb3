"""Link prediction: the score of an edge is <h_i, h_j>; training uses the edges and as many random negative pairs.

The model does not see held-out edges, in training and in evaluation.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.data.batch import Array
from harken.data.graphs.batch import GraphBatch
from harken.data.graphs.files import Ints
from harken.data.rng import RngStream, rng_for
from harken.errors import BadSetting

from . import Loss, Metrics, Score, evaluating
from .metrics import classification
from .nodes import GraphTask, GraphTaskSettings

if TYPE_CHECKING:
    from harken.data.graphs.source import GraphData
    from harken.models.graph import GraphModelSettings

METRICS = ("auc", "accuracy", "loss")
SAMPLING_ROUNDS = 8


class LinkTask(GraphTask):
    """Edges of one graph."""

    def __init__(
        self, settings: GraphTaskSettings, data: "GraphData", model: "GraphModelSettings", *, batch: int, seed: int
    ) -> None:
        super().__init__(settings, data, model, batch=batch, seed=seed)
        self.primary_metric = "auc" if settings.metric == "auto" else settings.metric
        if self.primary_metric not in METRICS:
            raise BadSetting(
                f"task.metric={settings.metric}: does not apply to edges; set it to one of {', '.join(METRICS)}"
            )
        both_directions = np.concatenate([data.targets, data.targets[:, ::-1]])  # the score is symmetric
        self.edge_codes = np.unique(_pair_codes(both_directions, len(data.tables.node_names)))

    def _input_edges(self) -> Ints:
        """All edges except the held-out ones; all of them for a graph without training edges."""
        held_out = [n for indices in self.data.splits.values() for n in indices] if self.data.train else []
        return np.delete(self.data.targets, held_out, 0)

    def batch(self, epoch: int, step: int) -> GraphBatch:
        edges, n_nodes = self.data.targets[self.data.train], len(self.data.tables.node_names)
        negatives = self._sample_negatives(len(edges), rng_for(self.seed, RngStream.LINK_NEGATIVES, epoch))
        targets = torch.cat([torch.ones(len(edges)), torch.zeros(len(negatives))])
        return GraphBatch(torch.from_numpy(np.concatenate([edges, negatives])), targets, n_nodes=n_nodes)

    def _sample_negatives(self, count: int, rng: np.random.Generator) -> Ints:
        """Random node pairs of one graph without an edge; fewer than `count` if the graph has few of them."""
        n, graph_ids, negatives = len(self.data.tables.node_names), self.data.graph_ids, np.empty((0, 2), np.int64)
        for _ in range(SAMPLING_ROUNDS):
            pairs = rng.integers(n, size=(2 * count, 2))
            if graph_ids[-1]:
                graph = graph_ids[pairs[:, 0]]
                first, end = np.searchsorted(graph_ids, graph), np.searchsorted(graph_ids, graph, "right")
                pairs[:, 1] = rng.integers(first, end)
            valid = (pairs[:, 0] != pairs[:, 1]) & ~np.isin(_pair_codes(pairs, n), self.edge_codes)
            negatives = np.concatenate([negatives, pairs[valid]])[:count]
            if len(negatives) == count:
                break
        return negatives

    def loss(self, model: Any, batch: GraphBatch, start: int = 0) -> Loss:
        y = self.outputs(model, batch.tokens)
        loss = F.binary_cross_entropy_with_logits(y, batch.targets.to(y.dtype), reduction="sum")
        return self.with_l2(model, loss, batch)

    def outputs(self, model: Any, pairs: Tensor) -> Tensor:  # B 2 -> B
        """The score of an edge between the nodes of each pair."""
        h = model(**self.model_inputs(model))
        y: Tensor = (h[pairs[:, 0]] * h[pairs[:, 1]]).sum(-1)
        return y if y.dtype == torch.float64 else y.float()

    @torch.no_grad()
    def predict(self, model: Any, pairs: Ints) -> Tensor:
        """The same in evaluation mode."""
        with evaluating(model):
            return self.outputs(model, torch.from_numpy(pairs).to(next(model.parameters()).device)).cpu()

    def split_outputs(self, model: Any, split: str, *, quick: bool = False) -> Tensor:  # N
        return self.predict(model, self._eval_pairs(split)[0])

    def score_outputs(self, y: Tensor, split: str, *, quick: bool = False) -> Score:
        targets = self._eval_pairs(split)[1]
        counts = {"edges": int(targets.sum()), "negative_pairs": int((~targets).sum())}
        loss = F.binary_cross_entropy_with_logits(y, torch.from_numpy(targets).float())
        metrics = {
            "loss": float(loss),
            "auc": classification.auc(targets, y.numpy()),
            "accuracy": classification.accuracy(targets, (y > 0).numpy()),
        }
        return Score(metrics, counts | {"primary_metric": self.primary_metric}, primary_metric=self.primary_metric)

    def _eval_pairs(self, split: str) -> tuple[Ints, Array]:
        """The edges of a split and as many fixed negative pairs; and which of them are edges."""
        edges = self.data.targets[self.data.parts[split]]
        negatives = self._sample_negatives(len(edges), rng_for(0, RngStream.LINK_EVAL_NEGATIVES, split == "test"))
        return np.concatenate([edges, negatives]), np.arange(len(edges) + len(negatives)) < len(edges)

    def baselines(self, split: str) -> dict[str, Metrics]:
        """The product of the degrees, and the number of shared neighbors."""
        if not self.data.train:
            return {}
        (pairs, targets), neighbors = self._eval_pairs(split), self._neighbors
        degrees = np.array([len(neighbors[a]) * len(neighbors[b]) for a, b in pairs.tolist()])
        shared = np.array([len(neighbors[a] & neighbors[b]) for a, b in pairs.tolist()])
        return {
            "product of degrees": {"auc": classification.auc(targets, degrees)},
            "shared neighbors": {"auc": classification.auc(targets, shared)},
        }

    @cached_property
    def _neighbors(self) -> list[set[int]]:
        neighbors: list[set[int]] = [set() for _ in self.data.tables.node_names]
        for a, b in self.data.message_edges(self._input_edges()).tolist():
            neighbors[a].add(b)
        return neighbors


def _pair_codes(pairs: Ints, n: int) -> Ints:
    """One integer per pair."""
    codes: Ints = pairs[:, 0] * n + pairs[:, 1]
    return codes
