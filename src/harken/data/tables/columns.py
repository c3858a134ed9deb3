"""Columns of a table or of JSON lines, row by row. An invalid row is skipped and reported with its line."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from harken.data.detect import dialect, preview
from harken.errors import BadInput
from harken.suggestions import did_you_mean

from .read import EMPTY_LINE, MAX_QUOTED_LINES, NumberedRows, OnSkip, SkippedRows, list_cell, parse_json, parse_quoted
from .text_file import JSON_SUFFIXES, ROWS_SUFFIX, iter_lines

T = TypeVar("T")
ColumnRef = int | str | None  # a column by number, counted from 1, or by name
Lines = Iterator[tuple[int, str | None]]
ColumnRequest = Sequence[tuple[str, ColumnRef]]  # (setting, column) for each wanted column


def iter_columns(path: Path, columns: ColumnRequest, on_skip: OnSkip, encoding: str | None = None) -> NumberedRows:
    """The cells of these columns, row by row, with their line number."""
    text, lines = _preview_head(path, encoding), iter_lines(path, on_skip, encoding)
    if text.suffix in JSON_SUFFIXES or text.text.lstrip(" \n").startswith("{"):
        return _json_rows(path, columns, lines, on_skip)
    return _table_rows(path, columns, text, lines, on_skip)


def _preview_head(path: Path, encoding: str | None) -> preview.TextPreview:
    """The start of a file; an invalid byte affects only its line."""
    start = preview.read_head(path, encoding=encoding)
    preview.refuse_binary(start)
    head = start.head.decode("utf-8", "replace").encode()
    return preview.preview_text(replace(start, head=head, samples=()))


class TableHead(NamedTuple):
    """The first row of a table."""

    cells: list[str]
    has_header: bool  # detected, or one of the cells is a wanted name
    can_be_header: bool
    delimiter: str
    suffix: str  # of the format: .csv for news.csv.gz
    is_regular: bool  # nearly all rows have the same number of cells


def table_head(path: Path, names: Sequence[ColumnRef], encoding: str | None = None) -> TableHead:
    """The first row of a table in the dialect that iter_columns reads; `names` are columns that it may hold."""
    text = _preview_head(path, encoding)
    table = dialect.reading_table(text)
    if table is None or not (table.rows or table.header):
        raise BadInput(f"{path}: contains no columns; a table is needed; check the file")
    first, has_header = _first_row(text, table, names)
    rows = [row for row in table.rows if len(row) == len(first)]
    return TableHead(
        first, has_header, dialect.can_be_header(first, rows[1:]), table.delimiter, text.suffix, table.is_regular
    )


def read_rows(path: Path, names: Sequence[ColumnRef], encoding: str | None = None) -> NumberedRows:
    """All cells of each row of a table below its header; rows may have more or fewer cells than the first one."""
    text, skipped = _preview_head(path, encoding), SkippedRows()
    if (table := dialect.reading_table(text)) is None:
        return iter(())
    rows = _split_cells(path, text, table, iter_lines(path, skipped, encoding), skipped)
    return islice(rows, int(_first_row(text, table, names)[1]), None)


def _first_row(
    text: preview.TextPreview, table: preview.TablePreview, names: Sequence[ColumnRef]
) -> tuple[list[str], bool]:
    """The first row, and whether it is a header: detected, or because it holds one of these names."""
    if not (first := table.header) and any(name in (cells := dialect.first_row(text, table)) for name in names):
        first = cells
    return (first, True) if first else ([cell.strip() for cell in table.rows[0]], False)


def _json_rows(path: Path, columns: ColumnRequest, lines: Lines, on_skip: OnSkip) -> NumberedRows:
    """JSON lines. Nested objects, as in {"translation": {"en": ..., "de": ...}}, are flattened."""
    keys = [ref for _, ref in columns]
    _check_distinct(path, columns, keys)
    for number, value in json_objects(path, lines, on_skip):
        inner = [item for nested in value.values() if isinstance(nested, dict) for item in nested.items()]
        texts = {key: text for key, cell in [*inner, *value.items()] if (text := _as_text(cell)) is not None}
        if None in keys:
            keys = _fill_unset(keys, texts)
        if missing := [key for key in keys if key not in texts]:
            on_skip(path, number, f"no text under {missing[0]!r}" if missing[0] else "fewer than two texts")
        else:
            yield number, [texts[str(key)].encode("utf-8", "replace").decode() for key in keys]  # no lone surrogates


def json_objects(path: Path, lines: Lines, on_skip: OnSkip) -> Iterator[tuple[int, dict[str, object]]]:
    """The object on each line that is not blank."""
    for number, line in lines:
        if line is None or not line.strip():
            continue
        try:
            value = parse_json(path, line)
        except BadInput:
            value = None
        if isinstance(value, dict):
            yield number, value
        else:
            on_skip(path, number, "not a JSON object")


def _fill_unset(refs: Sequence[T | None], candidates: Iterable[T]) -> list[Any]:
    """Replace None by the first unused candidate; None stays if there is none left."""
    unused = (candidate for candidate in candidates if candidate not in refs)
    return [next(unused, None) if ref is None else ref for ref in refs]


def _check_distinct(path: Path, columns: ColumnRequest, indices: Sequence[ColumnRef]) -> None:
    for (_, ref), index in zip(columns, indices, strict=True):
        if index is not None and indices.count(index) > 1:
            names = " and ".join(dict.fromkeys(name for name, _ in columns))
            raise BadInput(f"{path}: column {ref!r} is used twice; set {names} to different columns")


def _as_text(value: Any) -> str | None:
    """A text, a number as written, a boolean, or a list of texts with LIST_SEPARATOR between them."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return list_cell(value)
    return str(value).lower() if isinstance(value, bool) else list_cell([value]) if isinstance(value, str) else None


