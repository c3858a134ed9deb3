"""--in FILE --out FILE: one prediction for each text of a file."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, tee
from pathlib import Path
from typing import IO, Any

import click

from harken.data.detect import preview
from harken.data.tables.read import parse_json, parse_rows
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.suggestions import similar_path

from . import reject_options

TEXT_COLUMNS = ("text", "prompt")
TABLE_SUFFIXES = (".csv", ".tsv", ".tab")


def file_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command that can process a file."""
    out = click.option("--out", "out_", metavar="FILE", help="Output file, one JSON object per line (with --in).")
    column = click.option("--column", metavar="NAME", help="Text column of a table, by name or number (with --in).")
    source = click.option("--in", "in_", metavar="FILE", help="Input file: CSV, TSV, JSONL, or one text per line.")
    return source(column(out(verb)))


def validate_files(in_: str | None, out_: str | None) -> None:
    """Validate --in, --out and --column before anything slow starts."""
    if in_ is None:
        reject_options("without --in", "out_", "column")
        return
    reject_options("with --in", "prompt", "texts")
    if not Path(in_).is_file():
        raise BadInput(f"--in {in_}: no such file; check the name{similar_path(in_)}")
    if out_ is None:
        raise BadInput(f"--in {in_}: --out is missing; add --out answers.jsonl")
    if Path(out_).exists():
        raise BadInput(f"--out {out_}: the file exists; choose another name")


def process_file(
    in_: str,
    out_: str,
    answers: Callable[[Iterator[str]], Iterator[dict[str, Any]]],
    *,
    column: str | None = None,
    columns: Sequence[int | str] = TEXT_COLUMNS,
    keep_tabs: bool = False,
    listen: Listener = silent,
) -> int:
    """Write one prediction per text of a file, in order, as soon as it is computed. Returns the number of texts.

    The text is taken from `column`, else from the first of `columns` that exists. `keep_tabs`: a line with a tab is one
    text.
    """
    wanted = columns if column is None else (column,)
    total = sum(
        1 for _ in _read_texts(Path(in_), wanted, keep_tabs)
    )  # a file with a bad line is refused before the first prediction
    texts, inputs = tee(_read_texts(Path(in_), wanted, keep_tabs))
    return write_predictions(out_, texts, answers(inputs), total, listen)


def write_predictions(
    out_: str, inputs: Iterable[str], answers: Iterable[dict[str, Any]], total: int, listen: Listener
) -> int:
    """Write each input with its prediction. Returns the number of inputs."""
    with Path(out_).open("w", encoding="utf-8") as file:
        for done, (text, answer) in enumerate(zip(inputs, answers, strict=True), 1):
            file.write(json.dumps({"input": text, **answer}, ensure_ascii=False) + "\n")
            listen("answer", done=done, total=total)
    return total


def training_column(place: Any) -> list[int | str]:
    """The text column that the run was trained on, if it is a column and not a file."""
    return [place] if isinstance(place, int | str) and not Path(str(place)).is_absolute() else []


def _read_texts(path: Path, columns: Sequence[int | str], keep_tabs: bool) -> Iterator[str]:
    """The texts: a column of a table (a single column may have any name), a key of JSONL objects, or plain lines."""
    ending = path.suffix.lower()
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            if ending == ".csv" or (ending in TABLE_SUFFIXES and not keep_tabs):
                yield from _read_column(path, file, columns)
            else:
                for n, line in enumerate(file, 1):
                    yield _json_text(path, n, line, columns) if ending == ".jsonl" else line.rstrip("\r\n")
        except UnicodeDecodeError:
            raise preview.not_utf8_error(path, _first_invalid_byte(path)) from None


def _read_column(path: Path, file: IO[str], columns: Sequence[int | str]) -> Iterator[str]:
    """One column of a table. A tab-separated table may have no header, and its quotes are literal."""
    tabs = path.suffix.lower() != ".csv"
    rows = (cells for _, cells in (parse_rows(file, "\t", "literal") if tabs else parse_rows(file)))
    first = next(rows, [""])
    is_chosen = len(columns) == 1  # by --column
    named = [first.index(str(name)) for name in columns if name in first]
    header = not tabs or bool(named) or _has_header(path)
    numbers = [int(place) - 1 for place in columns if str(place).isdecimal() and (is_chosen or not header)]
    at = next(iter([*named, *numbers, *([] if is_chosen or first[1:] else [0])]), -1)
    if not 0 <= at < len(first):
        there = f"the columns are {', '.join(first)}" if header else f"it has {len(first)} columns and no header"
        rename = "name one" if header else "add a header that names one"
        hint = "" if is_chosen else f", or {rename} {_join_or(columns)}"
        raise BadInput(f"{path}: {there}; choose one with --column{hint}")
    for n, row in enumerate(chain([] if header else [first], rows), 1 + header):
        if at < len(row):
            yield row[at]
        elif any(row):
            raise BadInput(f"{path}: row {n} has {len(row)} columns, the text is in column {at + 1}; fix the row")
        elif tabs:  # an empty line gets an empty answer
            yield ""


def _has_header(path: Path) -> bool:
    table = preview.preview_table(preview.preview_text(preview.read_head(path)))
    return bool(table and table.header)


def _first_invalid_byte(path: Path) -> int:
    """Offset of the first byte that is not UTF-8; a block-wise decoder does not report it."""
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0


def _json_text(path: Path, n: int, line: str, columns: Sequence[int | str]) -> str:
    try:
        value = parse_json(path, line, numbers_as_text=False)
        return str(value if isinstance(value, str) else next(value[c] for c in columns if c in value))
    except (BadInput, TypeError, StopIteration):
        raise BadInput(f"{path}:{n}: expected a JSON string, or an object with a key {_join_or(columns)}") from None


def _join_or(columns: Sequence[int | str]) -> str:
    *first, last = dict.fromkeys(str(name) for name in columns if not isinstance(name, int))
    return f"{', '.join(first)} or {last}" if first else last
