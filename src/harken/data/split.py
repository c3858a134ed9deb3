"""Splitting of every kind of data into train, valid and test: by file name, or by a hash of each example.

The hash depends only on an example's key, so adding rows moves no example between splits, and all examples with one key
belong to one split.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import ConfigDict, Field, create_model

from harken.data.source import DataSource
from harken.errors import BadInput, BadRun, BadSetting
from harken.events import Listener, silent
from harken.files import sha256_of
from harken.suggestions import similar_path

from .detect import preview

SPLIT_FILE_NAMES = {"train": ("train",), "valid": ("valid", "validation", "val", "dev"), "test": ("test",)}
LABELS_FILE = "labels.json"
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
LabelList = Annotated[list[str], Field(min_length=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
T = TypeVar("T")
ProcessorT = TypeVar("ProcessorT")
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
        digest.update(bytes.fromhex(sha256_of(path)))
    if expected not in (None, digest.hexdigest()):
        raise BadInput(
            f"{name}: SHA-256 mismatch: the files differ from those of this recipe; "
            f"restore them, or train a new run: harken train {name}"
        )
    return digest.hexdigest()


# --- draw by hash -----------------------------------------------------------------------------------------------------


def split_hash(key: str) -> int:
    """64-bit hash that decides the split of an example."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8, person=b"harken pairs").digest(), "big")


def split_rank(split: str, hash_value: int) -> int:
    """Position in the order in which a split takes hashes: test from the low end, valid from the high end."""
    return hash_value if split == "test" else 2**64 - 1 - hash_value


def check_fraction(split: str, fraction: Any, unit: str) -> float:
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


def load_labels_file(kind: type[ProcessorT], folder: Path, what: str, **more: Any) -> ProcessorT:
    """A processor from the run's labels.json, validated against its fields; `more` holds fields from other files."""
    in_file = [f for f in fields(cast(Any, kind)) if f.name not in more]
    schema: Any = {f.name: (f.type, ... if f.default is MISSING else f.default) for f in in_file}
    strict: Any = create_model(kind.__name__, __config__=STRICT, **schema)
    try:
        return kind(**dict(strict.model_validate_json((folder / LABELS_FILE).read_bytes())), **more)
    except (OSError, ValueError):
        raise BadRun(
            f"{folder / LABELS_FILE}: cannot read {what}: missing or invalid; restore it from a copy, or train again"
        ) from None


@dataclass(frozen=True, eq=False)
class SplitData:
    """Encoded examples by split."""

    settings: Any
    processor: Any  # maps examples to numbers; saved with the run
    train: Any
    splits: dict[str, Any]  # valid and test, as far as they exist
    sha256: str
    has_train: bool = True  # False: the training data is missing, and `train` holds an evaluated split instead

    @property
    def vocab(self) -> Any:
        return self.processor.vocab

    @property
    def tokenizer(self) -> Any:
        return self.processor

    @property
    def parts(self) -> dict[str, Any]:
        """Every split including train."""
        return {"train": self.train, **self.splits}


class FileSource(DataSource):
    """Settings of data that is split by file or by fraction."""

    path: str | None = Field(None, description="file or folder; files named train, valid, test are the splits")
    train: str | None = Field(None, description="training file or folder, instead of path")
    valid: str | float = Field(0.1, description=f"validation file or fraction, at most {MAX_HELD_OUT:,} examples")
    test: str | float = Field(0.05, description=f"test file or fraction, at most {MAX_HELD_OUT:,} examples")
    examples: int | None = Field(None, ge=1, description="number of training examples to use; none: all")
    sha256: str | None = Field(None, description="SHA-256 of the files; training refuses other files")

    def with_absolute_paths(self) -> Any:
        """The same settings with absolute paths."""
        paths = {name: getattr(self, name) for name in ("path", "train", "valid", "test")}
        return self.model_copy(update={n: str(Path(p).absolute()) for n, p in paths.items() if isinstance(p, str)})

    @property
    def _home(self) -> str:
        if not (home := self.train or self.path):
            raise BadSetting(f"data.path is missing; name a file or a folder: data.path=my.{self.kind}")  # type: ignore[attr-defined]
        return home


