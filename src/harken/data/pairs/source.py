"""Pairs of sentences: from files to ids of both sides, in train, valid and test.

The splits are by source sentence: all translations of a sentence stand on one side, and in a held-out split they are
its references. Which side is told by a hash of the sentence, so that adding lines moves nothing.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from harken.data.tables.read import Flaws
from harken.data.text.source import TextSource, fingerprint
from harken.data.tokenizers.bpe_dropout import Splitter
from harken.data.tokenizers.pairs import Ids, Side, Tokenizers, encode_lines
from harken.errors import BadInput, BadSetting
from harken.events import Listener, silent
from harken.settings import Part

from .files import PairFile, grouping, in_folder, one

if TYPE_CHECKING:
    from .batch import PairBatches

MOST = 3000  # sources held out by a share: more would cost time and tell little
BLOCK = 4096  # pairs encoded at once
Tokens = Literal["char", "word", "bpe", "symbol"]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Encoded pairs. A held-out split has its texts too: each source once, the target's ids are its first reference."""

    source: Side
    target: Side
    sources: list[str] = field(default_factory=list)
    references: list[list[str]] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)  # what data.group says of each source, if it is given

    def __len__(self) -> int:
        return len(self.source)


class PairSource(Part):
    """The settings of pairs of sentences."""

    task: ClassVar[str] = "translate"
    model: ClassVar[str] = "transformer"
    of: ClassVar[str] = " of pairs"  # the shelf of the models that read this (kinds.py)

    kind: Literal["pairs"] = "pairs"
    path: str | None = Field(None, description="a file or a folder; files named train, valid, test are the splits")
    train: str | None = Field(None, description="the file to learn from, instead of path")
    valid: str | float = Field(
        0.1, description=f"a file, or the share of the source sentences held out while learning, {MOST:,} at most"
    )
    test: str | float = Field(
        0.05,
        validate_default=True,
        description=f"a file, or the share of the source sentences kept for the last judgement, {MOST:,} at most",
    )
    source: int | str | None = Field(
        None,
        description="the column of the source, by name or number; a language (de) or a file where each has its own",
    )
    target: int | str | None = Field(None, description="the column, language or file of the target")
    group: int | str | None = Field(
        None, description="a column, such as a distance, by whose values a held-out split is judged apart too"
    )
    tokenizer: Tokens = Field(
        "bpe",
        description="what a token is; byte pairs know every character, a sign is a word of its own, a symbol is what "
        "stands between white space",
    )
    target_tokenizer: Tokens | None = Field(None, description="what a token of the target is, if it is another")
    vocab_size: int | None = Field(
        None, ge=3, le=300_000, description="most tokens; none: 10,000 words, 8,000 byte pairs"
    )
    shared_vocab: bool = Field(
        True, description="one vocabulary for both sides, if their tokens are alike; false: one each"
    )
    bpe_dropout: float = Field(
        0.0, ge=0, lt=1, description="share of the merges of byte pairs left out while learning, anew in each epoch"
    )
    max_length: int = Field(
        100, ge=1, description="most tokens of a side; longer pairs are not learned from, held-out ones are cut"
    )
    max_words: int | None = Field(
        None, ge=1, description="leave pairs aside whose source has more words, held-out ones too; none: take all"
    )
    examples: int | None = Field(None, ge=1, description="learn from the first so many pairs only")
    sha256: str | None = Field(None, description="fingerprint of the files; a run refuses to be repeated on others")

    @field_validator("valid", "test")
    @classmethod
    def _shared(cls, given: str | float, info: ValidationInfo) -> str | float:
        shares = [share for share in (given, info.data.get("valid", 0.0)) if isinstance(share, float)]
        if any(not 0 <= share < 1 for share in shares) or sum(shares) >= 1:
            raise ValueError("shares of the sources lie between 0 and 1, and so does their sum")
        return given

    @field_validator("bpe_dropout")
    @classmethod
    def _merged(cls, share: float, info: ValidationInfo) -> float:
        if share and info.data.get("tokenizer") != "bpe":
            raise ValueError("only byte pairs have merges to leave out; set data.tokenizer=bpe")
        return share

    def located(self) -> "PairSource":
        """The same settings with absolute paths."""
        names = ["path", "train", "valid", "test"]
        if self._home is None or Path(self._home).is_dir():  # else they are columns
            names += [n for n in ("source", "target") if self._home is None or Path(str(getattr(self, n))).is_file()]
        paths = {name: getattr(self, name) for name in names}
        return self.model_copy(update={n: str(Path(p).absolute()) for n, p in paths.items() if isinstance(p, str)})

    def words(self, folder: Path) -> Tokenizers:
        """The tokens that a run kept."""
        return Tokenizers.load(folder, self._kinds)

    def files(self, path: Path) -> list[Path]:
        """The file, or the files of a folder in the order of their names."""
        return TextSource().files(path)

    @property
    def _kinds(self) -> tuple[str, str]:
        return self.tokenizer, self.target_tokenizer or self.tokenizer

    @property
    def _home(self) -> str | None:
        return self.train or self.path

    def open(
        self, *, stateful: bool = False, tokenizer: Tokenizers | None = None, listen: Listener = silent
    ) -> "PairData":
        """Read, split and encode the pairs."""
        files, flaws = self._files(), Flaws()
        name = self._home or f"{self.source} + {self.target}"
        digest = fingerprint((p for some in files.values() for f in some for p in f.paths()), self.sha256, name)
        every = list(chain.from_iterable(files.values()))
        learn = files.pop("train")
        given = {split: _grouped(self._short(some, flaws)) for split, some in files.items()}
        known = {key(source) for texts in given.values() for source in texts}
        drawn = _Draw({split: getattr(self, split) for split in ("valid", "test") if split not in given})
        taken = sum(drawn.sees(*pair, known) for pair in self._short(learn, flaws))
        held = {s: found for s in ("valid", "test") if (found := given.get(s) or drawn.texts(s))}
        out = {key(source) for found in held.values() for source in found}

        def texts() -> Iterator[tuple[str, str]]:
            return islice((pair for pair in self._short(learn) if key(pair[0]) not in out), self.examples)

        empty = BadInput(f"{name}: there is nothing to learn from; give more pairs, or a larger data.max_length")
        if next(texts(), None) is None:
            raise empty
        tokenizer = tokenizer or Tokenizers.learned(
            lambda: _groups(texts()), self._kinds, self.vocab_size, joint=self.shared_vocab, listen=listen
        )
        train, keys, aside = self._encoded(texts(), tokenizer, drawn.seen, listen)
        if not len(train):
            raise empty
        notes = {"bad": flaws.facts(), "aside": aside, "taken": taken}
        groups = grouping(every, self.group, set(chain.from_iterable(held.values())))
        splits = {split: self._judged(found, tokenizer, groups) for split, found in held.items()}
        for text in chain(_doubts(every), self._notices(flaws, taken, aside, splits)):
            listen("notice", text=text)
        return PairData(self, tokenizer, train, splits, digest, keys, notes)

    def other(
        self, path: str, split: str, *, tokenizer: Tokenizers, stateful: bool = False, listen: Listener = silent
    ) -> "PairData":
        """The same data with other pairs as one of its splits; these stand alone where the run's own are gone."""
        flaws = Flaws()
        files = self._named(path, split)
        texts, groups = _grouped(_read(files, flaws)), dict[str, str]()
        with suppress(BadInput):  # other pairs may have no such column
            groups = grouping(files, self.group, texts)
        found = self._judged(texts, tokenizer, groups)
        for text in [*_doubts(files), *[str(flaws)] * bool(flaws.count)]:
            listen("notice", text=text)
        try:
            opened = self.model_copy(update={"sha256": None}).open(tokenizer=tokenizer, listen=listen)
        except BadInput as error:
            listen("notice", text=f"the free baselines are left out, for lack of what they learn from: {error}")
            digest = fingerprint((p for file in files for p in file.paths()), None, path)
            return PairData(self, tokenizer, found, {split: found}, digest, np.empty(0, np.uint64), {}, learned=False)
        return replace(opened, splits={**opened.splits, split: found})

    def _short(self, files: Iterable[PairFile], flaws: Flaws | None = None) -> Iterator[tuple[str, str]]:
        """The pairs of these files whose source has no more words than it may."""
        pairs, most = _read(files, flaws), self.max_words
        return pairs if most is None else (pair for pair in pairs if len(pair[0].split()) <= most)

    def _notices(self, flaws: Flaws, taken: int, aside: int, splits: Mapping[str, Pairs]) -> Iterator[str]:
        """What a user should know before the training, a line each."""
        if flaws.count:
            yield str(flaws)
        if taken:
            yield f"training pairs left out because their sources are held out: {taken:,}"
        if aside:
            long = f"more than {self.max_length} tokens on a side (data.max_length)"
            yield f"training pairs left out because they have {long}: {aside:,}"
        sources = [pairs.sources for pairs in splits.values()]
        if len(sources) > 1 and (shared := len(set.intersection(*map(set, sources)))):
            yield f"sources that are in both valid and test: {shared:,}; weights chosen by the one know the other"
        for split in ("valid", "test"):
            if getattr(self, split) and split not in splits:
                yield f"data.{split}: the pairs are too few to hold a part of them out"

    def _files(self) -> dict[str, list[PairFile]]:
        """For each split that has files of its own, these; those to learn from always."""
        if self._home is None:
            if not isinstance(self.source, str) or not isinstance(self.target, str):
                way = "name a file or a folder (data.path), or two aligned files (data.source and data.target)"
                raise BadSetting(f"data.path is not given; {way}")
            source, target = (self.files(Path(side))[0] for side in (self.source, self.target))
            found = {"train": [PairFile(source, other=target)]}
        elif self.train is None and Path(self._home).is_dir():
            found = in_folder(Path(self._home), self.source, self.target)
        else:
            found = {"train": self._named(self._home, "train")}
        named = {
            split: self._named(given, split)
            for split in ("valid", "test")
            if isinstance(given := getattr(self, split), str)
        }
        return {split: files for split, files in (found | named).items() if files}

    def _named(self, path: str, split: str) -> list[PairFile]:
        if not Path(path).is_dir():
            return [one(path, self.source, self.target)]
        found = in_folder(Path(path), self.source, self.target)
        return found.get(split) or found["train"]

    def _encoded(
        self, pairs: Iterable[tuple[str, str]], tokenizers: Tokenizers, total: int, listen: Listener
    ) -> tuple[Pairs, Ids, int]:
        """The pairs that are not too long, the keys of their sources, and how many are too long."""
        sides: tuple[list[tuple[Ids, Ids]], ...] = ([], [])
        keys, aside = [], 0
        for n, group in enumerate(_groups(pairs)):
            encoded = [
                encode_lines(t, texts) for t, texts in zip(tokenizers.both, zip(*group, strict=True), strict=True)
            ]
            keep = np.logical_and(*(lengths <= self.max_length for _, lengths in encoded))
            for side, (ids, lengths) in zip(sides, encoded, strict=True):
                side.append((ids[np.repeat(keep, lengths)], lengths[keep]))
            hashes = np.fromiter((key(source) for source, _ in group), np.uint64, len(group))
            keys.append(hashes[keep])
            aside += len(group) - int(keep.sum())
            listen("encode", done=min(total, (n + 1) * BLOCK), total=total, unit="pairs")
        listen("encode", done=total, total=total, unit="pairs")
        source, target = (Side.of(side, t) for side, t in zip(sides, tokenizers.both, strict=True))
        return Pairs(source, target), np.unique(np.concatenate([np.empty(0, np.uint64), *keys])), aside

    def _judged(self, texts: dict[str, list[str]], tokenizers: Tokenizers, groups: Mapping[str, str]) -> Pairs:
        """A held-out split: every source, cut where it is too long."""
        firsts = [references[0] for references in texts.values()]
        both = zip(tokenizers.both, (texts, firsts), strict=True)
        source, target = (Side.of([encode_lines(t, lines)], t).cut(self.max_length) for t, lines in both)
        known = [groups.get(source, "") for source in texts] if groups else []
        return Pairs(source, target, list(texts), list(texts.values()), known)


