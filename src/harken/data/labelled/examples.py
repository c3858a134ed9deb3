"""Examples with labels from files: rows, split, tokenizer training, encoding. Shared by labels, tags and spans."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

import numpy as np
from pydantic import Field

from harken.data.processor import LabelList, SavedProcessor
from harken.data.source import Processor
from harken.data.split import ExampleT, SplitData, SplitSource, SplitT
from harken.data.tokenizers import pretrained
from harken.data.tokenizers.pairs import Array, RaggedTokens, newline_id
from harken.data.tokenizers.tokenizer import Tokenizer, train_or_load_tokenizer
from harken.events import Listener, Overflow
from harken.settings import LabelOutputs

from .batch import EncodedTexts

DEFAULT_VOCAB_SIZE = {"char": 0, "byte": 256, "word": 20_000, "bpe": 8000, "wordpiece": 8000}
TEXTS_PER_BLOCK = 4096  # texts passed to the tokenizer trainer at once


class LabelledRow(NamedTuple):
    """The texts of an input, their labels, the location of the row (path:line), and what decides its split, if set."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]  # exactly one, except for multi-label data
    location: str
    group: str = ""
    time: str = ""


def has_input(texts: Sequence[str]) -> bool:
    """Whether these texts are an input: one text or a pair needs every text, several columns need one of them."""
    return (all if len(texts) < 3 else any)(map(str.strip, texts))


def marked_texts(texts: Sequence[str], names: object) -> str:
    """The texts of an input in one line: those of several columns after the names of the columns."""
    if len(texts) < 3 or not isinstance(names, list):
        return "\t".join(texts)
    return " | ".join(f"{name}: {text}" for name, text in zip(names, texts, strict=True))


@dataclass(frozen=True, eq=False)
class LabelledTexts:
    """The rows of a split, their encoded texts, and the number of truncated ones."""

    texts: EncodedTexts
    rows: list[LabelledRow]
    overflow: Overflow
    windows: EncodedTexts | None = None  # read in place of `texts`, if set
    text_index: Array | None = None  # of each window

    def __len__(self) -> int:
        return len(self.rows)

    def facts(self) -> dict[str, int]:
        return {"texts": len(self.rows), "truncated": self.overflow.count}

    def select(self, indices: Array) -> "LabelledTexts":
        """These rows. The windows of texts are not selected: they are read after the selection."""
        return replace(self, texts=self.texts.select(indices), rows=[self.rows[n] for n in indices.tolist()])


@dataclass(frozen=True, eq=False)
class TokenLabelProcessor(SavedProcessor):
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

    def unknown_words(self, text: str) -> list[str]:
        """The words of a text, with some tokenizers its characters, that are not in the vocabulary."""
        return self.tokenizer.unknown_pieces(text)

    @classmethod
    def load(cls, folder: Path, **tokenizers: Processor) -> Self:
        return super().load(folder, tokenizer=pretrained.load_tokenizer(folder / "tokenizer.json"))


TokenProcessorT = TypeVar("TokenProcessorT", bound=TokenLabelProcessor)


class ExampleData(SplitData[Any, Any]):
    """Loaded examples by split; each part has `texts` and `facts`."""

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a text, including special tokens."""
        return max(int(part.texts.lengths.max(initial=1)) for part in self.parts.values())

    def _facts(self) -> dict[str, object]:
        return {
            "tokens": {name: int(part.texts.lengths.sum()) for name, part in self.parts.items()},
            "vocab": self.processor.tokenizer.vocab,
            "token": self.processor.tokenizer.kind,
            "labels": len(self.processor.labels),
        }


class ExampleSource(SplitSource[ExampleT, TokenProcessorT, SplitT], Generic[ExampleT, TokenProcessorT, SplitT]):
    """Settings of such data. A kind implements `read`, `split_key`, `texts`, `labels` and `encode_examples`."""

    dataset_class: ClassVar[type[ExampleData]] = ExampleData
    processor_class: ClassVar[type[TokenLabelProcessor]] = TokenLabelProcessor

    tokenizer: Literal["char", "byte", "word", "bpe", "wordpiece"] = Field("wordpiece", description="tokenizer type")
    vocab_size: int | None = Field(
        None, ge=3, le=300_000, description="maximum vocabulary size; default: 20,000 words or 8,000 subwords"
    )
    lowercase: bool = Field(False, description="whether wordpiece lowercases the text and strips accents")

    def texts(self, examples: Iterable[ExampleT]) -> Iterator[str]:
        """The texts that the tokenizer is trained on."""
        raise NotImplementedError

    def labels(self, examples: list[ExampleT]) -> list[str]:
        """The labels that a token may have."""
        raise NotImplementedError

    def _build_processor(self, examples: list[ExampleT], known: Any, listen: Listener) -> Any:
        """The processor of the training examples; reuses a known tokenizer, and known labels if they cover these."""
        labels = self.labels(examples)
        if isinstance(known, TokenLabelProcessor):
            if {*labels} <= {*known.labels}:
                if isinstance(known, self.processor_class):
                    return known
                labels = known.labels
            known = known.tokenizer
        return self.processor_class(self._train_tokenizer(examples, listen) if known is None else known, labels)

    def _train_tokenizer(self, examples: list[ExampleT], listen: Listener) -> Tokenizer:
        def blocks() -> Iterator[str]:
            lines = (f"{text}\n" for text in self.texts(examples))
            while block := "".join(islice(lines, TEXTS_PER_BLOCK)):
                yield block

        size = self.vocab_size or DEFAULT_VOCAB_SIZE[self.tokenizer]
        return train_or_load_tokenizer(self.tokenizer, size, blocks, lowercase=self.lowercase, listen=listen)


def concat_texts(rows: Sequence[tuple[Sequence[int], Sequence[int], int]], end_id: int) -> EncodedTexts:
    """Texts from rows of (ids without the end token, targets, start of the second segment)."""
    ids = np.fromiter(chain.from_iterable(row[0] for row in rows), np.int64)
    targets = np.fromiter(chain.from_iterable(row[1] for row in rows), np.int64)
    starts = np.cumsum([0, *(len(row[0]) for row in rows)], dtype=np.int64)
    segment_starts = np.array([row[2] for row in rows], np.int64)[:, None]
    return EncodedTexts(RaggedTokens(ids, starts, end_id), segment_starts, targets, per_token=True)


def select_windows(example_index: Sequence[int], indices: Array) -> tuple[Array, list[int]]:
    """The windows of the selected examples, and for each the position of its example in `indices`."""
    windows = np.flatnonzero(np.isin(example_index, indices))
    return windows, np.searchsorted(indices, np.array(example_index)[windows]).tolist()