def _table_rows(
    path: Path, columns: ColumnRequest, text: preview.TextPreview, lines: Lines, on_skip: OnSkip
) -> NumberedRows:
    """Rows of cells with or without a header; other columns, such as an attribution, are ignored."""
    table = dialect.reading_table(text)
    if not table or not table.rows:
        raise _no_columns(path, columns)
    first, has_header = _first_row(text, table, [ref for _, ref in columns])
    header = first if has_header else []
    refs = [None if ref is None else _column_index(path, header, ref, name) for name, ref in columns]
    if len(columns) > len(first):
        raise _no_columns(path, columns) if len(first) < 2 else _too_few_columns(path, columns, first)
    unset = [n for n, index in enumerate(refs) if index is None]  # the first column for the first request, if unused
    indices = _fill_unset(refs, [*unset, *range(len(columns))])
    _check_distinct(path, columns, indices)
    for number, row in _split_cells(path, text, table, lines, on_skip):
        if has_header:
            has_header = False
        elif len(row) <= max(indices):
            on_skip(path, number, f"only {len(row)} column{'s' * (len(row) > 1)}" if any(row) else EMPTY_LINE)
        elif any(row[len(first) :]):  # a delimiter inside a sentence: the cells cannot be assigned
            on_skip(path, number, f"{len(row)} columns instead of {len(first)}")
        else:
            yield number, [row[index] for index in indices]


def _no_columns(path: Path, columns: ColumnRequest) -> BadInput:
    accepted = "accepted: a table with two columns, two aligned files, JSON lines or trees"
    return BadInput(f"{path}: contains no columns; {accepted}; check {' and '.join(name for name, _ in columns)}")


def _too_few_columns(path: Path, columns: ColumnRequest, first: Sequence[str]) -> BadInput:
    names = " and ".join(dict.fromkeys(name for name, _ in columns))
    problem = f"{len(columns)} different columns are needed for {names}, but it has {len(first)}"
    return BadInput(f"{path}: {problem} ({', '.join(first)}); name fewer, or add a column")


def _split_cells(
    path: Path, text: preview.TextPreview, table: preview.TablePreview, numbered: Lines, on_skip: OnSkip
) -> NumberedRows:
    """The rows with their first line, without the lines before the table."""
    lines = ((number, line) for number, line in numbered if line is not None and number > table.skip)
    if text.suffix == ROWS_SUFFIX:
        width = len(table.rows[0])
        return ((number, preview.padded(json.loads(line), width)) for number, line in lines)
    if table.quoted:
        # in a tab-separated table a lone quote is likelier than a line break, unless the preview has a line break
        one_line = table.delimiter == "\t" and not any("\n" in cell for row in table.rows for cell in row)
        max_lines = 1 if one_line else MAX_QUOTED_LINES
        return parse_quoted(lines, table.delimiter, lambda n, reason: on_skip(path, n, reason), max_lines=max_lines)
    return ((number, line.split(table.delimiter)) for number, line in lines)


def _column_index(path: Path, header: list[str], ref: int | str, name: str) -> int:
    """Index of a column given by name or number."""
    if ref in header:
        return header.index(str(ref))
    if str(ref).isdecimal() and int(ref) > 0:
        return int(ref) - 1
    known = ", ".join(header) or "1, 2, ... (it has no header)"
    parts = [part.strip(" \"'") for part in str(ref).strip(" []").split(",")]
    if len(parts) > 1 and all(part in header for part in parts):
        raise BadInput(f"{path}: no column {ref!r}; for several columns write {name}='{json.dumps(parts)}'")
    fix = "rename a column" if header else f"add a header with {ref!r}"
    fix += f".{hint}" if (hint := did_you_mean(str(ref), header)) else ""
    raise BadInput(f"{path}: no column {ref!r}; its columns are {known}; set {name} to one of them, or {fix}")
