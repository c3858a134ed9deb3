"""The inputs of a command: its arguments, the lines of stdin, or the rows of a file (--in FILE --out FILE)."""

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, tee
from pathlib import Path
from typing import Any, NamedTuple

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
from .outputs import DELIMITERS, ENDINGS, LINE, check_output, column_name, unused_name, write_answers

TEXT_COLUMNS = ("text", "prompt")
PAIR_COLUMNS = (("first", "second"), ("sentence1", "sentence2"), ("text1", "text2"), ("a", "b"), *TEXT_COLUMNS)
IMAGE_COLUMNS = ("image", "file", "path")
FILE_OPTIONS = ("in_", "out_", "column", "encoding", "force")
IMAGE_INDEX = re.compile(r"\[\d+\]$")  # of one image of an array
UNNAMED = re.compile(r"column_\d+")  # a column without a name in the header
INPUT = "input"  # the column of a file without columns: plain lines, or JSON strings
HEADED = (".csv", ROWS_SUFFIX)  # tables that have a header unless their first row is data
ColumnChoice = int | str | tuple[int | str, ...]  # a column by number or name; the columns of several texts
OUT_HELP = "Output file, .csv, .tsv or .jsonl: the columns of --in, then the answer and its line in --in."


def file_options(command: Command, out_help: str = OUT_HELP) -> Command:
    """The options of a command that can process a file."""
    force = click.option("--force", is_flag=True, help="Overwrite --out.")
    out = click.option("--out", "out_", metavar="FILE", help=out_help)
    column = click.option("--column", metavar="NAME", help="Input column of a table, by name or number (with --in).")
    encoding = click.option(
        "--encoding", metavar="NAME", help="Encoding of --in if it is not UTF-8.  [default: that of the data of RUN]"
    )
    source = click.option("--in", "in_", metavar="FILE", help="Input file: a table, JSON, or one input per line.")
    return source(column(encoding(out(force(command)))))


class InputRow(NamedTuple):
    """A row of --in: its first line in the file (None: a row of several lines), its columns, the input of the model."""

    line: int | None
    columns: dict[str, object]
    text: str


