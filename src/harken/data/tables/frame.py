"""DataFrames of pandas and polars, without importing either: cells as texts, and a CSV file by content."""

import csv
import hashlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from harken.data.cache import cache_folder
from harken.errors import BadInput
from harken.files import write_atomic
from harken.suggestions import did_you_mean

from .read import MAX_QUOTED_LINES, list_cell

MISSING = ("nan", "NaT", "<NA>")  # how the missing values of numpy and pandas are written
Table = dict[str, list[str]]  # the cells of each column, by its name


@runtime_checkable
class Frame(Protocol):
    """A DataFrame of pandas or polars, or any other table with named columns of equal length."""

    @property
    def columns(self) -> Iterable[object]: ...
    def __getitem__(self, name: str, /) -> Iterable[object]: ...


def column_names(frame: Frame) -> list[str]:
    """The names of the columns; raises if two are equal."""
    names = [str(name) for name in frame.columns]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise BadInput(f"{type(frame).__name__}: two columns are named {repeated!r}; rename one of them")
    return names


def column_cells(frame: Frame, name: str) -> list[str]:
    """The cells of a column as texts; a missing value is an empty text."""
    by_name = {str(column): column for column in frame.columns}
    if name not in by_name:
        known = f"its columns are {', '.join(by_name)}"
        raise BadInput(f"{type(frame).__name__}: no column {name!r}; {known}.{did_you_mean(name, list(by_name))}")
    values = frame[by_name[name]]  # type: ignore[index]  # pandas has names of any type
    return [_cell(value, name, n) for n, value in enumerate(values)]


def _cell(value: object, column: str, row: int) -> str:
    """A text, a number as written, or the texts of a list with LIST_SEPARATOR between them."""
    if isinstance(value, str):
        return list_cell([value])
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return list_cell(value)
    if isinstance(value, bytes | list | tuple | dict | set):
        accepted = "texts, numbers, dates and lists of texts are accepted; convert the column to text"
        raise BadInput(f"column {column!r}, row {row}: {type(value).__name__} {value!r:.40}; {accepted}")
    return "" if value is None or str(value) in MISSING else str(value)


def save_frame(frame: Frame) -> Path:
    """Save a DataFrame as CSV in the cache, by its content, so that a run on it can be repeated and resumed."""
    names = column_names(frame)
    table: Table = {name: column_cells(frame, name) for name in names}
    counts = {len(cells) for cells in table.values()}
    if not any(counts):
        raise BadInput(f"{type(frame).__name__}: has {len(names)} columns and no rows; give a table with rows")
    if len(counts) > 1:
        raise BadInput(f"{type(frame).__name__}: its columns have {sorted(counts)} rows; every column needs as many")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(map(_join_lines, row) for row in zip(*table.values(), strict=True))
    content = text.getvalue().encode("utf-8", "replace")
    path = cache_folder("tables", hashlib.sha256(content).hexdigest()[:16]) / "table.csv"
    write_atomic(path, content)
    return path


def _join_lines(cell: str) -> str:
    """A cell that the table readers accept: a long text on one line, as the readers return it."""
    return " ".join(cell.splitlines()) if cell.count("\n") >= MAX_QUOTED_LINES - 1 else cell