@dataclass(frozen=True, eq=False)
class PairData:
    """Opened pairs: the ids of both sides by split."""

    settings: PairSource
    tokenizers: Tokenizers
    train: Pairs
    splits: dict[str, Pairs]  # valid and test, where there are any
    sha256: str
    keys: Ids  # of the sources that are learned from, each once, in order
    notes: dict[str, Any]  # what was left out, and why
    learned: bool = True  # train is what the run learned from; else that is gone, and a judged split stands in for it

    @property
    def vocab(self) -> tuple[int, int]:
        return self.tokenizers.vocab

    @property
    def tokenizer(self) -> Tokenizers:
        return self.tokenizers

    @property
    def max_length(self) -> int:
        """Most tokens of a side in any batch, its edge not counted."""
        if self.settings.bpe_dropout:
            return self.settings.max_length  # the same sentence has more tokens in another epoch
        sides = [side for pairs in (self.train, *self.splits.values()) for side in (pairs.source, pairs.target)]
        return max(int(side.lengths.max(initial=0)) for side in sides)

    def batches(self, rows: int, seed: int) -> "PairBatches":
        """The training batches, each of about as many tokens as `rows` pairs have."""
        from .batch import PairBatches  # torch is imported late

        how, sides = self.settings, (self.train.source, self.train.target)
        both = zip(self.tokenizers.both, sides, strict=True) if how.bpe_dropout else ()
        splitters = [
            Splitter(t, side, how.bpe_dropout, seed=seed, longest=how.max_length) if t.kind == "bpe" else None
            for t, side in both
        ]
        return PairBatches(self.train, rows, seed=seed, splitters=splitters)

    def texts(self) -> Iterator[tuple[str, str]]:
        """The training pairs as their tokens write them, one by one."""
        source, target, by = self.train.source, self.train.target, self.tokenizers
        return ((by.decode_source(source[n]), by.decode_target(target[n])) for n in range(len(self.train)))

    def overlap(self) -> int:
        """How many held-out sources are learned from too."""
        keys = [key(source) for pairs in self.splits.values() for source in pairs.sources]
        return int(np.isin(np.array(keys, np.uint64), self.keys).sum())

    def facts(self) -> dict[str, Any]:
        """What the report says of the data."""
        parts = {"train": self.train, **self.splits}

        def both(of: Callable[[Side], float]) -> dict[str, dict[str, float]]:
            return {name: {"source": of(pairs.source), "target": of(pairs.target)} for name, pairs in parts.items()}

        pairs = {name: sum(map(len, part.references)) or len(part) for name, part in parts.items()}
        return {
            "pairs": pairs,
            "sources": {"train": len(self.keys)} | {name: len(part) for name, part in self.splits.items()},
            "references": {name: pairs[name] / max(1, len(part)) for name, part in self.splits.items()},
            "tokens": both(lambda side: len(side.ids)),
            "length": both(lambda side: len(side.ids) / max(1, len(side))),
            "overlap": self.overlap(),
            "vocab": list(self.vocab),
            "token": self.tokenizers.source.kind,
            "sha256": self.sha256,
            **self.notes,
        }


