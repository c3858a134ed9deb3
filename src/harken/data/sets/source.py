"""Sets: rows of numbers that belong together, in no order, and one thing that is said of them all.

A table has a row for each point of a cloud or each reading of a window; one column names the set, one says what it is.
A held-out share is drawn by a hash of the set's name.
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

from harken.data.split import LABELS, Labels, Positive, SplitData, SplitSource, kept
from harken.data.tables.read import Flaws, Place, rows_of
from harken.data.targets import KINDS, amount, answer_of, order, unknown
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.settings import Outputs

from .columns import set_columns, table_of

Floats = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Set:
    """The rows of a set, in the order of its file, and what is said of it."""

    name: str
    rows: Floats  # n F
    said: str
    place: str

    @cached_property
    def content(self) -> str:
        """The same for the same rows, in whatever order."""
        rows = self.rows[np.lexsort(self.rows.T)]
        return hashlib.blake2b(rows.tobytes(), digest_size=16).hexdigest()

    def few(self, most: int) -> Floats:
        """So many of its rows, drawn by a hash of each, so that their order plays no part."""
        if len(self.rows) <= most:
            return self.rows
        keys = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in self.rows]
        return self.rows[sorted(range(len(keys)), key=keys.__getitem__)[:most]]


@dataclass(frozen=True, eq=False)
class SetWords:
    """What the numbers of a run mean: its columns, where each lies, and what may be said of a set."""

    group: int | str
    label: int | str
    columns: list[int | str]
    centre: list[float]
    width: list[Positive]
    labels: Labels
    target_type: Literal["label", "number"] = "label"
    mean: float = 0.0  # of the number that is said
    spread: Positive = 1.0

    def __post_init__(self) -> None:
        if not 0 < len(self.columns) == len(self.centre) == len(self.width):
            raise ValueError("each column has a centre and a width")

    @property
    def vocab(self) -> Outputs:
        return Outputs(len(self.columns), len(self.labels))

    def files(self) -> dict[str, bytes]:
        """What a run folder keeps, by name."""
        return {LABELS: json.dumps(asdict(self), ensure_ascii=False).encode()}

    @classmethod
    def load(cls, folder: Path) -> "SetWords":
        return kept(cls, folder, "how sets are read")

    def numbers(self, rows: Floats) -> Floats:  # n F
        """What a model is given: how far a number lies from its column's mean, in spreads."""
        return ((rows - np.array(self.centre)) / np.array(self.width)).astype(np.float32)

    def targets(self, some: Sequence[Set]) -> Floats:
        """What is said of each set."""
        if self.target_type == "number":
            amounts = np.array([amount(one.said, one.place) for one in some], np.float64)
            return ((amounts - self.mean) / self.spread).astype(np.float32)[:, None]
        number = {label: n for n, label in enumerate(self.labels)}
        if lost := next((one for one in some if one.said not in number), None):
            raise unknown(lost.said, self.labels, lost.place)
        return np.array([number[one.said] for one in some], np.int64)


@dataclass(frozen=True, eq=False)
class Sets:
    """The sets of a split: their rows, one set after the other."""

    rows: Tensor  # R F
    starts: Floats  # one more than sets
    targets: Floats  # N, of numbers N 1
    names: list[str]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def lengths(self) -> Floats:
        return np.diff(self.starts)

    def some(self, picks: Floats) -> "Sets":
        """The sets of these numbers."""
        rows = [self.rows[self.starts[n] : self.starts[n + 1]].numpy() for n in picks]
        return laid(rows, self.targets[picks], [self.names[n] for n in picks])

    def facts(self) -> dict[str, Any]:
        return {"sets": len(self), "rows": len(self.rows)}


def laid(rows: Sequence[Floats], targets: Floats, names: list[str]) -> Sets:
    """Sets of these rows."""
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return Sets(torch.from_numpy(np.concatenate(rows).astype(np.float32)), starts, targets, names)


