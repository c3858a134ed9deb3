"""Batches of captions with their pictures, all of one shape: a pure function of (seed, epoch, step)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import IGNORE, Batch, dice
from harken.data.images.files import Numbers

from .source import Captioned


@dataclass(frozen=True, kw_only=True)
class CaptionBatch(Batch):
    """Captions that begin with the edge (and, as answers, end with it), and the pictures they are told from."""

    source: Tensor  # B C S S, bytes

    def told(self) -> dict[str, Any]:
        return {"source": self.source}


def laid(part: Captioned, picks: Numbers, L: int) -> CaptionBatch:
    """The captions of these numbers in rows of L."""
    ids, lengths = part.target.gather(picks)
    real = np.arange(L) < lengths[:, None]
    tokens = np.full((len(picks), L), part.target.edge)
    answers = np.where(np.arange(L) == lengths[:, None], part.target.edge, IGNORE)
    answers[real] = ids
    tokens[:, 1:][real[:, :-1]] = ids
    pixels = part.pixels[torch.from_numpy(part.of[picks])]
    return CaptionBatch(torch.from_numpy(tokens), torch.from_numpy(answers), source=pixels)


class CaptionBatches:
    """The training batches: every epoch in another order."""

    def __init__(self, part: Captioned, rows: int, *, seed: int) -> None:
        self.part, self.seed, self.rows = part, seed, min(rows, len(part.of))
        self.steps, self.L = len(part.of) // self.rows, int(part.target.lengths.max()) + 1
        self.tokens = max(1, round(float((part.target.lengths + 1).mean()) * self.rows))
        self.padding = 1 - float((part.target.lengths + 1).mean() / self.L)
        self._epoch: tuple[int, Numbers] = (-1, part.of)

    def batch(self, epoch: int, step: int) -> CaptionBatch:
        if self._epoch[0] != epoch:
            self._epoch = epoch, dice(self.seed, 5, epoch).permutation(len(self.part.of))
        return laid(self.part, self._epoch[1][step * self.rows : (step + 1) * self.rows], self.L)


def scoring(part: Captioned, rows: int, most: int) -> Iterator[CaptionBatch]:
    """The captions of the first pictures of a split."""
    every, L = np.flatnonzero(part.of < most), int(part.target.lengths.max()) + 1
    return (laid(part, every[n : n + rows], L) for n in range(0, len(every), rows))
