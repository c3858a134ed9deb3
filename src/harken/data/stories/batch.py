"""Batches of stories for models that read them line by line: every batch has the same shape.

A batch says which questions are asked and what was drawn for each, a pure function of (seed, epoch, step); their words
are looked up where the model is.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import Batch, Tokens, dice

from .source import Stories


@dataclass(frozen=True, kw_only=True)
class StoryBatch(Batch):
    """tokens: the numbers of the questions, B 1; targets: the answer of each, B."""

    words: Tensor  # B: how many are read
    blanks: Tensor | None = None  # B blanks: behind how many of its lines each empty line is put; -1: it is not
    linear: bool = False  # without the softmax of the hops

    @property
    def steady(self) -> bool:
        return not self.linear

    @property
    def count(self) -> int:
        return len(self.tokens)

    @property
    def size(self) -> int:
        return int(self.words.sum())


class Shelf:
    """Stories as a model is told of them: the latest lines of each question, the oldest first."""

    def __init__(self, part: Stories, memory: int, device: torch.device | None = None) -> None:
        counts = np.array([min(len(rows), memory) for rows in part.story], np.int64)
        lines = np.zeros((len(part), max(1, int(counts.max(initial=1)))), np.int64)
        for n, (rows, count) in enumerate(zip(part.story, counts.tolist(), strict=True)):
            lines[n, :count] = rows[len(rows) - count :]
        said = (part.table > 0).sum(1)
        words = said[lines].sum(1) + said[part.question]
        every = part.table, lines, counts, part.question, part.targets, words
        self.table, self.lines, self.counts, self.question, self.targets, self.words = (
            torch.from_numpy(x).to(device or torch.device("cpu")) for x in every
        )

    def told(self, picks: Tensor, blanks: Tensor | None = None) -> dict[str, Tensor]:
        """These questions; lines look older than they are by the empty ones behind them."""
        lines, i = self.lines[picks], torch.arange(self.lines.shape[1], device=picks.device)
        ages = (self.counts[picks][:, None] - 1 - i).clamp_min(0)  # B L
        if blanks is not None:
            ages = ages + (blanks[:, None] > i[:, None]).sum(-1) * (lines > 0)
        given = {"question": self.table[self.question[picks]], "ages": ages}
        if len(self.table) < lines.numel():  # many stories have the same lines
            return {"lines": self.table, "rows": lines, **given}
        return {"lines": self.table[lines], **given}


class StoryBatches:
    """The training batches of one epoch, in drawn order."""

    def __init__(self, shelf: Shelf, rows: int, memory: int, *, seed: int, noise: float, linear: int) -> None:
        self.shelf, self.memory, self.seed, self.noise, self.linear = shelf, memory, seed, noise, linear
        self.rows, self.device = min(rows, len(shelf.counts)), torch.device("cpu")
        self.steps = len(shelf.counts) // self.rows
        self._epoch: tuple[int, Any] = (-1, None)

    def batch(self, epoch: int, step: int) -> Any:
        return self.epoch(epoch).rows(step * self.rows, (step + 1) * self.rows)

    def epoch(self, epoch: int) -> Any:
        """The batches of an epoch, one below the other."""
        if self._epoch[0] != epoch:
            shelf, rng = self.shelf, dice(self.seed, 8, epoch)
            picks = torch.from_numpy(self.order(rng)[: self.steps * self.rows])
            blanks = self._blanks(shelf.counts[picks].numpy(), rng) if self.noise else None
            drawn: Any = {"blanks": blanks, "words": shelf.words[picks], "linear": epoch < self.linear}
            self._epoch = epoch, StoryBatch(picks[:, None], shelf.targets[picks], **drawn).to(self.device)
        return self._epoch[1]

    def order(self, rng: np.random.Generator) -> Tokens:
        return rng.permutation(len(self.shelf.counts))

    def _blanks(self, counts: Tokens, rng: np.random.Generator) -> Tensor:  # B -> B blanks
        """Empty lines put in between, a share of `noise` at most, as far as there is room."""
        share = np.ceil(self.noise * counts).astype(np.int64)
        more = rng.integers(np.minimum(share, self.memory - counts) + 1)
        most = max(1, math.ceil(self.noise * int(self.shelf.counts.max())))  # the same in every epoch
        places = rng.integers(counts[:, None] + 1, size=(len(counts), most))
        return torch.from_numpy(np.where(np.arange(most) < more[:, None], places, -1))
