"""Detect the columns of a table of sets: the set id, the label of the set, and the numeric columns."""

import re
from dataclasses import dataclass
from pathlib import Path

from harken.data.detect import dialect, preview
from harken.data.detect.preview import ColumnStats, TablePreview
from harken.data.tables.columns import ColumnRef
from harken.data.tables.text_file import JSON_SUFFIXES

GROUP_NAME = re.compile(
    r"(.*[\W_])?(set|group|cloud|window|series|sequence|sample|segment|object|bag|case|patient|subject|session|trial|"
    r"event|instance|example|unit)s?([\W_]*(id|idx|index|no|nr|num|number|name|key))?|(.*[\W_])?id|.*[\W_]group"
)
NUMERIC_FRACTION = 0.9  # of the cells of a numeric column
MAX_CONFLICTS, MIN_SETS = 0.05, 10  # fraction of sets whose rows may disagree on the label, from this many sets on
MAX_LABEL_VALUES = 10  # distinct values of a numeric label


@dataclass(frozen=True)
class SetColumns:
    """The columns of a table of sets."""

    group: ColumnStats
    label: ColumnStats | None
    columns: list[ColumnStats]  # numeric
    ignored: list[ColumnStats]  # not numeric


def detect_set_columns(table: TablePreview, group: ColumnRef = None, label: ColumnRef = None) -> SetColumns | None:
    """The columns of a table of sets; None if its rows do not form sets.

    Within a set, the group and label columns are constant and some numeric column is not. Columns named by `group` and
    `label` are used without this check: the reader reports conflicting rows.
    """
    columns = preview.column_stats(table)
    if group is None:
        named = [c for c in columns if GROUP_NAME.fullmatch(c.name) or (not table.header and c.index == 0)]
        candidates = [c for c in named if c.filled_fraction == 1 and 2 <= c.n_values <= c.n_filled / 2]
    else:
        candidates = [c for c in columns if matches(c, group)]
    for group_column in candidates:
        remaining = [c for c in columns if c is not group_column]
        constant = [c for c in remaining if _is_constant_per_set(table, group_column, c)]
        if label is None:  # a constant number is no label; a constant text is, and is refused later by name
            labels = [c for c in constant if c.n_values > 1 or (c.n_values and c.number_fraction <= NUMERIC_FRACTION)]
        else:
            labels = [c for c in (constant if group is None else remaining) if matches(c, label)]
        label_column = min(labels, key=_label_rank, default=None)
        features = [c for c in columns if c not in (group_column, label_column)]
        numeric = [c for c in features if min(c.number_fraction, c.filled_fraction) >= NUMERIC_FRACTION]
        if label_column and any(group is not None or c not in constant for c in numeric):
            return SetColumns(group_column, label_column, numeric, [c for c in features if c not in numeric])
    return None


def matches(column: ColumnStats, ref: ColumnRef) -> bool:
    return ref in (column.ref, column.index + 1) or str(ref) == str(column.ref)


def _label_rank(c: ColumnStats) -> tuple[bool, bool, bool, int]:
    """Sorts label candidates: several values, a label name and texts first, then from the right."""
    has_name = bool(preview.LABEL_NAME.fullmatch(c.name))
    return c.n_values < 2, not has_name, c.number_fraction > NUMERIC_FRACTION, -c.index


def _is_constant_per_set(table: TablePreview, group: ColumnStats, column: ColumnStats) -> bool:
    """Whether each set has one value in this column. A label column may have a few conflicts, reported later."""
    first, conflicts = dict[str, str](), set[str]()
    for row in table.rows:
        if first.setdefault(row[group.index], row[column.index]) != row[column.index]:
            conflicts.add(row[group.index])
    is_numeric_label = column.n_values <= MAX_LABEL_VALUES and preview.LABEL_NAME.fullmatch(column.name)
    is_label = column.number_fraction <= NUMERIC_FRACTION or is_numeric_label
    return len(conflicts) <= (max(MAX_CONFLICTS * len(first), len(first) >= MIN_SETS) if is_label else 0)


def header_names(path: Path, encoding: str | None = None) -> list[str]:
    """The names of the columns of a table or of JSON lines; empty without a header."""
    table = preview_rows(path, encoding)
    return table.header if table else []


def preview_rows(path: Path, encoding: str | None = None) -> TablePreview | None:
    """The first rows of a table or of JSON lines."""
    text = preview.preview_text(preview.read_head(path, encoding=encoding))
    is_json = text.suffix in JSON_SUFFIXES
    return preview.preview_json_lines(text) if is_json else dialect.preview_table(text)
