"""Batches of pairs with a token budget. The pairs of a batch are a pure function of (seed, epoch, step).

Batches hold pairs of similar length, to keep padding small. Batch boundaries depend only on the lengths and are the
same in every epoch; the choice among pairs of equal length and the order of the batches are drawn anew.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import IGNORE, MIN_ROW_TOKENS, Array, Batch, Packing, pack_rows
from harken.data.rng import RngStream, once_per_epoch, rng_for
from harken.data.tokenizers.pairs import BPEDropout

from .source import PairData, Pairs
from .unknown_words import UnknownWordDraws


@dataclass(frozen=True, kw_only=True)
class PairBatch(Batch):
    """Decoder inputs (starting with the edge token), their targets (ending with it), and the sources."""

    fixed_size: ClassVar[bool] = False
    static_shape: ClassVar[bool] = False

    source: Tensor  # B Ls, ended and padded with the edge token
    lengths: Tensor  # B: tokens of each source, including the edge token
    index: Tensor  # B: index of the pair in its split

    def model_inputs(self) -> dict[str, object]:
        return {"source": self.source, "source_lengths": self.lengths}


class LengthBuckets:
    """Batches of pairs of similar length: as many padded pairs as fit into the budget of `rows` pairs of mean length.

    rows and tokens are the mean numbers of pairs and targets of a batch; padding is the fraction of unused positions.
    """

    def __init__(self, source: Array, target: Array, rows: int, seed: int) -> None:
        self.source, self.target, self.seed = source, target, seed  # lengths
        order = np.lexsort((source, target))
        self.boundaries = batch_boundaries(source[order], target[order], rows * float((source + target).mean()))
        self.steps = len(self.boundaries) - 1
        self.rows = max(1, round(len(order) / self.steps))
        self.tokens = max(1, round(int(target.sum()) / self.steps))
        counts, starts = np.diff(self.boundaries), self.boundaries[:-1]
        widths = sum(np.maximum.reduceat(lengths[order], starts) for lengths in (source, target))
        self.padding = 1 - float((source + target).sum() / (counts * widths).sum())

    @once_per_epoch
    def order(self, epoch: int) -> tuple[Array, Array]:
        """The order of the pairs and of the batches in this epoch."""
        rng = rng_for(self.seed, RngStream.BUCKET_ORDER, epoch)
        order = np.lexsort((rng.permutation(len(self.source)), self.source, self.target))
        return order, rng.permutation(self.steps)

    def picks(self, epoch: int, step: int) -> Array:
        """Indices of the pairs of a batch."""
        order, batch_order = self.order(epoch)
        return order[self.boundaries[batch_order[step]] : self.boundaries[batch_order[step] + 1]]


class PairBatches(LengthBuckets):
    """The training batches of one epoch."""

    def __init__(
        self,
        pairs: Pairs,
        rows: int,
        *,
        seed: int,
        dropouts: Sequence[BPEDropout | None] = (),
        unknown: UnknownWordDraws | None = None,
    ) -> None:
        super().__init__(pairs.source.lengths + 1, pairs.target.lengths + 1, rows, seed)  # with the edge token
        self.pairs, self.dropouts, self.unknown = pairs, dropouts, unknown

    def batch(self, epoch: int, step: int) -> PairBatch:
        indices = self.picks(epoch, step)
        sides = zip((self.pairs.source, self.pairs.target), self.dropouts or (None, None), strict=True)
        ids = [dropout.gather(indices, epoch) if dropout else side.gather(indices) for side, dropout in sides]
        ids = self.unknown.replace(ids[0], ids[1], epoch, step) if self.unknown else ids
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
    source = np.full((len(indices), source_lengths.max() + 1), pairs.source.edge)
    source[:, :-1][np.arange(source.shape[1] - 1) < source_lengths[:, None]] = source_ids
    tokens, targets = shift_targets(target_ids, target_lengths, target_lengths.max() + 1, pairs.target.edge)
    lengths, index = torch.from_numpy(source_lengths + 1), torch.from_numpy(indices)
    return PairBatch(tokens, targets, source=torch.from_numpy(source), lengths=lengths, index=index)


def shift_targets(ids: Array, lengths: Array, L: int, edge: int) -> tuple[Tensor, Tensor]:  # B L
    """Decoder inputs, which start with the edge token, and targets, which end with it, in rows of L tokens."""
    is_token, is_end = np.arange(L) < lengths[:, None], np.arange(L) == lengths[:, None]
    tokens, targets = np.full(is_end.shape, edge), np.where(is_end, edge, IGNORE)
    tokens[:, 1:][is_token[:, :-1]] = targets[is_token] = ids
    return torch.from_numpy(tokens), torch.from_numpy(targets)


@dataclass(frozen=True, kw_only=True)
class PackedPairBatch(Batch):
    """Rows of several pairs that do not attend to each other. Every batch has the same shape."""

    fixed_size: ClassVar[bool] = False
    static_shape: ClassVar[bool] = True

    source: Tensor  # B L
    source_pos: Tensor  # B L: position in its sentence
    source_doc: Tensor  # B L: index of the pair in the row; unused positions: the number of pairs

    def model_inputs(self) -> dict[str, object]:
        return {"source": self.source, "packed": (self.pos, self.doc, self.source_pos, self.source_doc)}


class PackedPairs(Packing):
    """The packed training batches of one epoch, several pairs per row. Source and target rows differ in length."""

    def __init__(self, pairs: Pairs, rows: int, *, seed: int, unknown: UnknownWordDraws | None = None) -> None:
        lengths = pairs.source.lengths + 1, pairs.target.lengths + 1  # including the edge token
        super().__init__(lengths, _row_lengths(*lengths), rows, seed=seed)
        self.pairs, self.unknown = pairs, unknown
        self.tokens = max(1, round(int(lengths[1].sum()) / self.steps))

    def batch(self, epoch: int, step: int) -> PackedPairBatch:
        indices, counts = self.picks(epoch, step)
        sides = [self.pairs.source, self.pairs.target]
        if self.unknown:
            source_ids, target_ids = (side.gather(indices) for side in sides)
            ids = self.unknown.replace(source_ids, target_ids, epoch, step)
            sides = [replace(s, ids=i, starts=np.append(0, np.cumsum(n))) for s, (i, n) in zip(sides, ids, strict=True)]
            indices = np.arange(len(indices))
        (source, source_pos, source_doc), (target, pos, doc) = (
            map(torch.from_numpy, pack_rows(side, indices, counts, width))
            for side, width in zip(sides, self.widths, strict=True)
        )
        targets = torch.where(doc < torch.from_numpy(counts)[:, None], target, IGNORE)
        tokens = target.roll(1, 1)  # the edge token that ends a target also starts the next
        return PackedPairBatch(tokens, targets, pos, doc, source=source, source_pos=source_pos, source_doc=source_doc)


def training_batches(data: PairData, rows: int, seed: int, *, packed: bool) -> PairBatches | PackedPairs:
    """The training batches of these pairs, with BPE-dropout and draws of unknown words as set."""
    settings, train = data.settings, data.train
    numbers = settings.unknown_words, settings.unknown_rate, seed
    unknown = UnknownWordDraws(train.source, train.target, *numbers) if settings.unknown_words else None
    if packed:
        return PackedPairs(train, rows, seed=seed, unknown=unknown)
    rate, options = settings.bpe_dropout, {"seed": seed, "max_length": settings.max_length}
    sides = zip(data.processor.sides, (train.source, train.target), strict=True)
    dropouts = [BPEDropout(t, side, rate, **options) if rate and t.kind == "bpe" else None for t, side in sides]
    return PairBatches(train, rows, seed=seed, dropouts=dropouts, unknown=unknown)


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