class SplitSource(FileSource):
    """Base of the kinds that read examples from files; a kind implements the methods of the first section."""

    dataset_class: ClassVar[type[Any]] = SplitData

    # --- implemented by a kind ----------------------------------------------------------------------------------------

    def read(self, path: Path, listen: Listener) -> list[Any]:
        """The examples of a file."""
        raise NotImplementedError

    def split_key(self, example: Any) -> str:
        """Key that decides the split of an example."""
        raise NotImplementedError

    def duplicate_key(self, example: Any) -> str:
        """Key that a training example must not share with a held-out one."""
        return self.split_key(example)

    def encode_examples(self, examples: list[Any], words: Any, *, learn: bool) -> Any:
        """The examples as numbers; `learn` drops those without a training signal."""
        raise NotImplementedError

    def _build_processor(self, examples: list[Any], known: Any, listen: Listener) -> Any:
        """The processor of the training examples; reuses the known one as far as it covers them."""
        raise NotImplementedError

    # --- load ---------------------------------------------------------------------------------------------------------

    def load_data(self, *, stateful: bool = False, tokenizer: Any = None, listen: Listener = silent) -> Any:
        """Read, split and encode the examples."""
        files = self._files()
        examples = {split: [e for p in paths for e in self.read(p, listen)] for split, paths in files.items()}
        digest = files_sha256(self._files_read(files, examples), self.sha256, self._home)
        held_out = {self.duplicate_key(e) for split in ("valid", "test") for e in examples.get(split, ())}
        candidates = [e for e in examples["train"] if self.duplicate_key(e) not in held_out]
        if n_dropped := len(examples["train"]) - len(candidates):
            listen("notice", text=f"dropped {n_dropped:,} training examples that also occur in valid or test")
        examples["train"] = candidates
        examples |= self._draw_splits(examples)
        held_out |= {self.duplicate_key(e) for split in ("valid", "test") for e in examples.get(split, ())}
        learn = [e for e in examples.pop("train") if self.duplicate_key(e) not in held_out][: self.examples]
        processor = self._build_processor(learn, tokenizer, listen) if learn else None
        train = self.encode_examples(learn, processor, learn=True) if learn else []
        if not len(train):
            raise BadInput(f"{self._home}: no training examples; add more examples")
        splits = {
            split: self.encode_examples(examples[split], processor, learn=False)
            for split in ("valid", "test")
            if examples.get(split)
        }
        for split in ("valid", "test"):
            if getattr(self, split) and split not in splits:
                listen("notice", text=f"data.{split}: too few examples to hold out a split")
        return self.dataset_class(self, processor, train, splits, digest)

    def load_split(
        self, path: str, split: str, *, tokenizer: Any, stateful: bool = False, listen: Listener = silent
    ) -> Any:
        """The data with one split read from another file; only that split if the training data is missing."""
        files = list_files(Path(path))
        examples = self.encode_examples([e for p in files for e in self.read(p, listen)], tokenizer, learn=False)
        if not len(examples):
            raise BadInput(f"{path}: no examples to evaluate; give a file with examples")
        try:
            data = self.model_copy(update={"sha256": None}).load_data(tokenizer=tokenizer)
        except BadInput as error:
            listen("notice", text=no_baselines(error))
            digest = files_sha256(files, None, path)
            return self.dataset_class(self, tokenizer, examples, {split: examples}, digest, has_train=False)
        return replace(data, splits={**data.splits, split: examples})

    def _files(self) -> dict[str, list[Path]]:
        """The files of each split; train always has some."""
        paths = list_files(Path(self._home))
        by_name = group_by_split(paths, lambda path: path) if len(paths) > 1 and not self.train else {}
        files = by_name or {"train": paths}
        for split in ("valid", "test"):
            if isinstance(path := getattr(self, split), str):
                files[split] = list_files(Path(path))
        return {split: some for split, some in files.items() if some}

    def _files_read(self, files: dict[str, list[Path]], examples: dict[str, list[Any]]) -> list[Path]:
        """All files that were read."""
        return [path for paths in files.values() for path in paths]

    def _draw_splits(self, examples: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """The examples held out by fraction: those with the lowest ranks of each split."""
        drawn = dict[str, list[Any]]()
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
