"""Sentence pairs: from files to token ids of both sides, in train, valid and test.

Splits are by source sentence: all translations of a sentence are in one split, and in a held-out split they are its
references. A hash of the sentence decides the split, so adding lines moves no other pair.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from harken.data.duplicates import MAX_SHOWN, NearDuplicates, report_trained_on
from harken.data.garbage import without_collection
from harken.data.partition import Member, split_hash
from harken.data.source import Processor
from harken.data.split import Column, FileSource, SplitData, files_sha256, list_files
from harken.data.tables.read import SkippedRows
from harken.data.tables.text_file import notify_unread
from harken.data.times import parse_times
from harken.data.tokenizers.pairs import Array, PairTokenizers, RaggedTokens
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadInput, BadSetting
from harken.events import Listener, Overflow, report_overflow, silent

from .files import (
    PAIRS_PER_BLOCK,
    PairFile,
    References,
    draw_sources,
    files_by_split,
    find_pair_file,
    locate,
    pair_blocks,
    read_column,
    read_groups,
    read_pairs,
    read_units,
    references_by_source,
)

if TYPE_CHECKING:
    from .batch import PackedPairs, PairBatches

TokenizerKind = Literal["char", "word", "bpe", "wordpiece", "symbol"]
Pair = tuple[str, str]  # source, target


@dataclass(frozen=True, eq=False)
class Pairs:
    """Encoded pairs. A held-out split also has the texts: each source once, with its first reference as the target."""

    source: RaggedTokens
    target: RaggedTokens
    sources: list[str] = field(default_factory=list)
    references: list[list[str]] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)  # value of data.group of each source, if set
    units: list[str] = field(default_factory=list)  # value of data.split_group of each source, if set
    overflow: Overflow = field(default_factory=lambda: Overflow.of((), None))  # truncated sentences
    words: list[tuple[str, ...]] = field(default_factory=list)  # temporary words of each pair, with data.unknown_words

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, eq=False, kw_only=True)
class PairData(SplitData[PairTokenizers, Pairs]):
    """Loaded pairs: the ids of both sides by split."""

    train_hashes: Array = field(default_factory=lambda: np.empty(0, np.uint64))  # sorted, unique
    notes: dict[str, object] = field(default_factory=dict)  # numbers of dropped pairs, by reason

    @property
    def tokenizers(self) -> PairTokenizers:
        return self.processor

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a side in any batch, without the edge token."""
        if self.settings.bpe_dropout:
            return self.settings.max_length  # a sentence may have more tokens in another epoch
        sides = [side for pairs in self.parts.values() for side in (pairs.source, pairs.target)]
        return max(int(side.lengths.max(initial=0)) for side in sides)

    def batches(self, rows: int, seed: int, *, packed: bool = False) -> "PairBatches | PackedPairs":
        """The training batches, each with about as many tokens as `rows` pairs; `packed`: rows of several pairs."""
        from .batch import training_batches  # imports torch late

        return training_batches(self, rows, seed, packed=packed)

    def texts(self) -> Iterator[tuple[str, str]]:
        """The training pairs, decoded."""
        train, decode_source, decode_target = self.train, self.processor.decode_source, self.processor.decode_target
        for n in range(len(train)):
            words = train.words[n] if train.words else ()
            yield decode_source(train.source[n], words), decode_target(train.target[n], words)

    def overlap(self) -> int:
        """Number of held-out sources that are also in train."""
        hashes = [split_hash(source) for pairs in self.splits.values() for source in pairs.sources]
        return int(np.isin(np.array(hashes, np.uint64), self.train_hashes).sum())

    def facts(self) -> dict[str, object]:
        def per_side(statistic: Callable[[RaggedTokens], float]) -> dict[str, dict[str, float]]:
            return {n: {"source": statistic(p.source), "target": statistic(p.target)} for n, p in self.parts.items()}

        n_pairs = {name: sum(map(len, part.references)) or len(part) for name, part in self.parts.items()}
        return {
            "pairs": n_pairs,
            "sources": {"train": len(self.train_hashes)} | {name: len(part) for name, part in self.splits.items()},
            "references": {name: n_pairs[name] / max(1, len(part)) for name, part in self.splits.items()},
            "tokens": per_side(lambda side: len(side.ids)),
            "length": per_side(lambda side: len(side.ids) / max(1, len(side))),
            "overlap": self.overlap(),
            "vocab": list(self.processor.vocab),
            "token": self.processor.source.kind,
            "split": self.split_by,
            "sha256": self.sha256,
            **self.notes,
        }


