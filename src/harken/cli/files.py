"""--in FILE --out FILE: many texts out of a file, one answer each into another."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, tee
from pathlib import Path
from typing import IO, Any

import click

from harken.data.detect import preview
from harken.errors import BadInput, near_name
from harken.events import Listener, silent

from . import refuse

COLUMNS = ("text", "prompt")
TABLES = (".csv", ".tsv", ".tab")


def through_files(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a verb that can work through a file."""
    out = click.option(
        "--out", "out_", metavar="FILE", help="Where the answers go, one JSON object a line (with --in)."
    )
    column = click.option(
        "--column", metavar="NAME", help="Where a table has its texts, by name or number (with --in)."
    )
    source = click.option("--in", "in_", metavar="FILE", help="Texts from a file: CSV, TSV, JSONL, or one a line.")
    return source(column(out(verb)))


def check_files(in_: str | None, out_: str | None) -> None:
    """Refuse what cannot be worked through, before anything slow begins."""
    if in_ is None:
        refuse("without --in", "out_", "column")
        return
    refuse("with --in", "prompt", "texts")
    if not Path(in_).is_file():
        raise BadInput(f"--in {in_}: there is no such file; check the name{near_name(in_)}")
    if out_ is None:
        raise BadInput(f"--in {in_}: say where the answers go: --out answers.jsonl")
    if Path(out_).exists():
        raise BadInput(f"--out {out_}: there is such a file; choose another name")


def work_through(
    in_: str,
    out_: str,
    answers: Callable[[Iterator[str]], Iterator[dict[str, Any]]],
    *,
    column: str | None = None,
    columns: Sequence[int | str] = COLUMNS,
    whole: bool = False,
    listen: Listener = silent,
) -> int:
    """Answer every text of a file, in order; each answer is written as soon as it is there. How many there were.

    A text stands in the column that is named, else in the first of these that is there. `whole`: a line with a tab in
    it is one text.
    """
    wanted = columns if column is None else (column,)
    total = sum(
        1 for _ in _texts(Path(in_), wanted, whole)
    )  # a file with a bad line is refused before the first answer
    texts, asked = tee(_texts(Path(in_), wanted, whole))
    return write_answers(out_, texts, answers(asked), total, listen)


def write_answers(
    out_: str, inputs: Iterable[str], answers: Iterable[dict[str, Any]], total: int, listen: Listener
) -> int:
    """Write each answer behind what it answers; how many there were."""
    with Path(out_).open("w", encoding="utf-8") as file:
        for done, (text, answer) in enumerate(zip(inputs, answers, strict=True), 1):
            file.write(json.dumps({"input": text, **answer}, ensure_ascii=False) + "\n")
            listen("answer", done=done, total=total)
    return total


def own_column(place: Any) -> list[int | str]:
    """The column that a run has learned from, if it is one: a file of its own has no name in a table."""
    return [place] if isinstance(place, int | str) and not Path(str(place)).is_absolute() else []


def _texts(path: Path, columns: Sequence[int | str], whole: bool) -> Iterator[str]:
    """The texts: a column of a table (its only one has any name), a key of JSONL objects, or plain lines."""
    ending = path.suffix.lower()
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            if ending == ".csv" or (ending in TABLES and not whole):
                yield from _cells(path, file, columns)
            else:
                for n, line in enumerate(file, 1):
                    yield _object(path, n, line, columns) if ending == ".jsonl" else line.rstrip("\r\n")
        except UnicodeDecodeError:
            raise preview.not_utf8(path, _odd_byte(path)) from None


def _cells(path: Path, file: IO[str], columns: Sequence[int | str]) -> Iterator[str]:
    """One column of a table. Where it is split at tabs it may have no header, and a quote is a quote."""
    tabs = path.suffix.lower() != ".csv"
    rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(file)
    first = next(rows, [""])
    told = len(columns) == 1  # by the user: then no other will do
    named = [first.index(str(name)) for name in columns if name in first]
    header = not tabs or bool(named) or _headed(path)
    numbers = [int(place) - 1 for place in columns if str(place).isdecimal() and (told or not header)]
    at = next(iter([*named, *numbers, *([] if told or first[1:] else [0])]), -1)
    if not 0 <= at < len(first):
        there = f"its columns are {', '.join(first)}" if header else f"it has {len(first)} columns and no header"
        way = f", or give one the name {_or(columns)}" if not told else ""
        raise BadInput(f"{path}: {there}; say which with --column{way}")
    for n, row in enumerate(chain([] if header else [first], rows), 1 + header):
        if at < len(row):
            yield row[at]
        elif any(row):
            raise BadInput(f"{path}: row {n} has {len(row)} columns only; mend it")
        elif tabs:  # an empty line has an empty answer
            yield ""


def _headed(path: Path) -> bool:
    table = preview.table_of(preview.text_of(preview.start_of(path)))
    return bool(table and table.header)


def _odd_byte(path: Path) -> int:
    """Where the first byte stands that is not UTF-8: a decoder that reads in blocks does not know."""
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0


def _object(path: Path, n: int, line: str, columns: Sequence[int | str]) -> str:
    try:
        given = json.loads(line)
        return str(given if isinstance(given, str) else next(given[c] for c in columns if c in given))
    except (ValueError, TypeError, StopIteration, RecursionError):
        raise BadInput(f"{path}:{n}: is no JSON object with a key {_or(columns)}") from None


def _or(columns: Sequence[int | str]) -> str:
    *others, last = dict.fromkeys(str(name) for name in columns if not isinstance(name, int))
    return f"{', '.join(others)} or {last}" if others else last
