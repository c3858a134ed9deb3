"""Batches of pairs by a budget of tokens. Which pairs stand in a batch is a pure function of (seed, epoch, step).

Pairs of like length stand together, so that little is padded. Where a batch ends depends on the lengths alone and is
the same in every epoch; which of the equally long pairs meet, and in which order the batches come, is drawn anew.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import IGNORE, Batch, Tokens, dice
from harken.data.packing import PLACES, Packing, laid
from harken.data.tokenizers.bpe_dropout import Splitter

from .source import Pairs


@dataclass(frozen=True, kw_only=True)
class PairBatch(Batch):
    """Targets that begin with the edge (and, as answers, end with it), and the sources they are told from."""

    even: ClassVar[bool] = False
    steady: ClassVar[bool] = False

    source: Tensor  # B Ls, the edge at its end and as padding
    lengths: Tensor  # B: tokens of each source, its edge with them
    index: Tensor  # B: which pair of the split

    def told(self) -> dict[str, Any]:
        return {"source": self.source, "source_lengths": self.lengths}


class PairBatches:
    """The training batches of one epoch: as many pairs as fit, padded, into the budget of `rows` pairs of mean length.

    rows and tokens are the means of a batch: its pairs, and the targets it asks; padding is the share of places that
    hold no token.
    """

    def __init__(self, pairs: Pairs, rows: int, *, seed: int, splitters: Sequence[Splitter | None] = ()) -> None:
        self.pairs, self.seed, self.splitters = pairs, seed, splitters
        self.source, self.target = pairs.source.lengths + 1, pairs.target.lengths + 1  # with the edge
        order = np.lexsort((self.source, self.target))
        self.cuts = cuts(self.source[order], self.target[order], rows * float((self.source + self.target).mean()))
        self.steps = len(self.cuts) - 1
        self.rows = max(1, round(len(pairs) / self.steps))
        self.tokens = max(1, round(int(self.target.sum()) / self.steps))
        counts, starts = np.diff(self.cuts), self.cuts[:-1]
        widths = sum(np.maximum.reduceat(lengths[order], starts) for lengths in (self.source, self.target))
        self.padding = 1 - float((self.source + self.target).sum() / (counts * widths).sum())
        self._epoch: tuple[int, Tokens, Tokens] = (-1, order, order)

    def _order(self, epoch: int) -> tuple[Tokens, Tokens]:
        """The pairs in this epoch's order, and the order of the batches."""
        if self._epoch[0] != epoch:
            rng = dice(self.seed, 4, epoch)
            order = np.lexsort((rng.permutation(len(self.pairs)), self.source, self.target))
            self._epoch = (epoch, order, rng.permutation(self.steps))
        return self._epoch[1:]

    def batch(self, epoch: int, step: int) -> PairBatch:
        order, turns = self._order(epoch)
        a, b = self.cuts[turns[step]], self.cuts[turns[step] + 1]
        picks = order[a:b]
        both = zip((self.pairs.source, self.pairs.target), self.splitters or (None, None), strict=True)
        return padded(self.pairs, picks, [by.gather(picks, epoch) if by else side.gather(picks) for side, by in both])


def cuts(source: Tokens, target: Tokens, budget: float) -> Tokens:
    """Where the batches of the sorted pairs begin, and the end of the last: rows x longest stays within the budget."""
    cuts = [0]
    while (a := cuts[-1]) < len(target):
        b = a + max(1, int(budget // (target[a] + 1)))  # no more can fit
        widest = np.maximum.accumulate(source[a:b]) + target[a:b]
        cost = widest * np.arange(1, len(widest) + 1)
        cuts.append(a + max(1, int(np.searchsorted(cost, budget, side="right"))))
    return np.array(cuts)


def padded(pairs: Pairs, picks: Tokens, sides: Sequence[tuple[Tokens, Tokens]]) -> PairBatch:
    (source, long), (target, wide) = sides
    rows, real = len(picks), [np.arange(lengths.max(initial=0)) < lengths[:, None] for lengths in (long, wide)]
    memory = np.full((rows, long.max() + 1), pairs.source.edge)
    memory[:, :-1][real[0]] = source
    tokens = np.full((rows, wide.max() + 1), pairs.target.edge)
    tokens[:, 1:][real[1]] = target
    answers = np.full_like(tokens, IGNORE)
    answers[:, :-1][real[1]] = target
    answers[np.arange(rows), wide] = pairs.target.edge
    return PairBatch(
        torch.from_numpy(tokens),
        torch.from_numpy(answers),
        source=torch.from_numpy(memory),
        lengths=torch.from_numpy(long + 1),
        index=torch.from_numpy(picks),
    )


@dataclass(frozen=True, kw_only=True)
class PackedBatch(Batch):
    """Rows of several pairs, which do not see each other. Every batch has the same shape."""

    even: ClassVar[bool] = False
    steady: ClassVar[bool] = True

    source: Tensor  # B L
    source_pos: Tensor  # B L: place in its sentence
    source_doc: Tensor  # B L: which pair of the row; where the row ends early, the number after its last

    def told(self) -> dict[str, Any]:
        return {"source": self.source, "packed": (self.pos, self.doc, self.source_pos, self.source_doc)}


class PackedPairs:
    """The training batches of one epoch, packed: several pairs stand in a row.

    Its two sides are as wide as their sentences are long.
    """

    def __init__(self, pairs: Pairs, rows: int, *, seed: int) -> None:
        self.pairs = pairs
        lengths = pairs.source.lengths + 1, pairs.target.lengths + 1  # with the edge
        self.packing = Packing(lengths, _widths(*lengths), rows, seed=seed)
        self.rows, self.steps, self.padding = self.packing.rows, self.packing.steps, self.packing.padding
        self.tokens = max(1, round(int(lengths[1].sum()) / self.steps))

    def batch(self, epoch: int, step: int) -> PackedBatch:
        picks, counts = self.packing.picks(epoch, step)
        source, source_pos, source_doc = laid(self.pairs.source, picks, counts, self.packing.wide[0])
        target, pos, doc = laid(self.pairs.target, picks, counts, self.packing.wide[1])
        answers = np.where(doc < counts[:, None], target, IGNORE)
        tokens = np.roll(target, 1, 1)  # the edge that ends a target as an answer begins the next as a token
        asked = map(torch.from_numpy, (tokens, answers, pos, doc))
        told = {"source": source, "source_pos": source_pos, "source_doc": source_doc}
        return PackedBatch(*asked, **{name: torch.from_numpy(x) for name, x in told.items()})  # type: ignore[arg-type]


def _widths(source: Tokens, target: Tokens) -> tuple[int, int]:
    """Of the two sides of a packed row: the longest sentence fits, and in the mean both are full at once."""
    rows = PLACES / max(source.mean(), target.mean())
    wide, high = (-(-int(np.ceil(max(n.max(), rows * n.mean()))) // 8) * 8 for n in (source, target))
    return wide, high


def scoring(pairs: Pairs, rows: int, most: int | None = None) -> Iterator[PairBatch]:
    """The first pairs of a split (or all), the shortest first, each once; `index` says where it stands in the split."""
    order = np.lexsort((pairs.source.lengths[:most], pairs.target.lengths[:most]))
    for a in range(0, len(order), rows):
        picks = order[a : a + rows]
        yield padded(pairs, picks, [side.gather(picks) for side in (pairs.source, pairs.target)])