class SetData(SplitData):
    """Opened sets by split."""

    words: SetWords

    def facts(self) -> dict[str, Any]:
        """What the report says of the data."""
        words, counts = self.words, {name: part.facts() for name, part in self.parts.items()}
        said = f"{len(words.labels)} labels" if words.target_type == "label" else f"the number {words.labels[0]}"
        sizes = self.train.lengths
        rows = f"{sizes.min():,} to {sizes.max():,} rows" if sizes.min() < sizes.max() else f"{sizes.max():,} rows"
        return {
            **{what: {name: counts[name][what] for name in self.parts} for what in counts["train"]},
            "unit": "sets",
            "told": f"{rows} of {len(words.columns)} number{'s' * (len(words.columns) > 1)}, {said}",
            "labels": len(words.labels),
            "sha256": self.sha256,
        }


class SetSource(SplitSource):
    """The settings of sets."""

    model: ClassVar[str] = "set"
    task: ClassVar[str] = "set"
    of: ClassVar[str] = " of sets"
    kept: ClassVar[str] = LABELS
    opened: ClassVar[type[Any]] = SetData

    kind: Literal["sets"] = "sets"
    test: str | float = Field(0.1, description="a file, or the share of the sets kept for the last judgement")
    group: int | str | None = Field(None, description="the column that names the set a row is of; none: found")
    label: int | str | None = Field(None, description="the column of what is said of the whole set; none: found")
    columns: str | list[int | str] | None = Field(
        None, description='the columns of numbers: "x,y", or a list; none: all that hold numbers'
    )
    target_type: Literal["auto", "label", "number"] = Field(
        "auto", description="what is said; auto: a number if all are and some are no whole ones, else a label"
    )
    max_rows: int = Field(2048, ge=1, description="most rows of a set; of a larger one some, drawn by a hash of each")

    def words(self, folder: Path) -> SetWords:
        return SetWords.load(folder)

    # --- read ---------------------------------------------------------------------------------------------------------

    def told(self, path: Path, listen: Listener = silent) -> tuple[Place, Place, list[Place]]:
        """The columns of the name, of what is said, and of the numbers: named, or found in this file."""
        named = self.columns.split(",") if isinstance(self.columns, str) else self.columns
        columns: list[Place] = [c.strip() if isinstance(c, str) else c for c in named or ()]
        if columns and self.group is not None and self.label is not None:
            return self.group, self.label, columns
        table = table_of(path)
        found = set_columns(table, self.group, self.label) if table else None
        if found is None or found.label is None:
            places = {"data.group": self.group, "data.label": self.label}
            if asked := [(name, place) for name, place in places.items() if place is not None]:
                next(rows_of(path, asked, Flaws()), None)  # refuses a column that is not there
            way = "name the columns: data.group=... data.label=... data.columns=..."
            why = "no column names sets of rows of which another column says one thing each"
            if self.group is not None:
                lacks = "says one thing of each, or none " * (self.label is None) + "holds numbers"
                why = f"column {self.group!r} names sets, but no other column {lacks}"
            raise BadInput(f"{path}: no sets were found in it ({why}); {way}")
        if found.left and not columns:
            left = ", ".join(str(c.place) for c in found.left)
            listen("notice", text=f"{path}: columns left out, as they hold no numbers: {left}")
        return found.group.place, found.label.place, columns or [c.place for c in found.columns]

    def read(self, path: Path, listen: Listener) -> list[Set]:
        first = self._files()["train"][0] if self.group is None or self.label is None or not self.columns else path
        return sets_of(path, *self.told(first, listen if path == first else silent), listen)

    def other(
        self, path: str, split: str, *, tokenizer: SetWords, stateful: bool = False, listen: Listener = silent
    ) -> SetData:
        mine = self._as(tokenizer)
        found: SetData = super(SetSource, mine).other(path, split, tokenizer=tokenizer, listen=listen)
        return found

    def _as(self, words: SetWords) -> "SetSource":
        """The same settings with the columns that were learned from."""
        return self.model_copy(update={"group": words.group, "label": words.label, "columns": words.columns})

    # --- what is asked ------------------------------------------------------------------------------------------------

    def about(self, example: Set) -> str:
        return example.name

    def same(self, example: Set) -> str:
        return example.content  # files of two splits may count their sets from 0 alike

    def encoded(self, examples: list[Set], words: SetWords, *, learn: bool) -> Sets:
        rows = [words.numbers(one.few(self.max_rows)) for one in examples]
        return laid(rows, words.targets(examples), [f"{one.place.rpartition(':')[0]}[{one.name}]" for one in examples])

    def _words(self, learn: list[Set], given: Any, listen: Listener) -> SetWords:
        group, label, columns = self.told(self._files()["train"][0])
        assert group is not None
        assert label is not None
        rows = np.concatenate([one.rows for one in learn])
        width = rows.std(0)
        width = np.where(width > 1e-12 * np.abs(rows).max(0), width, 1.0)
        places = [c for c in columns if c is not None]
        made = SetWords(group, label, places, rows.mean(0).tolist(), width.tolist(), [str(label)])
        if isinstance(given, SetWords) and given.columns == made.columns:
            made = replace(given, group=group, label=label)
        said = [one.said for one in learn]
        if (answer_of(said) if self.target_type == "auto" else self.target_type) == "number":
            if isinstance(given, SetWords) and given.target_type == "number":
                return made
            amounts = np.array([amount(one.said, one.place) for one in learn])
            if not (spread := float(amounts.std())):
                raise BadInput(f"{self._home}: the only number is {amounts[0]:g}, so there is nothing to learn")
            return replace(made, labels=[str(label)], target_type="number", mean=float(amounts.mean()), spread=spread)
        labels = sorted({*said}, key=order)
        if isinstance(given, SetWords) and given.target_type == "label" and {*labels} <= {*given.labels}:
            return made
        if len(learn) < 2:
            raise BadInput(
                f"{self._home}: the only set to learn from is {learn[0].name!r}; give more, or check data.group"
            )
        if len(labels) < 2:
            raise BadInput(f"{self._home}: the only label is {labels[0]!r}, so there is nothing to learn; give more")
        if len(labels) > max(KINDS, len(learn) / 2):
            many = f"{len(labels):,} different labels of {len(learn):,} sets, such as {labels[0][:40]!r}"
            raise BadInput(f"{self._home}: {many}; a label is one of a few; name another column: data.label=...")
        return replace(made, labels=labels, target_type="label", mean=0.0, spread=1.0)