def key(source: str) -> int:
    """The number that decides on which side a source stands."""
    return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8, person=b"harken pairs").digest(), "big")


def _read(files: Iterable[PairFile], flaws: Flaws | None = None) -> Iterator[tuple[str, str]]:
    return chain.from_iterable(file.pairs(flaws) for file in files)


def _doubts(files: Iterable[PairFile]) -> Iterator[str]:
    return filter(None, (file.doubt() for file in files))


def _groups(pairs: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    every = iter(pairs)
    return iter(lambda: list(islice(every, BLOCK)), [])


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Each source with its different references."""
    found: dict[str, dict[str, None]] = {}
    for source, target in pairs:
        found.setdefault(source, {})[target] = None
    return {source: list(references) for source, references in found.items()}


class _Draw:
    """The sources held out by a share: test from one end of the keys' range, valid from the other, MOST at most.

    Beyond MOST those nearest to the end stay. So another share of one split moves nothing in the other.
    """

    def __init__(self, shares: dict[str, float]) -> None:
        self.seen = 0
        self.bounds = {split: int(share * 2**64) for split, share in shares.items()}
        self.found: dict[str, dict[int, list[tuple[str, str]]]] = {split: {} for split in shares}

    def sees(self, source: str, target: str, known: set[int]) -> bool:
        """Look at a training pair; answer whether its source is among the known ones, which are held out already."""
        self.seen += 1
        if (number := key(source)) in known:
            return True
        for split, bound in self.bounds.items():
            place = number if split == "test" else 2**64 - 1 - number
            if place < bound:
                found = self.found[split]
                found.setdefault(place, []).append((source, target))
                if len(found) > 2 * MOST:
                    self._trim(split)
        return False

    def _trim(self, split: str) -> None:
        kept = sorted(self.found[split])[:MOST]
        self.bounds[split] = kept[-1] + 1
        self.found[split] = {place: self.found[split][place] for place in kept}

    def texts(self, split: str) -> dict[str, list[str]]:
        found = self.found.get(split, {})
        return _grouped(pair for place in sorted(found)[:MOST] for pair in found[place])
