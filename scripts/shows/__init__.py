"""Demonstrations of the statements of the lectures: small seeded functions for a CPU.

    python scripts/lectures.py show scaling

Each returns a measured value with its description, and whether the statement holds. docs/lectures.md lists them.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

FILES = ("core", "blocks", "positions", "misprints", "words", "pairs", "stories", "training", "pictures", "graphs")
FILES += ("maths", "clusters", "bert", "sentences", "landscape")
EXACT = 1e-5  # tolerance between two equal computations in float32


@dataclass(frozen=True)
class Measurement:
    """The measured value of a demonstration, its description, and whether the statement holds."""

    value: float
    description: str
    holds: bool

    def __str__(self) -> str:
        value = f"{self.value:,}" if isinstance(self.value, int) else f"{self.value:.3g}"
        return f"{value} {self.description}"


@dataclass(frozen=True)
class Show:
    """A demonstration; `slow`: it trains a model, `timed`: its value depends on the machine."""

    name: str
    f: Callable[[], Measurement]
    slow: bool
    timed: bool

    def __call__(self) -> Measurement:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.f()


SHOWS: dict[str, Show] = {}


def show(
    *, slow: bool = False, timed: bool = False
) -> Callable[[Callable[[], Measurement]], Callable[[], Measurement]]:
    def register(f: Callable[[], Measurement]) -> Callable[[], Measurement]:
        name = f.__name__.replace("_", "-")
        SHOWS[name] = Show(name, f, slow, timed)
        return f

    return register


@contextmanager
def private_cache(folder: str | Path) -> Iterator[None]:
    """Keep encoded texts below this folder instead of the cache of the user."""
    with patch.dict(os.environ, {"HARKEN_CACHE": str(Path(folder) / "cache")}):
        yield


def gap(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference."""
    return float((a - b).detach().abs().max())


def every() -> dict[str, Show]:
    """Return all demonstrations by name."""
    for file in FILES:
        import_module(f"shows.{file}")
    return SHOWS
