"""Columns of a table or of JSON lines, row by row. An invalid row is skipped and reported with its line."""

import csv
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from harken.data.detect import preview
from harken.errors import BadInput
from harken.suggestions import did_you_mean

from .read import NumberedRows, OnSkip, iter_lines, parse_json, parse_rows

MAX_QUOTED_LINES = 50  # lines of a quoted cell; a quote that closes later is not an opening quote
T = TypeVar("T")
ColumnRef = int | str | None  # a column by number, counted from 1, or by name
ColumnRequest = Sequence[tuple[str, ColumnRef]]  # (setting, column) for each wanted column


def iter_columns(path: Path, columns: ColumnRequest, on_skip: OnSkip) -> NumberedRows:
    """The cells of these columns, row by row, with their line number."""
    start = preview.read_head(path)
    preview.refuse_binary(start)
    head = start.head.decode("utf-8", "replace")  # an invalid byte affects only its line
    if path.suffix.lower() in (".json", ".jsonl", ".ndjson") or head.lstrip("\ufeff \n").startswith("{"):
        return _json_rows(path, columns, on_skip)
    return _table_rows(path, columns, preview.preview_text(replace(start, head=head.encode(), samples=())), on_skip)


def _json_rows(path: Path, columns: ColumnRequest, on_skip: OnSkip) -> NumberedRows:
    """JSON lines. Nested objects, as in {"translation": {"en": ..., "de": ...}}, are flattened."""
    keys = [ref for _, ref in columns]
    _check_distinct(path, columns, keys)
    for number, line in iter_lines(path, on_skip):
        if line is None:
            continue
        try:
            value = parse_json(path, line)
        except BadInput:
            value = None
        if not isinstance(value, dict):
            on_skip(path, number, "not a JSON object")
            continue
        inner = [item for nested in value.values() if isinstance(nested, dict) for item in nested.items()]
        texts = {key: text for key, cell in [*inner, *value.items()] if (text := _as_text(cell)) is not None}
        if None in keys:
            keys = _fill_unset(keys, texts)
        if missing := [key for key in keys if key not in texts]:
            on_skip(path, number, f"no text under {missing[0]!r}" if missing[0] else "fewer than two texts")
        else:
            yield number, [texts[str(key)].encode("utf-8", "replace").decode() for key in keys]  # no lone surrogates


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
    """A text, a number as written, a boolean, or a list of texts as lines."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else None


def _table_rows(path: Path, columns: ColumnRequest, text: preview.TextPreview, on_skip: OnSkip) -> NumberedRows:
    """Rows of cells with or without a header; other columns, such as an attribution, are ignored."""
    table, names = preview.preview_table(text), " and ".join(name for name, _ in columns)
    if not table or not table.rows:
        accepted = "accepted: a table with two columns, two aligned files, JSON lines or trees"
        raise BadInput(f"{path}: contains no columns; {accepted}; check {names}")
    first = table.header or table.rows[0]
    has_header = bool(table.header) or any(ref in first for _, ref in columns)
    header = first if has_header else []
    refs = [None if ref is None else _column_index(path, header, ref, name) for name, ref in columns]
    unset = [n for n, index in enumerate(refs) if index is None]  # the first column for the first request, if unused
    indices = _fill_unset(refs, [*unset, *range(len(columns))])
    _check_distinct(path, columns, indices)
    quoted_cells = [cell for line in text.lines for cell in line.split(table.delimiter) if cell.startswith('"')]
    # in tab-separated tables a quote is usually literal: use Excel's rule only if every cell satisfies it
    all_closed = all(cell.endswith('"') and len(cell) > 1 for cell in quoted_cells)
    quoted = table.quoted and (table.delimiter != "\t" or all_closed)
    for number, row in _split_cells(path, table.delimiter, quoted, on_skip):
        if has_header and number == 1:
            continue
        if len(row) <= max(indices):
            on_skip(path, number, f"only {len(row)} column{'s' * (len(row) > 1)}" if any(row) else "an empty line")
        elif any(row[len(first) :]):  # a delimiter inside a sentence: the cells cannot be assigned
            on_skip(path, number, f"{len(row)} columns instead of {len(first)}")
        else:
            yield number, [row[index] for index in indices]


def _split_cells(path: Path, delimiter: str, quoted: bool, on_skip: OnSkip) -> NumberedRows:
    """The rows with their first line. A row with an unclosed quote is skipped; reading continues on the next line."""
    lines = ((number, line) for number, line in iter_lines(path, on_skip) if line is not None)
    if not quoted:
        yield from ((number, line.split(delimiter)) for number, line in lines)
        return
    ahead = deque(islice(lines, 1 if delimiter == "\t" else MAX_QUOTED_LINES))
    while ahead:
        (number, line), used, reason = ahead[0], 1, ""
        try:
            _, row = next(parse_rows([line + "\n"], delimiter))
            if row and row[-1].endswith("\n"):  # the line ends inside quotes
                reason = "a quote is not closed"
                used, row = next(parse_rows((line + "\n" for _, line in ahead), delimiter, "strict"))
            yield number, row
        except csv.Error as error:
            on_skip(path, number, reason or str(error))
        for _ in range(used):
            ahead.popleft()
        ahead.extend(islice(lines, used))


def _column_index(path: Path, header: list[str], ref: int | str, name: str) -> int:
    """Index of a column given by name or number."""
    if ref in header:
        return header.index(str(ref))
    if str(ref).isdecimal() and int(ref) > 0:
        return int(ref) - 1
    known = ", ".join(header) or "1, 2, ... (it has no header)"
    fix = "rename a column" if header else f"add a header with {ref!r}"
    fix += f".{hint}" if (hint := did_you_mean(str(ref), header)) else ""
    raise BadInput(f"{path}: no column {ref!r}; its columns are {known}; set {name} to one of them, or {fix}")
