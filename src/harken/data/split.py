"""Splitting of every kind of data into train, valid and test: by file name, or as partition.py draws examples."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import Field

from harken.data.source import DataSource, Encoding, Processor, ProcessorT, Vocab, no_baselines
from harken.errors import BadInput, BadSetting
from harken.events import Listener, Overflow, report_overflow, silent
from harken.files import sha256_of
from harken.suggestions import similar_path

from . import partition
from .detect import preview
from .duplicates import Identity, conflict_notice, duplicate_notices, report_trained_on
from .garbage import without_collection
from .label_warnings import label_warnings
from .partition import MAX_HELD_OUT, Fold, Member, Unit, build_units, check_fraction, draw_units, split_hash, split_rank
from .tables.text_file import notify_unread

Column = int | str | None
T = TypeVar("T")
SplitT = TypeVar("SplitT", bound=Sized)  # the encoded examples of a split
ExampleT = TypeVar("ExampleT")


# --- files ------------------------------------------------------------------------------------------------------------


def list_files(path: Path) -> list[Path]:
    """The file, or the data files of a folder sorted by name."""
    if path.is_dir():
        return sorted(preview.data_files(path))
    if not path.is_file():
        raise BadInput(f"{path}: no such file; check the name{similar_path(path)}")
    return [path]


def has_name_part(path: Path, parts: Iterable[str]) -> bool:
    """Whether the file name contains one of these parts between dots, dashes or underscores."""
    return any(part in parts for part in re.split(r"[._\-]", path.name.lower()))


def group_by_split(files: Sequence[T], path_of: Callable[[T], Path]) -> dict[str, list[T]]:
    """The files of each split by file name; nothing if no file is named valid or test (a-train-ride.txt)."""
    names = partition.SPLIT_FILE_NAMES.items()
    named = {split: [f for f in files if has_name_part(path_of(f), parts)] for split, parts in names}
    held_out = [*named["valid"], *named["test"]]
    return named | {"train": named["train"] or [f for f in files if f not in held_out]} if held_out else {}


def files_sha256(paths: Iterable[Path], expected: str | None, name: str) -> str:
    """SHA-256 over the contents of the files, each once, however they are split; raises if it is not the expected."""
    digest = hashlib.sha256()
    for path in sorted(set(paths)):
        for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
            digest.update(bytes.fromhex(sha256_of(file)))
    if expected not in (None, digest.hexdigest()):
        fix = f"restore them, or train a new run: harken train {name}"
        raise BadInput(f"{name}: SHA-256 mismatch: the files differ from those of this recipe; {fix}")
    return digest.hexdigest()


# --- settings and data ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SplitData(Generic[ProcessorT, SplitT]):
    """Encoded examples by split."""

    settings: Any
    processor: ProcessorT  # maps examples to numbers; saved with the run
    train: SplitT
    splits: dict[str, SplitT]  # valid and test, as far as they exist
    sha256: str
    has_train: bool = True  # False: the training data is missing, and `train` holds an evaluated split instead
    split_by: str = ""  # how the splits were chosen

    @property
    def vocab(self) -> Vocab:
        return self.processor.vocab

    @property
    def tokenizer(self) -> ProcessorT:
        return self.processor

    @property
    def parts(self) -> dict[str, SplitT]:
        """Every split including train."""
        return {"train": self.train, **self.splits}

    def facts(self) -> dict[str, object]:
        """Data statistics for the report: the counts of every split, and the facts of a kind."""
        parts: dict[str, Any] = self.parts
        counts = {name: part.facts() for name, part in parts.items()}
        by_split = {key: {name: counts[name][key] for name in parts} for key in counts["train"]}
        return {
            **by_split,
            "unit": next(iter(by_split)),
            **self._facts(),
            "split": self.split_by,
            "sha256": self.sha256,
        }

    def _facts(self) -> dict[str, object]:
        raise NotImplementedError


class FileSource(DataSource[ProcessorT], Generic[ProcessorT, SplitT]):
    """Settings of data that is split by file or by fraction."""

    dataset_class: ClassVar[type[Any]]
    processor_class: ClassVar[type[Any]]
    drawn_by: ClassVar[str] = "fractions by a hash of each example"  # how splits without files are drawn

    path: str | None = Field(None, description="file or folder; files named train, valid, test are the splits")
    train: str | None = Field(None, description="training file or folder, instead of path")
    valid: str | float = Field(0.1, description=f"validation file or fraction, at most {MAX_HELD_OUT:,} examples")
    test: str | float = Field(
        0.05, validate_default=True, description=f"test file or fraction, at most {MAX_HELD_OUT:,} examples"
    )
    examples: int | None = Field(None, ge=1, description="number of training examples to use; none: all")
    encoding: Encoding = None
    fold: str | None = Field(None, description="2/5: the test split is fold 2 of 5 of a cross-validation")
    sha256: str | None = Field(None, description="SHA-256 of the files; training refuses other files")

    @property
    def split_columns(self) -> tuple[Column, Column]:
        """The columns of the groups and of the times that decide the split, if they are set."""
        return None, None

    @property
    def test_fold(self) -> Fold | None:
        """The fold that is the test split; None without cross-validation."""
        if self.fold is None:
            return None
        match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", self.fold)
        if not match or not max(2, int(match[1])) <= int(match[2]):
            raise BadSetting(f"data.fold={self.fold}: expected a fold and the number of folds, such as 2/5")
        if isinstance(self.test, str) or self.split_columns[1] is not None:
            other = "data.time" if isinstance(self.test, float) else "a test file"
            raise BadSetting(f"data.fold={self.fold}: a fold is drawn at random, which does not go with {other}")
        return Fold(int(match[1]), int(match[2]))

    def draw_held_out(self, members: Sequence[Member], files: Iterable[str], unit: str) -> dict[str, list[Unit]]:
        """The held-out units of each split without files: by group, by time, or a fold."""
        values = {split: getattr(self, split) for split in ("valid", "test") if split not in files}
        fold, by_time = self.test_fold, self.split_columns[1] is not None
        if "test" not in values and (fold is not None or (by_time and not values)):
            setting = f"data.time={self.split_columns[1]}" if by_time else f"data.fold={self.fold}"
            raise BadSetting(f"{setting}: the data has a test file, so nothing is left to split; remove the setting")
        fractions = {split: check_fraction(split, value, unit) for split, value in values.items()}
        return draw_units(build_units(members), fractions, fold, by_time=by_time)

    def describe_split(self, files: Iterable[str]) -> str:
        """How the splits were chosen, in one line."""
        (group, time), fold = self.split_columns, self.test_fold
        drawn = {split: f"{getattr(self, split):.3g}" for split in ("valid", "test") if split not in files}
        if fold is not None:
            drawn |= {"test": f"fold {fold.number} of {fold.n_folds}"}
        how = self.drawn_by if time is None else f"by time, the newest of column {time!r} are held out"
        how += "" if group is None else f"; rows with the same {group!r} are in one split"
        texts = [f"{split} {drawn.get(split, 'from its file')}" for split in ("valid", "test")]
        return f"{', '.join(texts)}{f' ({how})' * bool(drawn)}"

    @property
    def train_path(self) -> str:
        """The file or folder with the training data."""
        if not (path := self.train or self.path):
            raise BadSetting(f"data.path is missing; name a file or a folder: data.path=my.{self.kind}")  # type: ignore[attr-defined]
        return path

    def with_absolute_paths(self) -> Self:
        return self._with_absolute("path", "train", "valid", "test")

    def _with_absolute(self, *names: str) -> Self:
        paths = {name: path for name in names if isinstance(path := getattr(self, name), str)}
        return self.model_copy(update={name: str(Path(path).absolute()) for name, path in paths.items()})

    def load_processor(self, folder: Path) -> ProcessorT:
        return self.processor_class.load(folder)

    def _with_split(
        self, split: str, part: SplitT, files: Iterable[Path], processor: ProcessorT, notify: Listener, **options: Any
    ) -> Any:
        """The data with another part as one split; only this part if the training data is missing."""
        try:
            data: Any = self.train_settings.load_data(tokenizer=processor, **options)
        except BadInput as error:
            notify("notice", text=no_baselines(error))
            digest = files_sha256(files, None, "")
            return self.dataset_class(self, processor, part, {split: part}, digest, has_train=False)
        return replace(data, splits={**data.splits, split: part})


class SplitSource(FileSource[ProcessorT, SplitT], Generic[ExampleT, ProcessorT, SplitT]):
    """Base of the kinds that read examples from files; a kind implements the methods of the first section."""

    # --- implemented by a kind ----------------------------------------------------------------------------------------

    def read(self, path: Path, listen: Listener) -> list[ExampleT]:
        """The examples of a file."""
        raise NotImplementedError

    def split_key(self, example: ExampleT) -> str:
        """Key that decides the split of an example."""
        raise NotImplementedError

    def duplicate_key(self, example: ExampleT) -> str:
        """Key that a training example must not share with a held-out one."""
        return self.split_key(example)

    def near_duplicate_key(self, example: ExampleT) -> str:
        """Key that near-duplicates share; empty if they are not searched."""
        return ""

    def location(self, example: ExampleT) -> str:
        """Where the example is, for messages; empty if that is unknown."""
        return ""

    def labels_of(self, examples: Sequence[ExampleT]) -> list[tuple[str, ...]]:
        """The labels of each example; empty if they have none."""
        return [()] * len(examples)

    def group_of(self, example: ExampleT) -> str:
        """The group of an example, of which all examples are in one split; empty if it has none."""
        return ""

    def times_of(self, examples: Sequence[ExampleT]) -> list[float] | None:
        """The time of each example for a split by time; None for other splits."""
        return None

    def has_target(self, example: ExampleT) -> bool:
        """Whether a model can be trained on the example."""
        return True

    def as_trained(self, processor: ProcessorT) -> Self:
        """The settings to read other data as the training data was read."""
        return self

    def without_split(self, path: Path) -> Self:
        """The settings to read another file, which is not split and may lack columns that decide the split."""
        return self

    def drop_missing(self, examples: dict[str, list[ExampleT]], listen: Listener) -> dict[str, list[ExampleT]]:
        """The examples of each split without those whose target is a missing value, which are reported."""
        return examples

    def encode_examples(self, examples: list[ExampleT], processor: ProcessorT) -> SplitT:
        """The examples as numbers."""
        raise NotImplementedError

    def examples_in(self, part: SplitT) -> Sequence[ExampleT]:
        """The examples of a split, if it keeps them."""
        return ()

    def overflow(self, part: SplitT) -> Overflow | None:
        """The examples of a split that are truncated."""
        return None

    def _build_processor(self, examples: list[ExampleT], known: Any, listen: Listener) -> ProcessorT:
        """The processor of the training examples; reuses the known one as far as it covers them."""
        raise NotImplementedError

    # --- load ---------------------------------------------------------------------------------------------------------

    @without_collection()
    def load_data(
        self, *, stateful: bool = False, tokenizer: Processor | None = None, listen: Listener = silent
    ) -> SplitData[ProcessorT, SplitT]:
        files = self._files()
        examples = {split: [e for p in paths for e in self.read(p, listen)] for split, paths in files.items()}
        notify_unread((path for paths in files.values() for path in paths), self.encoding, listen)
        digest = files_sha256(self._files_read(files, examples), self.sha256, self.train_path)
        examples = self.drop_missing(examples, listen)
        for text in self._label_notices([e for part in examples.values() for e in part]):
            listen("notice", text=text)
        all_train, examples["train"] = examples["train"], self._only_in_train(examples)
        examples |= (drawn := self._draw_splits(examples))
        remaining = self._only_in_train(examples)
        train = remaining[: self.examples]
        used = {id(e) for part in (remaining, *drawn.values()) for e in part}
        dropped = self._identities(e for e in all_train if id(e) not in used)
        held_out = {split: self._identities(examples[split]) for split in ("valid", "test") if examples.get(split)}
        for text in duplicate_notices(self._identities(train), held_out, dropped):
            listen("notice", text=text)
        empty = BadInput(f"{self.train_path}: no training examples; add more examples")
        if not train:
            raise empty
        processor = self._build_processor(train, tokenizer, listen)
        encoded = self.encode_examples([e for e in train if self.has_target(e)], processor)
        if not len(encoded):
            raise empty
        splits = {s: self.encode_examples(examples[s], processor) for s in ("valid", "test") if examples.get(s)}
        for split in ("valid", "test"):
            if getattr(self, split) and split not in splits:
                few = "different examples" if self.split_columns[0] is None else "groups without equal examples"
                listen("notice", text=f"data.{split}: too few {few} to hold out a split")
        report_overflow(listen, *filter(None, map(self.overflow, [encoded, *splits.values()])))
        return self.dataset_class(self, processor, encoded, splits, digest, split_by=self.describe_split(files))

    def load_split(
        self, path: str, split: str, *, tokenizer: ProcessorT, stateful: bool = False, listen: Listener = silent
    ) -> SplitData[ProcessorT, SplitT]:
        source, files = self.as_trained(tokenizer), self._paths(Path(path))
        read = source.drop_missing({split: [e for p in files for e in source.without_split(p).read(p, listen)]}, listen)
        notify_unread(files, source.encoding, listen)
        if not (read[split] and len(examples := source.encode_examples(read[split], tokenizer))):
            raise BadInput(f"{path}: no examples to evaluate; give a file with examples")
        report_overflow(listen, *filter(None, [source.overflow(examples)]))
        data: SplitData[ProcessorT, SplitT] = source._with_split(split, examples, files, tokenizer, listen)
        if data.has_train:
            parts = data.splits[split], data.train
            report_trained_on(listen, path, *([*map(self.duplicate_key, self.examples_in(part))] for part in parts))
        return data

    def _only_in_train(self, examples: dict[str, list[ExampleT]]) -> list[ExampleT]:
        """The training examples that do not occur in valid or test, and share no group with them."""
        held_out = [e for split in ("valid", "test") for e in examples.get(split, ())]
        keys, groups = {self.duplicate_key(e) for e in held_out}, {self.group_of(e) for e in held_out} - {""}
        return [e for e in examples["train"] if self.duplicate_key(e) not in keys and self.group_of(e) not in groups]

    def _label_notices(self, examples: list[ExampleT]) -> Iterator[str]:
        """Warnings about the labels, if the examples have any."""
        labels = self.labels_of(examples)
        has_labels = any(labels)  # not numbers
        yield from label_warnings(label for names in labels for label in names)
        labelled = [(e, names) for e, names in zip(examples, labels, strict=True) if has_labels]
        conflicts = conflict_notice((self.duplicate_key(e), names, self.location(e)) for e, names in labelled)
        yield from filter(None, [conflicts])

    def _identities(self, examples: Iterable[ExampleT]) -> list[Identity]:
        return [
            Identity(self.duplicate_key(e), self.near_duplicate_key(e), self.group_of(e), self.location(e))
            for e in examples
        ]

    def _files(self) -> dict[str, list[Path]]:
        """The files of each split; train always has some."""
        paths = self._paths(Path(self.train_path))
        by_name = group_by_split(paths, lambda path: path) if len(paths) > 1 and not self.train else {}
        files = by_name or {"train": paths}
        for split in ("valid", "test"):
            if isinstance(path := getattr(self, split), str):
                files[split] = self._paths(Path(path))
        return {split: some for split, some in files.items() if some}

    def _paths(self, path: Path) -> list[Path]:
        """What `read` reads of a file or folder."""
        return list_files(path)

    @property
    def first_file(self) -> Path:
        """The first training file."""
        return self._files()["train"][0]

    def _files_read(self, files: dict[str, list[Path]], examples: dict[str, list[ExampleT]]) -> list[Path]:
        """All files that were read."""
        return [path for paths in files.values() for path in paths]

    def _draw_splits(self, examples: dict[str, list[ExampleT]]) -> dict[str, list[ExampleT]]:
        """The examples held out by fraction: those with the lowest ranks of each split."""
        if self.fold is not None:
            return self._draw_units(examples)
        drawn = dict[str, list[ExampleT]]()
        for split in ("valid", "test"):
            fraction = getattr(self, split)
            if split in examples or isinstance(fraction, str):
                continue
            limit = check_fraction(split, fraction, "examples") * 2**64
            ranked = [(split_rank(split, split_hash(self.split_key(e))), e) for e in examples["train"]]
            held_out = sorted((item for item in ranked if item[0] < limit), key=lambda item: item[0])
            drawn[split] = [e for _, e in held_out[:MAX_HELD_OUT]]
        return drawn

    def _draw_units(self, by_split: dict[str, list[ExampleT]]) -> dict[str, list[ExampleT]]:
        """The examples held out by group, by time or as a fold of cross-validation."""
        examples = by_split["train"]
        labels, times = self.labels_of(examples), self.times_of(examples)
        members = []
        for n, e in enumerate(examples):
            key, group = f"key {self.split_key(e)}", self.group_of(e)
            keys = (f"group {group}", key) if group else (key,)
            members.append(Member(keys, split_hash(keys[0]), labels[n], times[n] if times else 0.0))
        drawn = self.draw_held_out(members, by_split, "examples")
        indices = {split: [n for unit in units for n in unit.members] for split, units in drawn.items()}
        held_out = {n for some in indices.values() for n in some}
        known = {label for n, names in enumerate(labels) if n not in held_out for label in names}
        for n in sorted(held_out):  # only possible by time
            if unknown := next((label for label in labels[n] if label not in known), None):
                problem = f"label {unknown!r} occurs only in the newest rows, which are held out by data.time"
                raise BadInput(
                    f"{self.location(examples[n])}: {problem}; remove it, or reduce data.valid and data.test"
                )
        return {split: [examples[n] for n in some] for split, some in indices.items()}
