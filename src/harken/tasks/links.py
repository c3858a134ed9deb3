"""Link prediction: whether two nodes share an edge.

The score of an edge is <h_i, h_j>; training uses the edges and as many random negative pairs. The model does not see
held-out edges, in training and in evaluation.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.core.similarity import precise
from harken.data.batch import Array
from harken.data.graphs.batch import GraphBatch, feature_tensor
from harken.data.graphs.files import Ints, SparseFeatures
from harken.data.graphs.processor import build_features
from harken.data.rng import RngStream, rng_for
from harken.errors import BadSetting
from harken.models.graph import GraphModel

from . import Baseline, Loss, Score, evaluating
from .baselines.ablation import MAX_COLUMNS, MAX_ROWS, Columns, ablate, row_losses
from .label_task import choose_metric, label_predictions
from .metrics import weighted
from .nodes import GraphTask

SAMPLING_ROUNDS = 8  # of negative pairs
VALID_REGRESSION = "regression on the pairs of the validation split"
ALL_COLUMNS = "all features"  # of a graph with many columns, or without names


class LinkTask(GraphTask):
    """Edges of one graph."""

    explains_mistakes = True

    def prepare(self, rows: int) -> None:
        if self.settings.class_weights != "none":
            raise BadSetting("task.class_weights: edges and pairs without one are equally frequent; remove it")
        self.primary_metric = choose_metric(self.settings.metric, ("auc", "accuracy"), "edges")
        both_directions = np.concatenate([self.data.targets, self.data.targets[:, ::-1]])  # the score is symmetric
        self.edge_codes = np.unique(self._pair_codes(both_directions))
        n_types = max(1, len(self.processor.node_types))
        self.node_groups = self.data.graph_ids * n_types + self.processor.node_type_ids(self.data.tables)

    def _pair_codes(self, pairs: Ints) -> Ints:
        """One integer per pair."""
        return pairs[:, 0] * self.n_nodes + pairs[:, 1]

    def _input_rows(self) -> Ints:
        """All edges except the held-out ones; all of them for a graph without training edges."""
        held_out = [n for indices in self.data.splits.values() for n in indices] if self.data.train else []
        edges = self.data.tables.edges if self.data.settings.directed else np.sort(self.data.tables.edges, 1)
        return np.flatnonzero(~np.isin(self._pair_codes(edges), self._pair_codes(self.data.targets[held_out])))

    def batch(self, epoch: int, step: int) -> GraphBatch:
        edges = self.data.targets[self.data.train]
        negatives = self._sample_negatives(len(edges), rng_for(self.seed, RngStream.LINK_NEGATIVES, epoch))
        targets = torch.cat([torch.ones(len(edges)), torch.zeros(len(negatives))])
        return GraphBatch(torch.from_numpy(np.concatenate([edges, negatives])), targets, n_nodes=self.n_nodes)

    def _sample_negatives(self, count: int, rng: np.random.Generator) -> Ints:
        """Random node pairs of one graph without an edge; fewer than `count` if the graph has few of them."""
        draw = self._draw_like_edges if self.processor.node_types else self._draw_pairs
        negatives = np.empty((0, 2), np.int64)
        for _ in range(SAMPLING_ROUNDS):
            pairs = draw(2 * count, rng)
            valid = (pairs[:, 0] != pairs[:, 1]) & ~np.isin(self._pair_codes(pairs), self.edge_codes)
            negatives = np.concatenate([negatives, pairs[valid]])[:count]
            if len(negatives) == count:
                break
        return negatives

    def _draw_pairs(self, count: int, rng: np.random.Generator) -> Ints:
        """Random nodes, each with a random node of the same graph."""
        graph_ids, pairs = self.data.graph_ids, rng.integers(self.n_nodes, size=(count, 2))
        if graph_ids[-1]:
            graph = graph_ids[pairs[:, 0]]
            pairs[:, 1] = rng.integers(np.searchsorted(graph_ids, graph), np.searchsorted(graph_ids, graph, "right"))
        return pairs

    def _draw_like_edges(self, count: int, rng: np.random.Generator) -> Ints:
        """Random nodes of the graph and the types of a random edge: the types do not tell a negative pair from it."""
        edges, order = self.data.targets[rng.integers(len(self.data.targets), size=count)], np.argsort(self.node_groups)
        ends, groups = self.node_groups[edges], self.node_groups[order]
        return order[rng.integers(np.searchsorted(groups, ends), np.searchsorted(groups, ends, "right"))]

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
        for a, b in self.data.message_edges(self.data.tables.edges[self._input_rows()]).tolist():
            if a != b:
                neighbors[a].add(b)
        return neighbors

    def _features_of(self, pairs: Ints) -> tuple[Tensor, Tensor]:  # P 2 -> P F, P F
        """The features of both ends: standardized columns, or rows of length 1 if they are sparse."""
        x = build_features(self.data.tables, "file")
        if isinstance(x, SparseFeatures):
            rows = feature_tensor(x, self.n_nodes).index_select(0, torch.from_numpy(pairs.reshape(-1))).to_dense()
            rows = F.normalize(rows.double())
        else:
            rows = torch.from_numpy((x[pairs.reshape(-1)] - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)).double()
        u, v = rows.unflatten(0, (-1, 2)).unbind(1)
        return u, v

    def ablation(self) -> dict[str, object]:
        """Columns without which a regression on the pairs of the validation split is not worse.

        It reads the degrees and the shared neighbors, and of each column the product and the difference of both ends.
        """
        if not self.data.train or "valid" not in self.data.splits or self.processor.feature_source != "file":
            return {}
        pairs, targets = self._eval_pairs("valid")
        shuffled = np.random.default_rng(0).permutation(len(pairs))[:MAX_ROWS]
        pairs, targets = pairs[shuffled], targets[shuffled]
        known = [(len(self._neighbors[a] & self._neighbors[b]), len(self._neighbors[a]) * len(self._neighbors[b]))
                 for a, b in pairs.tolist()]  # fmt: skip
        X, features = [torch.from_numpy(np.log1p(np.array(known, np.float64)))], dict[str, tuple[int, ...]]()
        u, v = self._features_of(pairs)
        names = self.data.tables.feature_names if u.shape[1] <= MAX_COLUMNS else []
        groups = {name: slice(n, n + 1) for n, name in enumerate(names)} or {ALL_COLUMNS: slice(0, u.shape[1])}
        for n, (name, group) in enumerate(groups.items()):
            difference = (u - v)[:, group]
            X.append(torch.stack([(u * v)[:, group].sum(1), difference.square().sum(1).sqrt()], 1))
            features[name] = 2 + 2 * n, 3 + 2 * n
        columns = Columns(torch.cat(X, 1), features, "data.features", required=False)
        outcome = ablate(columns, 2, row_losses("label", targets))
        if outcome is None:
            return {}
        keys = ("columns", "remaining", "loss", "loss_without", "clear")
        about: dict[str, object] = {"setting": columns.setting, "baseline": VALID_REGRESSION}
        return about | dict(zip(keys, outcome, strict=True))
