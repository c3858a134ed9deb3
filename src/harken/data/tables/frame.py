"""DataFrames of pandas and polars, without importing either: cells as texts, and a file by content."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from harken.data.cache import cache_folder, cache_root
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.files import write_atomic
from harken.suggestions import did_you_mean

from .read import list_cell
from .text_file import FRAME_SUFFIX

TYPES_FILE = "types.json"  # the types of the columns, next to a saved DataFrame
TABLES_FOLDER = "tables"  # of the cache, with the saved DataFrames
FIRST_LINE = 2  # of the rows of a saved DataFrame; line 1 has the names of the columns
MISSING = ("nan", "NaT", "<NA>")  # how the missing values of numpy and pandas are written
Table = dict[str, list[str]]  # the cells of each column, by its name
Value = bool | int | float
TYPES: dict[str, type[Value]] = {"bool": bool, "int": int, "float": float}  # of a column, by name


@runtime_checkable
class Frame(Protocol):
    """A DataFrame of pandas or polars, or any other table with named columns of equal length."""

    @property
    def columns(self) -> Iterable[object]: ...
    def __getitem__(self, name: str, /) -> Iterable[object]: ...


Data = str | Path | Frame  # a file or a folder by its name, or a DataFrame


def refuse_lazy(frame: object) -> None:
    """Refuse a LazyFrame of polars, before anything resolves its columns."""
    if type(frame).__name__ == "LazyFrame":
        raise BadInput("LazyFrame: has no rows yet; give a DataFrame: df.collect()")


def data_path(data: Data, listen: Listener = silent) -> str:
    """The path of data; a DataFrame is saved in the cache."""
    refuse_lazy(data)
    return str(save_frame(data, listen=listen) if isinstance(data, Frame) else data)


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
    values = list(frame[by_name[name]])  # type: ignore[index]  # pandas has names of any type
    if all(_is_missing(value) or (isinstance(value, float | np.floating) and value.is_integer()) for value in values):
        # pandas stores integers as floats if one is missing
        values = [value if _is_missing(value) else int(value) for value in values]  # type: ignore[call-overload]
    return [_cell(value, name, n) for n, value in enumerate(values)]


def _cell(value: object, column: str, row: int) -> str:
    """A text, a number as written, or the texts of a list with LIST_SEPARATOR between them."""
    if isinstance(value, str):
        return list_cell([value])
    if isinstance(value, Iterable):  # arrays of NumPy and Series of polars are lists too
        texts = [item for item in value if isinstance(item, str)]
        if len(texts) == len([*value]) and not isinstance(value, bytes | Mapping | Set):
            return list_cell(texts)
        accepted = "texts, numbers, dates and lists of texts are accepted; convert the column to text"
        raise BadInput(f"column {column!r}, row {row}: {type(value).__name__} {value!r:.40}; {accepted}")
    return "" if _is_missing(value) else str(value)


def _is_missing(value: object) -> bool:
    return value is None or str(value) in MISSING


def _column_type(frame: Frame, name: str) -> str:
    """The name in TYPES of the type that all values of a column have; empty for texts and mixed types."""
    by_name = {str(column): column for column in frame.columns}
    values = [v for v in frame[by_name[name]] if not _is_missing(v)]  # type: ignore[index]
    is_bool = [isinstance(value, bool | np.bool_) for value in values]
    if not values or any(is_bool):
        return "bool" if values and all(is_bool) else ""
    kinds = {"int": Integral, "float": Real}
    return next((kind for kind, numbers in kinds.items() if all(isinstance(v, numbers) for v in values)), "")


def frame_column_type(path: Path, name: str) -> str:
    """The name in TYPES of the type of a column of a saved DataFrame; empty for texts and other files."""
    if path.suffix != FRAME_SUFFIX or not (types := path.with_name(TYPES_FILE)).is_file():
        return ""
    return str(json.loads(types.read_bytes()).get(name, ""))


def typed_value(text: str, kind: str) -> Value | str:
    """A cell of a column of this type; the text if it is none, such as `unknown`."""
    if kind == "bool":
        return {"True": True, "False": False}.get(text, text)
    try:
        return TYPES[kind](text) if kind else text
    except ValueError:
        return text


def name_rows(text: str) -> str:
    """A text with the rows of a DataFrame, counted from 0 as in `iloc`, in place of lines of the saved table."""

    def place(match: re.Match[str]) -> str:
        return f"DataFrame, row {int(match[1]) - FIRST_LINE}" if match[1] else "DataFrame"

    folder = re.escape(str(cache_root() / TABLES_FOLDER))
    return re.sub(rf"{folder}[/\\][0-9a-f]+[/\\]table\{FRAME_SUFFIX}(?::(\d+))?", place, text)


def naming_rows(listen: Listener) -> Listener:
    """A listener that passes all events on, with the rows of a DataFrame in its notices."""

    def pass_on(event: str, /, **values: object) -> None:
        if event == "notice":
            values["text"] = name_rows(str(values["text"]))
        listen(event, **values)

    return pass_on


@contextmanager
def rows_in_errors() -> Iterator[None]:
    """Errors for users name the rows of a DataFrame."""
    try:
        yield
    except BadInput as error:
        if (text := name_rows(str(error))) == str(error):
            raise
        raise type(error)(text) from None


def save_frame(frame: Frame, needed: Iterable[object] = (), listen: Listener = silent) -> Path:
    """Save a DataFrame in the cache, by its content, so that a run on it can be repeated and resumed.

    A column with values of another type, such as dictionaries, is left out with a notice, unless it is needed.
    """
    names, table = column_names(frame), Table()
    for name in names:
        try:
            table[name] = column_cells(frame, name)
        except BadInput as error:
            if name in map(str, needed):
                raise
            listen("notice", text=f"{type(frame).__name__}: this column is not used: {error}")
    counts = {len(cells) for cells in table.values()}
    if not any(counts):
        raise BadInput(f"{type(frame).__name__}: has {len(names)} columns and no rows; give a table with rows")
    if len(counts) > 1:
        raise BadInput(f"{type(frame).__name__}: its columns have {sorted(counts)} rows; every column needs as many")
    types = {name: kind for name in table if (kind := _column_type(frame, name))}
    rows = [[*table], *zip(*table.values(), strict=True)]
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "replace")
    types_json = json.dumps(types, ensure_ascii=False).encode("utf-8", "replace")
    path = cache_folder(TABLES_FOLDER, hashlib.sha256(content + types_json).hexdigest()[:16]) / f"table{FRAME_SUFFIX}"
    write_atomic(path.with_name(TYPES_FILE), types_json)
    write_atomic(path, content)
    return path
