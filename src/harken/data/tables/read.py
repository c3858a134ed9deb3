"""The one parser of delimited rows, JSON values and lines, used by every kind of data and by `--in`."""

import csv
import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from harken.errors import BadInput
from harken.events import Listener

MAX_SHOWN = 5  # skipped rows listed in a message
MAX_CELL = 1 << 30  # characters of a cell; the csv module's own limit is 131,072
MAX_QUOTED_LINES = 50  # lines of a quoted cell; a quote that closes later is not an opening quote
OPEN_QUOTE, EMPTY_LINE, NOT_UTF8 = "a quote is not closed", "an empty line", "is not UTF-8"  # reasons for a skipped row
LIST_SEPARATOR = "\x1e"  # between the texts of a list that is one cell (the record separator of ASCII)
Quoting = Literal["excel", "strict", "literal", "none"]
NumberedRows = Iterator[tuple[int, list[str]]]  # rows of cells, each with a line number
OnSkip = Callable[[Path, int, str], None]  # called for each skipped row with path, line and reason


@dataclass
class SkippedRows:
    """Rows skipped because they are `what`: the count of each reason and the first places."""

    what: str = "no pair"
    reasons: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)

    def __call__(self, path: Path, line: int, reason: str) -> None:
        if len(self.first) < MAX_SHOWN:
            self.first.append(f"{path}:{line}: {reason}")
        self.reasons[reason] += 1

    def add(self, skipped: "SkippedRows") -> None:
        self.reasons += skipped.reasons
        self.first = (self.first + skipped.first)[:MAX_SHOWN]

    @property
    def count(self) -> int:
        return self.reasons.total()

    def __str__(self) -> str:
        more = ", ..." * (self.count > len(self.first))
        return f"skipped {self.count:,} row{'s' * (self.count != 1)} ({self.what}): {', '.join(self.first)}{more}"

    def report(self, listen: Listener) -> None:
        """A notice, if rows were skipped."""
        if self.count:
            listen("notice", text=str(self), skipped=self.count)

    def facts(self) -> dict[str, object]:
        return {"count": self.count, "reasons": dict(self.reasons), "first": self.first}


def list_cell(texts: Iterable[str]) -> str:
    """The cell with the texts of a list; LIST_SEPARATOR is between two of them, and never inside one."""
    return LIST_SEPARATOR.join(text.replace(LIST_SEPARATOR, " ") for text in texts)


def check_skipped(skipped: SkippedRows, path: Path, n_rows: int, settings: str, listen: Listener) -> None:
    """Report the skipped rows; raises if a file has no rows, or fewer than were skipped."""
    if not skipped.count + n_rows:
        raise BadInput(f"{path}: has no rows of data; add rows, or check the file")
    if skipped.count > n_rows:
        problem = f"{skipped.count:,} of its {skipped.count + n_rows:,} rows are skipped: {skipped.what}"
        fix = "set data.encoding=cp1252" if NOT_UTF8 in skipped.first[0] else f"check {settings}"
        raise BadInput(f"{path}: {problem} ({skipped.first[0]}); {fix}, or fix the file")
    skipped.report(listen)


def input_error(place: str | Path, problem: str, accepted: str, fix: str) -> BadInput:
    """The error for a file in one line; control characters and undecodable bytes are escaped."""
    line = f"{place}: {problem}; {accepted}; {fix}"
    return BadInput("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line))


def parse_rows(lines: Iterable[str], delimiter: str = ",", quoting: Quoting = "excel") -> NumberedRows:
    """Rows of cells with the number of their last line.

    excel: a cell in double quotes may contain delimiters and newlines. strict: the same, and csv.Error for an unclosed
    quote. literal: the csv module without quotes. none: str.split, one row per line.
    """
    if quoting == "none":
        yield from ((number, line.split(delimiter)) for number, line in enumerate(lines, 1))
        return
    style: Any = csv.QUOTE_NONE if quoting == "literal" else csv.QUOTE_MINIMAL
    reader = csv.reader(lines, delimiter=delimiter, quoting=style, strict=quoting == "strict")
    while True:
        limit = csv.field_size_limit(MAX_CELL)  # a setting of the process: restored before anything else runs
        try:
            cells = next(reader)
        except StopIteration:
            return
        finally:
            csv.field_size_limit(limit)
        yield reader.line_num, cells


def parse_quoted(
    lines: Iterator[tuple[int, str]],
    delimiter: str,
    on_bad: Callable[[int, str], None],
    *,
    strict: bool = False,
    complete: bool = True,
    max_lines: int = MAX_QUOTED_LINES,
) -> NumberedRows:
    """Rows with quoted cells and their first line. A row with an unclosed quote is reported; the next line is read on.

    strict: text after a closing quote is reported too. complete: False if the end of the lines is not the end of the
    file, so that the last quote may close later.
    """
    ahead = deque(islice(lines, max_lines))
    while ahead:
        (number, line), used, reason = ahead[0], 1, ""
        try:
            row = line.split(delimiter)
            if '"' in line:
                _, row = next(parse_rows([line + "\n"], delimiter))
                is_open = bool(row) and row[-1].endswith("\n")  # the line ends inside quotes
                reason = OPEN_QUOTE if is_open else ""
                if is_open or strict:
                    used, row = next(parse_rows((text + "\n" for _, text in ahead), delimiter, "strict"))
            yield number, row
        except csv.Error as error:
            if not complete and len(ahead) < max_lines and "end of data" in str(error):
                return
            on_bad(number, reason or str(error))
        for _ in range(used):
            ahead.popleft()
        ahead.extend(islice(lines, used))


def parse_json(place: str | Path, text: str, *, numbers_as_text: bool = True) -> object:
    """A JSON value; numbers stay as written by default, so none is too large."""
    convert: dict[str, Any] = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), str)
    try:
        return json.loads(text, **(convert if numbers_as_text else {}))
    except RecursionError:
        raise input_error(place, "JSON nested too deeply", "a flat object is accepted", "flatten it") from None
    except ValueError as error:
        reason = re.sub(r" \(char \d+\)$", "", str(error))
        raise input_error(place, f"invalid JSON ({reason})", "JSON of at most 1 MiB per line", "fix it") from None
