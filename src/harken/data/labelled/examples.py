"""Examples whose tokens carry labels, from files: split, tokens learned, encoded. Tags and spans do it."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from harken.data.cache import cache_folder
from harken.data.split import LABELS, Labels, SplitData, SplitSource
from harken.data.text.source import learned
from harken.data.tokenizers import pretrained
from harken.data.tokenizers.pairs import Ids, Side, newline
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadRun
from harken.events import Listener
from harken.settings import Outputs

from .batch import Texts

VOCAB = {"char": 0, "byte": 256, "word": 20_000, "bpe": 8000, "wordpiece": 8000}
BLOCK = 4096  # texts from which tokens are learned at once


@dataclass(frozen=True, eq=False)
class LabelWords:
    """Tokens, and the labels that a token may have."""

    tokenizer: Tokenizer
    labels: Labels

    @property
    def vocab(self) -> Outputs:
        return Outputs(self.tokenizer.vocab, len(self.labels), each_token=True)

    @property
    def edge(self) -> int:
        """The mark that ends a text, and stands between two."""
        return newline(self.tokenizer) if self.tokenizer.end is None else self.tokenizer.end

    @property
    def begin(self) -> list[int]:
        """The marks before a text, where there are any."""
        return list(self.tokenizer.begin) or [mark for mark in [self.tokenizer.cls] if mark is not None]

    def files(self) -> dict[str, bytes]:
        """What a run folder keeps, by name."""
        return {**self.tokenizer.files(), LABELS: json.dumps(self.labels, ensure_ascii=False).encode()}

    @classmethod
    def load(cls, folder: Path) -> "LabelWords":
        try:
            labels = json.loads((folder / LABELS).read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            labels = None
        if not (isinstance(labels, list) and labels and all(isinstance(label, str) for label in labels)):
            raise BadRun(f"{folder / LABELS}: is no list of labels; take it from a copy, or train again")
        return cls(pretrained.load(folder / "tokenizer.json"), labels)


@dataclass(frozen=True, eq=False)
class ExampleData(SplitData):
    """Opened examples by split; each part has `texts`, what its layout needs, and `facts`."""

    @property
    def max_length(self) -> int:
        """Most tokens of a text, its marks with them."""
        return max(int(part.texts.lengths.max(initial=1)) for part in self.parts.values())

    def facts(self) -> dict[str, Any]:
        """What the report says of the data."""
        counts = {name: part.facts() for name, part in self.parts.items()}
        return {
            **{what: {name: counts[name][what] for name in self.parts} for what in counts["train"]},
            "unit": next(iter(counts["train"])),  # what a user counts by
            "tokens": {name: int(part.texts.lengths.sum()) for name, part in self.parts.items()},
            "vocab": self.words.tokenizer.vocab,
            "token": self.words.tokenizer.kind,
            "labels": len(self.words.labels),
            "sha256": self.sha256,
        }


class ExampleSource(SplitSource):
    """The settings of such data. A kind brings `read`, `about`, `texts`, `labels` and `encoded`."""

    model: ClassVar[str] = "bert"
    of: ClassVar[str] = " of labels"  # the shelf of the models that read this (kinds.py)
    opened: ClassVar[type[Any]] = ExampleData

    tokenizer: Literal["char", "byte", "word", "bpe", "wordpiece"] = Field("wordpiece", description="what a token is")
    vocab_size: int | None = Field(None, ge=3, le=300_000, description="most tokens; none: 20,000 words, 8,000 pieces")
    lowercase: bool = Field(True, description="wordpiece reads capitals as small letters, and letters without accents")

    def words(self, folder: Path) -> LabelWords:
        """The tokens and the labels that a run kept."""
        return LabelWords.load(folder)

    def texts(self, examples: Iterable[Any]) -> Iterator[str]:
        """What tokens are learned from."""
        raise NotImplementedError

    def labels(self, examples: Iterable[Any]) -> list[str]:
        """The labels that a token may have."""
        raise NotImplementedError

    def _words(self, learn: list[Any], given: Any, listen: Listener) -> LabelWords:
        """The tokens and labels of the training examples; given tokens stay, and given labels where they are enough."""
        labels = self.labels(learn)
        if isinstance(given, LabelWords) and {*labels} <= {*given.labels}:
            return given
        if given is not None:
            return LabelWords(getattr(given, "tokenizer", given), labels)

        def blocks() -> Iterator[str]:
            lines = list[str]()
            for text in self.texts(learn):
                lines.append(f"{text}\n")
                if len(lines) == BLOCK:
                    yield "".join(lines)
                    lines.clear()
            yield "".join(lines)

        most, home = self.vocab_size or VOCAB[self.tokenizer], cache_folder("text")
        return LabelWords(learned(self.tokenizer, most, blocks, home, lowercase=self.lowercase, listen=listen), labels)


def joined(rows: Sequence[tuple[Sequence[int], Sequence[int], int]], edge: int) -> Texts:
    """Texts of these rows: the ids of each without its edge, their targets, and where its second part begins."""
    ids = np.fromiter(chain.from_iterable(row[0] for row in rows), np.int64)
    targets = np.fromiter(chain.from_iterable(row[1] for row in rows), np.int64)
    starts = np.cumsum([0, *(len(row[0]) for row in rows)], dtype=np.int64)
    return Texts(Side(ids, starts, edge), np.array([row[2] for row in rows], np.int64), targets, each_token=True)


def within(of: Sequence[int], picks: Ids) -> tuple[Ids, list[int]]:
    """Of texts that are of some example each: which are of the picked ones, and of which among these."""
    kept = np.flatnonzero(np.isin(of, picks))
    return kept, np.searchsorted(picks, np.array(of)[kept]).tolist()
