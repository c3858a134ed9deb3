"""Splitting of every kind of data into train, valid and test: by file name, or by a hash of each example.

The hash depends only on an example's key, so adding rows moves no example between splits, and all examples with one key
belong to one split.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from pydantic import ConfigDict, Field, create_model

from harken.data.source import DataSource, Encoding, Processor, ProcessorT, Vocab
from harken.errors import BadInput, BadRun, BadSetting
from harken.events import Listener, Overflow, report_overflow, silent
from harken.files import sha256_of
from harken.suggestions import similar_path

from .detect import preview
from .tables.read import SkippedRows
from .tables.text_file import text_file

SPLIT_FILE_NAMES = {"train": ("train",), "valid": ("valid", "validation", "val", "dev"), "test": ("test",)}
LABELS_FILE = "labels.json"
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
LabelList = Annotated[list[str], Field(min_length=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
T = TypeVar("T")
SplitT = TypeVar("SplitT", bound=Sized)  # the encoded examples of a split
ExampleT = TypeVar("ExampleT")
MAX_HELD_OUT = 3000  # examples per split drawn by a fraction; more would cost time and add little precision


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
    named = {split: [f for f in files if has_name_part(path_of(f), parts)] for split, parts in SPLIT_FILE_NAMES.items()}
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


def check_skipped(skipped: SkippedRows, path: Path, n_rows: int, settings: str, listen: Listener) -> None:
    """Report the skipped rows; raises if a file has no rows, or fewer than were skipped."""
    if not skipped.count + n_rows:
        raise BadInput(f"{path}: has no rows of data; add rows, or check the file")
    if skipped.count > n_rows:
        problem = f"{skipped.count:,} of its {skipped.count + n_rows:,} rows are skipped: {skipped.what}"
        raise BadInput(f"{path}: {problem} ({skipped.first[0]}); check {settings}, or fix the file")
    if skipped.count:
        listen("notice", text=str(skipped))


def notify_unread(paths: Iterable[Path], encoding: str | None, listen: Listener) -> None:
    """Report the parts of these files that are not read, such as other sheets of a workbook."""
    for path in paths:
        if path.is_file() and (notice := text_file(path, encoding).notice):
            listen("notice", text=notice)


# --- draw by hash -----------------------------------------------------------------------------------------------------


def split_hash(key: str) -> int:
    """64-bit hash that decides the split of an example."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8, person=b"harken pairs").digest(), "big")


def split_rank(split: str, hash_value: int) -> int:
    """Position in the order in which a split takes hashes: test from the low end, valid from the high end."""
    return hash_value if split == "test" else 2**64 - 1 - hash_value


def check_fraction(split: str, fraction: str | float, unit: str) -> float:
    if isinstance(fraction, str) or not 0 <= fraction < 1:
        raise BadSetting(f"data.{split} = {fraction}: the fraction of held-out {unit} must be at least 0 and below 1")
    return float(fraction)


def draw_stratified(strata: Iterable[list[T]], key: Callable[[T], str], split: str, fraction: float) -> list[T]:
    """A fraction of every stratum by hash; at least one item of each stratum stays in train."""
    drawn: list[T] = []
    for stratum in strata:
        ordered = sorted(stratum, key=lambda item: split_hash(key(item)), reverse=split == "valid")
        drawn += ordered[: min(round(fraction * len(ordered)), len(ordered) - 1)]
    return drawn


# --- settings and data ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SavedProcessor:
    """Base of the processors with fields: a run folder has their tokenizers in files, the other fields in labels.json.

    If there is only one other field, labels.json is its value.
    """

    def files(self) -> dict[str, bytes]:
        """The files of the run folder from which the processor can be loaded."""
        files, values = dict[str, bytes](), dict[str, object]()
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Processor):
                files |= value.files()
            else:
                values[field.name] = value
        content = values if len(values) > 1 else next(iter(values.values()))
        return files | {LABELS_FILE: json.dumps(content, ensure_ascii=False).encode()}

    @classmethod
    def load(cls, folder: Path, **tokenizers: Processor) -> Self:
        """The processor of a run folder, given its tokenizers; labels.json must match the other fields."""
        in_file = [field for field in fields(cls) if field.name not in tokenizers]
        schema: Any = {f.name: (f.type, ... if f.default is MISSING else f.default) for f in in_file}
        try:
            content = json.loads((folder / LABELS_FILE).read_bytes())
            values = content if len(in_file) > 1 else {in_file[0].name: content}
            return cls(**dict(create_model("Strict", __config__=STRICT, **schema).model_validate(values)), **tokenizers)
        except (OSError, ValueError, RecursionError):
            problem = "cannot read the processor: missing or invalid"
            raise BadRun(f"{folder / LABELS_FILE}: {problem}; restore it from a copy, or train again") from None


