"""Sentence pairs: from files to token ids of both sides, in train, valid and test.

Splits are by source sentence: all translations of a sentence are in one split, and in a held-out split they are its
references. A hash of the sentence decides the split, so adding lines moves no other pair.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from harken.data.source import DataSource
from harken.data.split import MAX_HELD_OUT, files_sha256, list_files, no_baselines, split_hash, split_rank
from harken.data.tables.read import SkippedRows
from harken.data.tokenizers.bpe_dropout import BPEDropout
from harken.data.tokenizers.pairs import Array, PairTokenizers, RaggedTokens, encode_lines
from harken.errors import BadInput, BadSetting
from harken.events import Listener, silent

from .files import PairFile, files_by_split, find_pair_file, read_groups

if TYPE_CHECKING:
    from .batch import PairBatches

PAIRS_PER_BLOCK = 4096  # pairs encoded at once
TokenizerKind = Literal["char", "word", "bpe", "symbol"]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Encoded pairs. A held-out split also has the texts: each source once, with its first reference as the target."""

    source: RaggedTokens
    target: RaggedTokens
    sources: list[str] = field(default_factory=list)
    references: list[list[str]] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)  # value of data.group of each source, if set

    def __len__(self) -> int:
        return len(self.source)


class PairSource(DataSource):
    """Settings of sentence pairs."""

    task: ClassVar[str] = "translate"
    input_setting: ClassVar[str] = "source"
    model: ClassVar[str] = "transformer"
    model_group: ClassVar[str] = " of pairs"  # the group of models for this data (registry.py)

    kind: Literal["pairs"] = "pairs"
    path: str | None = Field(None, description="file or folder; files named train, valid, test are the splits")
    train: str | None = Field(None, description="training file, instead of path")
    valid: str | float = Field(
        0.1,
        description=f"validation file, or the fraction of source sentences for validation, at most {MAX_HELD_OUT:,}",
    )
    test: str | float = Field(
        0.05,
        validate_default=True,
        description=f"test file, or the fraction of source sentences for the test split, at most {MAX_HELD_OUT:,}",
    )
    source: int | str | None = Field(
        None, description="source column, by name or number; for aligned files the language (de) or the file"
    )
    target: int | str | None = Field(None, description="target column, language or file")
    group: int | str | None = Field(
        None, description="column with at most 100 values; held-out metrics are also reported per value"
    )
    tokenizer: TokenizerKind = Field(
        "bpe", description="tokenizer type; word separates punctuation, symbol splits at white space only"
    )
    target_tokenizer: TokenizerKind | None = Field(None, description="tokenizer type of the target, if it differs")
    vocab_size: int | None = Field(
        None, ge=3, le=300_000, description="maximum vocabulary size; default: 10,000 words or 8,000 byte pairs"
    )
    shared_vocab: bool = Field(True, description="one vocabulary for both sides, if their tokenizers have one type")
    bpe_dropout: float = Field(
        0.0, ge=0, lt=1, description="BPE-dropout: fraction of merges skipped in training, drawn anew in each epoch"
    )
    max_length: int = Field(
        100,
        ge=1,
        description="maximum number of tokens of a side; longer training pairs are dropped, held-out ones truncated",
    )
    max_words: int | None = Field(
        None, ge=1, description="maximum number of source words; longer pairs are dropped in every split; default: none"
    )
    examples: int | None = Field(None, ge=1, description="number of training pairs to use, from the start of the files")
    sha256: str | None = Field(None, description="SHA-256 of the files; other files are refused")

    @field_validator("valid", "test")
    @classmethod
    def _check_fractions(cls, value: str | float, context: ValidationInfo) -> str | float:
        fractions = [f for f in (value, context.data.get("valid", 0.0)) if isinstance(f, float)]
        if any(not 0 <= fraction < 1 for fraction in fractions) or sum(fractions) >= 1:
            raise ValueError("fractions of the sources and their sum must be at least 0 and less than 1")
        return value

    @field_validator("bpe_dropout")
    @classmethod
    def _check_dropout(cls, dropout: float, context: ValidationInfo) -> float:
        if dropout and context.data.get("tokenizer") != "bpe":
            raise ValueError("only the bpe tokenizer has merges to drop; set data.tokenizer=bpe")
        return dropout

    def with_absolute_paths(self) -> "PairSource":
        """The same settings with absolute paths."""
        names = ["path", "train", "valid", "test"]
        if self._home is None or Path(self._home).is_dir():  # otherwise source and target are columns
            names += [n for n in ("source", "target") if self._home is None or Path(str(getattr(self, n))).is_file()]
        paths = {name: getattr(self, name) for name in names}
        return self.model_copy(update={n: str(Path(p).absolute()) for n, p in paths.items() if isinstance(p, str)})

    def load_processor(self, folder: Path) -> PairTokenizers:
        """The tokenizers saved in a run folder."""
        return PairTokenizers.load(folder, self._kinds)

    @property
    def _kinds(self) -> tuple[str, str]:
        return self.tokenizer, self.target_tokenizer or self.tokenizer

    @property
    def _home(self) -> str | None:
        return self.train or self.path

    def load_data(
        self, *, stateful: bool = False, tokenizer: PairTokenizers | None = None, listen: Listener = silent
    ) -> "PairData":
        """Read, split and encode the pairs."""
        files, skipped = self._files(), SkippedRows()
        name = self._home or f"{self.source} + {self.target}"
        all_files = list(chain.from_iterable(files.values()))
        digest = files_sha256((path for file in all_files for path in file.paths()), self.sha256, name)
        train_files = files.pop("train")
        from_files = {s: _references_by_source(self._read_short(split, skipped)) for s, split in files.items()}
        file_hashes = {split_hash(source) for texts in from_files.values() for source in texts}
        drawn = _HeldOutSources({s: getattr(self, s) for s in ("valid", "test") if s not in from_files})
        n_excluded = sum(drawn.add(*pair, file_hashes) for pair in self._read_short(train_files, skipped))
        held_out = {s: texts for s in ("valid", "test") if (texts := from_files.get(s) or drawn.texts(s))}
        hashes = {split_hash(source) for texts in held_out.values() for source in texts}

        def train_pairs() -> Iterator[tuple[str, str]]:
            pairs = (pair for pair in self._read_short(train_files) if split_hash(pair[0]) not in hashes)
            return islice(pairs, self.examples)

        empty = BadInput(f"{name}: no training pairs; add pairs, or increase data.max_length")
        if next(train_pairs(), None) is None:
            raise empty
        tokenizer = tokenizer or PairTokenizers.train(
            lambda: _blocks(train_pairs()), self._kinds, self.vocab_size, shared_vocab=self.shared_vocab, listen=listen
        )
        train, train_hashes, n_too_long = self._encode_train(train_pairs(), tokenizer, drawn.n_pairs, listen)
        if not len(train):
            raise empty
        notes = {"skipped": skipped.facts(), "too_long": n_too_long, "in_held_out": n_excluded}
        groups = read_groups(all_files, self.group, set(chain.from_iterable(held_out.values())))
        splits = {split: self._encode_held_out(texts, tokenizer, groups) for split, texts in held_out.items()}
        for text in chain(_column_warnings(all_files), self._notices(skipped, n_excluded, n_too_long, splits)):
            listen("notice", text=text)
        return PairData(self, tokenizer, train, splits, digest, train_hashes, notes)

    def load_split(
        self, path: str, split: str, *, tokenizer: PairTokenizers, stateful: bool = False, listen: Listener = silent
    ) -> "PairData":
        """The same data with other pairs as one split; only this split if the training data is unavailable."""
        skipped = SkippedRows()
        files = self._files_at(path, split)
        texts, groups = _references_by_source(_read_pairs(files, skipped)), dict[str, str]()
        with suppress(BadInput):  # the other pairs may lack the group column
            groups = read_groups(files, self.group, texts)
        pairs = self._encode_held_out(texts, tokenizer, groups)
        for text in [*_column_warnings(files), *[str(skipped)] * bool(skipped.count)]:
            listen("notice", text=text)
        try:
            data = self.model_copy(update={"sha256": None}).load_data(tokenizer=tokenizer, listen=listen)
        except BadInput as error:
            listen("notice", text=no_baselines(error))
            digest = files_sha256((p for file in files for p in file.paths()), None, path)
            return PairData(self, tokenizer, pairs, {split: pairs}, digest, np.empty(0, np.uint64), {}, has_train=False)
        return replace(data, splits={**data.splits, split: pairs})

    def _read_short(self, files: Iterable[PairFile], skipped: SkippedRows | None = None) -> Iterator[tuple[str, str]]:
        """The pairs of these files with at most max_words source words."""
        pairs, max_words = _read_pairs(files, skipped), self.max_words
        return pairs if max_words is None else (pair for pair in pairs if len(pair[0].split()) <= max_words)

    def _notices(
        self, skipped: SkippedRows, n_excluded: int, n_too_long: int, splits: Mapping[str, Pairs]
    ) -> Iterator[str]:
        """Warnings about the data, one line each."""
        if skipped.count:
            yield str(skipped)
        if n_excluded:
            yield f"training pairs dropped because their source is in a held-out split: {n_excluded:,}"
        if n_too_long:
            yield f"training pairs dropped because a side exceeds data.max_length={self.max_length}: {n_too_long:,}"
        sources = [pairs.sources for pairs in splits.values()]
        if len(sources) > 1 and (n_shared := len(set.intersection(*map(set, sources)))):
            yield f"sources in both valid and test: {n_shared:,}; test metrics are biased by model selection"
        for split in ("valid", "test"):
            if getattr(self, split) and split not in splits:
                yield f"data.{split}: too few pairs for a {split} split"

    def _files(self) -> dict[str, list[PairFile]]:
        """The files of each split that has files; always includes train."""
        if self._home is None:
            if not isinstance(self.source, str) or not isinstance(self.target, str):
                hint = "set data.path to a file or folder, or data.source and data.target to two aligned files"
                raise BadSetting(f"data.path is not set; {hint}")
            source, target = (list_files(Path(side))[0] for side in (self.source, self.target))
            files = {"train": [PairFile(source, target_path=target)]}
        elif self.train is None and Path(self._home).is_dir():
            files = files_by_split(Path(self._home), self.source, self.target)
        else:
            files = {"train": self._files_at(self._home, "train")}
        for split in ("valid", "test"):
            if isinstance(path := getattr(self, split), str):
                files[split] = self._files_at(path, split)
        return {split: split_files for split, split_files in files.items() if split_files}

    def _files_at(self, path: str, split: str) -> list[PairFile]:
        if not Path(path).is_dir():
            return [find_pair_file(path, self.source, self.target)]
        files = files_by_split(Path(path), self.source, self.target)
        return files.get(split) or files["train"]

    def _encode_train(
        self, pairs: Iterable[tuple[str, str]], tokenizers: PairTokenizers, total: int, listen: Listener
    ) -> tuple[Pairs, Array, int]:
        """The pairs within max_length, the sorted hashes of their sources, and the number of longer pairs."""
        sides: tuple[list[tuple[Array, Array]], ...] = ([], [])
        hashes, n_too_long = [], 0
        for n, block in enumerate(_blocks(pairs)):
            encoded = [
                encode_lines(tokenizer, texts)
                for tokenizer, texts in zip(tokenizers.sides, zip(*block, strict=True), strict=True)
            ]
            fits = np.logical_and(*(lengths <= self.max_length for _, lengths in encoded))
            for side, (ids, lengths) in zip(sides, encoded, strict=True):
                side.append((ids[np.repeat(fits, lengths)], lengths[fits]))
            hashes.append(np.fromiter((split_hash(source) for source, _ in block), np.uint64, len(block))[fits])
            n_too_long += len(block) - int(fits.sum())
            listen("encode", done=min(total, (n + 1) * PAIRS_PER_BLOCK), total=total, unit="pairs")
        listen("encode", done=total, total=total, unit="pairs")
        source, target = (RaggedTokens.from_blocks(side, t) for side, t in zip(sides, tokenizers.sides, strict=True))
        return Pairs(source, target), np.unique(np.concatenate([np.empty(0, np.uint64), *hashes])), n_too_long

    def _encode_held_out(
        self, texts: dict[str, list[str]], tokenizers: PairTokenizers, groups: Mapping[str, str]
    ) -> Pairs:
        """A held-out split: every source, truncated to max_length."""
        sides = zip(tokenizers.sides, (texts, [references[0] for references in texts.values()]), strict=True)
        source, target = (
            RaggedTokens.from_blocks([encode_lines(t, lines)], t).truncate(self.max_length) for t, lines in sides
        )
        source_groups = [groups.get(source, "") for source in texts] if groups else []
        return Pairs(source, target, list(texts), list(texts.values()), source_groups)


