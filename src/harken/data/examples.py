"""Examples whose tokens carry labels, from files of some layout: split, tokens learned, encoded. Tags and spans do it.

A held-out share is drawn by a hash of what an example is about, so that adding lines moves nothing, and all questions
about one paragraph stand on one side.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from harken.data import foreign
from harken.data.cache import cache_folder
from harken.data.label_batch import Texts
from harken.data.pair_tokens import Ids, Side, newline
from harken.data.pairs import key
from harken.data.text import NAMED, TextSource, fingerprint, is_named, learned
from harken.data.tokens import Tokenizer
from harken.errors import BadInput, BadRun, BadSetting
from harken.events import Listener, silent
from harken.part import Outputs, Part

VOCAB = {"char": 0, "byte": 256, "word": 20_000, "bpe": 8000, "wordpiece": 8000}
LABELS = "labels.json"
MOST = 3000  # examples held out by a share: more would cost time and tell little
BLOCK = 4096  # texts from which tokens are learned at once


@dataclass(frozen=True, eq=False)
class LabelWords:
    """Tokens, and the labels that a token may have."""

    tokenizer: Tokenizer
    labels: list[str]

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
        return cls(foreign.load(folder / "tokenizer.json"), labels)


class ExampleSource(Part):
    """The settings of such data. A kind brings `read`, `about`, `texts`, `labels` and `encoded`."""

    model: ClassVar[str] = "bert"
    of: ClassVar[str] = " of labels"  # the shelf of the models that read this (kinds.py)

    path: str | None = Field(None, description="a file or a folder; files named train, valid, test are the splits")
    train: str | None = Field(None, description="the file to learn from, instead of path")
    valid: str | float = Field(0.1, description=f"a file, or the share held out while learning, {MOST:,} at most")
    test: str | float = Field(0.05, description=f"a file, or the share kept for the last judgement, {MOST:,} at most")
    tokens: Literal["char", "byte", "word", "bpe", "wordpiece"] = Field("wordpiece", description="what a token is")
    vocab: int | None = Field(None, ge=3, le=300_000, description="most tokens; none: 20,000 words, 8,000 pieces")
    lower: bool = Field(True, description="wordpiece reads capitals as small letters, and letters without accents")
    examples: int | None = Field(None, ge=1, description="learn from the first so many examples only")
    sha256: str | None = Field(None, description="fingerprint of the files; a run refuses to be repeated on others")

    def located(self) -> Any:
        """The same settings with absolute paths."""
        paths = {name: getattr(self, name) for name in ("path", "train", "valid", "test")}
        return self.model_copy(update={n: str(Path(p).absolute()) for n, p in paths.items() if isinstance(p, str)})

    def words(self, folder: Path) -> LabelWords:
        """The tokens and the labels that a run kept."""
        return LabelWords.load(folder)

    # --- what a kind brings -------------------------------------------------------------------------------------------

    def read(self, path: Path, listen: Listener) -> list[Any]:
        """The examples of a file."""
        raise NotImplementedError

    def about(self, example: Any) -> str:
        """What decides on which side an example stands."""
        raise NotImplementedError

    def texts(self, examples: Iterable[Any]) -> Iterator[str]:
        """What tokens are learned from."""
        raise NotImplementedError

    def labels(self, examples: Iterable[Any]) -> list[str]:
        """The labels that a token may have."""
        raise NotImplementedError

    def encoded(self, examples: list[Any], words: LabelWords, *, learn: bool) -> Any:
        """The examples as texts of tokens; `learn`: without those from which nothing can be learned."""
        raise NotImplementedError

    # --- open ---------------------------------------------------------------------------------------------------------

    def open(self, *, stateful: bool = False, tokenizer: Any = None, listen: Listener = silent) -> "ExampleData":
        """Read, split and encode the examples."""
        files = self._files()
        digest = fingerprint((p for some in files.values() for p in some), self.sha256, self._home)
        found = {split: [e for p in some for e in self.read(p, listen)] for split, some in files.items()}
        held = {self.about(e) for split in ("valid", "test") for e in found.get(split, ())}
        free = [e for e in found["train"] if self.about(e) not in held]  # what may be held out besides
        if taken := len(found["train"]) - len(free):
            listen("notice", text=f"training examples left out because they are held out too: {taken:,}")
        found["train"] = free
        found |= self._drawn(found)
        held |= {self.about(e) for split in ("valid", "test") for e in found.get(split, ())}
        learn = [e for e in found.pop("train") if self.about(e) not in held][: self.examples]
        if not learn:
            raise BadInput(f"{self._home}: there is nothing to learn from; give more examples")
        words = self._words(learn, tokenizer, listen)
        train = self.encoded(learn, words, learn=True)
        if not len(train.texts):
            raise BadInput(f"{self._home}: there is nothing to learn from; give more examples")
        splits = {
            split: self.encoded(found[split], words, learn=False) for split in ("valid", "test") if found.get(split)
        }
        for split in ("valid", "test"):
            if getattr(self, split) and split not in splits:
                listen("notice", text=f"data.{split}: the examples are too few to hold a part of them out")
        return ExampleData(self, words, train, splits, digest)

    def other(
        self, path: str, split: str, *, tokenizer: LabelWords, stateful: bool = False, listen: Listener = silent
    ) -> "ExampleData":
        """The same data with other examples as one of its splits; these stand alone where the run's own are gone."""
        files = TextSource().files(Path(path))
        found = self.encoded([e for p in files for e in self.read(p, listen)], tokenizer, learn=False)
        if not len(found.texts):
            raise BadInput(f"{path}: there is nothing to judge; give a file with examples")
        try:
            opened = self.model_copy(update={"sha256": None}).open(tokenizer=tokenizer)
        except BadInput as error:
            listen("notice", text=f"the free baselines are left out, for lack of what they learn from: {error}")
            return ExampleData(self, tokenizer, found, {split: found}, fingerprint(files, None, path), learned=False)
        return replace(opened, splits={**opened.splits, split: found})

    @property
    def _home(self) -> str:
        if not (home := self.train or self.path):
            raise BadSetting(f"data.path is not given; name a file or a folder: data.path=my.{self.kind}")  # type: ignore[attr-defined]
        return home

    def _files(self) -> dict[str, list[Path]]:
        """For each split that has files of its own, these; those to learn from always."""
        every = TextSource().files(Path(self._home))
        named = {split: [p for p in every if is_named(p, words)] for split, words in NAMED.items()}
        found = {"train": every}
        if len(every) > 1 and not self.train and (named["valid"] or named["test"]):
            held = {*named["valid"], *named["test"]}
            found = named | {"train": named["train"] or [p for p in every if p not in held]}
        for split in ("valid", "test"):
            if isinstance(given := getattr(self, split), str):
                found[split] = TextSource().files(Path(given))
        return {split: some for split, some in found.items() if some}

    def _drawn(self, found: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """The examples held out by a share: test from one end of the keys' range, valid from the other."""
        drawn = dict[str, list[Any]]()
        for split in ("valid", "test"):
            share = getattr(self, split)
            if split in found or isinstance(share, str):
                continue
            if not 0 <= share < 1:
                raise BadSetting(f"data.{split} = {share}: a share of the examples lies between 0 and 1")
            keys = ((key(self.about(e)), e) for e in found["train"])
            places = ((n if split == "test" else 2**64 - 1 - n, e) for n, e in keys)
            out = sorted((place for place in places if place[0] < share * 2**64), key=lambda place: place[0])
            drawn[split] = [e for _, e in out[:MOST]]
        return drawn

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

        most, home = self.vocab or VOCAB[self.tokens], cache_folder("text")
        return LabelWords(learned(self.tokens, most, blocks, home, lower=self.lower, listen=listen), labels)


@dataclass(frozen=True, eq=False)
class ExampleData:
    """Opened examples by split; each part has `texts`, what its layout needs, and `facts`."""

    settings: Any
    words: LabelWords
    train: Any
    splits: dict[str, Any]  # valid and test, where there are any
    sha256: str
    learned: bool = True  # train is what the run learned from; else that is gone, and a judged split stands in for it

    @property
    def vocab(self) -> Outputs:
        return self.words.vocab

    @property
    def tokenizer(self) -> LabelWords:
        return self.words

    @property
    def longest(self) -> int:
        """Most tokens of a text, its marks with them."""
        return max(int(part.texts.lengths.max(initial=1)) for part in (self.train, *self.splits.values()))

    def facts(self) -> dict[str, Any]:
        """What the report says of the data."""
        parts = {"train": self.train, **self.splits}
        counts = {name: part.facts() for name, part in parts.items()}
        return {
            **{what: {name: counts[name][what] for name in parts} for what in counts["train"]},
            "unit": next(iter(counts["train"])),  # what a user counts by
            "tokens": {name: int(part.texts.lengths.sum()) for name, part in parts.items()},
            "vocab": self.words.tokenizer.vocab,
            "token": self.words.tokenizer.kind,
            "labels": len(self.words.labels),
            "sha256": self.sha256,
        }


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