@dataclass(frozen=True, eq=False)
class SplitData(Generic[ProcessorT, SplitT]):
    """Encoded examples by split."""

    settings: Any
    processor: ProcessorT  # maps examples to numbers; saved with the run
    train: SplitT
    splits: dict[str, SplitT]  # valid and test, as far as they exist
    sha256: str
    has_train: bool = True  # False: the training data is missing, and `train` holds an evaluated split instead

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
        return {**by_split, "unit": next(iter(by_split)), **self._facts(), "sha256": self.sha256}

    def _facts(self) -> dict[str, object]:
        raise NotImplementedError


class FileSource(DataSource[ProcessorT], Generic[ProcessorT, SplitT]):
    """Settings of data that is split by file or by fraction."""

    dataset_class: ClassVar[type[Any]]
    processor_class: ClassVar[type[Any]]

    path: str | None = Field(None, description="file or folder; files named train, valid, test are the splits")
    train: str | None = Field(None, description="training file or folder, instead of path")
    valid: str | float = Field(0.1, description=f"validation file or fraction, at most {MAX_HELD_OUT:,} examples")
    test: str | float = Field(
        0.05, validate_default=True, description=f"test file or fraction, at most {MAX_HELD_OUT:,} examples"
    )
    examples: int | None = Field(None, ge=1, description="number of training examples to use; none: all")
    encoding: Encoding = None
    sha256: str | None = Field(None, description="SHA-256 of the files; training refuses other files")

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
            data: Any = self.model_copy(update={"sha256": None}).load_data(tokenizer=processor, **options)
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

    def has_target(self, example: ExampleT) -> bool:
        """Whether a model can be trained on the example."""
        return True

    def as_trained(self, processor: ProcessorT) -> Self:
        """The settings to read other data as the training data was read."""
        return self

    def drop_missing(self, examples: dict[str, list[ExampleT]], listen: Listener) -> dict[str, list[ExampleT]]:
        """The examples of each split without those whose target is a missing value, which are reported."""
        return examples

    def encode_examples(self, examples: list[ExampleT], processor: ProcessorT) -> SplitT:
        """The examples as numbers."""
        raise NotImplementedError

    def overflow(self, part: SplitT) -> Overflow | None:
        """The examples of a split that are truncated."""
        return None

    def _build_processor(self, examples: list[ExampleT], known: Any, listen: Listener) -> ProcessorT:
        """The processor of the training examples; reuses the known one as far as it covers them."""
        raise NotImplementedError

    # --- load ---------------------------------------------------------------------------------------------------------

    def load_data(
        self, *, stateful: bool = False, tokenizer: Processor | None = None, listen: Listener = silent
    ) -> SplitData[ProcessorT, SplitT]:
        files = self._files()
        examples = {split: [e for p in paths for e in self.read(p, listen)] for split, paths in files.items()}
        notify_unread((path for paths in files.values() for path in paths), self.encoding, listen)
        digest = files_sha256(self._files_read(files, examples), self.sha256, self.train_path)
        examples = self.drop_missing(examples, listen)
        n_examples, examples["train"] = len(examples["train"]), self._only_in_train(examples)
        if n_dropped := n_examples - len(examples["train"]):
            listen("notice", text=f"dropped {n_dropped:,} training examples that also occur in valid or test")
        examples |= self._draw_splits(examples)
        train = self._only_in_train(examples)[: self.examples]
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
                listen("notice", text=f"data.{split}: too few examples to hold out a split")
        report_overflow(listen, *filter(None, map(self.overflow, [encoded, *splits.values()])))
        return self.dataset_class(self, processor, encoded, splits, digest)

    def load_split(
        self, path: str, split: str, *, tokenizer: ProcessorT, stateful: bool = False, listen: Listener = silent
    ) -> SplitData[ProcessorT, SplitT]:
        source, files = self.as_trained(tokenizer), self._paths(Path(path))
        read = source.drop_missing({split: [e for p in files for e in source.read(p, listen)]}, listen)
        examples = source.encode_examples(read[split], tokenizer)
        notify_unread(files, source.encoding, listen)
        if not len(examples):
            raise BadInput(f"{path}: no examples to evaluate; give a file with examples")
        report_overflow(listen, *filter(None, [source.overflow(examples)]))
        return source._with_split(split, examples, files, tokenizer, listen)

    def _only_in_train(self, examples: dict[str, list[ExampleT]]) -> list[ExampleT]:
        """The training examples that do not occur in valid or test."""
        held_out = {self.duplicate_key(e) for split in ("valid", "test") for e in examples.get(split, ())}
        return [e for e in examples["train"] if self.duplicate_key(e) not in held_out]

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


def no_baselines(error: BadInput) -> str:
    """Notice for a run that is evaluated without its training data."""
    return f"no baselines: they need the training data, which cannot be loaded ({error})"