@dataclass(frozen=True, eq=False)
class PairData:
    """Loaded pairs: the ids of both sides by split."""

    settings: PairSource
    tokenizers: PairTokenizers
    train: Pairs
    splits: dict[str, Pairs]  # valid and test, if they exist
    sha256: str
    train_hashes: Array  # sorted, unique
    notes: dict[str, Any]  # numbers of dropped pairs, by reason
    has_train: bool = True  # False: the training data is unavailable, and `train` is the evaluated split

    @property
    def vocab(self) -> tuple[int, int]:
        return self.tokenizers.vocab

    @property
    def tokenizer(self) -> PairTokenizers:
        return self.tokenizers

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a side in any batch, without the edge token."""
        if self.settings.bpe_dropout:
            return self.settings.max_length  # a sentence may have more tokens in another epoch
        sides = [side for pairs in (self.train, *self.splits.values()) for side in (pairs.source, pairs.target)]
        return max(int(side.lengths.max(initial=0)) for side in sides)

    def batches(self, rows: int, seed: int) -> "PairBatches":
        """The training batches, each with about as many tokens as `rows` pairs."""
        from .batch import PairBatches  # imports torch late

        dropouts: list[BPEDropout | None] = []
        if dropout := self.settings.bpe_dropout:
            sides = zip(self.tokenizers.sides, (self.train.source, self.train.target), strict=True)
            dropouts = [
                BPEDropout(t, side, dropout, seed=seed, max_length=self.settings.max_length)
                if t.kind == "bpe"
                else None
                for t, side in sides
            ]
        return PairBatches(self.train, rows, seed=seed, dropouts=dropouts)

    def texts(self) -> Iterator[tuple[str, str]]:
        """The training pairs, decoded."""
        source, target, tokenizers = self.train.source, self.train.target, self.tokenizers
        return (
            (tokenizers.decode_source(source[n]), tokenizers.decode_target(target[n])) for n in range(len(self.train))
        )

    def overlap(self) -> int:
        """Number of held-out sources that are also in train."""
        hashes = [split_hash(source) for pairs in self.splits.values() for source in pairs.sources]
        return int(np.isin(np.array(hashes, np.uint64), self.train_hashes).sum())

    def facts(self) -> dict[str, Any]:
        """Data statistics for the report."""
        parts = {"train": self.train, **self.splits}

        def per_side(statistic: Callable[[RaggedTokens], float]) -> dict[str, dict[str, float]]:
            return {
                name: {"source": statistic(pairs.source), "target": statistic(pairs.target)}
                for name, pairs in parts.items()
            }

        n_pairs = {name: sum(map(len, part.references)) or len(part) for name, part in parts.items()}
        return {
            "pairs": n_pairs,
            "sources": {"train": len(self.train_hashes)} | {name: len(part) for name, part in self.splits.items()},
            "references": {name: n_pairs[name] / max(1, len(part)) for name, part in self.splits.items()},
            "tokens": per_side(lambda side: len(side.ids)),
            "length": per_side(lambda side: len(side.ids) / max(1, len(side))),
            "overlap": self.overlap(),
            "vocab": list(self.vocab),
            "token": self.tokenizers.source.kind,
            "sha256": self.sha256,
            **self.notes,
        }


def _read_pairs(files: Iterable[PairFile], skipped: SkippedRows | None = None) -> Iterator[tuple[str, str]]:
    return chain.from_iterable(file.pairs(skipped) for file in files)


def _column_warnings(files: Iterable[PairFile]) -> Iterator[str]:
    return filter(None, (file.column_warning() for file in files))


def _blocks(pairs: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    iterator = iter(pairs)
    return iter(lambda: list(islice(iterator, PAIRS_PER_BLOCK)), [])


def _references_by_source(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The distinct references of each source."""
    references: dict[str, dict[str, None]] = {}
    for source, target in pairs:
        references.setdefault(source, {})[target] = None
    return {source: list(targets) for source, targets in references.items()}


