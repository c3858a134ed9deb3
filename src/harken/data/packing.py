"""Packed rows: several texts stand in one, none sees another, and every batch has the same shape."""

import numpy as np

from .batch import Tokens, dice
from .tokenizers.pairs import Side

PLACES = 128  # a packed row has at least so many
OPEN = 512  # packed rows that are filled at a time


class Packing:
    """Which texts stand in which packed row of which batch: a pure function of (seed, epoch, step).

    A text has one length or, for rows of several sides, several. Which lengths share a row is the same in every epoch;
    which of the equally long texts they are, and in which order the rows come, is drawn anew. A batch has as many rows
    as hold `rows` texts of mean length.
    """

    def __init__(self, lengths: tuple[Tokens, ...], wide: tuple[int, ...], rows: int, *, seed: int) -> None:
        self.lengths, self.wide, self.seed = lengths, wide, seed
        total, order = sum(int(n.sum()) for n in lengths), np.lexsort(lengths)
        row = _pack(np.stack(lengths, 1)[order], wide)
        self.slots = np.argsort(row, kind="stable")  # places in the order of lengths, row by row
        self.starts = np.searchsorted(row[self.slots], np.arange(row.max() + 2))  # where each row begins in them
        many = len(self.starts) - 1
        self.most = int(np.diff(self.starts).max())  # texts of a row
        self.rows = max(1, min(many, round(rows * total / len(order) / sum(wide))))
        self.steps = -(-many // self.rows)
        self.padding = 1 - total / (sum(wide) * self.steps * self.rows)
        self._epoch: tuple[int, Tokens, Tokens] = (-1, order, order)

    def _order(self, epoch: int) -> tuple[Tokens, Tokens]:
        """The texts in this epoch's order, and the order of the rows; -1 is a row without any."""
        if self._epoch[0] != epoch:
            rng, many = dice(self.seed, 5, epoch), len(self.starts) - 1
            order = np.lexsort((rng.permutation(len(self.slots)), *self.lengths))
            turns = rng.permutation(np.append(np.arange(many), np.full(self.steps * self.rows - many, -1)))
            self._epoch = (epoch, order[self.slots], turns)
        return self._epoch[1:]

    def picks(self, epoch: int, step: int) -> tuple[Tokens, Tokens]:
        """The texts of a batch, row by row, and how many stand in each row."""
        order, turns = self._order(epoch)
        chosen = turns[step * self.rows : (step + 1) * self.rows]
        spans = [slice(self.starts[r], self.starts[r + 1]) if r >= 0 else slice(0) for r in chosen]
        counts = np.array([span.stop - (span.start or 0) for span in spans])
        return np.concatenate([order[span] for span in spans]), counts


def _pack(lengths: Tokens, wide: tuple[int, ...]) -> Tokens:  # N sides
    """The row of each text: the longest first, each into the fullest of the open rows that has room on every side."""
    rows, room = np.empty(len(lengths), np.int64), np.full((OPEN, len(wide)), -1)  # the first texts find none open
    numbers, many = np.full(OPEN, -1), 0
    for n in range(len(lengths) - 1, -1, -1):
        left = (room - lengths[n]).min(1)
        fits = np.flatnonzero(left >= 0)
        if len(fits):
            k = fits[left[fits].argmin()]
        else:
            k = int(room.min(1).argmin())  # the fullest is closed
            numbers[k], room[k], many = many, wide, many + 1
        room[k] -= lengths[n]
        rows[n] = numbers[k]
    return rows


def laid(side: Side, picks: Tokens, counts: Tokens, L: int) -> tuple[Tokens, Tokens, Tokens]:
    """Texts with their edges, so many in each row of L, their places, and which of the row they are.

    What is left of a row holds the edge, and the number after its last text.
    """
    ids, lengths = side.gather(picks)
    ends = lengths + 1
    firsts = np.cumsum(counts) - counts  # of each row among the picks
    behind = np.cumsum(ends) - ends  # places before each text, all rows together
    before = np.append(behind, 0)[np.minimum(firsts, len(picks))]  # the same for each row's first
    start = behind + np.repeat(np.arange(len(counts)) * L - before, counts)
    inner = np.arange(ends.sum()) - np.repeat(behind, ends)
    at = np.repeat(start, ends) + inner
    made, pos = np.full(len(counts) * L, side.edge), np.zeros(len(counts) * L, np.int64)
    doc = np.repeat(counts, L)
    made[at[inner < np.repeat(lengths, ends)]] = ids
    pos[at], doc[at] = inner, np.repeat(np.arange(len(picks)) - np.repeat(firsts, counts), ends)
    return made.reshape(-1, L), pos.reshape(-1, L), doc.reshape(-1, L)
