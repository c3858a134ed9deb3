"""Batches of a token stream. The content of a batch is a pure function of (seed, epoch, step).

`Windows` shuffles fixed-length windows, `Streams` reads B contiguous parts in parallel (for stateful models), and
`PackedDocuments` packs whole documents into rows; tokens attend only within their document.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from harken.core import FULL, Structure, same
from harken.errors import BadInput, BadSetting

from .rng import RngStream, rng_for

IGNORE = -100  # target without loss
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Batch:
    """Rows of tokens with the next token as target."""

    fixed_size: ClassVar[bool] = True  # every batch has the same number of rows, so ranks can share them evenly

    tokens: Tensor  # B L
    targets: Tensor  # B L, IGNORE where there is no target
    pos: Tensor | None = None  # B L: position in the document; None: 0 .. L-1
    doc: Tensor | None = None  # B L: document index within the row; None: one document per row
    origin: Tensor | None = None  # B: index of the mixed text
    reset_state: bool = True  # the model state is zeroed before this batch

    @property
    def structure(self) -> Structure:
        return FULL if self.doc is None else same(self.doc)

    def model_inputs(self) -> dict[str, Any]:
        """Extra model inputs."""
        return {"pos": self.pos, "structure": self.structure}

    @property
    def static_shape(self) -> bool:
        """Whether all batches have the same shapes and the same attention structure (CUDA graphs need it)."""
        return self.pos is None and self.doc is None and self.origin is None

    @property
    def n_targets(self) -> int:
        """Number of targets with a loss."""
        return int((self.targets != IGNORE).sum())

    @property
    def n_tokens(self) -> int:
        """Number of computed tokens without padding."""
        return self.tokens.numel() if self.fixed_size else self.n_targets

    def tensors(self) -> dict[str, Tensor]:
        """All tensor fields, including those of a subclass."""
        return {f.name: x for f in fields(self) if isinstance(x := getattr(self, f.name), Tensor)}

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        changes: dict[str, Any] = {name: change(x) for name, x in self.tensors().items()}
        return replace(self, **changes)

    def to(self, device: torch.device) -> "Batch":
        return self._map(lambda x: x.to(device, non_blocking=True))

    def slice_rows(self, start: int, stop: int) -> "Batch":
        return self._map(lambda x: x[start:stop])


class Batches(Protocol):
    """Training batches of one dataset."""

    steps: int  # per epoch
    rows: int  # per batch
    L: int  # tokens per row

    def batch(self, epoch: int, step: int) -> Batch: ...


class Windows:
    """Windows of L tokens at a random offset per epoch, in random order; mixed texts are drawn by weight."""

    def __init__(
        self, streams: Sequence[Array], L: int, rows: int, *, seed: int, weights: Sequence[float] | None = None
    ) -> None:
        longest = max(len(s) for s in streams)
        self.streams, self.L, self.seed = streams, max(1, min(L, longest - 1)), seed
        short = next((n for n, s in enumerate(streams) if len(s) <= self.L and (weights is None or weights[n])), None)
        if short is not None:
            raise BadInput(
                f"data.mix: text {short + 1} has {len(streams[short])} tokens; a window needs {self.L + 1}; "
                "give a longer text or set a smaller model.context"
            )
        counts = [max(len(s) > self.L, (len(s) - self.L) // self.L) for s in streams]  # windows that fit at any offset
        total = sum(counts)
        self.rows = max(1, min(rows, total))
        self.steps = total // self.rows
        cumulative = np.cumsum(counts if weights is None else weights)
        self.n_windows = np.diff(np.round(cumulative / cumulative[-1] * total), prepend=0).astype(int).tolist()
        self._epoch: tuple[int, Array] = (-1, np.empty((0, 2), np.int64))

    def _order(self, epoch: int) -> Array:  # N 2: stream index, start
        if self._epoch[0] != epoch:
            parts = []
            for s, (stream, n_windows) in enumerate(zip(self.streams, self.n_windows, strict=True)):
                rng = rng_for(self.seed, RngStream.WINDOW_OFFSETS, epoch, s)
                offset = int(rng.integers(min(self.L, max(1, len(stream) - self.L))))
                available = (len(stream) - 1 - offset) // self.L
                passes = -(-n_windows // max(1, available))  # a text with too few windows is repeated
                orders = [rng.permutation(available) for _ in range(passes)] or [np.empty(0, np.int64)]
                picks = np.concatenate(orders)[:n_windows]
                parts.append(np.stack([np.full(len(picks), s), offset + picks * self.L], 1))
            order = np.concatenate(parts)
            shuffled = rng_for(self.seed, RngStream.WINDOW_ORDER, epoch).permutation(len(order))
            self._epoch = (epoch, order[shuffled])
        return self._epoch[1]

    def batch(self, epoch: int, step: int) -> Batch:
        order = self._order(epoch)
        picks = order[step * self.rows : (step + 1) * self.rows]
        rows = np.stack([self.streams[s][start : start + self.L + 1] for s, start in picks]).astype(np.int64)
        tokens = torch.from_numpy(rows)
        origin = torch.from_numpy(picks[:, 0].copy()) if len(self.streams) > 1 else None
        return Batch(tokens[:, :-1], tokens[:, 1:], origin=origin)


class Streams:
    """B contiguous parts of the text, read L tokens at a time; the model state carries over between batches."""

    def __init__(self, stream: Array, L: int, rows: int) -> None:
        self.rows = max(1, min(rows, (len(stream) - 1) // L))
        self.stream, self.L, self.length = stream, L, (len(stream) - 1) // self.rows
        self.steps = -(-self.length // L)

    def batch(self, epoch: int, step: int) -> Batch:
        a, b = step * self.L, min((step + 1) * self.L, self.length)
        starts = np.arange(self.rows) * self.length
        rows = torch.from_numpy(np.stack([self.stream[s + a : s + b + 1] for s in starts]).astype(np.int64))
        return Batch(rows[:, :-1], rows[:, 1:], reset_state=step == 0)


class PackedDocuments:
    """Documents concatenated in random order and split into rows of L. Attention stays within a document."""

    def __init__(self, stream: Array, starts: Array, L: int, rows: int, *, seed: int) -> None:
        if L < 2:  # a row could hold only the last token of a document, which has no target
            raise BadSetting("model.context=1: packed documents need rows of 2 or more tokens; set model.context=2")
        starts = np.asarray(starts, np.int64)
        lengths = np.diff(np.append(starts, len(stream)))
        has_target = lengths > 1
        if not has_target.any():
            raise BadInput("data.documents: every document has fewer than 2 tokens; set data.documents=file")
        self.starts, self.lengths = starts[has_target], lengths[has_target]
        self.stream, self.L, self.seed = stream, min(L, int(self.lengths.sum())), seed
        total = int(self.lengths.sum()) // self.L
        self.rows = min(rows, total)
        self.steps = total // self.rows
        self._epoch: tuple[int, Array, Array] = (-1, self.starts, self.starts)

    def _order(self, epoch: int) -> tuple[Array, Array]:
        """Document order of this epoch and the end of each document in the shuffled text."""
        if self._epoch[0] != epoch:
            order = rng_for(self.seed, RngStream.DOCUMENT_ORDER, epoch).permutation(len(self.starts))
            self._epoch = (epoch, order, np.cumsum(self.lengths[order]))
        return self._epoch[1:]

    def batch(self, epoch: int, step: int) -> Batch:
        order, ends = self._order(epoch)
        rows = [self._row(order, ends, step * self.rows + r) for r in range(self.rows)]
        tokens, targets, pos, doc = (torch.from_numpy(np.stack(column)) for column in zip(*rows, strict=True))
        return Batch(tokens, targets, pos, doc)

    def _row(self, order: Array, ends: Array, row: int) -> tuple[Array, ...]:
        shuffled = np.arange(row * self.L, (row + 1) * self.L)  # positions in the shuffled text
        index = np.searchsorted(ends, shuffled, side="right")
        offset = shuffled - (ends[index] - self.lengths[order[index]])  # position in the document
        original = self.starts[order[index]] + offset
        is_last = offset + 1 == self.lengths[order[index]]
        following = self.stream[np.minimum(original + 1, len(self.stream) - 1)].astype(np.int64)
        first = np.concatenate([[0], np.flatnonzero(np.diff(index)) + 1])  # document starts in this row
        lengths = np.diff(np.append(first, self.L))
        pos = np.arange(self.L) - np.repeat(first, lengths)
        doc = np.repeat(np.arange(len(first)), lengths)
        return self.stream[original].astype(np.int64), np.where(is_last, IGNORE, following), pos, doc


def eval_batches(stream: Array, L: int, stride: int, rows: int) -> Iterator[Batch]:
    """Every token after the first is a target once, with at least L - stride tokens of context (fewer at the start)."""
    n = len(stream) - 1
    starts = list(range(0, max(1, n - L + stride), stride)) if n > L else [0]
    for group in (starts[g : g + rows] for g in range(0, len(starts), rows)):
        tokens = np.zeros((len(group), L), np.int64)
        targets = np.full((len(group), L), IGNORE, np.int64)
        for r, start in enumerate(group):
            window = np.asarray(stream[start : start + L + 1], np.int64)
            overlap = 0 if start == 0 else L - stride  # targets of the previous window
            tokens[r, : len(window) - 1] = window[:-1]
            targets[r, overlap : len(window) - 1] = window[1 + overlap :]
        yield Batch(torch.from_numpy(tokens), torch.from_numpy(targets))