class _HeldOutSources:
    """The sources held out by a fraction: those with the lowest ranks of each split, at most MAX_HELD_OUT.

    So another fraction of one split changes nothing in the other.
    """

    def __init__(self, fractions: dict[str, float]) -> None:
        self.n_pairs = 0
        self.bounds = {split: int(fraction * 2**64) for split, fraction in fractions.items()}
        self.pairs: dict[str, dict[int, list[tuple[str, str]]]] = {split: {} for split in fractions}

    def add(self, source: str, target: str, excluded: set[int]) -> bool:
        """Record a training pair; returns whether the hash of its source is in `excluded`."""
        self.n_pairs += 1
        if (hash_ := split_hash(source)) in excluded:
            return True
        for split, bound in self.bounds.items():
            if (rank := split_rank(split, hash_)) < bound:
                pairs = self.pairs[split]
                pairs.setdefault(rank, []).append((source, target))
                if len(pairs) > 2 * MAX_HELD_OUT:
                    self._trim(split)
        return False

    def _trim(self, split: str) -> None:
        ranks = sorted(self.pairs[split])[:MAX_HELD_OUT]
        self.bounds[split] = ranks[-1] + 1
        self.pairs[split] = {rank: self.pairs[split][rank] for rank in ranks}

    def texts(self, split: str) -> dict[str, list[str]]:
        pairs = self.pairs.get(split, {})
        return _references_by_source(pair for rank in sorted(pairs)[:MAX_HELD_OUT] for pair in pairs[rank])
