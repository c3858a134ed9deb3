"""Batches of pairs with a token budget. The pairs of a batch are a pure function of (seed, epoch, step).

Batches hold pairs of similar length, to keep padding small. Batch boundaries depend only on the lengths and are the
same in every epoch; the choice among pairs of equal length and the order of the batches are drawn anew.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import IGNORE, Array, Batch
from harken.data.packing import MIN_ROW_TOKENS, Packing, pack_rows
from harken.data.rng import RngStream, rng_for
from harken.data.tokenizers.bpe_dropout import BPEDropout

from .source import Pairs


@dataclass(frozen=True, kw_only=True)
class PairBatch(Batch):
    """Decoder inputs (starting with the edge token), their targets (ending with it), and the sources."""

    fixed_size: ClassVar[bool] = False
    static_shape: ClassVar[bool] = False

    source: Tensor  # B Ls, ended and padded with the edge token
    lengths: Tensor  # B: tokens of each source, including the edge token
    index: Tensor  # B: index of the pair in its split

    def model_inputs(self) -> dict[str, Any]:
        return {"source": self.source, "source_lengths": self.lengths}


class PairBatches:
    """The training batches of one epoch: as many padded pairs as fit into the budget of `rows` pairs of mean length.

    rows and tokens are the mean numbers of pairs and targets of a batch; padding is the fraction of unused positions.
    """

    def __init__(self, pairs: Pairs, rows: int, *, seed: int, dropouts: Sequence[BPEDropout | None] = ()) -> None:
        self.pairs, self.seed, self.dropouts = pairs, seed, dropouts
        self.source, self.target = pairs.source.lengths + 1, pairs.target.lengths + 1  # including the edge token
        order = np.lexsort((self.source, self.target))
        budget = rows * float((self.source + self.target).mean())
        self.boundaries = batch_boundaries(self.source[order], self.target[order], budget)
        self.steps = len(self.boundaries) - 1
        self.rows = max(1, round(len(pairs) / self.steps))
        self.tokens = max(1, round(int(self.target.sum()) / self.steps))
        counts, starts = np.diff(self.boundaries), self.boundaries[:-1]
        widths = sum(np.maximum.reduceat(lengths[order], starts) for lengths in (self.source, self.target))
        self.padding = 1 - float((self.source + self.target).sum() / (counts * widths).sum())
        self._epoch: tuple[int, Array, Array] = (-1, order, order)

    def _order(self, epoch: int) -> tuple[Array, Array]:
        """The order of the pairs and of the batches in this epoch."""
        if self._epoch[0] != epoch:
            rng = rng_for(self.seed, RngStream.BUCKET_ORDER, epoch)
            order = np.lexsort((rng.permutation(len(self.pairs)), self.source, self.target))
            self._epoch = (epoch, order, rng.permutation(self.steps))
        return self._epoch[1:]

    def batch(self, epoch: int, step: int) -> PairBatch:
        order, batch_order = self._order(epoch)
        start, stop = self.boundaries[batch_order[step]], self.boundaries[batch_order[step] + 1]
        indices = order[start:stop]
        sides = zip((self.pairs.source, self.pairs.target), self.dropouts or (None, None), strict=True)
        ids = [dropout.gather(indices, epoch) if dropout else side.gather(indices) for side, dropout in sides]
        return collate_pairs(self.pairs, indices, ids)


def batch_boundaries(source: Array, target: Array, budget: float) -> Array:
    """The start of each batch of the sorted pairs, and the end of the last: rows x maximum length <= budget."""
    boundaries = [0]
    while (start := boundaries[-1]) < len(target):
        stop = start + max(1, int(budget // (target[start] + 1)))  # upper bound
        widths = np.maximum.accumulate(source[start:stop]) + target[start:stop]
        cost = widths * np.arange(1, len(widths) + 1)
        boundaries.append(start + max(1, int(np.searchsorted(cost, budget, side="right"))))
    return np.array(boundaries)


def collate_pairs(pairs: Pairs, indices: Array, sides: Sequence[tuple[Array, Array]]) -> PairBatch:
    """A padded batch from the concatenated ids and the lengths of both sides."""
    (source_ids, source_lengths), (target_ids, target_lengths) = sides
    B = len(indices)
    source_mask, target_mask = (
        np.arange(lengths.max(initial=0)) < lengths[:, None] for lengths in (source_lengths, target_lengths)
    )
    source = np.full((B, source_lengths.max() + 1), pairs.source.edge)
    source[:, :-1][source_mask] = source_ids
    tokens = np.full((B, target_lengths.max() + 1), pairs.target.edge)
    tokens[:, 1:][target_mask] = target_ids
    targets = np.full_like(tokens, IGNORE)
    targets[:, :-1][target_mask] = target_ids
    targets[np.arange(B), target_lengths] = pairs.target.edge
    return PairBatch(
        torch.from_numpy(tokens),
        torch.from_numpy(targets),
        source=torch.from_numpy(source),
        lengths=torch.from_numpy(source_lengths + 1),
        index=torch.from_numpy(indices),
    )


@dataclass(frozen=True, kw_only=True)
class PackedPairBatch(Batch):
    """Rows of several pairs that do not attend to each other. Every batch has the same shape."""

    fixed_size: ClassVar[bool] = False
    static_shape: ClassVar[bool] = True

    source: Tensor  # B L
    source_pos: Tensor  # B L: position in its sentence
    source_doc: Tensor  # B L: index of the pair in the row; unused positions: the number of pairs

    def model_inputs(self) -> dict[str, Any]:
        return {"source": self.source, "packed": (self.pos, self.doc, self.source_pos, self.source_doc)}


class PackedPairs:
    """The packed training batches of one epoch, several pairs per row. Source and target rows differ in length."""

    def __init__(self, pairs: Pairs, rows: int, *, seed: int) -> None:
        self.pairs = pairs
        lengths = pairs.source.lengths + 1, pairs.target.lengths + 1  # including the edge token
        self.packing = Packing(lengths, _row_lengths(*lengths), rows, seed=seed)
        self.rows, self.steps, self.padding = self.packing.rows, self.packing.steps, self.packing.padding
        self.tokens = max(1, round(int(lengths[1].sum()) / self.steps))

    def batch(self, epoch: int, step: int) -> PackedPairBatch:
        indices, counts = self.packing.picks(epoch, step)
        source, source_pos, source_doc = pack_rows(self.pairs.source, indices, counts, self.packing.widths[0])
        target, pos, doc = pack_rows(self.pairs.target, indices, counts, self.packing.widths[1])
        targets = np.where(doc < counts[:, None], target, IGNORE)
        tokens = np.roll(target, 1, 1)  # the edge token that ends a target also starts the next
        return PackedPairBatch(
            torch.from_numpy(tokens),
            torch.from_numpy(targets),
            torch.from_numpy(pos),
            torch.from_numpy(doc),
            source=torch.from_numpy(source),
            source_pos=torch.from_numpy(source_pos),
            source_doc=torch.from_numpy(source_doc),
        )


def _row_lengths(source: Array, target: Array) -> tuple[int, int]:
    """Lengths of a packed row on both sides: the longest sentence fits, and on average both sides fill up together."""
    n_pairs = MIN_ROW_TOKENS / max(source.mean(), target.mean())
    source_len, target_len = (
        -(-int(np.ceil(max(lengths.max(), n_pairs * lengths.mean()))) // 8) * 8 for lengths in (source, target)
    )
    return source_len, target_len


def eval_batches(pairs: Pairs, rows: int, max_pairs: int | None = None) -> Iterator[PairBatch]:
    """The first pairs of a split (default: all), sorted by length, each once; `index` is the index in the split."""
    order = np.lexsort((pairs.source.lengths[:max_pairs], pairs.target.lengths[:max_pairs]))
    for start in range(0, len(order), rows):
        indices = order[start : start + rows]
        yield collate_pairs(pairs, indices, [side.gather(indices) for side in (pairs.source, pairs.target)])
