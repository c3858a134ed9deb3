"""Batches of a token stream. The content of a batch is a pure function of (seed, epoch, step).

`Windows` shuffles fixed-length windows, `Streams` reads B contiguous parts in parallel (for stateful models),
`PackedDocuments` packs whole documents into rows (tokens attend only within their document), `Packing` separate texts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from harken.core import FULL, Structure, same
from harken.errors import BadInput, BadSetting

from .rng import RngStream, once_per_epoch, rng_for

if TYPE_CHECKING:
    from .tokenizers.pairs import RaggedTokens

IGNORE = -100  # target without loss
MIN_ROW_TOKENS = 128  # minimum width of a packed row
MAX_OPEN_ROWS = 512  # packed rows that are filled at the same time
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
    index: Tensor | None = None  # B: index of each row in its split; None: batches are in the order of the split

    @property
    def structure(self) -> Structure:
        return FULL if self.doc is None else same(self.doc)

    def model_inputs(self) -> dict[str, object]:
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

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        changes: dict[str, Any] = {name: change(x) for name, x in self.tensors().items()}
        return replace(self, **changes)

    def to(self, device: torch.device) -> Self:
        return self._map(lambda x: x.to(device, non_blocking=True))

    def slice_rows(self, start: int, stop: int) -> Self:
        return self._map(lambda x: x[start:stop])


class Windows:
    """Windows of L tokens at a random offset per epoch, in random order; mixed texts are drawn by weight."""

    def __init__(
        self, streams: Sequence[Array], L: int, rows: int, *, seed: int, weights: Sequence[float] | None = None
    ) -> None:
        longest = max(len(s) for s in streams)
        self.streams, self.L, self.seed = streams, max(1, min(L, longest - 1)), seed
        short = next((n for n, s in enumerate(streams) if len(s) <= self.L and (weights is None or weights[n])), None)
        if short is not None:
            problem = f"text {short + 1} has {len(streams[short])} tokens; a window needs {self.L + 1}"
            raise BadInput(f"data.mix: {problem}; give a longer text or set a smaller model.context")
        counts = [max(len(s) > self.L, (len(s) - self.L) // self.L) for s in streams]  # windows that fit at any offset
        total = sum(counts)
        self.rows = max(1, min(rows, total))
        self.steps = total // self.rows
        cumulative = np.cumsum(counts if weights is None else weights)
        self.n_windows = np.diff(np.round(cumulative / cumulative[-1] * total), prepend=0).astype(int).tolist()

    @once_per_epoch
    def order(self, epoch: int) -> Array:  # N 2: stream index, start
        parts = []
        for s, (stream, n_windows) in enumerate(zip(self.streams, self.n_windows, strict=True)):
            rng = rng_for(self.seed, RngStream.WINDOW_OFFSETS, epoch, s)
            offset = int(rng.integers(min(self.L, max(1, len(stream) - self.L))))
            available = (len(stream) - 1 - offset) // self.L
            passes = -(-n_windows // max(1, available))  # a text with too few windows is repeated
            orders = [rng.permutation(available) for _ in range(passes)] or [np.empty(0, np.int64)]
            picks = np.concatenate(orders)[:n_windows]
            parts.append(np.stack([np.full(len(picks), s), offset + picks * self.L], 1))
        order: Array = np.concatenate(parts)
        return order[rng_for(self.seed, RngStream.WINDOW_ORDER, epoch).permutation(len(order))]

    def batch(self, epoch: int, step: int) -> Batch:
        picks = self.order(epoch)[step * self.rows : (step + 1) * self.rows]
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

    @once_per_epoch
    def order(self, epoch: int) -> tuple[Array, Array]:
        """Document order of this epoch and the end of each document in the shuffled text."""
        order = rng_for(self.seed, RngStream.DOCUMENT_ORDER, epoch).permutation(len(self.starts))
        return order, np.cumsum(self.lengths[order])

    def batch(self, epoch: int, step: int) -> Batch:
        order, ends = self.order(epoch)
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


class Packing:
    """Assignment of texts to packed rows and batches: a pure function of (seed, epoch, step).

    A text has one length per side (source and target, for example). The lengths in a row are the same in every epoch;
    the texts of these lengths and the order of the rows are drawn per epoch. A batch has as many rows as `rows` texts
    of mean length need.
    """

    def __init__(self, lengths: tuple[Array, ...], widths: tuple[int, ...], rows: int, *, seed: int) -> None:
        self.lengths, self.widths, self.seed = lengths, widths, seed
        total, order = sum(int(n.sum()) for n in lengths), np.lexsort(lengths)
        row = _assign_rows(np.stack(lengths, 1)[order], widths)
        self.slots = np.argsort(row, kind="stable")  # ranks by length, row by row
        self.starts = np.searchsorted(row[self.slots], np.arange(row.max() + 2))  # first slot of each row
        self.n_rows = len(self.starts) - 1
        self.max_per_row = int(np.diff(self.starts).max())  # texts
        self.rows = max(1, min(self.n_rows, round(rows * total / len(order) / sum(widths))))
        self.steps = -(-self.n_rows // self.rows)
        self.padding = 1 - total / (sum(widths) * self.steps * self.rows)

    @once_per_epoch
    def order(self, epoch: int) -> tuple[Array, Array]:
        """Texts by slot and the order of the rows in this epoch; row -1 is empty."""
        rng = rng_for(self.seed, RngStream.PACKED_ROW_ORDER, epoch)
        order = np.lexsort((rng.permutation(len(self.slots)), *self.lengths))
        n_empty = self.steps * self.rows - self.n_rows
        return order[self.slots], rng.permutation(np.append(np.arange(self.n_rows), np.full(n_empty, -1)))

    def picks(self, epoch: int, step: int) -> tuple[Array, Array]:
        """Texts of a batch, row by row, and the number of texts in each row."""
        order, row_order = self.order(epoch)
        rows = row_order[step * self.rows : (step + 1) * self.rows]
        spans = [slice(self.starts[r], self.starts[r + 1]) if r >= 0 else slice(0) for r in rows]
        counts = np.array([span.stop - (span.start or 0) for span in spans])
        return np.concatenate([order[span] for span in spans]), counts


def _assign_rows(lengths: Array, widths: tuple[int, ...]) -> Array:  # N sides
    """Row of each text by best fit: longest first, into the fullest open row with room on every side."""
    rows, room = np.empty(len(lengths), np.int64), np.full((MAX_OPEN_ROWS, len(widths)), -1)  # no row is open yet
    row_ids, n_rows = np.full(MAX_OPEN_ROWS, -1), 0
    for n in range(len(lengths) - 1, -1, -1):
        free = (room - lengths[n]).min(1)
        fits = np.flatnonzero(free >= 0)
        if len(fits):
            k = fits[free[fits].argmin()]
        else:
            k = int(room.min(1).argmin())  # close the fullest row
            row_ids[k], room[k], n_rows = n_rows, widths, n_rows + 1
        room[k] -= lengths[n]
        rows[n] = row_ids[k]
    return rows


def pack_rows(texts: "RaggedTokens", picks: Array, counts: Array, L: int) -> tuple[Array, Array, Array]:
    """Token ids with a boundary token after each text, positions and text index, each B L.

    `counts` is the number of texts per row. Padding has the boundary token and the index after the row's last text.
    """
    ids, lengths = texts.gather(picks)
    sizes = lengths + 1
    first_pick = np.cumsum(counts) - counts  # of each row
    offsets = np.cumsum(sizes) - sizes  # tokens before each text over all rows
    row_offsets = np.append(offsets, 0)[np.minimum(first_pick, len(picks))]  # tokens before each row's first text
    start = offsets + np.repeat(np.arange(len(counts)) * L - row_offsets, counts)
    inner = np.arange(sizes.sum()) - np.repeat(offsets, sizes)
    index = np.repeat(start, sizes) + inner
    tokens, pos = np.full(len(counts) * L, texts.edge), np.zeros(len(counts) * L, np.int64)
    doc = np.repeat(counts, L)
    tokens[index[inner < np.repeat(lengths, sizes)]] = ids
    pos[index], doc[index] = inner, np.repeat(np.arange(len(picks)) - np.repeat(first_pick, counts), sizes)
    return tokens.reshape(-1, L), pos.reshape(-1, L), doc.reshape(-1, L)