def sets_of(path: Path, group: Place, label: Place, columns: Sequence[Place], listen: Listener) -> list[Set]:
    """The sets of a table, each where its name is first seen. Without a label nothing is said of them."""
    asked = [("data.group", group), *(("data.columns", c) for c in columns)]
    asked += [] if label is None else [("data.label", label)]
    flaws, rows, heads = Flaws("no row of a set"), dict[str, list[list[float]]](), dict[str, tuple[str, int]]()
    for line, (name, *cells) in rows_of(path, asked, flaws):
        said = cells.pop().strip() if label is not None else ""
        odd = [str(c) for c, cell in zip(columns, cells, strict=True) if not _is_number(cell)]
        if odd or not name.strip() or (label is not None and not said):
            what = f"column {odd[0]!r} has no number" if odd else "the label is empty" if name.strip() else "no name"
            comma = any(re.fullmatch(r"\s*-?\d*,\d+\s*", cell) for cell in cells)
            flaws(path, line, f"{what}: decimals are written with a point" if odd and comma else what)
            continue
        first, place = heads.setdefault(name.strip(), (said, line))
        if first != said:
            told = f"set {name.strip()!r} is said to be {said!r}, and {first!r} in line {place}"
            raise BadInput(f"{path}:{line}: {told}; one thing is said of a set; check data.group and data.label")
        rows.setdefault(name.strip(), []).append([float(cell) for cell in cells])
    if flaws.count > sum(map(len, rows.values())) or not rows:
        if not flaws.count:
            raise BadInput(f"{path}: there is no row below its header; give a row for each point of a set")
        what = f"{flaws.count} of its lines are {flaws.what} ({', '.join(flaws.first[:1])})"
        raise BadInput(f"{path}: {what}; check data.group, data.columns and data.label, or mend the file")
    if flaws.count:
        listen("notice", text=str(flaws))
    return [Set(name, np.array(rows[name]), said, f"{path}:{line}") for name, (said, line) in heads.items()]


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
