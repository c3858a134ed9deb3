"""Held-out splits by a hash of each example, by group, by time, and as folds of a cross-validation.

Examples that share a key, such as a text or a group, stay in one split.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, TypeVar

from harken.errors import BadSetting

MAX_HELD_OUT = 3000  # examples per split drawn by a fraction; more would cost time and add little precision
SPLIT_FILE_NAMES = {"train": ("train",), "valid": ("valid", "validation", "val", "dev"), "test": ("test",)}
SPLIT_OF_NAME = {name: split for split, names in SPLIT_FILE_NAMES.items() for name in names}
T = TypeVar("T")


# --- draw by hash -----------------------------------------------------------------------------------------------------


def split_hash(key: str) -> int:
    """64-bit hash that decides the split of an example."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8, person=b"harken pairs").digest(), "big")


def split_rank(split: str, hash_value: int) -> int:
    """Position in the order in which a split takes hashes: test from the low end, valid from the high end."""
    return hash_value if split == "test" else 2**64 - 1 - hash_value


def check_fraction(split: str, fraction: str | float, unit: str) -> float:
    if isinstance(fraction, str) or not 0 <= fraction < 1:
        raise BadSetting(f"data.{split} = {fraction}: the fraction of held-out {unit} must be at least 0 and below 1")
    return float(fraction)


def draw_stratified(strata: Iterable[list[T]], key: Callable[[T], str], split: str, fraction: float) -> list[T]:
    """A fraction of every stratum by hash; at least one item of each stratum stays in train."""
    drawn: list[T] = []
    for stratum in strata:
        ordered = sorted(stratum, key=lambda item: split_hash(key(item)), reverse=split == "valid")
        drawn += ordered[: min(round(fraction * len(ordered)), len(ordered) - 1)]
    return drawn


# --- groups, times and folds ------------------------------------------------------------------------------------------


class Fold(NamedTuple):
    """A part of the data in a cross-validation."""

    number: int  # from 1
    n_folds: int


@dataclass(eq=False)
class Unit:
    """Examples that stay in one split."""

    hash: int  # the lowest of its members
    time: float = 0.0  # of the newest member
    members: list[int] = field(default_factory=list)
    labels: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.members)


class Member(NamedTuple):
    """What decides the split of an example."""

    keys: tuple[str, ...]  # equal keys stay together
    hash: int
    labels: tuple[str, ...] = ()
    time: float = 0.0


def build_units(members: Sequence[Member]) -> list[Unit]:
    """The connected components of examples with a common key, ordered by hash."""
    parents = dict[str, str]()

    def root(key: str) -> str:
        path = [key]
        while (parent := parents.setdefault(path[-1], path[-1])) != path[-1]:
            path.append(parent)
        parents.update(dict.fromkeys(path, path[-1]))
        return path[-1]

    for member in members:
        first, *remaining = map(root, member.keys)
        parents.update(dict.fromkeys(remaining, first))
    units = dict[str, Unit]()
    for n, member in enumerate(members):
        unit = units.setdefault(root(member.keys[0]), Unit(member.hash, member.time))
        unit.members.append(n)
        unit.hash, unit.time = min(unit.hash, member.hash), max(unit.time, member.time)
        unit.labels.update(member.labels or [""])
    return sorted(units.values(), key=lambda unit: unit.hash)


def draw_stratified_units(units: Sequence[Unit], fraction: float) -> list[Unit]:
    """Units, in this order, as long as each brings the numbers of the labels closer to this fraction of all.

    Every label keeps a unit that is not drawn.
    """
    totals = count_labels(units)
    missing = {label: fraction * count for label, count in totals.items()}
    left, drawn = Counter(label for unit in units for label in unit.labels), list[Unit]()
    for unit in units:
        closer = sum(abs(missing[k] - n) - abs(missing[k]) for k, n in unit.labels.items()) < 0
        if closer and all(left[label] > 1 for label in unit.labels):
            drawn.append(unit)
            left.subtract(dict.fromkeys(unit.labels, 1))
            for label, n in unit.labels.items():
                missing[label] -= n
    return drawn


def draw_newest_units(units: Sequence[Unit], count: float) -> list[Unit]:
    """The newest units, about `count` examples; units of one time stay together, and the oldest time is not drawn."""
    ordered = sorted(units, key=lambda unit: -unit.time)
    by_time = [list(group) for _, group in groupby(ordered, key=lambda unit: unit.time)]
    drawn = list[Unit]()
    for group in by_time[:-1] if count else ():
        n_drawn, n_more = sum(map(len, drawn)), sum(map(len, group))
        if drawn and abs(n_drawn + n_more - count) >= abs(n_drawn - count):
            break
        drawn += group
    return drawn


def assign_folds(units: Sequence[Unit], n_folds: int) -> list[list[Unit]]:
    """The units of each fold, with about the same number of examples of each label.

    Without groups, the counts of a label in two folds differ by at most 1, and so do the sizes of the folds. Large
    units come first, so the small ones even out the differences.
    """
    totals = count_labels(units)
    folds: list[list[Unit]] = [[] for _ in range(n_folds)]
    counts: list[Counter[str]] = [Counter() for _ in range(n_folds)]
    sizes = [0] * n_folds

    def cost(fold: int, unit: Unit) -> tuple[float, int, int]:
        """How uneven the labels and the sizes become if the unit joins the fold."""
        added = sum(n * (2 * counts[fold][k] + n) / totals[k] ** 2 for k, n in unit.labels.items())
        return added, sizes[fold], fold

    for unit in sorted(units, key=lambda unit: (-len(unit), sorted(unit.labels), unit.hash)):
        best = min(range(n_folds), key=lambda fold: cost(fold, unit))
        folds[best].append(unit)
        counts[best].update(unit.labels)
        sizes[best] += len(unit)
    return folds


def _without_only_labels(folds: Sequence[Sequence[Unit]], index: int) -> list[Unit]:
    """The units of a fold without those that have a label which no other fold has: it could not be learned."""
    elsewhere = count_labels([unit for n, units in enumerate(folds) if n != index for unit in units])
    return [unit for unit in folds[index] if unit.labels.keys() <= elsewhere.keys()]


def count_labels(units: Sequence[Unit]) -> Counter[str]:
    """The number of examples of each label."""
    totals = Counter[str]()
    for unit in units:
        totals.update(unit.labels)
    return totals


def draw_units(
    units: Sequence[Unit], fractions: dict[str, float], fold: Fold | None, *, by_time: bool
) -> dict[str, list[Unit]]:
    """The units of the held-out splits in `fractions`, about MAX_HELD_OUT examples each at most.

    `fold` is the test split, except for labels that no other fold has. By time, test has the newest examples and valid
    those before.
    """
    total, remaining, drawn = sum(map(len, units)), list(units), dict[str, list[Unit]]()
    for split in ("test", "valid"):
        if split not in fractions:
            continue
        count = min(fractions[split] * total, MAX_HELD_OUT)
        if split == "test" and fold is not None:
            drawn[split] = _without_only_labels(assign_folds(units, fold.n_folds), fold.number - 1)
        elif by_time:
            drawn[split] = draw_newest_units(remaining, count)
        else:
            ordered = remaining if split == "test" else remaining[::-1]  # from both ends, as in a split by hash
            drawn[split] = draw_stratified_units(ordered, min(1.0, count / max(1, sum(map(len, remaining)))))
        chosen = {id(unit) for unit in drawn[split]}
        remaining = [unit for unit in remaining if id(unit) not in chosen]
    return drawn
