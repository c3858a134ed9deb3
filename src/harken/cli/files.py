"""--in FILE --out FILE: many texts out of a file, one answer each into another."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import tee
from pathlib import Path
from typing import Any

import click

from harken.data.peek import not_utf8
from harken.errors import BadInput, near_name
from harken.events import Listener, silent

from . import refuse

COLUMNS = ("text", "prompt")


def through_files(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The two options of a verb that can work through a file."""
    out = click.option(
        "--out", "out_", metavar="FILE", help="Where the answers go, one JSON object a line (with --in)."
    )
    source = click.option("--in", "in_", metavar="FILE", help="Texts from a file: CSV, JSONL, or one a line.")
    return source(out(verb))


def check_files(in_: str | None, out_: str | None) -> None:
    """Refuse what cannot be worked through, before anything slow begins."""
    if in_ is None:
        refuse("without --in", "out_")
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
    columns: Sequence[str] = COLUMNS,
    listen: Listener = silent,
) -> int:
    """Answer every text of a file, in order; each answer is written as soon as it is there. How many there were.

    A text stands in the first of these columns that is there.
    """
    total = sum(1 for _ in _texts(Path(in_), columns))  # a file with a bad line is refused before the first answer
    texts, asked = tee(_texts(Path(in_), columns))
    with Path(out_).open("w", encoding="utf-8") as file:
        for done, (text, answer) in enumerate(zip(texts, answers(asked), strict=True), 1):
            file.write(json.dumps({"input": text, **answer}, ensure_ascii=False) + "\n")
            listen("answer", done=done, total=total)
    return total


def _texts(path: Path, columns: Sequence[str]) -> Iterator[str]:
    """The texts: a column of a CSV (its only one has any name), a key of JSONL objects, or plain lines."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            if path.suffix == ".csv":
                table = csv.DictReader(file)
                there = table.fieldnames or [""]
                own = next((c for c in columns if c in there), there[0] if len(there) == 1 else None)
                if own is None:
                    raise BadInput(f"{path}: its columns are {', '.join(there)}; give one the name {_or(columns)}")
                yield from (str(row[own]) for row in table)
            else:
                for n, line in enumerate(file, 1):
                    yield _object(path, n, line, columns) if path.suffix == ".jsonl" else line.rstrip("\r\n")
        except UnicodeDecodeError:
            raise not_utf8(path, _odd_byte(path)) from None


def _odd_byte(path: Path) -> int:
    """Where the first byte stands that is not UTF-8: a decoder that reads in blocks does not know."""
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0


def _object(path: Path, n: int, line: str, columns: Sequence[str]) -> str:
    try:
        given = json.loads(line)
        return str(given if isinstance(given, str) else next(given[c] for c in columns if c in given))
    except (ValueError, TypeError, StopIteration, RecursionError):
        raise BadInput(f"{path}:{n}: is no JSON object with a key {_or(columns)}") from None


def _or(names: Sequence[str]) -> str:
    *others, last = dict.fromkeys(names)
    return f"{', '.join(others)} or {last}"
