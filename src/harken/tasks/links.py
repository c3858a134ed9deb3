"""Say whether two nodes have an edge: y = <h_i, h_j>, learned from the edges of a graph and as many drawn pairs.

Held-out edges are not looked along, in training as in judgement.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.data.batch import dice
from harken.data.graphs.batch import GraphBatch
from harken.data.graphs.files import Ints
from harken.errors import BadSetting

from . import Loss, Score
from .metrics import classification
from .nodes import OnGraph, Task

if TYPE_CHECKING:
    from harken.data.graphs.source import GraphData

MEASURES = ("auc", "accuracy", "loss")


class Links(OnGraph):
    """Edges of one graph."""

    def __init__(self, task: Task, data: "GraphData", shape: Any, *, batch: int, seed: int) -> None:
        super().__init__(task, data, shape, batch=batch, seed=seed)
        self.by = "auc" if task.metric == "auto" else task.metric
        if self.by not in MEASURES:
            way = f"take one of {', '.join(MEASURES)}"
            raise BadSetting(f"task.metric={self.by}: does not fit, as the data asks for edges; {way}")
        n = len(data.raw.names)
        self.known = np.unique(
            _codes(np.concatenate([data.asked, data.asked[:, ::-1]]), n)
        )  # the score has no direction

    def _heard(self) -> Ints:
        """All edges but those held out; of another graph, all."""
        held = [n for some in self.data.splits.values() for n in some] if self.data.train else []
        return np.delete(self.data.asked, held, 0)

    def batch(self, epoch: int, step: int) -> GraphBatch:
        pairs = self.data.asked[self.data.train]
        drawn = self._drawn(len(pairs), dice(self.seed, 7, epoch))
        targets = torch.cat([torch.ones(len(pairs)), torch.zeros(len(drawn))])
        return GraphBatch(torch.from_numpy(np.concatenate([pairs, drawn])), targets, nodes=len(self.data.raw.names))

    def _drawn(self, many: int, rng: np.random.Generator) -> Ints:
        """Pairs of one graph without an edge, as many as can be drawn in a few rounds."""
        n, of, found = len(self.data.raw.names), self.data.of, np.empty((0, 2), np.int64)
        for _ in range(8):
            pairs = rng.integers(n, size=(2 * many, 2))
            if of[-1]:
                own = of[pairs[:, 0]]
                pairs[:, 1] = rng.integers(np.searchsorted(of, own), np.searchsorted(of, own, "right"))
            free = (pairs[:, 0] != pairs[:, 1]) & ~np.isin(_codes(pairs, n), self.known)
            found = np.concatenate([found, pairs[free]])[:many]
            if len(found) == many:
                break
        return found

    def loss(self, model: Any, batch: GraphBatch, start: int = 0) -> Loss:
        y = self.says(model, batch.tokens)
        told = F.binary_cross_entropy_with_logits(y, batch.targets.to(y.dtype), reduction="sum")
        return self.pulled(model, told, batch)

    def says(self, model: Any, pairs: Tensor) -> Tensor:  # B 2 -> B
        """The score of an edge between each of these pairs."""
        h = model(**self.told(model))
        y: Tensor = (h[pairs[:, 0]] * h[pairs[:, 1]]).sum(-1)
        return y if y.dtype == torch.float64 else y.float()

    @torch.no_grad()
    def answers(self, model: Any, pairs: Ints) -> Tensor:
        """The same in judgement."""
        was, device = model.training, next(model.parameters()).device
        model.eval()
        y = self.says(model, torch.from_numpy(pairs).to(device)).cpu()
        model.train(was)
        return y

    def outputs_of(self, model: Any, split: str, *, quick: bool = False) -> Tensor:  # N
        return self.answers(model, self._judged(split)[0])

    def judged_of(self, y: Tensor, split: str, *, quick: bool = False) -> Score:
        gold = self._judged(split)[1]
        protocol = {"edges": int(gold.sum()), "drawn pairs": int((~gold).sum()), "judged_by": self.by}
        return Score(_metrics(y, gold), protocol, by=self.by)

    def _judged(self, split: str) -> tuple[Ints, Any]:
        """The edges of a split, and as many pairs without one, always the same."""
        pairs = self.data.asked[self.data.parts[split]]
        drawn = self._drawn(len(pairs), dice(0, 8, split == "test"))
        return np.concatenate([pairs, drawn]), np.arange(len(pairs) + len(drawn)) < len(pairs)

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        """How many edges both ends have, and how many neighbours they share."""
        if not self.data.train:
            return {}
        pairs, gold = self._judged(split)
        near = self._near
        degree = np.array([len(near[a]) * len(near[b]) for a, b in pairs.tolist()])
        shared = np.array([len(near[a] & near[b]) for a, b in pairs.tolist()])
        return {
            "product of degrees": {"auc": classification.auc(gold, degree)},
            "shared neighbours": {"auc": classification.auc(gold, shared)},
        }

    @cached_property
    def _near(self) -> list[set[int]]:
        near: list[set[int]] = [set() for _ in self.data.raw.names]
        for a, b in self.data.heard(self._heard()).tolist():
            near[a].add(b)
        return near


def _codes(pairs: Ints, n: int) -> Ints:
    codes: Ints = pairs[:, 0] * n + pairs[:, 1]
    return codes


def _metrics(y: Tensor, gold: Any) -> dict[str, float]:
    loss = F.binary_cross_entropy_with_logits(y, torch.from_numpy(gold).float())
    return {
        "loss": float(loss),
        "auc": classification.auc(gold, y.numpy()),
        "accuracy": classification.accuracy(gold, (y > 0).numpy()),
    }
