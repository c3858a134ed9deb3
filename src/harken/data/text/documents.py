"""A text as documents of sentences; batches of masked passages and of pairs of passages for BERT.

A sentence ends at punctuation and white space (in some texts at a newline), a document at a blank line, a line or a
file. The encoded text has SEP after each sentence and CLS after each document, so one id stream holds all boundaries.

Rows are [CLS] a [SEP] or [CLS] a [SEP] b [SEP]. Each row has the same number M of target slots; unused slots have
position 0 and target IGNORE. Every batch has the same shape.
"""

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harken.data.batch import IGNORE, Array, Batch
from harken.data.rng import RngStream, once_per_epoch, rng_for
from harken.data.tokenizers.spec import CLS, SEP
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadInput

LAYOUT_SAMPLE = 1 << 20  # characters from which the layout is detected
MIN_PASSAGE_TOKENS = 4  # shorter passages are skipped
_NOT_ABBREVIATED = "".join(rf"(?<!\b{word}\.)" for word in ("Mr", "Mrs", "Ms", "Dr", "St", "vs", "No", "[A-Z]"))
# punctuation, closing quotes, white space and no lowercase letter; punctuation between spaces always ends a sentence
_SENTENCE_END = re.compile(rf"""(?<=[.!?]){_NOT_ABBREVIATED}["'”’)\]]*\s+(?![a-zß-ÿ])|(?<=\s[.!?])\s+|(?<=[。！？])""")
_BLANK_LINE, _LINE_BREAK = re.compile(r"\n[^\S\n]*\n\s*"), re.compile(r"\n\s*")


@dataclass(frozen=True)
class DocumentLayout:
    """Document boundary of a text, and whether a newline ends a sentence."""

    documents: Literal["file", "blank", "line"]
    lines: bool
    END: ClassVar[str] = f" {SEP} {CLS} "

    def insert_markers(self, text: str) -> str:
        """The text with SEP after each sentence and CLS after each document that ends in it."""
        if self.documents != "file":
            text = (_BLANK_LINE if self.documents == "blank" else _LINE_BREAK).sub(self.END, text)
        if self.lines:
            text = _LINE_BREAK.sub(f" {SEP} ", text)
        return _SENTENCE_END.sub(lambda gap: f"{gap[0]} {SEP} ", text)


