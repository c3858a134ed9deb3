"""Sets of rows: unordered numeric rows with one label or regression target per set.

A table has one row per element (a point of a cloud, a reading of a window), a column with the name of the set, and a
column with its target. Held-out sets are drawn by a hash of the name.
"""

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.split import LABELS_FILE, LabelList, PositiveFloat, SplitData, SplitSource, load_labels_file
from harken.data.tables.columns import ColumnRef, iter_columns
from harken.data.tables.read import SkippedRows
from harken.data.targets import MAX_CLASSES, infer_target_type, label_sort_key, parse_number, unknown_label_error
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.settings import LabelOutputs

from .columns import detect_set_columns, preview_rows

Floats = np.ndarray[Any, np.dtype[Any]]


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
class SetProcessor:
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

    def files(self) -> dict[str, bytes]:
        """The files to save with a run, by name."""
        return {LABELS_FILE: json.dumps(asdict(self), ensure_ascii=False).encode()}

    @classmethod
    def load(cls, folder: Path) -> "SetProcessor":
        return load_labels_file(cls, folder, "the set processor")

    def standardize(self, rows: Floats) -> Floats:  # n F
        """Model inputs: columns with mean 0 and standard deviation 1."""
        return ((rows - np.array(self.feature_mean)) / np.array(self.feature_std)).astype(np.float32)

    def targets(self, examples: Sequence[SetExample]) -> Floats:
        """Label ids (N), or standardized numbers (N 1)."""
        if self.target_type == "number":
            numbers = np.array([parse_number(example.target, example.location) for example in examples], np.float64)
            return ((numbers - self.mean) / self.std).astype(np.float32)[:, None]
        label_ids = {label: n for n, label in enumerate(self.labels)}
        if unknown := next((example for example in examples if example.target not in label_ids), None):
            raise unknown_label_error(unknown.target, self.labels, unknown.location)
        return np.array([label_ids[example.target] for example in examples], np.int64)


@dataclass(frozen=True, eq=False)
class Sets:
    """The sets of a split, with their rows concatenated."""

    rows: Tensor  # R F
    starts: Floats  # N + 1
    targets: Floats  # N label ids, or N 1 numbers
    names: list[str]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def lengths(self) -> Floats:
        return np.diff(self.starts)

    def subset(self, indices: Floats) -> "Sets":
        """The sets with these indices."""
        rows = [self.rows[self.starts[n] : self.starts[n + 1]].numpy() for n in indices]
        return collate_sets(rows, self.targets[indices], [self.names[n] for n in indices])

    def facts(self) -> dict[str, Any]:
        return {"sets": len(self), "rows": len(self.rows)}


def collate_sets(rows: Sequence[Floats], targets: Floats, names: list[str]) -> Sets:
    """Concatenate the rows of each set."""
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return Sets(torch.from_numpy(np.concatenate(rows).astype(np.float32)), starts, targets, names)


class SetData(SplitData):
    """Loaded sets by split."""

    processor: SetProcessor

    def facts(self) -> dict[str, Any]:
        """Summary of the data for the report."""
        processor, counts = self.processor, {name: split.facts() for name, split in self.parts.items()}
        n_labels, n_columns = len(processor.labels), len(processor.columns)
        target = f"{n_labels} labels" if processor.target_type == "label" else f"numeric target {processor.labels[0]}"
        sizes = self.train.lengths
        rows = f"{sizes.min():,} to {sizes.max():,} rows" if sizes.min() < sizes.max() else f"{sizes.max():,} rows"
        return {
            **{unit: {name: counts[name][unit] for name in self.parts} for unit in counts["train"]},
            "unit": "sets",
            "summary": f"{rows} of {n_columns} column{'s' * (n_columns > 1)}, {target}",
            "labels": n_labels,
            "sha256": self.sha256,
        }


