"""The output file of a command: the user's columns, the answer, and the line of each row of --in."""

import json
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from harken.errors import BadInput
from harken.events import to_json_value
from harken.files import atomic_file, remove_leftovers

DELIMITERS = {".csv": ",", ".tsv": "\t"}
ENDINGS = (*DELIMITERS, ".jsonl")
LINE = "line"  # the line of --in where a row starts; the first line of the file is 1
# only if a row has them: why there is no answer; words not in the vocabulary, or in no training question
NOTES = ("reason", "unknown_words", "unasked_words")
Columns = Mapping[str, object]
TEXT: Any = {"encoding": "utf-8", "errors": "replace", "newline": ""}  # how text files are opened


def check_output(path: Path, endings: Sequence[str], *, force: bool, source: Path | None = None) -> None:
    """Refuse an output file that cannot be written, or that would overwrite another one."""
    if path.suffix.lower() not in endings:
        accepted = f"{', '.join(endings[:-1])} and {endings[-1]}" if endings[1:] else endings[0]
        ending = f"the ending {path.suffix!r}" if path.suffix else "no ending"
        raise BadInput(f"--out {path}: {ending}; accepted: {accepted}; change the name")
    if not path.parent.is_dir():
        raise BadInput(f"--out {path}: no such folder; create it, or choose another name")
    if path.is_dir():
        raise BadInput(f"--out {path}: is a folder; choose another name")
    if source and path.exists() and path.samefile(source):
        raise BadInput(f"--out {path}: is the input file; choose another name")
    if path.exists() and not force:
        raise BadInput(f"--out {path}: the file exists; overwrite it with --force, or choose another name")


def column_name(key: str, names: Collection[str]) -> str:
    """The column of a part of an answer; one that the user has already gets the prefix predicted_ (line: file_)."""
    return key if key not in names else unused_name(f"{'file' if key == LINE else 'predicted'}_{key}", names)


def unused_name(name: str, taken: Collection[str]) -> str:
    """The name, with a number if it is taken."""
    numbered = (f"{name}_{n}" for n in count(2))
    return next(each for each in chain([name], numbered) if each not in taken)


def write_answers(
    path: Path, names: Sequence[str], rows: Iterable[tuple[Columns, Columns]], keys: Iterable[str]
) -> set[str]:
    """Write the user's columns `names` and the answer of each row as soon as it is computed; returns the keys.

    JSON lines have all keys of an answer, a table those in `keys`. The file appears under its name when it is complete.
    """
    delimiter, present = DELIMITERS.get(path.suffix.lower()), set[str]()

    def lines() -> Iterator[str]:
        for own, answer in rows:
            present.update(answer)
            yield json_line({**own, **{column_name(key, names): value for key, value in answer.items()}})

    remove_leftovers(path)
    with atomic_file(path) as temporary, temporary.open("w", **TEXT) as file:
        if delimiter is None:
            file.writelines(lines())
            return present
        with tempfile.TemporaryFile("w+", **TEXT) as body:  # until all columns are known
            body.writelines(lines())
            body.seek(0)
            columns = [*names, *(column_name(key, names) for key in (*keys, *NOTES, LINE) if key in present)]
            cells = (map(json.loads(line).get, columns) for line in body)
            file.writelines(table_line(row, delimiter) for row in chain([columns], cells))
    return present


def json_line(values: Columns) -> str:
    """An object as one line of JSON; non-finite numbers are null."""
    return json.dumps(to_json_value(dict(values)), ensure_ascii=False) + "\n"


def table_line(cells: Iterable[object], delimiter: str) -> str:
    """A row of a table, quoted where necessary. A missing value is empty; a list or an object is JSON."""
    texts = (
        "" if cell is None else cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
        for cell in cells
    )
    special = re.compile(f'[{delimiter}"\r\n]')
    return (
        delimiter.join('"' + text.replace('"', '""') + '"' if special.search(text) else text for text in texts) + "\n"
    )
