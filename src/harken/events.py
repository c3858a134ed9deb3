"""Progress events. Library functions call a listener with facts; only the console turns them into text."""

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

# listen("encode", done=3, total=10, unit="bytes"): the name of the event, then its values
Listener = Callable[..., None]


def silent(event: str, /, **values: object) -> None:
    """A listener that ignores all events."""


def warn(event: str, /, **values: object) -> None:
    """A listener that turns notices into Python warnings."""
    if event == "notice":
        category = OverflowWarning if isinstance(values.get("overflow"), Overflow) else UserWarning
        warnings.warn(str(values["text"]), category, stacklevel=_caller_level())


def warn_of_lost_data(event: str, /, **values: object) -> None:
    """The listener of a training without output: a Python warning if rows are left out or examples are truncated."""
    if values.get("skipped"):
        warnings.warn(str(values["text"]), SkippedRowsWarning, stacklevel=_caller_level())
    else:
        warn_of_overflow(event, **values)


def _caller_level() -> int:
    """The stack level of the code that called this package, seen from the listener."""
    frame, level, outermost, package = sys._getframe(1), 1, 1, __name__.partition(".")[0]
    while frame.f_back:
        if frame.f_globals.get("__name__", "").partition(".")[0] == package:
            outermost = level
        frame, level = frame.f_back, level + 1
    return outermost + 1


def warn_of_overflow(event: str, /, **values: object) -> None:
    """The default listener of predictions: a Python warning if an input is truncated; other events are ignored."""
    if event == "notice" and isinstance(values.get("overflow"), Overflow):
        warnings.warn(str(values["text"]), OverflowWarning, stacklevel=_caller_level())


class SkippedRowsWarning(UserWarning):
    """Rows of the data are left out."""


class OverflowWarning(UserWarning):
    """An input is longer than a run can read, and a part of it is not read."""


@dataclass(frozen=True)
class Overflow:
    """Inputs that exceed a limit: how many of how many, the longest, what happened to them, and what to do.

    {longest} in the remedy is replaced by that length.
    """

    count: int
    total: int
    longest: int
    limit: int
    inputs: str = "texts"
    unit: str = "tokens"
    consequence: str = "truncated"
    remedy: str = ""

    @classmethod
    def of(cls, lengths: Sequence[int], limit: int | None, **words: str) -> "Overflow":
        """Of inputs with these lengths; without a limit there is none."""
        longest, limit = max(lengths, default=0), limit if limit is not None else max(lengths, default=0)
        return cls(sum(n > limit for n in lengths), len(lengths), longest, limit, **words)

    def __str__(self) -> str:
        be = ("is", "was") if self.count == 1 else ("are", "were")
        length = f"longer than {self.limit:,} {self.unit} (longest: {self.longest:,})"
        counts = f"{self.count:,} of {self.total:,} {self.inputs}"
        remedy = f"; {self.remedy.format(longest=self.longest)}" if self.remedy else ""
        return f"{counts} {be[0]} {length} and {be[1]} {self.consequence}{remedy}"

    def __add__(self, other: "Overflow") -> "Overflow":
        longest = max(self.longest, other.longest)
        return replace(self, count=self.count + other.count, total=self.total + other.total, longest=longest)


def merge_overflows(overflows: Iterable[Overflow]) -> list[Overflow]:
    """Their sums: one for each limit and kind of inputs."""
    sums = dict[tuple[object, ...], Overflow]()
    for each in overflows:
        key = each.limit, each.inputs, each.unit, each.consequence, each.remedy
        sums[key] = sums[key] + each if key in sums else each
    return list(sums.values())


class OverflowSum:
    """A listener that adds up the overflows of several calls, for one notice at the end, and passes all events on."""

    def __init__(self, listen: Listener = silent) -> None:
        self.listen, self.overflows = listen, list[Overflow]()

    def __call__(self, event: str, /, **values: object) -> None:
        self.listen(event, **values)

    def report_overflows(self) -> None:
        """A notice for each limit that was exceeded."""
        overflows, self.overflows = self.overflows, []
        for overflow in overflows:
            if overflow.count:
                self("notice", text=str(overflow))


def report_overflow(listen: Listener, *overflows: Overflow) -> None:
    """A notice for each limit that an input exceeds."""
    if isinstance(listen, OverflowSum):
        listen.overflows = merge_overflows([*listen.overflows, *overflows])
        return
    for overflow in merge_overflows(overflows):
        if overflow.count:
            listen("notice", text=str(overflow), overflow=overflow)


def without_overflow(listen: Listener) -> Listener:
    """A listener that passes all events on except notices of truncated inputs."""

    def pass_on(event: str, /, **values: object) -> None:
        if not isinstance(values.get("overflow"), Overflow):
            listen(event, **values)

    return pass_on


class NoticeRecorder:
    """A listener that records the notices and passes all events on."""

    def __init__(self, listen: Listener) -> None:
        self.listen, self.texts = listen, list[str]()

    def __call__(self, event: str, /, **values: object) -> None:
        if event == "notice":
            self.texts.append(str(values["text"]))
        self.listen(event, **values)


def to_json_value(value: object) -> object:
    """A value that JSON can represent; non-finite numbers become null."""
    if isinstance(value, dict):
        return {str(name): to_json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
