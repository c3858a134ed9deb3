"""Batches of stories for models that read them line by line: every batch has the same shape.

Which questions stand in a batch, and how the ages of their lines are shaken, is a pure function of (seed, epoch, step).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import Batch, Tokens, dice
from harken.data.stories import Stories


@dataclass(frozen=True, kw_only=True)
class StoryBatch(Batch):
    """tokens: the words of the lines, B M W, 0 where there is none; targets: the answer of each question, B."""

    question: Tensor  # B W
    ages: Tensor  # B M: how many lines ago a line stands; 0 is the latest
    linear: bool = False  # without the softmax of the hops

    @property
    def steady(self) -> bool:
        return not self.linear

    @property
    def size(self) -> int:
        """How many words are read."""
        return int((self.tokens > 0).sum() + (self.question > 0).sum())

    def told(self) -> dict[str, Any]:
        return {"question": self.question, "ages": self.ages, "linear": self.linear}


class StoryBatches:
    """The training batches of one epoch, in drawn order."""

    def __init__(self, part: Stories, rows: int, memory: int, *, seed: int, noise: float, linear: int) -> None:
        self.part, self.memory, self.seed, self.noise, self.linear = part, memory, seed, noise, linear
        self.rows = min(rows, len(part))
        self.steps = len(part) // self.rows
        self.lines, self.counts = kept(part, memory)
        self._epoch: tuple[int, Tokens] = (-1, self.counts)

    def batch(self, epoch: int, step: int) -> StoryBatch:
        if self._epoch[0] != epoch:
            self._epoch = epoch, dice(self.seed, 8, epoch).permutation(len(self.part))
        picks = self._epoch[1][step * self.rows : (step + 1) * self.rows]
        ages = ages_of(self.counts[picks], self.lines.shape[1])
        if self.noise:
            ages = self._shaken(ages, self.counts[picks], dice(self.seed, 9, epoch, step))
        return batch_of(self.part, self.lines, ages, picks, linear=epoch < self.linear)

    def _shaken(self, ages: Tokens, counts: Tokens, rng: np.random.Generator) -> Tokens:
        """The same as if a share of empty lines, at most `noise`, had been put in between: lines look older."""
        for row, n in enumerate(counts.tolist()):
            more = min(int(rng.integers(int(np.ceil(self.noise * n)) + 1)), self.memory - n)
            drawn = np.sort(rng.permutation(n + more)[:n])[::-1]
            ages[row, :n] = drawn
        return ages


def kept(part: Stories, memory: int) -> tuple[Tokens, Tokens]:
    """The rows of the latest lines of each question, the oldest first, N M; and how many there are."""
    counts = np.array([min(len(rows), memory) for rows in part.story], np.int64)
    lines = np.zeros((len(part), max(1, int(counts.max(initial=1)))), np.int64)
    for n, (rows, count) in enumerate(zip(part.story, counts.tolist(), strict=True)):
        lines[n, :count] = rows[len(rows) - count :]
    return lines, counts


def ages_of(counts: Tokens, M: int) -> Tokens:  # N -> N M
    """How many lines ago each line stands; 0 behind the latest."""
    return np.maximum(counts[:, None] - 1 - np.arange(M), 0)


def batch_of(part: Stories, lines: Tokens, ages: Tokens, picks: Tokens, *, linear: bool = False) -> StoryBatch:
    """These questions."""
    arrays = part.table[lines[picks]], part.targets[picks], part.table[part.question[picks]], ages
    words, targets, question, old = map(torch.from_numpy, arrays)
    return StoryBatch(words, targets, question=question, ages=old, linear=linear)
