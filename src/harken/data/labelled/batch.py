"""Batches of labelled texts, with a target per text or per token. A pure function of (seed, epoch, step).

Packed rows hold several texts without padding. Models with a recurrent state get one padded text per row.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import IGNORE, Array, Batch
from harken.data.packing import MIN_ROW_TOKENS, Packing, pack_rows
from harken.data.pairs.batch import batch_boundaries
from harken.data.rng import RngStream, rng_for
from harken.data.tokenizers.pairs import RaggedTokens


def evenly_spaced(total: int, count: int) -> Array:
    """At most `count` indices spread over range(total): a file may be sorted by label or by topic."""
    return np.linspace(0, total - 1, min(count, total)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """Encoded texts with their targets. `tokens` includes the special tokens, except the final end token.

    Targets are int64 (IGNORE: no target) or, for regression and multi-label data, float32 (NaN: no target).
    """

    tokens: RaggedTokens
    second_start: Array  # N: position of the second text of a pair; at least the length for a single text
    targets: Array  # N or N C; if per_token, one per element of tokens.ids
    per_token: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    def select(self, indices: Array) -> "EncodedTexts":
        ids, lengths = self.tokens.gather(indices)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        per_token = replace(self.tokens, ids=self.targets)
        return replace(
            self,
            tokens=replace(self.tokens, ids=ids, starts=starts),
            second_start=self.second_start[indices],
            targets=per_token.gather(indices)[0] if self.per_token else self.targets[indices],
        )

    @property
    def lengths(self) -> Array:
        """Number of tokens of each text, including the end token."""
        return self.tokens.lengths + 1


@dataclass(frozen=True, kw_only=True)
class LabelBatch(Batch):
    """Rows of at most M texts; `doc` is M in unused positions. Targets: B M, B M C, or B L if per token."""

    max_texts: int  # M
    segments: Tensor  # B L: 1 in the second text of a pair
    text_index: Tensor  # B M: index of each text in its split, -1 for an unused slot
    lengths: Tensor | None = None  # B: tokens of the only text of each row, if rows are padded

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        return self.lengths is None

    @property
    def static_shape(self) -> bool:
        return self.lengths is None

    @property
    def target_mask(self) -> Tensor:
        """True where a target counts."""
        return ~self.targets.isnan() if self.targets.is_floating_point() else self.targets != IGNORE

    @property
    def n_targets(self) -> int:
        return int(self.target_mask.sum())

    @property
    def n_tokens(self) -> int:
        assert self.doc is not None
        return int((self.doc < self.max_texts).sum())

    def model_inputs(self) -> dict[str, Any]:
        if self.lengths is not None:
            return {"segments": self.segments, "lengths": self.lengths}
        return {"segments": self.segments, **super().model_inputs()}

    def text_ids(self) -> tuple[Tensor, int]:
        """The text slot of each token, numbered over the whole batch, and the number of slots (B * M).

        Unused positions get the number of slots.
        """
        assert self.doc is not None
        B, M = len(self.tokens), self.max_texts
        first_slot = torch.arange(B, device=self.doc.device)[:, None] * M
        return torch.where(self.doc < M, self.doc + first_slot, B * M), B * M


def collate_texts(texts: EncodedTexts, indices: Array, counts: Array, L: int, max_texts: int) -> LabelBatch:
    """Texts in rows of L tokens, counts[r] texts in row r. With max_texts=1 rows are padded and have `lengths`."""
    tokens, pos, doc = pack_rows(texts.tokens, indices, counts, L)
    doc[doc >= counts[:, None]] = max_texts
    no_target: Any = np.nan if texts.targets.dtype.kind == "f" else IGNORE
    rows = np.repeat(np.arange(len(counts)), counts)
    slots = np.arange(len(indices)) - np.repeat(np.cumsum(counts) - counts, counts)
    text_index = np.full((len(counts), max_texts), -1)
    text_index[rows, slots] = indices
    if texts.per_token:
        targets = pack_rows(RaggedTokens(texts.targets, texts.tokens.starts, no_target), indices, counts, L)[0]
    else:
        targets = np.full((len(counts), max_texts, *texts.targets.shape[1:]), no_target, texts.targets.dtype)
        targets[rows, slots] = texts.targets[indices]
    second_start = np.full((len(counts), max_texts + 1), L)
    second_start[rows, slots] = texts.second_start[indices]
    segments = (pos >= np.take_along_axis(second_start, doc, 1)).astype(np.int64)
    return LabelBatch(
        torch.from_numpy(tokens),
        torch.from_numpy(targets),
        torch.from_numpy(pos),
        torch.from_numpy(doc),
        max_texts=max_texts,
        segments=torch.from_numpy(segments),
        text_index=torch.from_numpy(text_index),
        lengths=torch.from_numpy(texts.lengths[indices]) if max_texts == 1 else None,
    )


class PackedTexts:
    """The packed training batches of one epoch, all of the same shape."""

    def __init__(self, texts: EncodedTexts, rows: int, *, seed: int) -> None:
        self.texts, self.row_len = texts, -(-max(int(texts.lengths.max()), MIN_ROW_TOKENS) // 8) * 8
        self.packing = Packing((texts.lengths,), (self.row_len,), rows, seed=seed)
        self.rows, self.steps, self.padding = self.packing.rows, self.packing.steps, self.packing.padding
        self.tokens = max(1, round(int(texts.lengths.sum()) / self.steps))

    def batch(self, epoch: int, step: int) -> LabelBatch:
        # at least 2 slots, since 1 slot means padded rows
        return collate_texts(
            self.texts, *self.packing.picks(epoch, step), self.row_len, max(2, self.packing.max_per_row)
        )


class PaddedTexts:
    """The padded training batches of one epoch: texts of similar length, as many as fit into the token budget."""

    def __init__(self, texts: EncodedTexts, rows: int, *, seed: int) -> None:
        self.texts, self.seed, lengths = texts, seed, np.sort(texts.lengths)
        self.boundaries = batch_boundaries(np.zeros_like(lengths), lengths, rows * float(lengths.mean()))
        self.steps = len(self.boundaries) - 1
        self.rows = max(1, round(len(texts) / self.steps))
        self.tokens = max(1, round(int(lengths.sum()) / self.steps))
        n_positions = (np.diff(self.boundaries) * lengths[self.boundaries[1:] - 1]).sum()
        self.padding = 1 - float(lengths.sum() / n_positions)
        self._epoch: tuple[int, Array, Array] = (-1, lengths, lengths)

    def batch(self, epoch: int, step: int) -> LabelBatch:
        if self._epoch[0] != epoch:
            rng = rng_for(self.seed, RngStream.BUCKET_ORDER, epoch)
            order = np.lexsort((rng.permutation(len(self.texts)), self.texts.lengths))
            self._epoch = (epoch, order, rng.permutation(self.steps))
        _, order, batch_order = self._epoch
        start, stop = self.boundaries[batch_order[step]], self.boundaries[batch_order[step] + 1]
        return collate_padded(self.texts, order[start:stop])


def collate_padded(texts: EncodedTexts, indices: Array) -> LabelBatch:
    """One text per row."""
    return collate_texts(texts, indices, np.ones(len(indices), np.int64), int(texts.lengths[indices].max()), 1)


def eval_batches(texts: EncodedTexts, max_tokens: int) -> Iterator[tuple[Array, LabelBatch]]:
    """Each text once, sorted by length, about max_tokens per batch: the indices of the texts, and their batch."""
    order = np.argsort(texts.lengths, kind="stable")
    boundaries = batch_boundaries(np.zeros_like(order), texts.lengths[order], max_tokens)
    for start, stop in pairwise(boundaries):
        yield order[start:stop], collate_padded(texts, order[start:stop])