class Inputs:
    """Arguments, the lines of stdin (without an argument, or for -), or the rows of --in FILE."""

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
        force: bool = False,
        other_endings: Sequence[str] = (),
    ) -> None:
        """Validate the options of `file_options` before anything slow starts.

        `other_endings` of --out are accepted too, also without --in.
        """
        self.arguments, self.stdin = arguments, tuple(arguments) in ((), ("-",))
        self.in_, self.out, self.column, self.encoding = in_, Path(out_ or ""), column, encoding
        self.rows: Iterable[InputRow] = ()  # of the file
        self.names: list[str] = []  # of its columns
        self.values = Counter[str]()  # of the column `count_values`
        self.total = 0
        if self.in_ is None:
            if not arguments and not stdin_is_piped():
                raise click.UsageError(f"give {wanted} from stdin, one per line")
            reject_options("without --in", *(["column"] if other_endings and out_ else FILE_OPTIONS))
            if out_:
                check_output(self.out, other_endings, force=force)
            return
        if any(arguments):
            reject_options("with --in", "texts", "prompt", "images", "questions")
        if not Path(self.in_).is_file():
            raise BadInput(f"--in {self.in_}: no such file; check the name{similar_path(self.in_)}")
        if out_ is None:
            raise BadInput(f"--in {self.in_}: --out is missing; add --out answers.csv")
        check_output(self.out, (*ENDINGS, *other_endings), force=force, source=Path(self.in_))
        try:
            check_encoding(encoding)
        except ValueError as error:
            raise BadInput(f"--encoding: {error}") from None

    @classmethod
    def from_options(
        cls,
        arguments: Sequence[str],
        options: dict[str, object],
        wanted: str = "a text, or - to read texts",
        *,
        other_endings: Sequence[str] = (),
    ) -> "Inputs":
        """The inputs of a command with `file_options`, which are removed from its options."""
        files: dict[str, Any] = {name: options.pop(name) for name in FILE_OPTIONS}
        return cls(arguments, wanted, **files, other_endings=other_endings)

    def use_encoding(self, name: str | None) -> None:
        """Read the file with the encoding of the training data, unless --encoding names another."""
        self.encoding = self.encoding or name

    def batches(
        self,
        size: int,
        columns: Sequence[ColumnChoice] = TEXT_COLUMNS,
        *,
        keep_tabs: bool = False,
        count_values: str | None = None,
        convert: Callable[[Path, InputRow], InputRow] | None = None,
    ) -> Iterable[list[str]]:
        """The texts in batches of at most `size`. All arguments are one batch, and stdin is not delayed.

        The text of a table is in --column, else in the first of `columns` that exists; of several columns tabs join
        the texts. `keep_tabs`: a line with a tab is one text. `count_values`: the column whose values are counted.
        `convert` is applied to each row of a file.
        """
        if self.in_ is not None:
            columns = columns if self.column is None else (self.column,)
            path = Path(self.in_)
            if notice := text_file(path, self.encoding).notice:
                click.echo(f"harken: {notice}", err=True)

            def read() -> Iterator[InputRow]:
                is_chosen = self.column is not None
                rows = _read_rows(path, columns, self.encoding, keep_tabs=keep_tabs, is_chosen=is_chosen)
                return rows if convert is None else map(partial(convert, path), rows)

            self._scan(read(), count_values)
            self.rows, rows = tee(read())
            texts = (row.text for row in rows)
            return iter(lambda: list(islice(texts, size)), [])
        if self.stdin:
            return stdin_batches(size, required=not self.arguments)
        return [list(map(decode_argument, self.arguments))]

    def _scan(self, rows: Iterable[InputRow], count_values: str | None) -> None:
        """Read the file once: one with a bad row is refused before the first prediction."""
        names: dict[str, None] = {}
        for row in rows:
            self.total += 1
            names |= dict.fromkeys(row.columns)
            if count_values is not None and (value := str(row.columns.get(count_values, "")).strip()):
                self.values[value] += 1
        self.names = list(names)
        if not self.total:
            raise BadInput(f"--in {self.in_}: the file has no row to answer; add rows, or check the file")

    def set_rows(self, rows: Sequence[InputRow]) -> None:
        """Set the rows of a file that was read by other means."""
        self.rows, self.total, self.names = rows, len(rows), [*rows[0].columns] if rows else []

    def lines(self) -> Iterator[str]:
        """The texts one by one, as they arrive."""
        return chain.from_iterable(self.batches(1))

    @property
    def header(self) -> list[str]:
        """The columns that have a name in the file."""
        return [name for name in self.names if name != INPUT and not UNNAMED.fullmatch(name)]

    @property
    def writes_table(self) -> bool:
        """Whether --out is a table, which has a part of each answer."""
        return self.out.suffix.lower() in DELIMITERS

    def write(
        self, answers: Iterable[Mapping[str, object]], keys: Sequence[str], *, json_: bool, listen: Listener = silent
    ) -> None:
        """Write the rows of the file with their answers to --out, a table with these `keys`, then print the number."""

        unanswered = 0

        def answered_rows() -> Iterator[tuple[Mapping[str, object], Mapping[str, object]]]:
            nonlocal unanswered
            for done, (row, answer) in enumerate(zip(self.rows, answers, strict=True), 1):
                unanswered += "reason" in answer
                yield row.columns, answer if row.line is None else {**answer, LINE: row.line}
                listen("answer", done=done, total=self.total)

        present = write_answers(self.out, self.names, answered_rows(), keys)
        columns = {key: column_name(key, self.names) for key in (*keys, LINE) if key in present}
        renamed = {key: name for key, name in columns.items() if name != key}
        if json_:
            renamed_columns = {"columns": renamed} if renamed else {}
            counts = {"answers": self.total, "unanswered": unanswered}
            return print_json({**counts, "out": str(self.out), **renamed_columns})
        note = f" ({', '.join(renamed.values())}: the file has {', '.join(renamed)})" if renamed else ""
        answered = self.total - unanswered
        missing = f" and {unanswered} row{'s' * (unanswered != 1)} without one" if unanswered else ""
        click.echo(f"{answered} answer{'s' * (answered != 1)}{missing} in {self.out}{note}")


def refuse_file_names(arguments: Sequence[str], usage: str = "--in {} --out answers.csv") -> None:
    """Refuse texts that are all names of files or folders, and report those among other texts."""
    names = [name for name in arguments if (Path(name).suffix or os.sep in name) and os.path.exists(name)]
    if not names:
        return
    kind, example = ("a folder", "FILE") if Path(names[0]).is_dir() else ("a file", shlex.quote(names[0]))
    message = f"{names[0]} is {kind}; a text is expected, and the name is not the content; use {usage.format(example)}"
    if len(names) == len(arguments):
        raise BadInput(message)
    click.echo(f"harken: {message}", err=True)


