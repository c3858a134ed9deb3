"""Reading pairs, line by line: tables, two aligned files, JSON lines, trees. Which files they are, split by split.

A line that is no pair is left out, counted, and told by its place and the reason.
"""

import csv
import unicodedata
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from harken.data import peek
from harken.data.sniff import sniff
from harken.data.text import NAMED, is_named
from harken.data.trees import linear, numbered, words
from harken.errors import BadInput, near_name

SHOWN = 5  # lines that are no pair, told one by one
SPAN = 50  # lines that a cell in quotes may hold; a quote that is closed later was never opened
GROUPS = 100  # values of a column that groups: of more, each has too few pairs
Place = int | str | None  # a column by its number, counted from 1, or by its name
Bad = Callable[[Path, int, str], None]  # hears of a line that is no pair
Row = tuple[int, str, str]  # line, source, target


def clean(text: str) -> str:
    """A sentence as it is compared: one line, characters composed, no white space around it."""
    return unicodedata.normalize("NFC", text.replace("\n", " ").strip())


@dataclass
class Flaws:
    """The lines that are no pair: how many for each reason, and where the first ones stand."""

    reasons: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)

    def __call__(self, path: Path, line: int, reason: str) -> None:
        if len(self.first) < SHOWN:
            self.first.append(f"{path}:{line}: {reason}")
        self.reasons[reason] += 1

    @property
    def count(self) -> int:
        return self.reasons.total()

    def __str__(self) -> str:
        more = ", ..." * (self.count > len(self.first))
        return f"lines left out because they are no pair: {self.count:,} ({', '.join(self.first)}{more})"

    def facts(self) -> dict[str, Any]:
        return {"count": self.count, "reasons": dict(self.reasons), "first": self.first}


@dataclass(frozen=True)
class PairFile:
    """A file of pairs, or (with `other`) a file of sources and one of targets, line by line."""

    path: Path
    source: Place = None
    target: Place = None
    other: Path | None = None

    def pairs(self, flaws: Flaws | None = None) -> Iterator[tuple[str, str]]:
        """The cleaned pairs. Flaws are told of; a file that has more of them than pairs is refused."""
        heard, good = Flaws(), 0
        try:
            for line, *sides in self._rows(heard):
                source, target = map(clean, sides)
                if source and target:
                    good += 1
                    yield source, target
                else:
                    heard(self.path, line, "the source is empty" if target else "the target is empty")
        except OSError as error:
            raise BadInput(f"{error.filename}: cannot be read ({error.strerror}); a readable file is needed") from None
        if heard.count > good:
            said = f"{heard.count} of its {heard.count + good} lines are no pair ({heard.first[0]})"
            raise BadInput(f"{self.path}: {said}; check data.source and data.target, or mend the file")
        if not good:
            raise BadInput(f"{self.path}: no pair in it; lines with two sides are needed; check how it was written")
        if flaws is not None:
            flaws.reasons += heard.reasons
            flaws.first = (flaws.first + heard.first)[:SHOWN]

    def paths(self) -> list[Path]:
        return [self.path, self.other] if self.other else [self.path]

    def _rows(self, bad: Bad) -> Iterator[Row]:
        if self.other:
            return _aligned(self.path, self.other, bad)
        start = peek.start_of(self.path)
        peek.refuse_binary(start)
        head = start.head.decode("utf-8", "replace")  # a byte that is not UTF-8 spoils its line alone
        guess = None
        with suppress(BadInput):
            guess = sniff(self.path)
        if self.path.suffix.lower() == ".mrg" or (guess and guess.kind == "trees"):
            return _trees(self.path, bad)
        found = guess.settings if guess and guess.kind == "pairs" else {}
        source, target = (getattr(self, side) or found.get(f"data.{side}") for side in ("source", "target"))
        asked = replace(self, source=source, target=target)
        if self.path.suffix.lower() in (".json", ".jsonl", ".ndjson") or head.lstrip("\ufeff \n").startswith("{"):
            return _objects(asked, bad)
        return _table(asked, peek.text_of(replace(start, head=head.encode(), samples=())), bad)


