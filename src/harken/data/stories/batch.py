"""Batches of stories for models that read them line by line. Every batch has the same shape.

A batch holds the indices of its questions and the random draws, a pure function of (seed, epoch, step); the words are
looked up on the device of the model.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import Array, Batch
from harken.data.rng import RngStream, once_per_epoch, rng_for

from .source import Stories


@dataclass(frozen=True, kw_only=True)
class StoryBatch(Batch):
    """tokens: indices of the questions, B 1; targets: label ids of the answers, B."""

    n_words: Tensor  # B: words of the story and the question
    blank_positions: Tensor | None = None  # B blanks: number of lines before each inserted empty line; -1: none
    linear: bool = False  # without the softmax of the hops

    @property
    def static_shape(self) -> bool:
        return not self.linear

    @property
    def n_targets(self) -> int:
        return len(self.tokens)

    @property
    def n_tokens(self) -> int:
        return int(self.n_words.sum())


class StoryTable:
    """Stories as model inputs: the latest `memory` lines of each question, oldest first."""

    def __init__(self, part: Stories, memory: int, device: torch.device | None = None) -> None:
        counts = np.array([min(len(rows), memory) for rows in part.story], np.int64)
        lines = np.zeros((len(part), max(1, int(counts.max(initial=1)))), np.int64)
        for n, (rows, count) in enumerate(zip(part.story, counts.tolist(), strict=True)):
            lines[n, :count] = rows[len(rows) - count :]
        line_words = (part.table > 0).sum(1)
        n_words = line_words[lines].sum(1) + line_words[part.question]
        arrays = part.table, lines, counts, part.question, part.targets, n_words
        self.table, self.lines, self.counts, self.question, self.targets, self.n_words = (
            torch.from_numpy(x).to(device or torch.device("cpu")) for x in arrays
        )

    def model_inputs(self, indices: Tensor, blank_positions: Tensor | None = None) -> dict[str, Tensor]:
        """The inputs of these questions; every empty line after a line increases its age by one."""
        lines, i = self.lines[indices], torch.arange(self.lines.shape[1], device=indices.device)
        ages = (self.counts[indices][:, None] - 1 - i).clamp_min(0)  # B L
        if blank_positions is not None:
            ages = ages + (blank_positions[:, None] > i[:, None]).sum(-1) * (lines > 0)
        inputs = {"question": self.table[self.question[indices]], "ages": ages}
        if len(self.table) < lines.numel():  # many stories share lines: embed each line once
            return {"lines": self.table, "rows": lines, **inputs}
        return {"lines": self.table[lines], **inputs}


class StoryBatches:
    """The training batches of one epoch, in random order."""

    def __init__(self, table: StoryTable, rows: int, memory: int, *, seed: int, noise: float, linear: int) -> None:
        self.table, self.memory, self.seed, self.noise, self.linear = table, memory, seed, noise, linear
        self.rows, self.device = min(rows, len(table.counts)), torch.device("cpu")
        self.steps = len(table.counts) // self.rows

    def batch(self, epoch: int, step: int) -> StoryBatch:
        return self.epoch(epoch).slice_rows(step * self.rows, (step + 1) * self.rows)

    @once_per_epoch
    def epoch(self, epoch: int) -> StoryBatch:
        """All batches of an epoch, stacked."""
        table, rng = self.table, rng_for(self.seed, RngStream.STORY_ORDER, epoch)
        indices = torch.from_numpy(self.order(rng)[: self.steps * self.rows])
        blanks = self._draw_blanks(table.counts[indices].numpy(), rng) if self.noise else None
        targets, n_words, linear = table.targets[indices], table.n_words[indices], epoch < self.linear
        batch = StoryBatch(indices[:, None], targets, n_words=n_words, blank_positions=blanks, linear=linear)
        return batch.to(self.device)

    def order(self, rng: np.random.Generator) -> Array:
        return rng.permutation(len(self.table.counts))

    def _draw_blanks(self, counts: Array, rng: np.random.Generator) -> Tensor:  # B -> B blanks
        """Random positions of empty lines: at most a fraction `noise` of the lines, within the memory."""
        max_blanks = np.ceil(self.noise * counts).astype(np.int64)
        n_blanks = rng.integers(np.minimum(max_blanks, self.memory - counts) + 1)
        width = max(1, math.ceil(self.noise * int(self.table.counts.max())))  # the same in every epoch
        positions = rng.integers(counts[:, None] + 1, size=(len(counts), width))
        return torch.from_numpy(np.where(np.arange(width) < n_blanks[:, None], positions, -1))
