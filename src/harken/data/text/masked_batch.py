"""Batches with hidden words, of passages or of pairs of them. Every batch has the same shape.

[CLS] a [SEP], or [CLS] a [SEP] b [SEP]. Of each row as many places are asked as its share says, up to a number that is
the same for all; the rest of that number asks nothing.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import IGNORE, Batch, Tokens
from harken.data.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class MaskedBatch(Batch):
    """Rows with hidden words; the targets are asked at `places`, both B M."""

    steady: ClassVar[bool] = True

    places: Tensor  # B M
    segments: Tensor | None = None  # B L: 1 in the second of two passages
    lengths: Tensor | None = None  # B: what stands behind is padding
    elsewhere: Tensor | None = None  # B: 0 where the second passage follows the first, else 1

    def told(self) -> dict[str, Any]:
        given = {"segments": self.segments, "lengths": self.lengths}
        return {name: value for name, value in given.items() if value is not None}


class Hiding(NamedTuple):
    """Which share of the words is asked, and of these which share is seen as [MASK], as another word, as itself."""

    share: float
    x: float
    y: float
    whole: bool  # all pieces of a word at once


class Marks:
    """The marks of a tokenizer, as arrays that say of each id whether it is text, and whether it goes on a word."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        marks = (tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask)
        self.pad, self.cls, self.sep, self.mask = (int(mark or 0) for mark in marks)
        self.text = np.ones(tokenizer.vocab, bool)
        self.text[tokenizer.marks] = False
        self.goes_on = np.array([word.startswith("##") for word in tokenizer.words(range(tokenizer.vocab))])
        self.drawn = np.flatnonzero(self.text)  # another word is one of these

    def one(self, passages: Tokens) -> Tokens:  # N L -> N L+2
        """[CLS] a [SEP]"""
        return np.pad(passages, ((0, 0), (1, 1)), constant_values=((0, 0), (self.cls, self.sep)))

    def two(self, ids: Tokens, first: Tokens, second: Tokens, L: int) -> tuple[Tokens, Tokens, Tokens]:
        """[CLS] a [SEP] b [SEP] in rows of L, of spans of ids (N 2 each); the segments, and how long each row is."""
        a, b = (np.diff(span, axis=1) for span in (first, second))  # N 1
        place = np.arange(L)
        at = np.where(place <= a, first[:, :1] + place - 1, second[:, :1] + place - a - 2)
        rows = ids[np.clip(at, 0, len(ids) - 1)].astype(np.int64)
        rows[:, 0] = self.cls
        rows[(place == a + 1) | (place == a + b + 2)] = self.sep
        rows[place > a + b + 2] = self.pad
        return rows, ((place > a + 1) & (place <= a + b + 2)).astype(np.int64), (a + b + 3)[:, 0]


def hidden(rows: Tokens, marks: Marks, how: Hiding, most: int, rng: np.random.Generator) -> tuple[Tokens, ...]:
    """The rows as they are seen, which places are asked (B most; 0 where none is), and what stood there (or IGNORE)."""
    free, begins = marks.text[rows], ~(marks.goes_on[rows] & how.whole)
    words = np.cumsum(begins | ~free, 1) - 1  # which word of the row a token is of
    drawn: Tokens = np.take_along_axis(rng.random(size=rows.shape), words, 1)
    order = np.argsort(np.where(free, drawn, 2.0), 1, kind="stable")[:, : most + 1]
    there = free.sum(1)
    asked = np.clip(np.rint(how.share * there), 1, most).astype(np.int64)
    picked = np.arange(order.shape[1]) < np.minimum(asked, there)[:, None]
    if how.whole:  # the word that the number would cut is left out, unless it is the only one
        of = np.take_along_axis(words, order, 1)
        uncut = picked & (of != np.take_along_axis(of, np.minimum(asked, of.shape[1] - 1)[:, None], 1))
        picked = np.where(uncut.any(1, keepdims=True), uncut, picked)
    picked, order = picked[:, :most], order[:, :most]
    places = np.where(picked, order, 0)
    answers = np.where(picked, np.take_along_axis(rows, places, 1), IGNORE)
    dice = rng.random(places.shape)
    others = marks.drawn[rng.integers(len(marks.drawn), size=places.shape)]
    shown = np.where(dice < how.x, marks.mask, np.where(dice < how.x + how.y, others, answers))
    seen, (row, n) = rows.copy(), np.nonzero(picked)
    seen[row, places[row, n]] = shown[row, n]
    return seen, places, answers


def masked(seen: tuple[Tokens, ...], **more: Tokens) -> MaskedBatch:
    tokens, places, answers = map(torch.from_numpy, seen)
    told: dict[str, Any] = {name: torch.from_numpy(x) for name, x in more.items()}
    return MaskedBatch(tokens, answers, places=places, **told)