def input_choices(place: int | str | list[int | str] | None) -> list[ColumnChoice]:
    """The columns that the run was trained on, if they are columns and not a file."""
    if isinstance(place, list):
        return [tuple(place)]
    return [place] if place is not None and not Path(str(place)).is_absolute() else []


def locate_image(path: Path, row: InputRow) -> InputRow:
    """The row of a file with the path of its image, which is relative to that file or to the current folder."""
    name = row.text.strip()
    for candidate in (path.parent / name, Path(name)) if name else ():
        if Path(IMAGE_INDEX.sub("", str(candidate))).is_file():
            return row._replace(text=str(candidate))
    if name:
        raise BadInput(f"{path}:{row.line}: no such image: {name}; its path is relative to {path.name}; fix the row")
    return row


def _read_rows(
    path: Path, columns: Sequence[ColumnChoice], encoding: str | None, *, keep_tabs: bool, is_chosen: bool
) -> Iterator[InputRow]:
    """The rows of a table, the objects or strings of a JSON file, or plain lines. `is_chosen`: by --column."""
    file = text_file(path, encoding)
    is_json = file.suffix in JSON_SUFFIXES or _starts_with_json(file.path, columns)
    if not is_json and (is_chosen or _is_table(path, file.suffix, columns, keep_tabs, encoding)):
        yield from _table_rows(path, columns, encoding)
        return
    with file.path.open(encoding="utf-8-sig", newline="\n") as lines:
        try:
            for n, line in enumerate(lines, 1):
                text = line.rstrip("\r\n")
                if not is_json:
                    yield InputRow(n, {INPUT: text}, text)
                elif text.strip():
                    yield _json_row(path, n, line, columns)
        except UnicodeDecodeError:
            try:
                preview.read_utf8(path)  # raises BadInput with the position, which a block-wise decoder does not report
            except BadInput as error:
                raise BadInput(str(error).replace("data.encoding=", "--encoding ")) from None


def _starts_with_json(path: Path, columns: Sequence[ColumnChoice]) -> bool:
    """Whether the first line is a JSON object with one of the columns, as in JSON lines named .txt."""
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        first = lines.readline(2**20)
    try:
        value = parse_json(path, first) if first.startswith("{") else None
    except BadInput:
        return False
    return isinstance(value, dict) and any({*choice} <= value.keys() for choice in map(_refs, columns))


def _is_table(path: Path, suffix: str, columns: Sequence[ColumnChoice], keep_tabs: bool, encoding: str | None) -> bool:
    """Whether a file is read as a table: by its suffix, or, for a .txt, by its header.

    A .txt with the same number of tabs in all lines is a table too if the run was trained on a column. With `keep_tabs`
    only a .csv file is a table, or one whose header has the columns.
    """
    if suffix in TABLE_SUFFIXES and (not keep_tabs or suffix in HEADED):
        return True
    names = [choice for choice in map(_refs, columns) if not any(isinstance(ref, int) for ref in choice)]
    try:
        head = table_head(path, [*chain.from_iterable(names)], encoding)
    except BadInput:  # not a single delimiter
        return False
    if any({*choice} <= {*head.cells} for choice in names):
        return suffix in TABLE_SUFFIXES or (head.is_regular and len(head.cells) > 1)
    return not keep_tabs and head.is_regular and head.delimiter == "\t" and tuple(columns) != TEXT_COLUMNS


def _table_rows(path: Path, columns: Sequence[ColumnChoice], encoding: str | None) -> Iterator[InputRow]:
    """The rows of a table, read as in training; a row that training would skip is an error.

    An empty line of a tab-separated table is a row of empty cells.
    """
    head = table_head(path, list(chain.from_iterable(map(_refs, columns))), encoding)
    indices, has_header = _choose_columns(path, head, columns)
    width, names = len(head.cells), _column_names(head.cells if has_header else [""] * len(head.cells))
    by_name = head.has_header  # so that the first row is skipped even if it was not detected as a header
    refs = [cell if by_name and cell and n in indices else n + 1 for n, cell in enumerate(head.cells)]
    empty: list[int] = []

    def stop(path: Path, line: int, reason: str) -> None:
        if reason != EMPTY_LINE:
            accepted = f"every row needs {width} columns, and {_delimiter_name(head)} inside a cell needs double quotes"
            if NOT_UTF8 in reason:
                accepted = "UTF-8 is accepted, or the encoding that --encoding names, as in --encoding cp1252"
            raise BadInput(f"{path}:{line}: {reason}; {accepted}; fix the row")
        empty.extend([line] * (head.delimiter == "\t"))

    def empty_rows() -> Iterator[InputRow]:
        yield from (InputRow(line, dict.fromkeys(names, ""), "") for line in empty)
        empty.clear()

    rows = iter_columns(path, [("--column", ref) for ref in refs], stop, encoding)
    if has_header and not head.has_header:  # not detected as a header
        next(rows, None)
    for line, cells in rows:
        yield from empty_rows()
        yield InputRow(line, dict(zip(names, cells, strict=True)), _join_texts([cells[n] for n in indices]))
    yield from empty_rows()