class PairSource(FileSource[PairTokenizers, Pairs]):
    """Settings of sentence pairs."""

    task: ClassVar[str] = "translate"
    input_setting: ClassVar[str] = "source"
    dataset_class: ClassVar[type[PairData]] = PairData
    drawn_by: ClassVar[str] = "fractions by a hash of each source"

    kind: Literal["pairs"] = "pairs"
    source: int | str | None = Field(None, description="source column; of aligned files the language (de) or the file")
    target: int | str | None = Field(None, description="target column, language or file")
    group: int | str | None = Field(
        None, description="column with at most 100 values; held-out metrics are also reported per value"
    )
    split_group: int | str | None = Field(
        None, description="column with a group, such as a document; all pairs of a group are in one split"
    )
    time: int | str | None = Field(
        None, description="column with the time of each pair; the newest pairs are test, then valid"
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
    unknown_words: int = Field(
        0, ge=0, le=1000, description="words of a source outside the vocabulary that its target can copy (model.copy)"
    )
    unknown_rate: float = Field(
        0.5, ge=0, le=1, description="fraction of the copied words of sources that training treats as unknown"
    )
    max_length: int = Field(
        100,
        ge=1,
        description="maximum number of tokens of a side; longer training pairs are dropped, held-out ones truncated",
    )
    max_words: int | None = Field(
        None, ge=1, description="maximum number of source words; longer pairs are dropped in every split; default: none"
    )

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

    @field_validator("unknown_words")
    @classmethod
    def _check_unknown_words(cls, count: int, context: ValidationInfo) -> int:
        kinds = {context.data.get("tokenizer"), context.data.get("target_tokenizer")} - {None}
        if count and not (kinds in ({"word"}, {"symbol"}) and context.data.get("shared_vocab")):
            raise ValueError("only one tokenizer of words for both sides has them; set data.tokenizer=word or symbol")
        return count

    def with_absolute_paths(self) -> Self:
        folder, sides = self.train or self.path, ["source", "target"]
        if folder:  # source and target are files, languages or columns
            sides = [side for side in sides if Path(folder).is_dir() and Path(str(getattr(self, side))).is_file()]
        return super().with_absolute_paths()._with_absolute(*sides)

    def load_processor(self, folder: Path) -> PairTokenizers:
        return PairTokenizers.load(folder, self._kinds, n_temporary=self.unknown_words)

    @property
    def _kinds(self) -> tuple[str, str]:
        return self.tokenizer, self.target_tokenizer or self.tokenizer

    @property
    def train_path(self) -> str:
        return self.train or self.path or f"{self.source} + {self.target}"

    @without_collection()
    def load_data(
        self, *, stateful: bool = False, tokenizer: Processor | None = None, listen: Listener = silent
    ) -> PairData:
        files, skipped, name = self._files(), SkippedRows(), self.train_path
        all_files = list(chain.from_iterable(files.values()))
        digest = files_sha256((path for file in all_files for path in file.paths()), self.sha256, name)
        train_files = files.pop("train")
        from_files = {s: references_by_source(read_pairs(f, skipped, self.max_words)) for s, f in files.items()}
        file_hashes = {split_hash(source) for texts in from_files.values() for source in texts}
        fractions = {split: getattr(self, split) for split in ("valid", "test") if split not in from_files}
        pairs = read_pairs(train_files, skipped, self.max_words)
        if (self.fold, *self.split_columns) == (None, None, None):
            drawn, n_pairs, n_excluded = draw_sources(pairs, fractions, file_hashes)
        else:
            drawn, n_pairs, n_excluded = self._draw_units([*pairs], train_files, files, file_hashes)
        held_out = {s: texts for s in ("valid", "test") if (texts := from_files.get(s) or drawn.get(s))}
        hashes = file_hashes | {split_hash(source) for texts in held_out.values() for source in texts}
        near = NearDuplicates({split: [*texts] for split, texts in held_out.items()})

        def train_pairs() -> Iterator[tuple[str, str]]:
            pairs = read_pairs(train_files, max_words=self.max_words)
            return islice((pair for pair in pairs if split_hash(pair[0]) not in hashes), self.examples)

        empty = BadInput(f"{name}: no training pairs; add pairs, or increase data.max_length")
        if next(train_pairs(), None) is None:
            raise empty
        if not isinstance(tokenizer, PairTokenizers):
            known = tokenizer if isinstance(tokenizer, Tokenizer) else None  # of the encoder, from another run
            options: Any = {"shared_vocab": self.shared_vocab, "n_temporary": self.unknown_words, "listen": listen}
            options |= {"texts": lambda: pair_blocks(train_pairs()), "source": known}
            tokenizer = PairTokenizers.train(kinds=self._kinds, vocab_size=self.vocab_size, **options)
        watched = (pair for pair in train_pairs() if near.see(pair[0]))
        train, train_hashes, n_too_long = self._encode_train(watched, tokenizer, n_pairs, listen)
        if not len(train):
            raise empty
        notes = {"skipped": skipped.facts(), "too_long": n_too_long, "in_held_out": n_excluded}
        notes |= {"columns": columns} if (columns := train_files[0].columns()) else {}
        groups = read_groups(all_files, self.group, set(chain.from_iterable(held_out.values())))
        units = read_units(all_files, self.split_group)
        splits = {split: self._encode_held_out(texts, tokenizer, groups, units) for split, texts in held_out.items()}
        notify_unread((path for file in all_files for path in file.paths()), self.encoding, listen)
        dropped = (s for s, _ in read_pairs(train_files) if split_hash(s) in file_hashes) if n_excluded else iter(())
        places = ", ".join(locate(train_files, {*islice(dropped, MAX_SHOWN)}).values())
        notices = self._notices(n_excluded, places, n_too_long, splits)
        skipped.report(listen)
        warnings = [*(file.column_warning() for file in all_files), *notices, *near.notices(partial(locate, all_files))]
        for text in filter(None, warnings):
            listen("notice", text=text)
        report_overflow(listen, *(part.overflow for part in splits.values()))
        data = PairData(self, tokenizer, train, splits, digest, train_hashes=train_hashes, notes=notes)
        return replace(data, split_by=self.describe_split(from_files))

    def load_split(
        self, path: str, split: str, *, tokenizer: PairTokenizers, stateful: bool = False, listen: Listener = silent
    ) -> PairData:
        skipped, files = SkippedRows(), self._files_at(path, split)
        texts, groups, units = references_by_source(read_pairs(files, skipped)), dict[str, str](), dict[str, str]()
        with suppress(BadInput):  # the other pairs may lack the group column
            groups = read_groups(files, self.group, texts)
        with suppress(BadInput):
            units = read_units(files, self.split_group)
        pairs = self._encode_held_out(texts, tokenizer, groups, units)
        notify_unread((path for file in files for path in file.paths()), self.encoding, listen)
        for text in filter(None, (file.column_warning() for file in files)):
            listen("notice", text=text)
        skipped.report(listen)
        report_overflow(listen, pairs.overflow)
        paths = [p for f in files for p in f.paths()]
        data: PairData = self._with_split(split, pairs, paths, tokenizer, listen, listen=listen)
        report_trained_on(listen, path, [*map(split_hash, pairs.sources)], data.train_hashes.tolist())
        return data

    @property
    def split_columns(self) -> tuple[Column, Column]:
        return self.split_group, self.time

    def _draw_units(
        self, pairs: list[Pair], train_files: list[PairFile], files: dict[str, list[PairFile]], excluded: set[int]
    ) -> tuple[dict[str, References], int, int]:
        """As _draw_sources, by group, by time or a fold. Adds sources that share a group with a file to `excluded`."""
        sources, times, groups = {source: None for source, _ in pairs}, dict[str, float](), dict[str, list[str]]()
        if self.split_group is not None:
            rows = read_column(chain.from_iterable(files.values()), "data.split_group", self.split_group)
            in_files = {group for _, group, _ in rows} - {""}
            for source, group, _ in read_column(train_files, "data.split_group", self.split_group):
                groups.setdefault(source, []).extend([group] if group else [])
                if group in in_files:
                    excluded.add(split_hash(source))
        if self.time is not None:
            timed = [row for row in read_column(train_files, "data.time", self.time) if row[0] in sources]
            stamps = parse_times([(cell, place) for _, cell, place in timed], self.time)
            for (source, *_), stamp in zip(timed, stamps, strict=True):
                times[source] = max(stamp, times.get(source, stamp))
        names = [source for source in sources if split_hash(source) not in excluded]
        members = []
        for source in names:
            keys = (*(f"group {group}" for group in groups.get(source, ())), f"source {source}")
            members.append(Member(keys, split_hash(keys[0]), (), times.get(source, 0.0)))
        chosen = {
            split: {names[n] for unit in units for n in unit.members}
            for split, units in self.draw_held_out(members, files, "sources").items()
        }
        drawn = {s: references_by_source(p for p in pairs if p[0] in some) for s, some in chosen.items()}
        return drawn, len(pairs), sum(split_hash(source) in excluded for source, _ in pairs)

    def _notices(self, n_excluded: int, excluded: str, n_long: int, splits: dict[str, Pairs]) -> Iterator[str]:
        """Warnings about the data, one line each; `excluded` names places of training pairs that were dropped."""
        if n_excluded:
            shared = "source" if self.split_group is None else f"source or {self.split_group!r}"
            yield f"training pairs dropped because their {shared} is in a held-out split: {n_excluded:,} ({excluded})"
        if n_long:
            yield f"training pairs dropped because a side exceeds data.max_length={self.max_length}: {n_long:,}"
        sources = [pairs.sources for pairs in splits.values()]
        if len(sources) > 1 and (n_shared := len(set.intersection(*map(set, sources)))):
            yield f"sources in both valid and test: {n_shared:,}; test metrics are biased by model selection"
        for split in ("valid", "test"):
            if getattr(self, split) and split not in splits:
                yield f"data.{split}: too few pairs for a {split} split"

    def train_pairs(self) -> Iterator[Pair]:
        """The pairs of the training files; held-out splits may be drawn from them."""
        return read_pairs(self._files()["train"], max_words=self.max_words)

    def _files(self) -> dict[str, list[PairFile]]:
        """The files of each split that has files; always includes train."""
        if self.train is None and self.path is None:
            if not isinstance(self.source, str) or not isinstance(self.target, str):
                hint = "set data.path to a file or folder, or data.source and data.target to two aligned files"
                raise BadSetting(f"data.path is not set; {hint}")
            source, target = (list_files(Path(side))[0] for side in (self.source, self.target))
            files = {"train": [PairFile(source, target_path=target, encoding=self.encoding)]}
        elif self.train is None and Path(self.train_path).is_dir():
            files = files_by_split(Path(self.train_path), self.source, self.target, self.encoding)
        else:
            files = {"train": self._files_at(self.train_path, "train")}
        for split in ("valid", "test"):
            if isinstance(path := getattr(self, split), str):
                files[split] = self._files_at(path, split)
        if not files["train"]:
            raise BadInput(
                f"{self.train_path}: no files of pairs directly in this folder; name the folder that has them"
            )
        return {split: split_files for split, split_files in files.items() if split_files}

    def _files_at(self, path: str, split: str) -> list[PairFile]:
        if not Path(path).is_dir():
            return [find_pair_file(path, self.source, self.target, self.encoding)]
        files = files_by_split(Path(path), self.source, self.target, self.encoding)
        return files.get(split) or files["train"]

    def _encode_train(
        self, pairs: Iterable[Pair], tokenizers: PairTokenizers, total: int, listen: Listener
    ) -> tuple[Pairs, Array, int]:
        """The pairs within max_length, the sorted hashes of their sources, and the number of longer pairs."""
        sides: tuple[list[tuple[Array, Array]], ...] = ([], [])
        hashes, words, n_too_long = [], list[tuple[str, ...]](), 0
        for n, block in enumerate(pair_blocks(pairs)):
            *encoded, block_words = tokenizers.encode_pairs(*zip(*block, strict=True))
            fits = np.logical_and(*(lengths <= self.max_length for _, lengths in encoded))
            for side, (ids, lengths) in zip(sides, encoded, strict=True):
                side.append((ids[np.repeat(fits, lengths)], lengths[fits]))
            words += compress(block_words, fits)
            hashes.append(np.fromiter((split_hash(source) for source, _ in block), np.uint64, len(block))[fits])
            n_too_long += len(block) - int(fits.sum())
            listen("encode", done=min(total, (n + 1) * PAIRS_PER_BLOCK), total=total, unit="pairs")
        listen("encode", done=total, total=total, unit="pairs")
        source, target = tokenizers.ragged(*sides)
        all_hashes = np.unique(np.concatenate([np.empty(0, np.uint64), *hashes]))
        return Pairs(source, target, words=words), all_hashes, n_too_long

    def _encode_held_out(
        self, texts: References, tokenizers: PairTokenizers, groups: dict[str, str], units: dict[str, str]
    ) -> Pairs:
        """A held-out split: every source, truncated to max_length."""
        *encoded, words = tokenizers.encode_pairs([*texts], [references[0] for references in texts.values()])
        sides = tokenizers.ragged(*([block] for block in encoded))
        remedy, lengths = "increase data.max_length", [n for side in sides for n in side.lengths.tolist()]
        overflow = Overflow.of(lengths, self.max_length, inputs="held-out sentences", remedy=remedy)
        source, target = tokenizers.truncate(sides[0], sides[1], self.max_length)
        named, dependent = ([x.get(source, "") for source in texts] if x else [] for x in (groups, units))
        return Pairs(source, target, list(texts), list(texts.values()), named, dependent, overflow, words)
