"""Batches of texts with labels: of each text, or of each token. A pure function of (seed, epoch, step).

Packed, several texts stand in a row and nothing is padded; a model that reads on across texts gets one a row, padded.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import IGNORE, Batch, Tokens, dice
from harken.data.packing import PLACES, Packing, laid
from harken.data.pairs.batch import cuts
from harken.data.tokenizers.pairs import Side


def evenly(total: int, many: int) -> Tokens:
    """The numbers of so many of all, from everywhere: a file may stand in the order of its labels, or of its themes."""
    return np.linspace(0, total - 1, min(many, total)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Texts:
    """Encoded texts with what is asked of them. `side` has the marks in them, but the last, its edge.

    Targets are whole numbers (IGNORE: not asked) or, of amounts and of several labels at once, float32 (NaN).
    """

    side: Side
    second: Tokens  # N: the place where the second of two texts begins; of one, its length
    targets: Tokens  # N, or N C; with each_token one for each of side.ids
    each_token: bool = False

    def __len__(self) -> int:
        return len(self.side)

    def some(self, picks: Tokens) -> "Texts":
        """These of them."""
        ids, lengths = self.side.gather(picks)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        targets = replace(self.side, ids=self.targets).gather(picks)[0] if self.each_token else self.targets[picks]
        return replace(
            self, side=replace(self.side, ids=ids, starts=starts), second=self.second[picks], targets=targets
        )

    @property
    def lengths(self) -> Tokens:
        """Tokens of each, its edge with them."""
        return self.side.lengths + 1


@dataclass(frozen=True, kw_only=True)
class LabelBatch(Batch):
    """Rows of texts, M at most in each; `doc` is M where no text stands. Targets: B M, B M C, or of each token, B L."""

    most: int  # M
    segments: Tensor  # B L: 1 in the second of two texts
    which: Tensor  # B M: the number of each text among all, -1 where there is none
    lengths: Tensor | None = None  # B: tokens of a row's only text, where rows are padded

    @property
    def even(self) -> bool:  # type: ignore[override]
        return self.lengths is None

    @property
    def steady(self) -> bool:
        return self.lengths is None

    @property
    def asked(self) -> Tensor:
        """Which targets count."""
        return ~self.targets.isnan() if self.targets.is_floating_point() else self.targets != IGNORE

    @property
    def count(self) -> int:
        return int(self.asked.sum())

    @property
    def size(self) -> int:
        assert self.doc is not None
        return int((self.doc < self.most).sum())

    def told(self) -> dict[str, Any]:
        if self.lengths is not None:
            return {"segments": self.segments, "lengths": self.lengths}
        return {"segments": self.segments, **super().told()}

    def texts(self) -> tuple[Tensor, int]:
        """Which text of the batch each token is of, counted through its rows, and how many there are room for: B M.

        That number stands where no text is.
        """
        assert self.doc is not None
        B, M = len(self.tokens), self.most
        first = torch.arange(B, device=self.doc.device)[:, None] * M
        return torch.where(self.doc < M, self.doc + first, B * M), B * M


def lay(texts: Texts, picks: Tokens, counts: Tokens, L: int, most: int) -> LabelBatch:
    """These texts in rows of L, so many in each, `most` at most. One a row is padded, and so told by its length."""
    tokens, pos, doc = laid(texts.side, picks, counts, L)
    doc[doc >= counts[:, None]] = most
    none: Any = np.nan if texts.targets.dtype.kind == "f" else IGNORE
    rows = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(len(picks)) - np.repeat(np.cumsum(counts) - counts, counts)
    which = np.full((len(counts), most), -1)
    which[rows, places] = picks
    if texts.each_token:
        targets = laid(Side(texts.targets, texts.side.starts, none), picks, counts, L)[0]
    else:
        targets = np.full((len(counts), most, *texts.targets.shape[1:]), none, texts.targets.dtype)
        targets[rows, places] = texts.targets[picks]
    second = np.full((len(counts), most + 1), L)
    second[rows, places] = texts.second[picks]
    segments = (pos >= np.take_along_axis(second, doc, 1)).astype(np.int64)
    alone = torch.from_numpy(texts.lengths[picks]) if most == 1 else None
    made = map(torch.from_numpy, (tokens, targets, pos, doc))
    told = {"segments": torch.from_numpy(segments), "which": torch.from_numpy(which), "lengths": alone}
    return LabelBatch(*made, most=most, **told)  # type: ignore[arg-type]


class PackedTexts:
    """The training batches of one epoch, packed. Every batch has the same shape."""

    def __init__(self, texts: Texts, rows: int, *, seed: int) -> None:
        self.texts, self.wide = texts, -(-max(int(texts.lengths.max()), PLACES) // 8) * 8
        self.packing = Packing((texts.lengths,), (self.wide,), rows, seed=seed)
        self.rows, self.steps, self.padding = self.packing.rows, self.packing.steps, self.packing.padding
        self.tokens = max(1, round(int(texts.lengths.sum()) / self.steps))

    def batch(self, epoch: int, step: int) -> LabelBatch:
        # two at least, since a row with room for one is taken for a padded one
        return lay(self.texts, *self.packing.picks(epoch, step), self.wide, max(2, self.packing.most))


class PaddedTexts:
    """The training batches of one epoch, a text a row: of like length, and as many as fit into the budget."""

    def __init__(self, texts: Texts, rows: int, *, seed: int) -> None:
        self.texts, self.seed, lengths = texts, seed, np.sort(texts.lengths)
        self.cuts = cuts(np.zeros_like(lengths), lengths, rows * float(lengths.mean()))
        self.steps = len(self.cuts) - 1
        self.rows = max(1, round(len(texts) / self.steps))
        self.tokens = max(1, round(int(lengths.sum()) / self.steps))
        self.padding = 1 - float(lengths.sum() / (np.diff(self.cuts) * lengths[self.cuts[1:] - 1]).sum())
        self._epoch: tuple[int, Tokens, Tokens] = (-1, lengths, lengths)

    def batch(self, epoch: int, step: int) -> LabelBatch:
        if self._epoch[0] != epoch:
            rng = dice(self.seed, 4, epoch)
            order = np.lexsort((rng.permutation(len(self.texts)), self.texts.lengths))
            self._epoch = (epoch, order, rng.permutation(self.steps))
        _, order, turns = self._epoch
        return padded(self.texts, order[self.cuts[turns[step]] : self.cuts[turns[step] + 1]])


def padded(texts: Texts, picks: Tokens) -> LabelBatch:
    """These texts, one a row."""
    return lay(texts, picks, np.ones(len(picks), np.int64), int(texts.lengths[picks].max()), 1)


def scoring(texts: Texts, tokens: int) -> Iterator[tuple[Tokens, LabelBatch]]:
    """Each text once, the shortest first, about so many tokens at a time: which texts they are, and their batch."""
    order = np.argsort(texts.lengths, kind="stable")
    ends = cuts(np.zeros_like(order), texts.lengths[order], tokens)
    for a, b in pairwise(ends):
        yield order[a:b], padded(texts, order[a:b])
