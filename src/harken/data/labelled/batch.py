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

from harken.data.batch import IGNORE, MIN_ROW_TOKENS, Array, Batch, Packing, pack_rows
from harken.data.pairs.batch import LengthBuckets, batch_boundaries
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
    segment_starts: Array  # N S-1: where the second, third, ... text of an input starts; unused: at least its length
    targets: Array  # N or N C; if per_token, one per element of tokens.ids
    per_token: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    def select(self, indices: Array) -> "EncodedTexts":
        ids, lengths = self.tokens.gather(indices)
        tokens = replace(self.tokens, ids=ids, starts=np.concatenate([[0], np.cumsum(lengths)]))
        per_token = replace(self.tokens, ids=self.targets)
        targets = per_token.gather(indices)[0] if self.per_token else self.targets[indices]
        return replace(self, tokens=tokens, segment_starts=self.segment_starts[indices], targets=targets)

    @property
    def lengths(self) -> Array:
        """Number of tokens of each text, including the end token."""
        return self.tokens.lengths + 1


@dataclass(frozen=True, kw_only=True)
class LabelBatch(Batch):
    """Rows of at most M texts; `doc` is M in unused positions. Targets: B M, B M C, or B L if per token."""

    max_texts: int  # M
    segments: Tensor  # B L: 1 in the second text of an input, 2 in the third, ...
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

    def model_inputs(self) -> dict[str, object]:
        if self.lengths is not None:
            return {"segments": self.segments, "lengths": self.lengths}
        return {"segments": self.segments, **super().model_inputs()}

    def text_ids(self) -> tuple[Tensor, int]:
        """The text slot of each token over the batch (unused positions: B * M), and the number of slots, B * M."""
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
    index = np.full((len(counts), max_texts), -1)
    index[rows, slots] = indices
    if texts.per_token:
        targets = pack_rows(RaggedTokens(texts.targets, texts.tokens.starts, no_target), indices, counts, L)[0]
    else:
        targets = np.full((len(counts), max_texts, *texts.targets.shape[1:]), no_target, texts.targets.dtype)
        targets[rows, slots] = texts.targets[indices]
    segment_starts = np.full((len(counts), max_texts + 1, texts.segment_starts.shape[1]), L)
    segment_starts[rows, slots] = texts.segment_starts[indices]
    segments = (pos[..., None] >= np.take_along_axis(segment_starts, doc[..., None], 1)).sum(-1)
    arrays = {"tokens": tokens, "targets": targets, "pos": pos, "doc": doc, "segments": segments, "text_index": index}
    tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
    lengths = torch.from_numpy(texts.lengths[indices]) if max_texts == 1 else None
    return LabelBatch(max_texts=max_texts, lengths=lengths, **tensors)


class PackedTexts(Packing):
    """The packed training batches of one epoch, all of the same shape."""

    def __init__(self, texts: EncodedTexts, rows: int, *, seed: int) -> None:
        row_length = -(-max(int(texts.lengths.max()), MIN_ROW_TOKENS) // 8) * 8
        super().__init__((texts.lengths,), (row_length,), rows, seed=seed)
        self.texts, self.tokens = texts, max(1, round(int(texts.lengths.sum()) / self.steps))

    def batch(self, epoch: int, step: int) -> LabelBatch:
        max_texts = max(2, self.max_per_row)  # 1 slot means padded rows
        return collate_texts(self.texts, *self.picks(epoch, step), self.widths[0], max_texts)


class PaddedTexts(LengthBuckets):
    """The padded training batches of one epoch: texts of similar length, as many as fit into the token budget."""

    def __init__(self, texts: EncodedTexts, rows: int, *, seed: int) -> None:
        super().__init__(np.zeros_like(texts.lengths), texts.lengths, rows, seed)
        self.texts = texts

    def batch(self, epoch: int, step: int) -> LabelBatch:
        return collate_padded(self.texts, self.picks(epoch, step))


def collate_padded(texts: EncodedTexts, indices: Array) -> LabelBatch:
    """One text per row."""
    return collate_texts(texts, indices, np.ones(len(indices), np.int64), int(texts.lengths[indices].max()), 1)


def eval_batches(texts: EncodedTexts, max_tokens: int) -> Iterator[tuple[Array, LabelBatch]]:
    """Each text once, sorted by length, about max_tokens per batch: the indices of the texts, and their batch."""
    order = np.argsort(texts.lengths, kind="stable")
    boundaries = batch_boundaries(np.zeros_like(order), texts.lengths[order], max_tokens)
    for start, stop in pairwise(boundaries):
        yield order[start:stop], collate_padded(texts, order[start:stop])
