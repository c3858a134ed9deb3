"""Sets of rows: unordered numeric rows with one label or regression target per set.

A table has one row per element (a point of a cloud, a reading of a window), a column with the name of the set, and a
column with its target. Held-out sets are drawn by a hash of the name.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.batch import Batch
from harken.data.processor import LabelList, PositiveFloat, SavedProcessor
from harken.data.rng import RngStream, once_per_epoch, rng_for
from harken.data.split import SplitData, SplitSource
from harken.data.tables.columns import ColumnRef, iter_columns
from harken.data.tables.numbers import (
    DECIMAL_DESCRIPTION,
    MISSING_DESCRIPTION,
    Decimal,
    MissingLabels,
    describe_format,
    format_problem,
    is_missing,
    parse_number,
    workbook_numbers,
)
from harken.data.tables.read import SkippedRows, check_skipped
from harken.data.targets import (
    fit_labels,
    fit_numbers,
    infer_target_type,
    missing_targets,
    normalize_numbers,
    standardize_numbers,
    unknown_labels_error,
)
from harken.errors import BadInput
from harken.events import Listener, Overflow, silent
from harken.settings import LabelOutputs

from .columns import detect_set_columns, header_names, preview_rows

Floats = np.ndarray[Any, np.dtype[Any]]
Column = int | str  # number, counted from 1, or name


@dataclass(frozen=True, eq=False)
class SetExample:
    """A set in file order, with its label or number as text."""

    name: str
    rows: Floats  # n F
    target: str
    location: str

    @cached_property
    def content_hash(self) -> str:
        """Hash of the rows, independent of their order."""
        rows = self.rows[np.lexsort(self.rows.T)]
        return hashlib.blake2b(rows.tobytes(), digest_size=16).hexdigest()

    def sample_rows(self, max_rows: int) -> Floats:
        """At most `max_rows` rows, drawn by a hash of each row, independent of their order."""
        if len(self.rows) <= max_rows:
            return self.rows
        keys = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in self.rows]
        return self.rows[sorted(range(len(keys)), key=keys.__getitem__)[:max_rows]]


@dataclass(frozen=True, eq=False)
class SetProcessor(SavedProcessor):
    """Maps sets to numbers: the columns, their mean and standard deviation, and the labels."""

    group: int | str
    label: int | str
    columns: list[int | str]
    feature_mean: list[float]
    feature_std: list[PositiveFloat]
    labels: LabelList
    target_type: Literal["label", "number"] = "label"
    mean: float = 0.0  # of the regression target
    std: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        if not 0 < len(self.columns) == len(self.feature_mean) == len(self.feature_std):
            raise ValueError("every column needs a mean and a standard deviation")

    @property
    def vocab(self) -> LabelOutputs:
        return LabelOutputs(len(self.columns), len(self.labels))

    def standardize(self, rows: Floats) -> Floats:  # n F
        """Model inputs: columns with mean 0 and standard deviation 1."""
        return ((rows - np.array(self.feature_mean)) / np.array(self.feature_std)).astype(np.float32)

    def targets(self, examples: Sequence[SetExample]) -> Floats:
        """Label ids (N), or standardized numbers (N 1)."""
        if self.target_type == "number":
            return standardize_numbers([(e.target, e.location) for e in examples], self.mean, self.std)
        label_ids = {label: n for n, label in enumerate(self.labels)}
        if unknown := [(e.target, e.location) for e in examples if e.target not in label_ids]:
            raise unknown_labels_error(unknown, self.labels)
        return np.array([label_ids[example.target] for example in examples], np.int64)


@dataclass(frozen=True, eq=False)
class Sets:
    """The sets of a split, with their rows concatenated."""

    rows: Tensor  # R F
    starts: Floats  # N + 1
    targets: Floats  # N label ids, or N 1 numbers
    names: list[str]
    overflow: Overflow | None = None  # the sets of which a sample is used

    def __len__(self) -> int:
        return len(self.names)

    @property
    def lengths(self) -> Floats:
        return np.diff(self.starts)

    def subset(self, indices: Floats) -> "Sets":
        """The sets with these indices."""
        rows = [self.rows[self.starts[n] : self.starts[n + 1]].numpy() for n in indices]
        return collate_sets(rows, self.targets[indices], [self.names[n] for n in indices])

    def facts(self) -> dict[str, int]:
        return {"sets": len(self), "rows": len(self.rows)}


def set_overflow(sizes: Sequence[int], max_rows: int) -> Overflow:
    """The sets with more than max_rows rows."""
    remedy = "increase data.max_rows to keep more"
    return Overflow.of(sizes, max_rows, inputs="sets", unit="rows", consequence="sampled", remedy=remedy)


def collate_sets(rows: Sequence[Floats], targets: Floats, names: list[str]) -> Sets:
    """Concatenate the rows of each set."""
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return Sets(torch.from_numpy(np.concatenate(rows).astype(np.float32)), starts, targets, names)


class SetData(SplitData[SetProcessor, Sets]):
    """Loaded sets by split."""

    def _facts(self) -> dict[str, object]:
        processor, n_labels, n_columns = self.processor, len(self.processor.labels), len(self.processor.columns)
        target = f"{n_labels} labels" if processor.target_type == "label" else f"numeric target {processor.labels[0]}"
        sizes = self.train.lengths
        rows = f"{sizes.min():,} to {sizes.max():,} rows" if sizes.min() < sizes.max() else f"{sizes.max():,} rows"
        summary = f"{rows} of {n_columns} column{'s' * (n_columns > 1)}, {target}"
        return {
            "summary": summary,
            "labels": n_labels,
            "columns": header_names(self.settings.first_file, self.settings.encoding),
        }


class SetSource(SplitSource[SetExample, SetProcessor, Sets]):
    """Settings of sets."""

    task: ClassVar[str] = "set"
    dataset_class: ClassVar[type[SetData]] = SetData
    processor_class: ClassVar[type[SetProcessor]] = SetProcessor

    kind: Literal["sets"] = "sets"
    test: str | float = Field(0.1, description="test file or fraction of the sets")
    group: int | str | None = Field(None, description="column with the name of the set; none: detected")
    label: int | str | None = Field(None, description="column with the target of the set; none: detected")
    columns: str | list[int | str] | None = Field(None, description='numeric columns, as "x,y" or a list; none: all')
    target_type: Literal["auto", "label", "number"] = Field(
        "auto", description="classification or regression; auto: number if all targets are numeric and not all integers"
    )
    decimal: Decimal = Field(".", description=DECIMAL_DESCRIPTION)
    missing: MissingLabels = Field("keep", description=MISSING_DESCRIPTION)
    max_rows: int = Field(2048, ge=1, description="maximum rows per set; larger sets are sampled by a hash of each row")

    # --- read ---------------------------------------------------------------------------------------------------------

    def resolve_columns(self, path: Path, listen: Listener = silent) -> tuple[Column, Column, list[Column]]:
        """The group column, the label column and the numeric columns: set by name, or detected in this file."""
        names = self.columns.split(",") if isinstance(self.columns, str) else self.columns
        columns: list[Column] = [c.strip() if isinstance(c, str) else c for c in names or ()]
        if columns and self.group is not None and self.label is not None:
            return self.group, self.label, columns
        table = preview_rows(path, self.encoding)
        detected = detect_set_columns(table, self.group, self.label) if table else None
        if detected is None or detected.label is None:
            settings = {"data.group": self.group, "data.label": self.label}
            if named := [(name, ref) for name, ref in settings.items() if ref is not None]:
                next(iter_columns(path, named, SkippedRows(), self.encoding), None)  # raises if a column is missing
            reason = "no column groups the rows so that another column is constant in each group"
            if self.group is not None:
                missing = "is constant in each set, or none " * (self.label is None) + "is numeric"
                reason = f"column {self.group!r} groups the rows, but no other column {missing}"
            fix = "name the columns: data.group=... data.label=... data.columns=..."
            raise BadInput(f"{path}: no sets detected ({reason}); {fix}")
        if detected.ignored and not columns:
            ignored = ", ".join(str(c.ref) for c in detected.ignored)
            listen("notice", text=f"{path}: ignored non-numeric columns: {ignored}")
        return detected.group.ref, detected.label.ref, columns or [c.ref for c in detected.columns]

    def read(self, path: Path, listen: Listener) -> list[SetExample]:
        first = self._files()["train"][0] if self.group is None or self.label is None or not self.columns else path
        columns = self.resolve_columns(first, listen if path == first else silent)
        examples = read_sets(path, *columns, listen, decimal=self.decimal, encoding=self.encoding)
        if self.target_type == "label":
            return examples
        targets = normalize_numbers([(e.target, e.location) for e in examples], self.decimal, str(path))
        return [replace(example, target=target) for example, target in zip(examples, targets, strict=True)]

    def as_trained(self, processor: SetProcessor) -> Self:
        names = ("group", "label", "columns", "target_type")
        return self.model_copy(update={name: getattr(processor, name) for name in names})

    # --- targets ------------------------------------------------------------------------------------------------------

    def split_key(self, example: SetExample) -> str:
        return example.name

    def duplicate_key(self, example: SetExample) -> str:
        return example.content_hash  # different files may both number their sets from 0

    def drop_missing(self, examples: dict[str, list[SetExample]], listen: Listener) -> dict[str, list[SetExample]]:
        sets = [example for part in examples.values() for example in part]
        targets, location = [example.target for example in sets], sets[0].location.rpartition(":")[0]
        target_type = self._resolve_target_type(examples.get("train", sets))
        dropped = missing_targets(targets, target_type, self.missing, location, listen)
        return {split: [e for e in part if e.target not in dropped] for split, part in examples.items()}

    def _resolve_target_type(self, examples: Sequence[SetExample]) -> Literal["label", "number"]:
        return infer_target_type(e.target for e in examples) if self.target_type == "auto" else self.target_type

    def location(self, example: SetExample) -> str:
        return example.location

    def labels_of(self, examples: Sequence[SetExample]) -> list[tuple[str, ...]]:
        is_number = self._resolve_target_type(examples) == "number"
        return [() if is_number else (example.target,) for example in examples]

    def encode_examples(self, examples: list[SetExample], processor: SetProcessor) -> Sets:
        rows = [processor.standardize(example.sample_rows(self.max_rows)) for example in examples]
        names = [f"{example.location.rpartition(':')[0]}[{example.name}]" for example in examples]
        overflow = set_overflow([len(example.rows) for example in examples], self.max_rows)
        return replace(collate_sets(rows, processor.targets(examples), names), overflow=overflow)

    def overflow(self, part: Sets) -> Overflow | None:
        return part.overflow

    def _build_processor(self, examples: list[SetExample], known: Any, listen: Listener) -> SetProcessor:
        group, label, columns = self.resolve_columns(self._files()["train"][0])
        rows = np.concatenate([example.rows for example in examples])
        std = rows.std(0)
        std = np.where(std > 1e-12 * np.abs(rows).max(0), std, 1.0)
        processor = SetProcessor(group, label, columns, rows.mean(0).tolist(), std.tolist(), [str(label)])
        known_type = known.target_type if isinstance(known, SetProcessor) else None
        if known_type and known.columns == columns:
            processor = replace(known, group=group, label=label)
        targets = [example.target for example in examples]
        if self._resolve_target_type(examples) == "number":
            if known_type == "number":
                return processor
            mean, std = fit_numbers([(example.target, example.location) for example in examples], self.train_path)
            return replace(processor, labels=[str(label)], target_type="number", mean=mean, std=std)
        if known_type == "label" and {*targets} <= {*known.labels}:
            return processor
        if len(examples) < 2:
            problem = f"the only training set is {examples[0].name!r}"
            raise BadInput(f"{self.train_path}: {problem}; add more, or check data.group")
        labels = fit_labels(targets, len(examples), "sets", self.train_path)
        return replace(processor, labels=labels, target_type="label", mean=0.0, std=1.0)


def read_sets(
    path: Path,
    group: ColumnRef,
    label: ColumnRef,
    columns: Sequence[ColumnRef],
    listen: Listener,
    *,
    decimal: Decimal = ".",
    encoding: str | None = None,
) -> list[SetExample]:
    """The sets of a table, in order of first appearance. Without a label column the targets are empty."""
    refs = [("data.group", group), *(("data.columns", c) for c in columns)]
    refs += [] if label is None else [("data.label", label)]
    skipped, rows = SkippedRows("no row of a set"), dict[str, list[list[float]]]()
    first_rows = dict[str, tuple[str, int]]()  # name -> target, line
    cells_by_column: list[list[str]] = [[] for _ in columns]
    for line, (cell, *cells) in iter_columns(path, refs, skipped, encoding):
        name, target = cell.strip(), cells.pop().strip() if label is not None else ""
        cells = workbook_numbers(cells, decimal, str(path))
        for column, number in zip(cells_by_column, cells, strict=True):
            column.append(number)
        numbers = [parse_number(number, decimal) for number in cells]
        if None in numbers:
            n = numbers.index(None)
            skipped(path, line, _number_problem(str(columns[n]), cells[n], decimal))
            continue
        if not name or (label is not None and not target):
            skipped(path, line, "label is empty" if name else "set name is empty")
            continue
        first_target, first_line = first_rows.setdefault(name, (target, line))
        if first_target != target:
            conflict = f"set {name!r} has the label {target!r}, but {first_target!r} at {path}:{first_line}"
            raise BadInput(f"{path}:{line}: {conflict}; a set has one label; check data.group and data.label")
        rows.setdefault(name, []).append([number for number in numbers if number is not None])
    for ref, column in zip(columns, cells_by_column, strict=True):
        if problem := format_problem(column, decimal):
            raise BadInput(f"{path}: column {ref!r}: {problem}")
    n_rows = sum(map(len, rows.values()))
    check_skipped(skipped, path, n_rows, "data.group, data.columns and data.label", listen)
    firsts = ((name, target, f"{path}:{line}") for name, (target, line) in first_rows.items())
    return [SetExample(name, np.array(rows[name]), target, location) for name, target, location in firsts]


def _number_problem(column: str, cell: str, decimal: Decimal) -> str:
    """Why a row with this cell is skipped."""
    if is_missing(cell):
        return f"column {column!r} is missing"
    problem = describe_format([cell.strip()], decimal, uses_sign=True).split(";")[0]
    return f"column {column!r}: {problem}" if problem else f"column {column!r} is not a number"


# --- batches ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SetBatch(Batch):
    """Zero-padded sets in `tokens` (B L F); `targets` has label ids (B) or numbers (B 1)."""

    lengths: Tensor | None  # B; None: all sets have the same size

    @property
    def static_shape(self) -> bool:
        return self.lengths is None

    @property
    def n_targets(self) -> int:
        return len(self.tokens)

    @property
    def n_tokens(self) -> int:
        return self.tokens.shape[0] * self.tokens.shape[1] if self.lengths is None else int(self.lengths.sum())

    def model_inputs(self) -> dict[str, object]:
        return {"lengths": self.lengths}


def pad_sets(sets: Sets, indices: Floats) -> SetBatch:
    """A padded batch of the selected sets."""
    lengths = sets.lengths[indices]
    tokens = torch.zeros(len(indices), int(lengths.max()), sets.rows.shape[1])
    for row, (start, n) in enumerate(zip(sets.starts[indices], lengths, strict=True)):
        tokens[row, :n] = sets.rows[start : start + n]
    batch_lengths = torch.from_numpy(lengths) if lengths.min() < lengths.max() else None
    return SetBatch(tokens, torch.from_numpy(sets.targets[indices]), lengths=batch_lengths)


class SetBatches:
    """Training batches with a fixed number of sets."""

    def __init__(self, sets: Sets, rows: int, *, seed: int) -> None:
        self.sets, self.seed, self.rows = sets, seed, min(rows, len(sets))
        self.steps = len(sets) // self.rows
        self.equal_sizes = bool(sets.lengths.min() == sets.lengths.max())

    @once_per_epoch
    def order(self, epoch: int) -> Floats:  # steps rows
        rng = rng_for(self.seed, RngStream.BUCKET_ORDER, epoch)
        order = rng.permutation(len(self.sets))[: self.steps * self.rows]
        order = order[np.argsort(self.sets.lengths[order], kind="stable")]  # equal sizes: unchanged
        return order.reshape(self.steps, self.rows)[rng.permutation(self.steps)]

    def batch(self, epoch: int, step: int) -> SetBatch:
        return pad_sets(self.sets, self.order(epoch)[step])


def eval_batches(sets: Sets, max_rows: int) -> Iterator[tuple[Floats, SetBatch]]:
    """All sets once, smallest first, with at most `max_rows` padded rows per batch: their indices and the batch."""
    order = np.argsort(sets.lengths, kind="stable")
    while len(order):
        padded_rows = sets.lengths[order] * np.arange(1, len(order) + 1)
        n_sets = max(1, int(np.searchsorted(padded_rows, max_rows, "right")))
        yield order[:n_sets], pad_sets(sets, order[:n_sets])
        order = order[n_sets:]
