"""Warnings about labels: those that differ only in case or blanks, and rare ones."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from .detect.preview import ColumnStats
from .tables.numbers import is_missing, is_number, parse_number

MIN_EXAMPLES = 5  # with fewer, a label is hardly learned, and a split may have none
SEPARATORS = (";", "|", ",", "/")  # in the order in which they are tried
MIN_NUMBERS = 0.9  # fraction of the values of a column that was probably meant as numbers
MIN_SHARED = 0.8  # fraction of the cells with a separator whose parts occur in other cells too
MAX_ROWS = 2000  # of a table in which several labels per cell are searched
MAX_SHOWN = 8  # labels or groups of them in a warning


def label_warnings(labels: Iterable[str], unit: str = "examples") -> Iterator[str]:
    """One line about labels that are probably the same, and one about rare ones, by name with counts."""
    counts = Counter(label for label in labels if label)
    groups = dict[str, list[str]]()
    for label in counts:
        groups.setdefault(_canonical(label), []).append(label)
    if similar := [" and ".join(_counted(label, counts) for label in group) for group in groups.values() if group[1:]]:
        fix = "make them equal if they mean the same"
        yield f"labels that differ only in case, blanks or number format: {_listed(similar)}; {fix}"
    if rare := [_counted(label, counts) for label, count in reversed(counts.most_common()) if count < MIN_EXAMPLES]:
        yield f"labels with fewer than {MIN_EXAMPLES} {unit}: {_listed(rare)}; add examples, or merge them with others"


def suggest_separator(cells: Iterable[str]) -> tuple[str, str] | None:
    """A separator at which cells such as "a;b" split into labels that other cells have too, and such a cell."""
    counts = Counter(cells)
    for separator in SEPARATORS:
        parts = {cell: {part.strip() for part in cell.split(separator)} - {""} for cell in counts}
        occurrences = Counter(part for names in parts.values() for part in names)
        several = [cell for cell, names in parts.items() if len(names) > 1 and parse_number(cell, ",") is None]
        shared = [cell for cell in several if all(occurrences[part] > 1 for part in parts[cell])]
        if shared and len(shared) >= MIN_SHARED * len(several) and len(occurrences) < len(counts):
            return separator, max(shared, key=lambda cell: counts[cell])
    return None


def separator_notice(cells: Iterable[str]) -> str:
    """The suggestion to split cells into several labels, if they look like it; else ""."""
    if (suggestion := suggest_separator(cells)) is None:
        return ""
    separator, cell = suggestion
    return f"labels such as {cell!r} look like several labels in one cell; to split them: data.separator='{separator}'"


def numbers_notice(targets: Sequence[tuple[str, str]], column: object) -> str:
    """What keeps a column of numbers, given with their places, from being a number to predict; else ""."""
    present = [(text.strip(), place) for text, place in targets if not is_missing(text)]
    words = [(text, place) for text, place in present if not is_number(text)]
    if not words or len(words) > (1 - MIN_NUMBERS) * len(present):
        return ""
    n_numbers, (text, place) = len(present) - len(words), words[0]
    has_comma = any("," in text for text, _ in present if is_number(text))
    fix = "fix these rows" + " and set data.decimal=," * has_comma
    observed = f"{n_numbers:,} of {len(present):,} values of column {column!r} are numbers"
    return f"{observed}; {text!r} ({place}) is not, so all are labels: to predict a number, {fix}"


def several_labels_hint(rows: Sequence[Sequence[str]], columns: Iterable[ColumnStats]) -> str:
    """How to train on a column of a table without labels whose cells look like several labels; else ""."""
    for column in columns:
        if suggestion := suggest_separator(row[column.index].strip() for row in rows[:MAX_ROWS]):
            settings = f"data.label={column.ref} data.separator='{suggestion[0]}'"
            return f"; if {column} holds several labels per row: {settings}"
    return ""


def _canonical(label: str) -> str:
    """A label without its case, blanks, underscores and number format."""
    if parse_number(label) is not None:
        return repr(float(label))
    text = unicodedata.normalize("NFKC", label).casefold()
    return re.sub(r"[\s_]+", "", text) or text


def _counted(label: str, counts: Counter[str]) -> str:
    return f"{label!r} ({counts[label]:,})"


def _listed(names: list[str]) -> str:
    n_more = len(names) - MAX_SHOWN
    return "; ".join(names[:MAX_SHOWN]) + (f"; and {n_more:,} more" if n_more > 0 else "")