class SetSource(SplitSource):
    """Settings of sets."""

    model: ClassVar[str] = "set"
    task: ClassVar[str] = "set"
    model_group: ClassVar[str] = " of sets"
    dataset_class: ClassVar[type[Any]] = SetData

    kind: Literal["sets"] = "sets"
    test: str | float = Field(0.1, description="test file or fraction of the sets")
    group: int | str | None = Field(None, description="column with the name of the set; none: detected")
    label: int | str | None = Field(None, description="column with the target of the set; none: detected")
    columns: str | list[int | str] | None = Field(
        None, description='numeric columns: "x,y", or a list; none: all numeric columns'
    )
    target_type: Literal["auto", "label", "number"] = Field(
        "auto", description="classification or regression; auto: number if all targets are numeric and not all integers"
    )
    max_rows: int = Field(2048, ge=1, description="maximum rows per set; larger sets are sampled by a hash of each row")

    def load_processor(self, folder: Path) -> SetProcessor:
        return SetProcessor.load(folder)

    # --- read ---------------------------------------------------------------------------------------------------------

    def resolve_columns(self, path: Path, listen: Listener = silent) -> tuple[ColumnRef, ColumnRef, list[ColumnRef]]:
        """The group column, the label column and the numeric columns: set by name, or detected in this file."""
        names = self.columns.split(",") if isinstance(self.columns, str) else self.columns
        columns: list[ColumnRef] = [c.strip() if isinstance(c, str) else c for c in names or ()]
        if columns and self.group is not None and self.label is not None:
            return self.group, self.label, columns
        table = preview_rows(path)
        detected = detect_set_columns(table, self.group, self.label) if table else None
        if detected is None or detected.label is None:
            settings = {"data.group": self.group, "data.label": self.label}
            if named := [(name, ref) for name, ref in settings.items() if ref is not None]:
                next(iter_columns(path, named, SkippedRows()), None)  # raises if a column is missing
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
        return read_sets(path, *self.resolve_columns(first, listen if path == first else silent), listen)

    def load_split(
        self, path: str, split: str, *, tokenizer: SetProcessor, stateful: bool = False, listen: Listener = silent
    ) -> SetData:
        columns = {"group": tokenizer.group, "label": tokenizer.label, "columns": tokenizer.columns}
        source = self.model_copy(update=columns)
        data: SetData = super(SetSource, source).load_split(path, split, tokenizer=tokenizer, listen=listen)
        return data

    # --- targets ------------------------------------------------------------------------------------------------------

    def split_key(self, example: SetExample) -> str:
        return example.name

    def duplicate_key(self, example: SetExample) -> str:
        return example.content_hash  # different files may both number their sets from 0

    def encode_examples(self, examples: list[SetExample], processor: SetProcessor, *, learn: bool) -> Sets:
        rows = [processor.standardize(example.sample_rows(self.max_rows)) for example in examples]
        names = [f"{example.location.rpartition(':')[0]}[{example.name}]" for example in examples]
        return collate_sets(rows, processor.targets(examples), names)

    def _build_processor(self, learn: list[SetExample], known: Any, listen: Listener) -> SetProcessor:
        group, label, refs = self.resolve_columns(self._files()["train"][0])
        assert group is not None
        assert label is not None
        rows = np.concatenate([example.rows for example in learn])
        std = rows.std(0)
        std = np.where(std > 1e-12 * np.abs(rows).max(0), std, 1.0)
        columns = [c for c in refs if c is not None]
        processor = SetProcessor(group, label, columns, rows.mean(0).tolist(), std.tolist(), [str(label)])
        if isinstance(known, SetProcessor) and known.columns == columns:
            processor = replace(known, group=group, label=label)
        targets = [example.target for example in learn]
        if (infer_target_type(targets) if self.target_type == "auto" else self.target_type) == "number":
            if isinstance(known, SetProcessor) and known.target_type == "number":
                return processor
            numbers = np.array([parse_number(example.target, example.location) for example in learn])
            if not (std := float(numbers.std())):
                raise BadInput(f"{self._home}: all targets are {numbers[0]:g}; a regression needs different targets")
            mean = float(numbers.mean())
            return replace(processor, labels=[str(label)], target_type="number", mean=mean, std=std)
        labels = sorted({*targets}, key=label_sort_key)
        if isinstance(known, SetProcessor) and known.target_type == "label" and {*labels} <= {*known.labels}:
            return processor
        if len(learn) < 2:
            raise BadInput(f"{self._home}: the only training set is {learn[0].name!r}; add more, or check data.group")
        if len(labels) < 2:
            raise BadInput(
                f"{self._home}: the only label is {labels[0]!r}; classification needs at least two; add more"
            )
        if len(labels) > max(MAX_CLASSES, len(learn) / 2):
            counts = f"{len(labels):,} different labels in {len(learn):,} sets, such as {labels[0][:40]!r}"
            raise BadInput(f"{self._home}: {counts}; too many for classes; name another column: data.label=...")
        return replace(processor, labels=labels, target_type="label", mean=0.0, std=1.0)


def read_sets(
    path: Path, group: ColumnRef, label: ColumnRef, columns: Sequence[ColumnRef], listen: Listener
) -> list[SetExample]:
    """The sets of a table, in order of first appearance. Without a label column the targets are empty."""
    refs = [("data.group", group), *(("data.columns", c) for c in columns)]
    refs += [] if label is None else [("data.label", label)]
    skipped, rows = SkippedRows("no row of a set"), dict[str, list[list[float]]]()
    first_rows = dict[str, tuple[str, int]]()  # name -> target, line
    for line, (cell, *cells) in iter_columns(path, refs, skipped):
        name, target = cell.strip(), cells.pop().strip() if label is not None else ""
        bad_columns = [str(c) for c, number in zip(columns, cells, strict=True) if not _is_number(number)]
        if bad_columns or not name or (label is not None and not target):
            problem = f"column {bad_columns[0]!r} is not a number" if bad_columns else "label is empty"
            has_comma = any(re.fullmatch(r"\s*-?\d*,\d+\s*", number) for number in cells)
            problem = f"{problem}: use a decimal point" if bad_columns and has_comma else problem
            skipped(path, line, problem if bad_columns or name else "set name is empty")
            continue
        first_target, first_line = first_rows.setdefault(name, (target, line))
        if first_target != target:
            conflict = f"set {name!r} has the label {target!r}, but {first_target!r} in line {first_line}"
            raise BadInput(f"{path}:{line}: {conflict}; a set has one label; check data.group and data.label")
        rows.setdefault(name, []).append([float(number) for number in cells])
    if skipped.count > sum(map(len, rows.values())) or not rows:
        if not skipped.count:
            raise BadInput(f"{path}: has no rows below its header; one row per element of a set is needed")
        problem = f"{skipped.count} of its lines are {skipped.what} ({', '.join(skipped.first[:1])})"
        raise BadInput(f"{path}: {problem}; check data.group, data.columns and data.label, or fix the file")
    if skipped.count:
        listen("notice", text=str(skipped))
    return [
        SetExample(name, np.array(rows[name]), target, f"{path}:{line}") for name, (target, line) in first_rows.items()
    ]


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
