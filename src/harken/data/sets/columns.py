"""Which columns of a table make sets: of which set a row is, what is said of each set, and the numbers of the row."""

import re
from dataclasses import dataclass
from pathlib import Path

from harken.data.detect import preview
from harken.data.detect.preview import Column, Table
from harken.data.tables.read import Place

GROUP = re.compile(
    r"(.*[\W_])?(set|group|cloud|window|series|sequence|sample|segment|object|bag|case|patient|subject|session|trial|"
    r"event|instance|example|unit)s?([\W_]*(id|idx|index|no|nr|num|number|name|key))?|(.*[\W_])?id|.*[\W_]group"
)
NUMBERS = 0.9  # share of the cells of a column of numbers
SLIPS, MANY = 0.05, 10  # share of the sets whose rows may disagree on a label, and from how many sets on one may
FEW = 10  # values of a label that is a number


@dataclass(frozen=True)
class Found:
    """The columns of sets, each by its name or number."""

    group: Column
    label: Column | None
    columns: list[Column]
    left: list[Column]  # they hold no numbers


def set_columns(table: Table, group: Place = None, label: Place = None) -> Found | None:
    """The columns of a table whose rows make sets; None, if they do not, or if it cannot be told.

    A set's rows say the same in the column of its name and in that of its label, and not the same in all others. Where
    both are named they are taken: whoever reads the rows tells what is wrong with them.
    """
    columns = preview.columns_of(table)
    named = [c for c in columns if GROUP.fullmatch(c.name) or (not table.header and c.index == 0)]
    for own in [c for c in columns if is_at(c, group)] if group is not None else named:
        if group is None and (own.filled < 1 or not 2 <= own.values <= own.rows / 2):
            continue
        others = [c for c in columns if c is not own]
        steady = [c for c in others if _steady(table, own, c)]
        if label is None:  # one label is refused by its name, and a number that never changes is none
            labels = [c for c in steady if c.values > 1 or (c.values and c.number <= NUMBERS)]
        else:
            labels = [c for c in (steady if group is None else others) if is_at(c, label)]
        labels.sort(key=lambda c: (c.values < 2, not preview.LABEL.fullmatch(c.name), c.number > NUMBERS, -c.index))
        said = labels[0] if labels else None
        rest = [c for c in columns if c not in (own, said)]
        numbers = [c for c in rest if c.number >= NUMBERS and c.filled >= NUMBERS]
        if said and any(group is not None or c not in steady for c in numbers):
            return Found(own, said, numbers, [c for c in rest if c not in numbers])
    return None


def is_at(column: Column, place: Place) -> bool:
    return place in (column.place, column.index + 1) or str(place) == str(column.place)


def _steady(table: Table, group: Column, column: Column) -> bool:
    """Whether the rows of each set say the same in this column. A slip in a label is told by whoever reads the rows."""
    seen, odd = dict[str, str](), set[str]()
    for row in table.rows:
        if seen.setdefault(row[group.index], row[column.index]) != row[column.index]:
            odd.add(row[group.index])
    few = column.values <= FEW and preview.LABEL.fullmatch(column.name)
    label = column.number <= NUMBERS or few  # numbers of a point may be the same by chance
    return len(odd) <= (max(SLIPS * len(seen), len(seen) >= MANY) if label else 0)


def table_of(path: Path) -> Table | None:
    """The start of a table or of JSON lines."""
    text = preview.text_of(preview.start_of(path))
    lines = text.suffix in (".json", ".jsonl", ".ndjson")
    return preview.objects_of(text) if lines else preview.table_of(text)
