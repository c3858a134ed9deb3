"""Groups of a held-out split that are scored separately: by a column of the data, or by the length of the sources."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAX_BINS = 8  # length bins; more of them would hold too few sources each


@dataclass(frozen=True)
class Group:
    """Rows of a split with a common property, and its value on a numeric axis."""

    name: str
    rows: list[int]
    position: float | None


def group_by_column(column: str, values: Sequence[str]) -> list[Group]:
    """One group per value of a column, numbers in ascending order; empty cells are in no group."""
    groups = [
        Group(f"{column} {value}", [n for n, cell in enumerate(values) if cell == value], _as_number(value))
        for value in sorted(set(values) - {""})
    ]
    return sorted(groups, key=lambda group: math.inf if group.position is None else group.position)


def group_by_length(sources: Sequence[str]) -> list[Group]:
    """Bins of the number of words, with about equally many rows each."""
    n_words = np.array([len(source.split()) for source in sources])
    edges = np.unique(np.quantile(n_words, np.linspace(0, 1, MAX_BINS + 1)[1:], method="inverted_cdf"))
    bins, groups = np.searchsorted(edges, n_words), []
    for n in range(len(edges)):
        rows = np.flatnonzero(bins == n)
        low, high = n_words[rows].min(), n_words[rows].max()
        name = f"{low}-{high} words" if low < high else f"{low} word{'s' * int(low > 1)}"
        groups.append(Group(name, rows.tolist(), float(n_words[rows].mean())))
    return groups


def _as_number(text: str) -> float | None:
    try:
        return x if math.isfinite(x := float(text)) else None
    except ValueError:
        return None
