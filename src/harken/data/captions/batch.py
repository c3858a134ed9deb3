"""Batches of captions with their images, all of one shape: a pure function of (seed, epoch, step)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import IGNORE, Batch
from harken.data.images.files import Array
from harken.data.rng import RngStream, rng_for

from .source import CaptionSplit


@dataclass(frozen=True, kw_only=True)
class CaptionBatch(Batch):
    """Decoder inputs (starting with the edge token), their targets (ending with it), and the images."""

    source: Tensor  # B C S S, uint8

    def model_inputs(self) -> dict[str, Any]:
        return {"source": self.source}


def collate_captions(part: CaptionSplit, indices: Array, L: int) -> CaptionBatch:
    """These captions in rows of L tokens."""
    ids, lengths = part.target.gather(indices)
    mask = np.arange(L) < lengths[:, None]
    tokens = np.full((len(indices), L), part.target.edge)
    targets = np.where(np.arange(L) == lengths[:, None], part.target.edge, IGNORE)
    targets[mask] = ids
    tokens[:, 1:][mask[:, :-1]] = ids
    pixels = part.pixels[torch.from_numpy(part.image_index[indices])]
    return CaptionBatch(torch.from_numpy(tokens), torch.from_numpy(targets), source=pixels)


class CaptionBatches:
    """The training batches, shuffled in every epoch."""

    def __init__(self, part: CaptionSplit, rows: int, *, seed: int) -> None:
        n_captions, lengths = len(part.image_index), part.target.lengths + 1
        self.part, self.seed, self.rows = part, seed, min(rows, n_captions)
        self.steps, self.L = n_captions // self.rows, int(lengths.max())
        self.tokens = max(1, round(float(lengths.mean()) * self.rows))
        self.padding = 1 - float(lengths.mean() / self.L)
        self._epoch: tuple[int, Array] = (-1, part.image_index)

    def batch(self, epoch: int, step: int) -> CaptionBatch:
        if self._epoch[0] != epoch:
            self._epoch = (
                epoch,
                rng_for(self.seed, RngStream.CAPTION_ORDER, epoch).permutation(len(self.part.image_index)),
            )
        return collate_captions(self.part, self._epoch[1][step * self.rows : (step + 1) * self.rows], self.L)


def eval_batches(part: CaptionSplit, rows: int, max_images: int) -> Iterator[CaptionBatch]:
    """The captions of the first images of a split."""
    indices, L = np.flatnonzero(part.image_index < max_images), int(part.target.lengths.max()) + 1
    return (collate_captions(part, indices[n : n + rows], L) for n in range(0, len(indices), rows))
