"""The tables of a graph: all columns of a file with a header."""

import json
from itertools import dropwhile
from pathlib import Path

from harken.data.detect import preview
from harken.data.detect.dialect import SEPARATOR_LINE
from harken.data.tables.read import NumberedRows, parse_json, parse_quoted
from harken.data.tables.text_file import JSON_SUFFIXES, ROWS_SUFFIX, text_file
from harken.errors import BadInput

Columns = dict[str, list[str]]  # column name -> cells


def read_columns(file: Path, encoding: str | None = None) -> Columns:
    """The columns of a file with a header."""
    rows = list(_rows(file, encoding))
    names = [cell.strip() for cell in rows[0][1]] if rows else []
    for line, row in rows[1:]:
        if len(row) not in (0, len(names)) and any(row):
            raise BadInput(f"{file}:{line}: {len(row)} cells, but the header has {len(names)}; fix this line")
    full = [row for _, row in rows[1:] if any(row)]
    if len(set(names)) < len(names) or not full:
        raise BadInput(f"{file}: a header with distinct column names and at least one row are needed; check the file")
    return {name: [row[n].strip() for row in full] for n, name in enumerate(names)}


def _rows(file: Path, encoding: str | None) -> NumberedRows:
    """The rows of a table with their first line, from the header on."""

    def stop(line: int, reason: str) -> None:
        raise BadInput(f"{file}:{line}: {reason}; a cell that starts with a quote needs a second one; fix this line")

    try:
        preview.refuse_binary(preview.read_head(file, encoding=encoding))
        content = text_file(file, encoding)
        text = content.path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise preview.not_utf8_error(file, error.start) from None
    numbered = ((number, line) for number, line in enumerate(text.split("\n"), 1))
    lines = list(dropwhile(lambda item: not item[1].strip() or item[1].startswith("#"), numbered))
    if content.suffix == ROWS_SUFFIX:
        rows = [(number, json.loads(line)) for number, line in lines if line.strip("[]")]
        return ((number, preview.padded(row, len(rows[0][1]))) for number, row in rows)
    if content.suffix in JSON_SUFFIXES:
        return _object_rows(file, lines)
    if lines and (separator := SEPARATOR_LINE.fullmatch(lines[0][1].strip(" "))):
        return parse_quoted(iter(lines[1:]), separator[1], stop)
    return parse_quoted(iter(lines), max(",\t;|", key=lines[0][1].count if lines else "".count), stop)


def _object_rows(file: Path, lines: list[tuple[int, str]]) -> NumberedRows:
    """The keys of JSON lines as a header, and their values as texts."""
    objects = list[tuple[int, dict[str, object]]]()
    for number, line in lines:
        if line.strip():
            value = parse_json(f"{file}:{number}", line)
            if not isinstance(value, dict):
                raise BadInput(f"{file}:{number}: not a JSON object; fix this line")
            objects.append((number, value))
    names = list(dict.fromkeys(name for _, value in objects for name in value))
    cells = ((number, [value.get(name) for name in names]) for number, value in objects)
    return iter([(0, names), *((n, ["" if cell is None else str(cell) for cell in row]) for n, row in cells)])