def detect_layout(text: str, documents: str = "auto") -> DocumentLayout:
    """Layout from the start of a text: documents end at blank lines, else are long lines, else files."""
    text = text[:LAYOUT_SAMPLE].strip()
    rows = [line.strip() for line in text.split("\n") if line.strip()]
    n_sentences = len(_SENTENCE_END.findall(text.replace("\n", " "))) + 1
    n_ended = sum(line.endswith((".", "!", "?", '."', '!"', '?"', ".”", "!”", "?”", "。")) for line in rows)
    lines = 2 * n_ended > len(rows) or 4 * n_sentences < len(rows)  # otherwise lines are wrapped
    if documents == "auto":
        documents = "blank" if _BLANK_LINE.search(text) else "line" if n_sentences > 2 * len(rows) > 2 else "file"
    return DocumentLayout(documents, lines)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Documents:
    """Token ids without markers, and the starts of sentences and documents, each with the end of the text appended."""

    ids: Array
    sentences: Array
    documents: Array

    @classmethod
    def from_marked_ids(cls, marked: Array, sep: int, cls_id: int) -> "Documents":
        """From encoded text with markers; empty sentences and documents are dropped."""
        is_text = (marked != sep) & (marked != cls_id)
        n_before = np.cumsum(is_text)  # at a marker: the start of the next sentence
        ends = (~is_text, marked == cls_id)
        return cls(marked[is_text], *(np.unique(np.concatenate([[0], n_before[e], [is_text.sum()]])) for e in ends))

    def windows(self, L: int) -> Array:  # N 3
        """Passages of at most L tokens within one document: start, stop, document index."""
        lengths = np.diff(self.documents)
        counts = -(-lengths // L)
        doc = np.repeat(np.arange(len(lengths)), counts)
        start = self.documents[doc] + (np.arange(len(doc)) - np.repeat(np.cumsum(counts) - counts, counts)) * L
        stop = np.minimum(start + L, self.documents[doc + 1])
        return np.stack([start, stop, doc], 1)[stop - start >= MIN_PASSAGE_TOKENS]


class PassagePairs:
    """Pairs of passages: half of the second passages follow the first, the others come from another document.

    A batch is a pure function of (seed, epoch, step). A random second passage has the shape of a following one: the
    same length, a start at a sentence that is not the first of its document, and an end at the document end if the
    following one ends there. So only the content distinguishes the two.
    """

    remedy: ClassVar[str] = "give a longer text"

    def __init__(self, documents: Documents, L: int, rows: int, *, seed: int) -> None:
        self.documents, self.L, self.seed = documents, L, seed
        self.windows = self.usable_windows(documents, L)
        if len(self.windows) < 2:
            raise BadInput(f"data: next-sentence prediction needs at least two passages; {self.remedy}")
        self.rows = min(rows, len(self.windows))
        self.steps = len(self.windows) // self.rows
        ends, second = documents.documents[1:], np.searchsorted(documents.sentences, documents.documents[:-1]) + 1
        lengths = (ends - np.minimum(documents.sentences[second], ends))[self.windows[:, 2]]  # after sentence 1
        self.order = np.argsort(lengths, kind="stable")  # windows of one document stay adjacent
        self.rest_lengths, self.rank = lengths[self.order], np.argsort(self.order)
        self.n_windows = np.bincount(self.windows[:, 2])  # per document

    @staticmethod
    def usable_windows(documents: Documents, L: int) -> Array:  # N 3
        """The windows that are split into a first passage and the one that follows."""
        return documents.windows(L)

    @once_per_epoch
    def epoch_order(self, epoch: int) -> Array:
        return rng_for(self.seed, RngStream.PASSAGE_ORDER, epoch).permutation(len(self.windows))

    def picks(self, epoch: int, step: int) -> Array:
        order = self.epoch_order(epoch)
        return order[step * self.rows : (step + 1) * self.rows]

    def pairs(self, picks: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """First and second passages as [start, stop] (N 2 each), and whether the second follows the first."""
        start, stop, _ = self.windows[picks].T
        middle = self._split_points(start, stop, rng)
        follows = rng.random(len(picks)) < 0.5
        second = np.where(follows[:, None], np.stack([middle, stop], 1), self._random_seconds(picks, middle, rng))
        return np.stack([start, middle], 1), second, follows

    def is_sentence_start(self, positions: Array) -> Array:
        """Whether a sentence (or the end of the text) is at each position, by binary search."""
        sentences = self.documents.sentences
        is_start: Array = sentences[np.minimum(np.searchsorted(sentences, positions), len(sentences) - 1)] == positions
        return is_start

    def _split_points(self, start: Array, stop: Array, rng: np.random.Generator) -> Array:
        """A random sentence start inside each window; the middle of a window without one."""
        sentences, uniform = self.documents.sentences, rng.random(len(start))
        low, high = np.searchsorted(sentences, start, "right"), np.searchsorted(sentences, stop, "left")
        drawn = sentences[np.minimum(low + (uniform * (high - low)).astype(np.int64), len(sentences) - 1)]
        return np.where(low < high, drawn, (start + stop) // 2)

    def _random_seconds(self, picks: Array, middle: Array, rng: np.random.Generator) -> Array:  # N 2
        """A second passage from another document for each window that is split at `middle`."""
        start, stop, doc = self.windows[picks].T
        sentences, documents, length = self.documents.sentences, self.documents.documents, stop - middle
        low, high, other_doc = self.windows[self._other_windows(picks, length, rng)].T
        end, to_end = documents[other_doc + 1], (stop == documents[doc + 1]) & (other_doc != doc)
        at_sentence, latest = self.is_sentence_start(middle), np.maximum(end - length, documents[other_doc])
        drawn = np.where(at_sentence, self._split_points(low, high, rng), (low + high) // 2)
        wanted = np.where(to_end, latest, np.minimum(drawn, latest))
        before = sentences[np.searchsorted(sentences, wanted, "right") - 1]
        after = sentences[np.searchsorted(sentences, wanted)]
        earliest = end - (self.L - (middle - start))  # a passage to the document end must not start before this
        take_after = (after - wanted < wanted - before) | (before < earliest)
        begin = np.where(to_end & (after < end) & take_after, after, before)
        begin = np.where(at_sentence, np.where(to_end, np.maximum(begin, earliest), begin), wanted)
        return np.stack([begin, np.where(to_end, end, np.minimum(begin + length, end))], 1)

    def _other_windows(self, picks: Array, length: Array, rng: np.random.Generator) -> Array:
        """For each window one of another document that is long enough after its first sentence; else any other."""
        total, doc = len(self.windows), self.windows[:, 2]
        low, uniform = np.searchsorted(self.rest_lengths, length), rng.random(len(picks))
        first, n_same = self.rank[np.searchsorted(doc, doc[picks])], self.n_windows[doc[picks]]
        n_same = np.where(first < low, 0, n_same)
        n_candidates = total - low - n_same
        none = n_candidates == 0
        n = (uniform * np.where(none, total - 1, n_candidates)).astype(np.int64)
        candidate = low + n + n_same * (low + n >= first)
        return self.order[np.where(none, (self.rank[picks] + 1 + n) % total, candidate)]


class SameDocumentPairs(PassagePairs):
    """Pairs whose second passage follows the first, or begins at another sentence of the same document.

    Both kinds of second passage are whole sentences, have the same limit of their length, and do not overlap the first
    passage. No second passage is the start of a document.
    """

    remedy: ClassVar[str] = "give documents that are longer than model.context, or set task.negatives=other-document"

    @staticmethod
    def usable_windows(documents: Documents, L: int) -> Array:  # N 3
        """The windows with a sentence start inside, of documents with a sentence before or after the window."""
        windows, sentences = documents.windows(L), documents.sentences
        start, stop, doc = windows.T
        first, end = (np.searchsorted(sentences, documents.documents[doc + n], "right") for n in (0, 1))
        inside, after = np.searchsorted(sentences, start, "right"), np.searchsorted(sentences, stop)
        n_elsewhere = np.maximum(inside - 1 - first, 0) + np.maximum(end - 1 - after, 0)
        return windows[(inside < after) & (n_elsewhere > 0)]

    def pairs(self, picks: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        start, stop, doc = self.windows[picks].T
        middle = self._split_points(start, stop, rng)
        elsewhere, end = self._sentences_elsewhere(start, middle, doc, rng), self.documents.documents[doc + 1]
        room = self.L - (middle - start)
        available = np.where(elsewhere < start, start, end) - elsewhere
        limit = np.minimum(room, np.minimum(available, end - middle))  # the same for both passages
        follows = rng.random(len(picks)) < 0.5
        begin = np.where(follows, middle, elsewhere)
        second = np.stack([begin, self._sentence_ends(begin, limit, room)], 1)
        return np.stack([start, middle], 1), second, follows

    def _sentences_elsewhere(self, start: Array, middle: Array, doc: Array, rng: np.random.Generator) -> Array:
        """The start of a random sentence of each document, not the first one, that ends before `start` or starts after
        `middle`."""
        sentences, documents = self.documents.sentences, self.documents.documents
        first, inside, after = (np.searchsorted(sentences, x, "right") for x in (documents[doc], start, middle))
        end, n_before = np.searchsorted(sentences, documents[doc + 1]), np.maximum(inside - 1 - first, 0)
        n = (rng.random(len(doc)) * (n_before + end - after)).astype(np.int64)
        chosen: Array = sentences[np.where(n < n_before, first + n, after + n - n_before)]
        return chosen

    def _sentence_ends(self, begin: Array, limit: Array, room: Array) -> Array:
        """The end of the last sentence within the limit, else of the first one if there is room, else of the room."""
        sentences = self.documents.sentences
        last = sentences[np.searchsorted(sentences, begin + limit, "right") - 1]
        first = np.minimum(sentences[np.searchsorted(sentences, begin, "right")], begin + room)
        return np.maximum(last, first)


@dataclass(frozen=True, kw_only=True)
class MaskedBatch(Batch):
    """Masked rows; positions and targets are B M."""

    static_shape: ClassVar[bool] = True

    positions: Tensor  # B M
    segments: Tensor | None = None  # B L: 1 in the second passage
    lengths: Tensor | None = None  # B: tokens before the padding
    next_sentence_labels: Tensor | None = None  # B: 0 if the second passage follows the first, else 1

    @classmethod
    def collate(cls, masked: tuple[Array, ...], **more: Array) -> "MaskedBatch":
        """A batch from the arrays of `mask_tokens`; `more` holds further fields."""
        tokens, positions, targets = map(torch.from_numpy, masked)
        extra: dict[str, Any] = {name: torch.from_numpy(x) for name, x in more.items()}
        return cls(tokens, targets, positions=positions, **extra)

    def model_inputs(self) -> dict[str, object]:
        inputs = {"segments": self.segments, "lengths": self.lengths}
        return {name: value for name, value in inputs.items() if value is not None}


class Masking(NamedTuple):
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
        self, rows: Array, masking: Masking, max_targets: int, rng: np.random.Generator
    ) -> tuple[Array, ...]:
        """Masked rows, target positions (B max_targets; 0 if unused) and the original ids there (IGNORE if unused)."""
        is_text, is_start = self.is_text[rows], ~(self.is_continuation[rows] & masking.whole_words)
        word = np.cumsum(is_start | ~is_text, 1) - 1  # word index of each token in its row
        draws: Array = np.take_along_axis(rng.random(size=rows.shape), word, 1)
        order = np.argsort(np.where(is_text, draws, 2.0), 1, kind="stable")[:, : max_targets + 1]
        n_text = is_text.sum(1)
        n_targets = np.clip(np.rint(masking.mlm_probability * n_text), 1, max_targets).astype(np.int64)
        picked = np.arange(order.shape[1]) < np.minimum(n_targets, n_text)[:, None]
        if masking.whole_words:  # drop the word that the limit would split, unless it is the only one
            word_of = np.take_along_axis(word, order, 1)
            next_word = np.take_along_axis(word_of, np.minimum(n_targets, word_of.shape[1] - 1)[:, None], 1)
            complete = picked & (word_of != next_word)
            picked = np.where(complete.any(1, keepdims=True), complete, picked)
        picked, order = picked[:, :max_targets], order[:, :max_targets]
        positions = np.where(picked, order, 0)
        targets = np.where(picked, np.take_along_axis(rows, positions, 1), IGNORE)
        uniform = rng.random(positions.shape)
        random_ids = self.text_ids[rng.integers(len(self.text_ids), size=positions.shape)]
        p_mask, p_random = masking.mask_replace_prob, masking.random_replace_prob
        shown = np.where(uniform < p_mask, self.mask, np.where(uniform < p_mask + p_random, random_ids, targets))
        masked, (row, n) = rows.copy(), np.nonzero(picked)
        masked[row, positions[row, n]] = shown[row, n]
        return masked, positions, targets