def _lines(path: Path, bad: Bad) -> Iterator[tuple[int, str | None]]:
    """Each line with its number; None for one that is not UTF-8, which has been told."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                bad(path, number, f"byte 0x{raw[error.start]:02x} is not UTF-8")
                yield number, None


def _aligned(source: Path, target: Path, bad: Bad) -> Iterator[Row]:
    ended, count = (0, None), [0, 0]
    for a, b in zip_longest(_lines(source, bad), _lines(target, bad), fillvalue=ended):
        count = [max(n, line[0]) for n, line in zip(count, (a, b), strict=True)]
        if a[1] is not None and b[1] is not None and count[0] == count[1]:
            yield a[0], a[1], b[1]
    if count[0] != count[1]:
        raise BadInput(
            f"{source} has {count[0]} lines and {target} has {count[1]}; line by line they must be pairs; "
            "mend the shorter one"
        )


def _objects(file: PairFile, bad: Bad) -> Iterator[Row]:
    """JSON lines. What is nested, as {"translation": {"en": ..., "de": ...}}, counts as if it were not."""
    keys = [file.source, file.target]
    for number, line in _lines(file.path, bad):
        if line is None:
            continue
        try:
            found = peek.parsed(file.path, line)
        except BadInput:
            found = None
        if not isinstance(found, dict):
            bad(file.path, number, "not a JSON object")
            continue
        inner = [item for value in found.values() if isinstance(value, dict) for item in value.items()]
        texts = {key: value for key, value in [*inner, *found.items()] if isinstance(value, str)}
        if None in keys:
            keys = [*texts, None, None][:2]
        if missing := [key for key in keys if key not in texts]:
            bad(file.path, number, f"no text under {missing[0]!r}" if missing[0] else "fewer than two texts")
        else:
            source, target = (
                texts[key].encode("utf-8", "replace").decode() for key in keys
            )  # JSON has half characters
            yield number, source, target


def _table(file: PairFile, text: peek.Text, bad: Bad) -> Iterator[Row]:
    """Rows of cells, with a header or without; other columns, such as an attribution, are not read."""
    table = peek.table_of(text)
    if not table or not table.rows:
        accepted = "a table with two columns, two aligned files, JSON lines or trees are accepted"
        raise BadInput(f"{file.path}: no columns in it; {accepted}; set data.source and data.target to two files")
    first = table.header or table.rows[0]
    named = bool(table.header) or any(place in first for place in (file.source, file.target))
    sides = [_column(file.path, first if named else [], place, n) for n, place in enumerate((file.source, file.target))]
    if sides[0] == sides[1]:
        raise BadInput(
            f"{file.path}: column {file.source!r} is both sides; set data.source and data.target to two columns"
        )
    opened = [cell for line in text.lines for cell in line.split(table.delimiter) if cell.startswith('"')]
    # in tables split at tabs a quote is most often a quote: Excel's rule holds if it holds everywhere
    quoted = table.quoted and (table.delimiter != "\t" or all(cell.endswith('"') and len(cell) > 1 for cell in opened))
    for number, row in _cells(file.path, table.delimiter, quoted, bad):
        if named and number == 1:
            continue
        if len(row) <= max(sides):
            columns = f"{len(row)} column{'s' * (len(row) > 1)} only" if any(row) else "an empty line"
            bad(file.path, number, columns)
        elif any(row[len(first) :]):  # a delimiter inside a sentence: which cells belong together is not known
            bad(file.path, number, f"{len(row)} columns instead of {len(first)}")
        else:
            yield number, row[sides[0]], row[sides[1]]


def _cells(path: Path, delimiter: str, quoted: bool, bad: Bad) -> Iterator[tuple[int, list[str]]]:
    """The rows, each with its first line. One that does not end is told, and the reading goes on with the next line."""
    lines = ((number, line) for number, line in _lines(path, bad) if line is not None)
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


def _column(path: Path, header: list[str], place: Place, side: int) -> int:
    """The index of a column that is told by its name, by its number, or not at all: the first, the second."""
    if place is None:
        return side
    if place in header:
        return header.index(str(place))
    if str(place).isdecimal() and int(place) > 0:
        return int(place) - 1
    name, known = ("data.source", "data.target")[side], ", ".join(header) or "1, 2, ... (it has no header)"
    way = f"set {name} to one of them" + ("" if header else f", or give it a header with {place!r}")
    raise BadInput(f"{path}: there is no column {place!r}; its columns are {known}; {way}")


def _trees(path: Path, bad: Bad) -> Iterator[Row]:
    for line, tree in numbered(path.read_text("utf-8", "replace")):
        if tree is None:
            bad(path, line, "brackets that are no tree")
        else:
            yield line, " ".join(words(tree)), linear(tree)


def grouping(files: Iterable[PairFile], column: Place, held: Collection[str]) -> dict[str, str]:
    """What this column says of each held-out source; where it says several things, the first."""
    found: dict[str, str] = {}
    for file in files if column is not None else ():
        if file.other:
            raise BadInput(f"{file.path}: aligned files have no columns; leave data.group={column} out")
        try:
            for source, group in replace(file, target=column).pairs():
                if source in held:
                    found.setdefault(source, group)
        except BadInput as error:  # read as a target, but that is not what the user named
            raise BadInput(str(error).replace("data.target", "data.group")) from None
    if (many := len(set(found.values()))) > GROUPS:
        raise BadInput(f"data.group = {column!r}: {many:,} values; name a column with at most {GROUPS}")
    return found


# --- which files ------------------------------------------------------------------------------------------------------


def one(named: str, source: Place, target: Place) -> PairFile:
    """A file of pairs; or two aligned ones, named by what they share (val, for val.de and val.en) or by one of them."""
    whole, ends = Path(named), _endings(source, target)
    stem = whole.with_suffix("") if whole.suffix in ends else whole
    first, second = (stem.with_name(stem.name + end) for end in ends)
    if source and first != second and first.is_file() and second.is_file():
        return PairFile(first, other=second)
    if not whole.is_file():
        raise BadInput(f"{whole}: there is no such file; check the name{near_name(whole)}")
    return PairFile(whole, source, target)


def _endings(*sides: Place) -> list[str]:
    """How aligned files end, from a language (de) or from one of the files (train.de)."""
    return [f".{str(side).rpartition('.')[2]}" for side in sides]


def in_folder(folder: Path, source: Place, target: Place) -> dict[str, list[PairFile]]:
    """The files of a folder, by split: aligned ones with the two languages, else files of pairs."""
    if source is None:
        with suppress(BadInput):
            guess = sniff(folder).settings
            source, target = guess.get("data.source"), guess.get("data.target")
    found = sorted(file for file in peek.files_of(folder) if file.parent == folder)
    first, second = _endings(source, target)
    firsts = [file for file in found if source and file.suffix == first and file.with_suffix(second) in found]
    if firsts and first == second:
        raise BadInput(f"{folder}: {first[1:]} is both sides; set data.source and data.target to two languages")
    pairs = [PairFile(file, other=file.with_suffix(second)) for file in firsts]
    pairs = pairs or [PairFile(file, source, target) for file in found]
    named = {split: [pair for pair in pairs if is_named(pair.path, NAMED[split])] for split in NAMED}
    if sum(map(bool, named.values())) < (2 if named["train"] else 1):
        return {"train": pairs}  # one name alone says nothing: a-train-ride.tsv
    apart = [*named["valid"], *named["test"]]
    return named | {"train": named["train"] or [pair for pair in pairs if pair not in apart]}
