"""The columns of a table or of JSON lines, row by row. A row that does not fit is left out and told by its place."""

import csv
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from harken.data.detect import preview
from harken.errors import BadInput, did_you_mean

SHOWN = 5  # rows that were left out, told one by one
SPAN = 50  # lines that a cell in quotes may hold; a quote that is closed later was never opened
T = TypeVar("T")
Place = int | str | None  # a column by its number, counted from 1, or by its name
Bad = Callable[[Path, int, str], None]  # hears of a row that is left out
Asked = Sequence[tuple[str, Place]]  # the columns that are wanted, each with the setting that names it


@dataclass
class Flaws:
    """The lines left out because they are `what`: how many for each reason, and where the first ones stand."""

    what: str = "no pair"
    reasons: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)

    def __call__(self, path: Path, line: int, reason: str) -> None:
        if len(self.first) < SHOWN:
            self.first.append(f"{path}:{line}: {reason}")
        self.reasons[reason] += 1

    def add(self, other: "Flaws") -> None:
        self.reasons += other.reasons
        self.first = (self.first + other.first)[:SHOWN]

    @property
    def count(self) -> int:
        return self.reasons.total()

    def __str__(self) -> str:
        more = ", ..." * (self.count > len(self.first))
        return f"lines left out because they are {self.what}: {self.count:,} ({', '.join(self.first)}{more})"

    def facts(self) -> dict[str, Any]:
        return {"count": self.count, "reasons": dict(self.reasons), "first": self.first}


def lines_of(path: Path, bad: Bad) -> Iterator[tuple[int, str | None]]:
    """Each line with its number; None for one that is not UTF-8, which has been told."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                bad(path, number, f"byte 0x{raw[error.start]:02x} is not UTF-8")
                yield number, None


def rows_of(path: Path, asked: Asked, bad: Bad) -> Iterator[tuple[int, list[str]]]:
    """What stands in these columns, row by row, with the number of its line."""
    start = preview.start_of(path)
    preview.refuse_binary(start)
    head = start.head.decode("utf-8", "replace")  # a byte that is not UTF-8 spoils its line alone
    if path.suffix.lower() in (".json", ".jsonl", ".ndjson") or head.lstrip("\ufeff \n").startswith("{"):
        return _objects(path, asked, bad)
    return _table(path, asked, preview.text_of(replace(start, head=head.encode(), samples=())), bad)


def _objects(path: Path, asked: Asked, bad: Bad) -> Iterator[tuple[int, list[str]]]:
    """JSON lines. What is nested, as {"translation": {"en": ..., "de": ...}}, counts as if it were not."""
    keys = [place for _, place in asked]
    _refuse_twice(path, asked, keys)
    for number, line in lines_of(path, bad):
        if line is None:
            continue
        try:
            found = preview.parsed(path, line)
        except BadInput:
            found = None
        if not isinstance(found, dict):
            bad(path, number, "not a JSON object")
            continue
        inner = [item for value in found.values() if isinstance(value, dict) for item in value.items()]
        texts = {key: text for key, value in [*inner, *found.items()] if (text := _text(value)) is not None}
        if None in keys:
            keys = _filled(keys, texts)
        if missing := [key for key in keys if key not in texts]:
            bad(path, number, f"no text under {missing[0]!r}" if missing[0] else "fewer than two texts")
        else:
            # JSON has half characters
            yield number, [texts[str(key)].encode("utf-8", "replace").decode() for key in keys]


def _filled(places: Sequence[T | None], there: Iterable[T]) -> list[Any]:
    """A place that is not given is the first that is free; None, where there is no more."""
    free = (place for place in there if place not in places)
    return [next(free, None) if place is None else place for place in places]


def _refuse_twice(path: Path, asked: Asked, columns: Sequence[Place]) -> None:
    for place, column in zip(asked, columns, strict=True):
        if column is not None and columns.count(column) > 1:
            names = " and ".join(dict.fromkeys(name for name, _ in asked))
            raise BadInput(f"{path}: column {place[1]!r} is asked for twice; set {names} to different columns")


def _text(value: Any) -> str | None:
    """What a value says: a text, a number as it is written, yes or no, or a list of them, a line each."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return "\n".join(value)
    return str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else None


def _table(path: Path, asked: Asked, text: preview.Text, bad: Bad) -> Iterator[tuple[int, list[str]]]:
    """Rows of cells, with a header or without; other columns, such as an attribution, are not read."""
    table, names = preview.table_of(text), " and ".join(name for name, _ in asked)
    if not table or not table.rows:
        accepted = "a table with two columns, two aligned files, JSON lines or trees are accepted"
        raise BadInput(f"{path}: no columns in it; {accepted}; check {names}")
    first = table.header or table.rows[0]
    named = bool(table.header) or any(place in first for _, place in asked)
    given = [None if place is None else _column(path, first if named else [], place, name) for name, place in asked]
    own = [n for n, column in enumerate(given) if column is None]  # the first column for the first, if it is free
    columns = _filled(given, [*own, *range(len(asked))])
    _refuse_twice(path, asked, columns)
    opened = [cell for line in text.lines for cell in line.split(table.delimiter) if cell.startswith('"')]
    # in tables split at tabs a quote is most often a quote: Excel's rule holds if it holds everywhere
    quoted = table.quoted and (table.delimiter != "\t" or all(cell.endswith('"') and len(cell) > 1 for cell in opened))
    for number, row in _cells(path, table.delimiter, quoted, bad):
        if named and number == 1:
            continue
        if len(row) <= max(columns):
            many = f"{len(row)} column{'s' * (len(row) > 1)} only" if any(row) else "an empty line"
            bad(path, number, many)
        elif any(row[len(first) :]):  # a delimiter inside a sentence: which cells belong together is not known
            bad(path, number, f"{len(row)} columns instead of {len(first)}")
        else:
            yield number, [row[column] for column in columns]


def _cells(path: Path, delimiter: str, quoted: bool, bad: Bad) -> Iterator[tuple[int, list[str]]]:
    """The rows, each with its first line. One that does not end is told, and the reading goes on with the next line."""
    lines = ((number, line) for number, line in lines_of(path, bad) if line is not None)
    if not quoted:
        yield from ((number, line.split(delimiter)) for number, line in lines)
        return
    ahead = deque(islice(lines, 1 if delimiter == "\t" else SPAN))
    while ahead:
        (number, line), used, why = ahead[0], 1, ""
        try:
            row = next(csv.reader([line + "\n"], delimiter=delimiter))
            if row and row[-1].endswith("\n"):  # the line ends inside quotes
                why = "a quote is not closed"
                rows = csv.reader((line + "\n" for _, line in ahead), delimiter=delimiter, strict=True)
                row, used = next(rows), rows.line_num
            yield number, row
        except csv.Error as error:
            bad(path, number, why or str(error))
        for _ in range(used):
            ahead.popleft()
        ahead.extend(islice(lines, used))


def _column(path: Path, header: list[str], place: int | str, name: str) -> int:
    """The index of a column that is told by its name or by its number."""
    if place in header:
        return header.index(str(place))
    if str(place).isdecimal() and int(place) > 0:
        return int(place) - 1
    known = ", ".join(header) or "1, 2, ... (it has no header)"
    way = f"set {name} to one of them when you train, or "
    way += "rename a column" if header else f"give it a header with {place!r}"
    near = did_you_mean(str(place), header)
    raise BadInput(f"{path}: there is no column {place!r}; its columns are {known}; {way}{near and '.' + near}")
