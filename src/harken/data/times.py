"""Times of examples from the cells of a column: numbers, ISO dates and common other formats."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from harken.errors import BadInput

from .tables.numbers import parse_number

DATE_FORMATS = (
    "%d.%m.%Y", "%d.%m.%y", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%Y", "%Y-%m",
    "%d %b %Y", "%d %B %Y", "%d. %B %Y", "%b %d, %Y", "%B %d, %Y", "%a, %d %b %Y", "%Y.%m.%d",
)  # fmt: skip
CLOCK_FORMATS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S %z", ", %H:%M", ", %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
AMBIGUOUS = (("%d/%m/%Y", "%m/%d/%Y"), ("%d/%m/%y", "%m/%d/%y"))  # day or month first: the first is tried first
N_SAMPLED = 200  # cells in which the format is detected
Parser = Callable[[str], float]


def parse_times(cells: Sequence[tuple[str, str]], column: object) -> list[float]:
    """Sortable numbers for (cell, location) pairs, all of one format; raises with the first cell that has another."""
    places = dict[str, str]()  # the first of each distinct cell
    for cell, place in cells:
        places.setdefault(cell.strip(), place)
    parsers: dict[str, Parser] = {"a number": _number, "an ISO date": _iso_date}
    parsers |= {date: _in_format(date) for date in DATE_FORMATS}
    sample = [*places][:: max(1, len(places) // N_SAMPLED)]
    counts = {name: len(_parsed(parse, sample)) for name, parse in parsers.items()}
    best = max(counts, key=lambda name: counts[name])
    times = _parsed(parsers[best], places)
    for other in (y for x, y in AMBIGUOUS if x == best):
        if len(swapped := _parsed(parsers[other], places)) == len(times) > 0:
            text, place = next(iter(places.items()))
            problem = f"{text!r} may start with the day or the month (data.time = {column!r})"
            raise BadInput(f"{place}: {problem}; write the dates of the column as 2024-03-31")
        best, times = (other, swapped) if len(swapped) > len(times) else (best, times)
    for text, place in places.items():
        if text not in times:
            problem = f"{text!r} is not {_described(best if times else 'an ISO date')}" if text else "the time is empty"
            accepted = "ISO dates (2024-03-31), 31.03.2024, 31 Mar 2024 and numbers are accepted, one format per column"
            raise BadInput(f"{place}: {problem} (data.time = {column!r}); {accepted}; fix the row")
    return [times[cell.strip()] for cell, _ in cells]


def _parsed(parse: Parser, texts: Iterable[str]) -> dict[str, float]:
    """The times of the cells that have this format."""
    times = dict[str, float]()
    for text in texts:
        with suppress(ValueError, OverflowError):
            times[text] = parse(text)
    return times


def _number(text: str) -> float:
    if parse_number(text) is None:
        raise ValueError(text)
    return float(text)


def _iso_date(text: str) -> float:
    return _timestamp(datetime.fromisoformat(text))


def _in_format(date: str) -> Parser:
    """A parser of dates in this format, with or without a time of day."""
    formats = [date + clock for clock in CLOCK_FORMATS]

    def parse(text: str) -> float:
        for n, form in enumerate(formats):
            try:
                value = datetime.strptime(text, form)
            except ValueError:
                continue
            formats.insert(0, formats.pop(n))  # the cells of a column mostly have one format
            return _timestamp(value)
        raise ValueError(text)

    return parse


def _timestamp(time: datetime) -> float:
    """Seconds since 1970; a time without a zone is UTC."""
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _described(name: str) -> str:
    """The name of a format, or a date written in it."""
    return datetime(2024, 3, 31, tzinfo=UTC).strftime(f"a date such as {name}") if "%" in name else name
