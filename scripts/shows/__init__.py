"""Demonstrations of the statements of the lectures: small seeded functions for a CPU, each with one number.

    python scripts/lectures.py show scaling

Each returns a number, its meaning, and whether the statement holds. docs/lectures.md names them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor

FILES = ("core", "blocks", "positions", "misprints", "words", "pairs", "stories", "training", "pictures", "graphs")
FILES += ("maths", "clusters")
EXACT = 1e-5  # tolerance between two equal computations in float32


@dataclass(frozen=True)
class Seen:
    """The outcome of a demonstration: a number, its meaning, and whether the statement holds."""

    number: float
    what: str
    holds: bool

    def __str__(self) -> str:
        plain = f"{self.number:,}" if isinstance(self.number, int) else f"{self.number:.3g}"
        return f"{plain} {self.what}"


@dataclass(frozen=True)
class Show:
    """A demonstration: `slow` ones train something, `timed` ones depend on the machine."""

    name: str
    f: Callable[[], Seen]
    slow: bool
    timed: bool

    def __call__(self) -> Seen:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.f()


SHOWS: dict[str, Show] = {}


def show(*, slow: bool = False, timed: bool = False) -> Callable[[Callable[[], Seen]], Callable[[], Seen]]:
    def enter(f: Callable[[], Seen]) -> Callable[[], Seen]:
        name = f.__name__.replace("_", "-")
        SHOWS[name] = Show(name, f, slow, timed)
        return f

    return enter


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max())


def every() -> dict[str, Show]:
    """All demonstrations by name."""
    for file in FILES:
        import_module(f"shows.{file}")
    return SHOWS