def _join_texts(texts: Sequence[str]) -> str:
    """One text, or several with tabs between them."""
    return texts[0] if len(texts) == 1 else "\t".join(text.replace("\t", " ") for text in texts)


def _column_names(header: Sequence[str]) -> list[str]:
    """A different name for each column: column_2 without a name, text_2 for a second column `text`."""
    names: list[str] = []
    for n, cell in enumerate(header, 1):
        names.append(unused_name(cell or f"column_{n}", names))
    return names


def _delimiter_name(head: TableHead) -> str:
    return {"\t": "a tab", ";": "a semicolon", "|": "a bar"}.get(head.delimiter, "a comma")


def _choose_columns(path: Path, head: TableHead, columns: Sequence[ColumnChoice]) -> tuple[list[int], bool]:
    """The indices of the text columns, and whether the first row is a header.

    A .csv file has a header unless its first row is data or the run was trained on a table without one.
    """
    first, is_chosen = head.cells, len(columns) == 1  # by --column
    is_numbered = any(isinstance(ref, int) and ref > 1 for choice in columns for ref in _refs(choice))
    header = head.has_header or (head.suffix in HEADED and head.can_be_header and not is_numbered)
    candidates = (_column_indices(_refs(choice), first, by_number=is_chosen or not header) for choice in columns)
    n_texts = max(map(len, map(_refs, columns)))
    default = [] if is_chosen or len(first) != n_texts else [*range(n_texts)]  # the table has only what is needed
    indices = next((chosen for chosen in candidates if chosen), default)
    if not indices:
        known = (
            f"the columns are {', '.join(first)}"
            if header
            else f"it has {len(first)} column{'s' * (len(first) != 1)} and no header"
        )
        if len(wanted := _refs(columns[0])) > 2:
            missing = next(ref for ref in wanted if not _column_indices((ref,), first, by_number=not header))
            raise BadInput(f"{path}: no column {missing!r}, which this run reads; {known}; rename a column, or add it")
        rename = "rename a column to" if header else "add a header that names one"
        hint = "" if is_chosen else f", or {rename} {_join_or(columns)}"
        raise BadInput(f"{path}: {known}; choose one with --column{hint}")
    return indices, header


def _refs(choice: ColumnChoice) -> tuple[int | str, ...]:
    return choice if isinstance(choice, tuple) else (choice,)


def _column_indices(refs: Sequence[int | str], cells: Sequence[str], *, by_number: bool) -> list[int]:
    """The index of each column; none if one is missing."""
    numbers = {str(n): n - 1 for n in range(1, len(cells) + 1)} if by_number else {}
    indices = [cells.index(str(ref)) if ref in cells else numbers.get(str(ref)) for ref in refs]
    present = [index for index in indices if index is not None]
    return present if len(present) == len(refs) else []


def _json_row(path: Path, n: int, line: str, columns: Sequence[ColumnChoice]) -> InputRow:
    try:
        value: Any = parse_json(path, line, numbers_as_text=False)
        if isinstance(value, str):
            return InputRow(n, {INPUT: value}, value)
        refs = next(refs for refs in map(_refs, columns) if all(ref in value for ref in refs))
        texts = ["" if value[ref] is None else str(value[ref]) for ref in refs]
        return InputRow(n, dict(value), _join_texts(texts))
    except (BadInput, TypeError, ValueError, StopIteration):
        raise BadInput(f"{path}:{n}: expected a JSON string, or an object with a key {_join_or(columns)}") from None


def _join_or(columns: Sequence[ColumnChoice]) -> str:
    named = [refs for refs in map(_refs, columns) if not any(isinstance(ref, int) for ref in refs)]
    *first, last = dict.fromkeys(" and ".join(map(str, refs)) for refs in named)
    return f"{', '.join(first)} or {last}" if first else last
