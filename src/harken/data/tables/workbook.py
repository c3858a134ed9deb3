"""Excel workbooks and Parquet files as lines of JSON: a list of cells per row of a sheet, an object per Parquet row."""

import codecs
import json
import math
import warnings
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date, datetime, time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from harken.errors import BadInput

from .read import input_error

BATCH_ROWS = 1024
PACKAGES = {"openpyxl": "excel", "pyarrow": "parquet"}  # and their extras
Write = Callable[[str], object]


def cell_text(value: object) -> str:
    """A value as text: integers stay integers, a missing value is empty, dates are ISO 8601."""
    if value is None or (isinstance(value, float | np.floating) and math.isnan(value)):
        return ""
    if isinstance(value, datetime):
        is_date = value.time() == time() and value.tzinfo is None
        return value.date().isoformat() if is_date else value.isoformat(" ")
    return value.isoformat() if isinstance(value, date | time) else str(value)


def write_excel(path: Path, write: Write, max_bytes: int) -> str:
    """Write the first sheet with a table; return a notice about the other sheets and formulas without a value."""
    try:
        import openpyxl
    except ImportError:
        raise _missing(path, "openpyxl") from None
    n_blank, has_gaps, chosen = 0, False, None
    _check_workbook(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > max_bytes:
                raise input_error(path, "a larger workbook", f"at most {max_bytes >> 20:,} MiB", "save it as text")
        with warnings.catch_warnings():  # about features that have no values, such as validation lists
            warnings.simplefilter("ignore")
            workbook = openpyxl.load_workbook(path, read_only=True, data_only=True)
            for sheet in workbook.worksheets:
                sheet.reset_dimensions()  # some programs write wrong ones
            sheets = [sheet for sheet in workbook.worksheets if any(map(any_cell, sheet.iter_rows(values_only=True)))]
            chosen = next(filter(_is_table, sheets), sheets[0] if sheets else None)
            for row in chosen.iter_rows(values_only=True) if chosen else ():
                has_gaps = has_gaps or None in row
                cells = list(map(cell_text, row))
                while cells and not cells[-1].strip():
                    cells.pop()
                n_blank += not cells
                if cells:  # blank rows at the end are not written
                    write("[]\n" * n_blank + json.dumps(cells, ensure_ascii=False) + "\n")
                    n_blank = 0
            workbook.close()
            n_formulas = _count_formulas(path, chosen.title) if chosen and has_gaps else 0
    except (BadInput, OSError, MemoryError):
        raise
    except Exception as error:  # zipfile, the XML parser and openpyxl raise many types for a damaged file
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        fix = "save it again as .xlsx, or as text"
        raise input_error(path, f"no readable Excel workbook ({reason})", "an .xlsx file is needed", fix) from None
    if not chosen:
        raise input_error(path, "an Excel workbook without data", "a sheet with data is needed", "check the file")
    unread = ", ".join(repr(sheet.title) for sheet in sheets if sheet is not chosen)
    notices = [f"reads the sheet {chosen.title!r}; not read: {unread}"] * bool(unread)
    if n_formulas:
        formulas = f"{n_formulas:,} cell{'s hold formulas' if n_formulas > 1 else ' holds a formula'}"
        notices.append(f"{formulas} without a stored value; open and save the file in Excel")
    return "; ".join(notices)


def _check_workbook(path: Path) -> None:
    """Raise for an empty file and for text under the name of a workbook."""
    with path.open("rb") as file:
        head = file.read(1 << 12)
    if not head:
        raise input_error(path, "an empty file", "a file with data is needed", "check that it was written completely")
    with suppress(UnicodeDecodeError):
        start = codecs.getincrementaldecoder("utf-8")().decode(head).partition("\n")[0].strip()[:40]
        if "\0" not in start and not zipfile.is_zipfile(path):
            problem = f"not an Excel workbook (it starts with the text {start!r})"
            raise input_error(path, problem, "an .xlsx file is needed", f"rename it to {path.stem}.csv")


def _is_table(sheet: Any) -> bool:
    """Whether two rows of a sheet hold two values or more; a cover sheet holds less."""
    wide = (row for row in sheet.iter_rows(values_only=True) if sum(value is not None for value in row) > 1)
    return len(list(islice(wide, 2))) > 1


def _count_formulas(path: Path, title: str) -> int:
    """The number of cells of a sheet with a formula but no stored value."""
    import openpyxl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        books = [openpyxl.load_workbook(path, read_only=True, data_only=is_value) for is_value in (False, True)]
    for book in books:
        book[title].reset_dimensions()
    rows = zip(*(book[title].iter_rows() for book in books), strict=True)
    pairs = (pair for formulas, values in rows for pair in zip(formulas, values, strict=False))
    count = sum(formula.data_type == "f" and cell.value is None for formula, cell in pairs)
    for book in books:
        book.close()
    return count


def any_cell(row: Iterable[object]) -> bool:
    """Whether a row has a value."""
    return any(value is not None for value in row)


def write_parquet(path: Path, write: Write) -> str:
    """Write each row; the fields of a struct are columns. Return a notice that names columns without text."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise _missing(path, "pyarrow") from None
    try:
        file = parquet.ParquetFile(path)
        columns = [field.name for field in file.schema_arrow if _has_text(pa, field.type)]
        for batch in file.iter_batches(BATCH_ROWS, columns=columns):
            table = pa.Table.from_batches([batch]).flatten()
            names = _field_names(table.column_names)
            table = table.cast(pa.schema([(f.name, _plain_type(pa, f.type)) for f in table.schema]), safe=False)
            for row in zip(*(_cells(pa, column) for column in table.columns), strict=True):
                write(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n")
    except (BadInput, OSError, MemoryError):
        raise
    except Exception as error:  # pyarrow raises many types for a damaged file
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        problem = f"no readable Parquet file ({reason})"
        raise input_error(path, problem, "a complete file is needed", "write or fetch it again") from None
    if not columns:
        accepted = "columns of texts, numbers or dates are needed"
        raise input_error(path, "a Parquet file without such columns", accepted, "check the file")
    dropped = ", ".join(field.name for field in file.schema_arrow if field.name not in columns)
    return f"not read, because they hold no text or number: {dropped}" if dropped else ""


def _missing(path: Path, package: str) -> BadInput:
    extra = PACKAGES[package]
    return BadInput(f"{path}: reading this file needs {package}; install it: pip install 'harken[{extra}]'")


def _has_text(pa: Any, type_: Any) -> bool:
    """Whether a column holds texts, numbers, dates, lists of texts, or a struct of these."""
    types = pa.types
    if types.is_struct(type_):
        return all(_has_text(pa, field.type) and not types.is_struct(field.type) for field in type_)
    if types.is_dictionary(type_):
        return _has_text(pa, type_.value_type)
    if types.is_list(type_) or types.is_large_list(type_):
        return types.is_string(type_.value_type) or types.is_large_string(type_.value_type)
    return not (types.is_nested(type_) or types.is_binary(type_) or types.is_large_binary(type_))


def _field_names(columns: list[str]) -> list[str]:
    """The names of the columns; the field `de` of a struct `translation` is named de if no other column is."""
    fields = [name.rpartition(".")[2] for name in columns]
    return [field if fields.count(field) == 1 else name for name, field in zip(columns, fields, strict=True)]


def _plain_type(pa: Any, type_: Any) -> Any:
    """The type itself; of timestamps one that Python has."""
    return pa.timestamp("us", type_.tz) if pa.types.is_timestamp(type_) and type_.unit == "ns" else type_


def _cells(pa: Any, column: Any) -> list[str | list[str]]:
    """The cells of a column as texts or lists of texts; a 32-bit float has no more digits than it needs."""
    values = column.to_pylist()
    if pa.types.is_float32(column.type):
        values = [None if value is None else np.float32(value) for value in values]
    return [list(map(cell_text, value)) if isinstance(value, list) else cell_text(value) for value in values]
