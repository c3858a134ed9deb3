"""Packed rows: several texts share a row without attending to each other; every batch has the same shape."""

import numpy as np

from .batch import Array
from .rng import RngStream, rng_for
from .tokenizers.pairs import RaggedTokens

MIN_ROW_TOKENS = 128  # minimum width of a packed row
MAX_OPEN_ROWS = 512  # rows that are filled at the same time


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
        self._epoch: tuple[int, Array, Array] = (-1, order, order)

    def _order(self, epoch: int) -> tuple[Array, Array]:
        """Texts by slot and the order of the rows in this epoch; row -1 is empty."""
        if self._epoch[0] != epoch:
            rng = rng_for(self.seed, RngStream.PACKED_ROW_ORDER, epoch)
            order = np.lexsort((rng.permutation(len(self.slots)), *self.lengths))
            n_empty = self.steps * self.rows - self.n_rows
            row_order = rng.permutation(np.append(np.arange(self.n_rows), np.full(n_empty, -1)))
            self._epoch = (epoch, order[self.slots], row_order)
        return self._epoch[1:]

    def picks(self, epoch: int, step: int) -> tuple[Array, Array]:
        """Texts of a batch, row by row, and the number of texts in each row."""
        order, row_order = self._order(epoch)
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


def pack_rows(texts: RaggedTokens, picks: Array, counts: Array, L: int) -> tuple[Array, Array, Array]:
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
