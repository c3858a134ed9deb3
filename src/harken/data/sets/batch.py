"""Batches of sets, of like sizes where sizes differ: a pure function of (seed, epoch, step)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import Batch, dice

from .source import Floats, Sets


@dataclass(frozen=True, kw_only=True)
class SetBatch(Batch):
    """Sets in `tokens` (B L F, 0 behind the last row of a set) and what is said of each in `targets` (B, or B 1)."""

    lengths: Tensor | None  # B; None: all are as large

    @property
    def steady(self) -> bool:
        return self.lengths is None

    @property
    def count(self) -> int:
        return len(self.tokens)

    @property
    def size(self) -> int:
        return self.tokens.shape[0] * self.tokens.shape[1] if self.lengths is None else int(self.lengths.sum())

    def told(self) -> dict[str, Any]:
        return {"lengths": self.lengths}


def padded(sets: Sets, picks: Floats) -> SetBatch:
    """These sets, one a row."""
    lengths = sets.lengths[picks]
    tokens = torch.zeros(len(picks), int(lengths.max()), sets.rows.shape[1])
    for row, (start, n) in enumerate(zip(sets.starts[picks], lengths, strict=True)):
        tokens[row, :n] = sets.rows[start : start + n]
    ends = torch.from_numpy(lengths) if lengths.min() < lengths.max() else None
    return SetBatch(tokens, torch.from_numpy(sets.targets[picks]), lengths=ends)


class SetBatches:
    """The training batches of one epoch: as many sets in each."""

    def __init__(self, sets: Sets, rows: int, *, seed: int) -> None:
        self.sets, self.seed, self.rows = sets, seed, min(rows, len(sets))
        self.steps = len(sets) // self.rows
        self.alike = bool(sets.lengths.min() == sets.lengths.max())
        self._epoch: tuple[int, Floats] = (-1, sets.lengths)

    def batch(self, epoch: int, step: int) -> SetBatch:
        if self._epoch[0] != epoch:
            rng = dice(self.seed, 4, epoch)
            order = rng.permutation(len(self.sets))[: self.steps * self.rows]
            order = order if self.alike else order[np.argsort(self.sets.lengths[order], kind="stable")]
            self._epoch = epoch, order.reshape(self.steps, self.rows)[rng.permutation(self.steps)]
        return padded(self.sets, self._epoch[1][step])


def scoring(sets: Sets, rows: int) -> Iterator[tuple[Floats, SetBatch]]:
    """Each set once, the smallest first, about so many rows at a time: which sets they are, and their batch."""
    order = np.argsort(sets.lengths, kind="stable")
    while len(order):
        many = max(1, int(np.searchsorted(sets.lengths[order] * np.arange(1, len(order) + 1), rows, "right")))
        yield order[:many], padded(sets, order[:many])
        order = order[many:]
