"""The inputs of a command: its arguments, the lines of stdin, or the texts of a file (--in FILE --out FILE)."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, tee
from pathlib import Path
from typing import Any

import click

from harken.console import decode_argument, stdin_batches, stdin_is_piped
from harken.data.detect import preview
from harken.data.tables.columns import TableHead, iter_columns, table_head
from harken.data.tables.read import EMPTY_LINE, NOT_UTF8, parse_json
from harken.data.tables.text_file import JSON_SUFFIXES, ROWS_SUFFIX, TABLE_SUFFIXES, check_encoding, text_file
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.suggestions import similar_path

from . import Command, print_json, reject_options

TEXT_COLUMNS = ("text", "prompt")
FILE_OPTIONS = ("in_", "out_", "column", "encoding")


def file_options(command: Command) -> Command:
    """The options of a command that can process a file."""
    out = click.option("--out", "out_", metavar="FILE", help="Output file, one JSON object per line (with --in).")
    column = click.option("--column", metavar="NAME", help="Text column of a table, by name or number (with --in).")
    encoding = click.option("--encoding", metavar="NAME", help="Encoding of --in if it is not UTF-8, such as cp1252.")
    source = click.option("--in", "in_", metavar="FILE", help="Input file: a table, JSON, or one text per line.")
    return source(column(encoding(out(command))))


class Inputs:
    """Arguments, the lines of stdin (without an argument, or for -), or the texts of --in FILE."""

    def __init__(
        self,
        arguments: Sequence[str],
        wanted: str = "a text, or - to read texts",
        /,
        *,
        in_: str | None = None,
        out_: str | None = None,
        column: str | None = None,
        encoding: str | None = None,
    ) -> None:
        """Validate the options of `file_options` before anything slow starts."""
        self.arguments, self.stdin = arguments, tuple(arguments) in ((), ("-",))
        self.in_, self.out, self.column, self.encoding = in_, out_, column, encoding
        self.texts: Iterable[str] = ()  # of the file
        self.total = 0
        if self.in_ is None:
            if not arguments and not stdin_is_piped():
                raise click.UsageError(f"give {wanted} from stdin, one per line")
            reject_options("without --in", *FILE_OPTIONS)
            return
        if any(arguments):
            reject_options("with --in", "texts", "prompt")
        if not Path(self.in_).is_file():
            raise BadInput(f"--in {self.in_}: no such file; check the name{similar_path(self.in_)}")
        if self.out is None:
            raise BadInput(f"--in {self.in_}: --out is missing; add --out answers.jsonl")
        if Path(self.out).exists():
            raise BadInput(f"--out {self.out}: the file exists; choose another name")
        if not Path(self.out).parent.is_dir():
            raise BadInput(f"--out {self.out}: no such folder; create it, or choose another name")
        try:
            check_encoding(encoding)
        except ValueError as error:
            raise BadInput(f"--encoding: {error}") from None

    def batches(
        self, size: int, columns: Sequence[int | str] = TEXT_COLUMNS, *, keep_tabs: bool = False
    ) -> Iterable[list[str]]:
        """The texts in batches of at most `size`. All arguments are one batch, and stdin is not delayed.

        The text of a table is in --column, else in the first of `columns` that exists. `keep_tabs`: a line with a tab
        is one text.
        """
        if self.in_ is not None:
            columns = columns if self.column is None else (self.column,)
            read = partial(_read_texts, Path(self.in_), columns, keep_tabs, self.encoding)
            if notice := text_file(Path(self.in_), self.encoding).notice:
                click.echo(f"harken: {notice}", err=True)
            self.total = sum(1 for _ in read())  # a file with a bad line is refused before the first prediction
            self.texts, texts = tee(read())
            return iter(lambda: list(islice(texts, size)), [])
        if self.stdin:
            return stdin_batches(size, required=not self.arguments)
        return [list(map(decode_argument, self.arguments))]

    def lines(self) -> Iterator[str]:
        """The texts one by one, as they arrive."""
        return chain.from_iterable(self.batches(1))

    def write(self, answers: Iterable[Mapping[str, object]], *, json_: bool, listen: Listener = silent) -> None:
        """Write each text of the file with its answer to --out as soon as it is computed, then print the number."""
        with Path(self.out or "").open("x", encoding="utf-8") as file:
            for done, (text, answer) in enumerate(zip(self.texts, answers, strict=True), 1):
                file.write(json.dumps({"input": text, **answer}, ensure_ascii=False) + "\n")
                listen("answer", done=done, total=self.total)
        message = f"{self.total} answers in {self.out}"
        print_json({"answers": self.total, "out": self.out}) if json_ else click.echo(message)


def training_column(place: object) -> list[int | str]:
    """The text column that the run was trained on, if it is a column and not a file."""
    return [place] if isinstance(place, int | str) and not Path(str(place)).is_absolute() else []


def _read_texts(path: Path, columns: Sequence[int | str], keep_tabs: bool, encoding: str | None) -> Iterator[str]:
    """The texts: a column of a table (a single column may have any name), a key of JSONL objects, or plain lines."""
    file = text_file(path, encoding)
    ending = file.suffix
    if ending in TABLE_SUFFIXES and (ending in (".csv", ROWS_SUFFIX) or not keep_tabs):
        yield from _read_column(path, columns, encoding)
        return
    with file.path.open(encoding="utf-8-sig", newline="\n") as lines:
        try:
            for n, line in enumerate(lines, 1):
                if ending not in JSON_SUFFIXES:
                    yield line.rstrip("\r\n")
                elif line.strip():
                    yield _json_text(path, n, line, columns)
        except UnicodeDecodeError:
            try:
                preview.read_utf8(path)  # raises BadInput with the position, which a block-wise decoder does not report
            except BadInput as error:
                raise BadInput(str(error).replace("data.encoding=", "--encoding ")) from None


def _read_column(path: Path, columns: Sequence[int | str], encoding: str | None) -> Iterator[str]:
    """One column of a table, read as in training; a row that training would skip is an error.

    An empty line of a tab-separated table is an empty text.
    """
    head = table_head(path, columns, encoding)
    index, has_header = _choose_column(path, head, columns)
    width = len(head.cells)
    column = head.cells[index] if head.has_header and head.cells[index] else index + 1
    wanted = [("--column", column), *([("--column", width)] if index + 1 < width else [])]  # the last: complete rows
    empty: list[str] = []

    def stop(path: Path, line: int, reason: str) -> None:
        if reason != EMPTY_LINE:
            accepted = f"every row needs {width} columns, and {_delimiter_name(head)} inside a cell needs double quotes"
            if NOT_UTF8 in reason:
                accepted = "UTF-8 is accepted, or the encoding that --encoding names, as in --encoding cp1252"
            raise BadInput(f"{path}:{line}: {reason}; {accepted}; fix the row")
        empty.extend([""] * (head.delimiter == "\t"))

    rows = iter_columns(path, wanted, stop, encoding)
    if has_header and not head.has_header:  # not detected as a header
        next(rows, None)
    for _, cells in rows:
        yield from empty
        empty.clear()
        yield cells[0]
    yield from empty


def _delimiter_name(head: TableHead) -> str:
    return {"\t": "a tab", ";": "a semicolon", "|": "a bar"}.get(head.delimiter, "a comma")


def _choose_column(path: Path, head: TableHead, columns: Sequence[int | str]) -> tuple[int, bool]:
    """The index of the text column, and whether the first row is a header.

    A .csv file has a header unless its first row is data or the run was trained on a table without one.
    """
    first, is_chosen = head.cells, len(columns) == 1  # by --column
    named = [first.index(str(name)) for name in columns if name in first]
    is_numbered = any(isinstance(place, int) and place > 1 for place in columns)
    header = head.has_header or (head.suffix in (".csv", ROWS_SUFFIX) and head.can_be_header and not is_numbered)
    numbers = [int(place) - 1 for place in columns if str(place).isdecimal() and (is_chosen or not header)]
    index = next(iter([*named, *numbers, *([] if is_chosen or first[1:] else [0])]), -1)
    if not 0 <= index < len(first):
        known = f"the columns are {', '.join(first)}" if header else f"it has {len(first)} columns and no header"
        rename = "name one" if header else "add a header that names one"
        hint = "" if is_chosen else f", or {rename} {_join_or(columns)}"
        raise BadInput(f"{path}: {known}; choose one with --column{hint}")
    return index, header


def _json_text(path: Path, n: int, line: str, columns: Sequence[int | str]) -> str:
    try:
        value: Any = parse_json(path, line, numbers_as_text=False)
        return str(value if isinstance(value, str) else next(value[c] for c in columns if c in value))
    except (BadInput, TypeError, StopIteration):
        raise BadInput(f"{path}:{n}: expected a JSON string, or an object with a key {_join_or(columns)}") from None


def _join_or(columns: Sequence[int | str]) -> str:
    *first, last = dict.fromkeys(str(name) for name in columns if not isinstance(name, int))
    return f"{', '.join(first)} or {last}" if first else last
