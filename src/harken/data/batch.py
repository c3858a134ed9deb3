"""Batches of a stream of tokens. Which tokens stand in which batch is a pure function of (seed, epoch, position).

Three ways to cut: `Windows` (shuffled pieces of the stream), `Streams` (B readers side by side, each going on where it
stopped: for models with a state) and `Packed` (whole documents, several in a row, that do not see each other).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from harken.core import FULL, Structure, same
from harken.errors import BadInput, BadSetting

IGNORE = -100  # a target that does not count
Tokens = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Batch:
    """Rows of tokens and, for each token, the one that follows."""

    even: ClassVar[bool] = True  # as many rows in every batch, so that processes share them evenly

    tokens: Tensor  # B L
    targets: Tensor  # B L, IGNORE where nothing is asked
    pos: Tensor | None = None  # B L: place in the document; None: 0 .. L-1
    doc: Tensor | None = None  # B L: which document of the row; None: one document a row
    origin: Tensor | None = None  # B: which of the mixed texts
    fresh: bool = True  # nothing before this batch is remembered

    @property
    def structure(self) -> Structure:
        return FULL if self.doc is None else same(self.doc)

    def told(self) -> dict[str, Any]:
        """What a model is told beside the tokens."""
        return {"pos": self.pos, "structure": self.structure}

    @property
    def steady(self) -> bool:
        """Whether batches of this shape come again and again, and are the same work: no documents to keep apart."""
        return self.pos is None and self.doc is None and self.origin is None

    @property
    def count(self) -> int:
        """How many targets are asked."""
        return int((self.targets != IGNORE).sum())

    @property
    def size(self) -> int:
        """How many tokens are computed; padding is none."""
        return self.tokens.numel() if self.even else self.count

    def tensors(self) -> dict[str, Tensor]:
        """All that is there, those of a class derived from this one too."""
        return {f.name: x for f in fields(self) if isinstance(x := getattr(self, f.name), Tensor)}

    def _each(self, change: Any) -> "Batch":
        return replace(self, **{name: change(x) for name, x in self.tensors().items()})

    def to(self, device: torch.device) -> "Batch":
        return self._each(lambda x: x.to(device, non_blocking=True))

    def rows(self, start: int, stop: int) -> "Batch":
        return self._each(lambda x: x[start:stop])


class Batches(Protocol):
    """The training batches of one data set."""

    steps: int  # in one epoch
    rows: int  # in one batch
    L: int  # tokens in one row

    def batch(self, epoch: int, step: int) -> Batch: ...


def dice(seed: int, *where: int) -> np.random.Generator:
    """The random numbers of one place in the training: the same for the same (seed, place), whatever came before."""
    return np.random.Generator(np.random.PCG64([seed, *where]))


class Windows:
    """Windows of L tokens, cut anew each epoch at a drawn offset, in drawn order; mixed texts by their weights."""

    def __init__(
        self, streams: Sequence[Tokens], L: int, rows: int, *, seed: int, weights: Sequence[float] | None = None
    ) -> None:
        longest = max(len(s) for s in streams)
        self.streams, self.L, self.seed = streams, max(1, min(L, longest - 1)), seed
        short = next((n for n, s in enumerate(streams) if len(s) <= self.L and (weights is None or weights[n])), None)
        if short is not None:
            raise BadInput(
                f"data.mix: text {short + 1} has {len(streams[short])} tokens, and a window needs {self.L + 1}; "
                "give more of it, or a smaller model.context"
            )
        counts = [max(len(s) > self.L, (len(s) - self.L) // self.L) for s in streams]  # fit at any offset
        total = sum(counts)
        self.rows = max(1, min(rows, total))
        self.steps = total // self.rows
        share = np.cumsum(counts if weights is None else weights)
        self.shares = np.diff(np.round(share / share[-1] * total), prepend=0).astype(int).tolist()
        self._epoch: tuple[int, Tokens] = (-1, np.empty((0, 2), np.int64))

    def _order(self, epoch: int) -> Tokens:  # N 2: which stream, where it starts
        if self._epoch[0] != epoch:
            parts = []
            for s, (stream, share) in enumerate(zip(self.streams, self.shares, strict=True)):
                rng = dice(self.seed, 1, epoch, s)
                phase = int(rng.integers(min(self.L, max(1, len(stream) - self.L))))
                count = (len(stream) - 1 - phase) // self.L
                laps = -(-share // max(1, count))  # a text asked for more often than it has windows starts again
                picks = np.concatenate([rng.permutation(count) for _ in range(laps)] or [np.empty(0, np.int64)])[:share]
                parts.append(np.stack([np.full(len(picks), s), phase + picks * self.L], 1))
            order = np.concatenate(parts)
            self._epoch = (epoch, order[dice(self.seed, 2, epoch).permutation(len(order))])
        return self._epoch[1]

    def batch(self, epoch: int, step: int) -> Batch:
        order = self._order(epoch)
        picks = order[step * self.rows : (step + 1) * self.rows]
        rows = np.stack([self.streams[s][start : start + self.L + 1] for s, start in picks]).astype(np.int64)
        tokens = torch.from_numpy(rows)
        origin = torch.from_numpy(picks[:, 0].copy()) if len(self.streams) > 1 else None
        return Batch(tokens[:, :-1], tokens[:, 1:], origin=origin)


class Streams:
    """B readers, each on its own part of the text, L tokens at a time; the model's state goes on between batches."""

    def __init__(self, stream: Tokens, L: int, rows: int) -> None:
        self.rows = max(1, min(rows, (len(stream) - 1) // L))
        self.stream, self.L, self.length = stream, L, (len(stream) - 1) // self.rows
        self.steps = -(-self.length // L)

    def batch(self, epoch: int, step: int) -> Batch:
        a, b = step * self.L, min((step + 1) * self.L, self.length)
        starts = np.arange(self.rows) * self.length
        rows = torch.from_numpy(np.stack([self.stream[s + a : s + b + 1] for s in starts]).astype(np.int64))
        return Batch(rows[:, :-1], rows[:, 1:], fresh=step == 0)


class Packed:
    """Documents in drawn order, one after the other, cut into rows of L. A document sees only itself."""

    def __init__(self, stream: Tokens, starts: Tokens, L: int, rows: int, *, seed: int) -> None:
        if L < 2:  # a row could be the last token of a document, which asks nothing
            raise BadSetting("model.context=1: packed documents need rows of 2 tokens or more; set model.context=2")
        starts = np.asarray(starts, np.int64)
        lengths = np.diff(np.append(starts, len(stream)))
        asks = lengths > 1  # a document of one token asks nothing
        if not asks.any():
            raise BadInput("data.documents: no document has two tokens, so nothing is asked; try data.documents=file")
        self.starts, self.lengths = starts[asks], lengths[asks]
        self.stream, self.L, self.seed = stream, min(L, int(self.lengths.sum())), seed
        total = int(self.lengths.sum()) // self.L
        self.rows = min(rows, total)
        self.steps = total // self.rows
        self._epoch: tuple[int, Tokens, Tokens] = (-1, self.starts, self.starts)

    def _order(self, epoch: int) -> tuple[Tokens, Tokens]:
        """The documents in this epoch's order, and where each ends."""
        if self._epoch[0] != epoch:
            order = dice(self.seed, 3, epoch).permutation(len(self.starts))
            self._epoch = (epoch, order, np.cumsum(self.lengths[order]))
        return self._epoch[1:]

    def batch(self, epoch: int, step: int) -> Batch:
        order, ends = self._order(epoch)
        made = [self._row(order, ends, step * self.rows + r) for r in range(self.rows)]
        tokens, targets, pos, doc = (torch.from_numpy(np.stack(column)) for column in zip(*made, strict=True))
        return Batch(tokens, targets, pos, doc)

    def _row(self, order: Tokens, ends: Tokens, row: int) -> tuple[Tokens, ...]:
        place = np.arange(row * self.L, (row + 1) * self.L)  # in the shuffled text
        which = np.searchsorted(ends, place, side="right")
        offset = place - (ends[which] - self.lengths[order[which]])  # in the document
        at = self.starts[order[which]] + offset
        last = offset + 1 == self.lengths[order[which]]
        after = self.stream[np.minimum(at + 1, len(self.stream) - 1)].astype(np.int64)
        first = np.concatenate([[0], np.flatnonzero(np.diff(which)) + 1])  # where a document begins in this row
        begin = np.repeat(first, np.diff(np.append(first, self.L)))
        doc = np.repeat(np.arange(len(first)), np.diff(np.append(first, self.L)))
        return self.stream[at].astype(np.int64), np.where(last, IGNORE, after), np.arange(self.L) - begin, doc


def scoring(stream: Tokens, L: int, stride: int, rows: int) -> Iterator[Batch]:
    """Every token after the first is asked once, with at least L - stride tokens before it (fewer at the start)."""
    n = len(stream) - 1
    starts = list(range(0, max(1, n - L + stride), stride)) if n > L else [0]
    for group in (starts[g : g + rows] for g in range(0, len(starts), rows)):
        tokens = np.zeros((len(group), L), np.int64)
        targets = np.full((len(group), L), IGNORE, np.int64)
        for r, start in enumerate(group):
            piece = np.asarray(stream[start : start + L + 1], np.int64)
            fresh = 0 if start == 0 else L - stride  # what the window before has already answered
            tokens[r, : len(piece) - 1] = piece[:-1]
            targets[r, fresh : len(piece) - 1] = piece[1 + fresh :]
        yield Batch(torch.from_numpy(tokens), torch.from_numpy(targets))
