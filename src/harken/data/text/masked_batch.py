"""Batches of masked passages, or of pairs of passages, for BERT. Every batch has the same shape.

Rows are [CLS] a [SEP] or [CLS] a [SEP] b [SEP]. Each row has the same number M of target slots; unused slots have
position 0 and target IGNORE.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import IGNORE, Array, Batch
from harken.data.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class MaskedBatch(Batch):
    """Masked rows; positions and targets are B M."""

    static_shape: ClassVar[bool] = True

    positions: Tensor  # B M
    segments: Tensor | None = None  # B L: 1 in the second passage
    lengths: Tensor | None = None  # B: tokens before the padding
    next_sentence_labels: Tensor | None = None  # B: 0 if the second passage follows the first, else 1

    def model_inputs(self) -> dict[str, Any]:
        inputs = {"segments": self.segments, "lengths": self.lengths}
        return {name: value for name, value in inputs.items() if value is not None}


class MaskingSettings(NamedTuple):
    """Fraction of target tokens, and the probabilities to replace one by [MASK] or by a random token."""

    mlm_probability: float
    mask_replace_prob: float
    random_replace_prob: float
    whole_words: bool  # mask all pieces of a word together


class SpecialTokens:
    """Special ids of a tokenizer, and per-id flags: text or special, start or continuation of a word."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
        self.pad, self.cls, self.sep, self.mask = (int(i or 0) for i in ids)
        self.is_text = np.ones(tokenizer.vocab, bool)
        self.is_text[tokenizer.special_ids] = False
        texts = tokenizer.token_texts(range(tokenizer.vocab))
        self.is_continuation = np.array([text.startswith("##") for text in texts])
        self.text_ids = np.flatnonzero(self.is_text)  # candidates for random replacement

    def frame(self, passages: Array) -> Array:  # N L -> N L+2
        """[CLS] a [SEP]"""
        return np.pad(passages, ((0, 0), (1, 1)), constant_values=((0, 0), (self.cls, self.sep)))

    def frame_pairs(self, ids: Array, first: Array, second: Array, L: int) -> tuple[Array, Array, Array]:
        """[CLS] a [SEP] b [SEP] padded to L from spans of ids (N 2 each); also segments and row lengths."""
        a, b = (np.diff(span, axis=1) for span in (first, second))  # N 1
        pos = np.arange(L)
        index = np.where(pos <= a, first[:, :1] + pos - 1, second[:, :1] + pos - a - 2)
        rows = ids[np.clip(index, 0, len(ids) - 1)].astype(np.int64)
        rows[:, 0] = self.cls
        rows[(pos == a + 1) | (pos == a + b + 2)] = self.sep
        rows[pos > a + b + 2] = self.pad
        return rows, ((pos > a + 1) & (pos <= a + b + 2)).astype(np.int64), (a + b + 3)[:, 0]


def mask_tokens(
    rows: Array, special: SpecialTokens, settings: MaskingSettings, max_targets: int, rng: np.random.Generator
) -> tuple[Array, ...]:
    """Masked rows, target positions (B max_targets; 0 if unused) and the original ids there (IGNORE if unused)."""
    is_text, is_start = special.is_text[rows], ~(special.is_continuation[rows] & settings.whole_words)
    word = np.cumsum(is_start | ~is_text, 1) - 1  # word index of each token in its row
    draws: Array = np.take_along_axis(rng.random(size=rows.shape), word, 1)
    order = np.argsort(np.where(is_text, draws, 2.0), 1, kind="stable")[:, : max_targets + 1]
    n_text = is_text.sum(1)
    n_targets = np.clip(np.rint(settings.mlm_probability * n_text), 1, max_targets).astype(np.int64)
    picked = np.arange(order.shape[1]) < np.minimum(n_targets, n_text)[:, None]
    if settings.whole_words:  # drop the word that the limit would split, unless it is the only one
        word_of = np.take_along_axis(word, order, 1)
        next_word = np.take_along_axis(word_of, np.minimum(n_targets, word_of.shape[1] - 1)[:, None], 1)
        complete = picked & (word_of != next_word)
        picked = np.where(complete.any(1, keepdims=True), complete, picked)
    picked, order = picked[:, :max_targets], order[:, :max_targets]
    positions = np.where(picked, order, 0)
    targets = np.where(picked, np.take_along_axis(rows, positions, 1), IGNORE)
    uniform = rng.random(positions.shape)
    random_ids = special.text_ids[rng.integers(len(special.text_ids), size=positions.shape)]
    p_mask, p_random = settings.mask_replace_prob, settings.random_replace_prob
    shown = np.where(uniform < p_mask, special.mask, np.where(uniform < p_mask + p_random, random_ids, targets))
    masked, (row, n) = rows.copy(), np.nonzero(picked)
    masked[row, positions[row, n]] = shown[row, n]
    return masked, positions, targets


def collate_masked(masked: tuple[Array, ...], **more: Array) -> MaskedBatch:
    """A batch from the arrays of `mask_tokens`; `more` holds further fields of MaskedBatch."""
    tokens, positions, targets = map(torch.from_numpy, masked)
    extra: dict[str, Any] = {name: torch.from_numpy(x) for name, x in more.items()}
    return MaskedBatch(tokens, targets, positions=positions, **extra)
