"""Examples with token-level labels from files: split, tokenizer training, encoding. Shared by tags and spans."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from harken.data.cache import cache_folder
from harken.data.split import LABELS_FILE, LabelList, SplitData, SplitSource
from harken.data.text.source import train_or_load_tokenizer
from harken.data.tokenizers import pretrained
from harken.data.tokenizers.pairs import Array, RaggedTokens, newline_id
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadRun
from harken.events import Listener
from harken.settings import LabelOutputs

from .batch import EncodedTexts

DEFAULT_VOCAB_SIZE = {"char": 0, "byte": 256, "word": 20_000, "bpe": 8000, "wordpiece": 8000}
TEXTS_PER_BLOCK = 4096  # texts passed to the tokenizer trainer at once


@dataclass(frozen=True, eq=False)
class TokenLabelProcessor:
    """A tokenizer, and the labels that a token may have."""

    tokenizer: Tokenizer
    labels: LabelList

    @property
    def vocab(self) -> LabelOutputs:
        return LabelOutputs(self.tokenizer.vocab, len(self.labels), per_token=True)

    @property
    def end_id(self) -> int:
        """The token that ends a text and separates two."""
        return newline_id(self.tokenizer) if self.tokenizer.end_id is None else self.tokenizer.end_id

    @property
    def start_ids(self) -> list[int]:
        """The special tokens before a text, if any."""
        return list(self.tokenizer.prefix_ids) or [token for token in [self.tokenizer.cls_id] if token is not None]

    def files(self) -> dict[str, bytes]:
        """File contents for the run folder, by name."""
        return {**self.tokenizer.files(), LABELS_FILE: json.dumps(self.labels, ensure_ascii=False).encode()}

    @classmethod
    def load(cls, folder: Path) -> "TokenLabelProcessor":
        try:
            labels = json.loads((folder / LABELS_FILE).read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            labels = None
        if not (isinstance(labels, list) and labels and all(isinstance(label, str) for label in labels)):
            raise BadRun(f"{folder / LABELS_FILE}: is not a list of labels; restore it from a copy, or train again")
        return cls(pretrained.load_tokenizer(folder / "tokenizer.json"), labels)


@dataclass(frozen=True, eq=False)
class ExampleData(SplitData):
    """Loaded examples by split; each part has `texts` and `facts`."""

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a text, including special tokens."""
        return max(int(part.texts.lengths.max(initial=1)) for part in self.parts.values())

    def facts(self) -> dict[str, Any]:
        """Data statistics for the report."""
        counts = {name: part.facts() for name, part in self.parts.items()}
        return {
            **{key: {name: counts[name][key] for name in self.parts} for key in counts["train"]},
            "unit": next(iter(counts["train"])),  # what a user counts
            "tokens": {name: int(part.texts.lengths.sum()) for name, part in self.parts.items()},
            "vocab": self.processor.tokenizer.vocab,
            "token": self.processor.tokenizer.kind,
            "labels": len(self.processor.labels),
            "sha256": self.sha256,
        }


class ExampleSource(SplitSource):
    """Settings of such data. A kind implements `read`, `split_key`, `texts`, `labels` and `encode_examples`."""

    model: ClassVar[str] = "bert"
    model_group: ClassVar[str] = " of labels"  # the group of models for this data (registry.py)
    dataset_class: ClassVar[type[Any]] = ExampleData

    tokenizer: Literal["char", "byte", "word", "bpe", "wordpiece"] = Field("wordpiece", description="tokenizer type")
    vocab_size: int | None = Field(
        None, ge=3, le=300_000, description="maximum vocabulary size; default: 20,000 words or 8,000 subwords"
    )
    lowercase: bool = Field(True, description="whether wordpiece lowercases the text and strips accents")

    def load_processor(self, folder: Path) -> TokenLabelProcessor:
        """The processor saved in a run folder."""
        return TokenLabelProcessor.load(folder)

    def texts(self, examples: Iterable[Any]) -> Iterator[str]:
        """The texts that the tokenizer is trained on."""
        raise NotImplementedError

    def labels(self, examples: Iterable[Any]) -> list[str]:
        """The labels that a token may have."""
        raise NotImplementedError

    def _build_processor(self, examples: list[Any], known: Any, listen: Listener) -> TokenLabelProcessor:
        """The processor of the training examples; reuses a known tokenizer, and known labels if they cover these."""
        labels = self.labels(examples)
        if isinstance(known, TokenLabelProcessor) and {*labels} <= {*known.labels}:
            return known
        if known is not None:
            return TokenLabelProcessor(known.tokenizer if isinstance(known, TokenLabelProcessor) else known, labels)

        def blocks() -> Iterator[str]:
            lines = list[str]()
            for text in self.texts(examples):
                lines.append(f"{text}\n")
                if len(lines) == TEXTS_PER_BLOCK:
                    yield "".join(lines)
                    lines.clear()
            yield "".join(lines)

        size, folder = self.vocab_size or DEFAULT_VOCAB_SIZE[self.tokenizer], cache_folder("text")
        trained = train_or_load_tokenizer(self.tokenizer, size, blocks, folder, lowercase=self.lowercase, listen=listen)
        return TokenLabelProcessor(trained, labels)


def concat_texts(rows: Sequence[tuple[Sequence[int], Sequence[int], int]], end_id: int) -> EncodedTexts:
    """Texts from rows of (ids without the end token, targets, start of the second part)."""
    ids = np.fromiter(chain.from_iterable(row[0] for row in rows), np.int64)
    targets = np.fromiter(chain.from_iterable(row[1] for row in rows), np.int64)
    starts = np.cumsum([0, *(len(row[0]) for row in rows)], dtype=np.int64)
    second_start = np.array([row[2] for row in rows], np.int64)
    return EncodedTexts(RaggedTokens(ids, starts, end_id), second_start, targets, per_token=True)


def select_windows(example_index: Sequence[int], indices: Array) -> tuple[Array, list[int]]:
    """The windows of the selected examples, and for each the position of its example in `indices`."""
    windows = np.flatnonzero(np.isin(example_index, indices))
    return windows, np.searchsorted(indices, np.array(example_index)[windows]).tolist()
