"""Batches of sets, bucketed by size: a pure function of (seed, epoch, step)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import Batch
from harken.data.rng import RngStream, rng_for

from .source import Floats, Sets


@dataclass(frozen=True, kw_only=True)
class SetBatch(Batch):
    """Zero-padded sets in `tokens` (B L F); `targets` has label ids (B) or numbers (B 1)."""

    lengths: Tensor | None  # B; None: all sets have the same size

    @property
    def static_shape(self) -> bool:
        return self.lengths is None

    @property
    def n_targets(self) -> int:
        return len(self.tokens)

    @property
    def n_tokens(self) -> int:
        return self.tokens.shape[0] * self.tokens.shape[1] if self.lengths is None else int(self.lengths.sum())

    def model_inputs(self) -> dict[str, Any]:
        return {"lengths": self.lengths}


def pad_sets(sets: Sets, indices: Floats) -> SetBatch:
    """A padded batch of the selected sets."""
    lengths = sets.lengths[indices]
    tokens = torch.zeros(len(indices), int(lengths.max()), sets.rows.shape[1])
    for row, (start, n) in enumerate(zip(sets.starts[indices], lengths, strict=True)):
        tokens[row, :n] = sets.rows[start : start + n]
    batch_lengths = torch.from_numpy(lengths) if lengths.min() < lengths.max() else None
    return SetBatch(tokens, torch.from_numpy(sets.targets[indices]), lengths=batch_lengths)


class SetBatches:
    """Training batches with a fixed number of sets."""

    def __init__(self, sets: Sets, rows: int, *, seed: int) -> None:
        self.sets, self.seed, self.rows = sets, seed, min(rows, len(sets))
        self.steps = len(sets) // self.rows
        self.equal_sizes = bool(sets.lengths.min() == sets.lengths.max())
        self._epoch: tuple[int, Floats] = (-1, sets.lengths)

    def batch(self, epoch: int, step: int) -> SetBatch:
        if self._epoch[0] != epoch:
            rng = rng_for(self.seed, RngStream.BUCKET_ORDER, epoch)
            order = rng.permutation(len(self.sets))[: self.steps * self.rows]
            order = order if self.equal_sizes else order[np.argsort(self.sets.lengths[order], kind="stable")]
            self._epoch = epoch, order.reshape(self.steps, self.rows)[rng.permutation(self.steps)]
        return pad_sets(self.sets, self._epoch[1][step])


def eval_batches(sets: Sets, max_rows: int) -> Iterator[tuple[Floats, SetBatch]]:
    """All sets once, smallest first, with at most `max_rows` padded rows per batch: their indices and the batch."""
    order = np.argsort(sets.lengths, kind="stable")
    while len(order):
        padded_rows = sets.lengths[order] * np.arange(1, len(order) + 1)
        n_sets = max(1, int(np.searchsorted(padded_rows, max_rows, "right")))
        yield order[:n_sets], pad_sets(sets, order[:n_sets])
        order = order[n_sets:]
