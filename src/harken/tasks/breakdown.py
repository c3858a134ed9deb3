"""A held-out split in groups that are judged apart: by a column of the data, or by the length of the sources."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

STRETCHES = 8  # of lengths, at most: with more of them each has few sources


@dataclass(frozen=True)
class Group:
    """Rows of a split that have something in common; `at` is its place on an axis, if it has one."""

    name: str
    rows: list[int]
    at: float | None


def by_column(column: str, values: Sequence[str]) -> list[Group]:
    """The rows by what their column says, numbers in their order; a row whose column is empty is in no group."""
    found = [
        Group(f"{column} {value}", [n for n, mine in enumerate(values) if mine == value], _number(value))
        for value in sorted(set(values) - {""})
    ]
    return sorted(found, key=lambda group: math.inf if group.at is None else group.at)


def by_words(sources: Sequence[str]) -> list[Group]:
    """The rows by the words of their sources, in stretches that hold about as many rows each."""
    words = np.array([len(source.split()) for source in sources])
    ends = np.unique(np.quantile(words, np.linspace(0, 1, STRETCHES + 1)[1:], method="inverted_cdf"))
    stretch, found = np.searchsorted(ends, words), []
    for n in range(len(ends)):
        rows = np.flatnonzero(stretch == n)
        low, high = words[rows].min(), words[rows].max()
        name = f"{low}-{high} words" if low < high else f"{low} word{'s' * int(low > 1)}"
        found.append(Group(name, rows.tolist(), float(words[rows].mean())))
    return found


def _number(text: str) -> float | None:
    try:
        return x if math.isfinite(x := float(text)) else None
    except ValueError:
        return None
