"""Times of steps and validation passes, measured before the first step."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, quantiles
from typing import NamedTuple

import torch

from harken import machine

from .parallel import Ranks

MIN_REPEATS, MAX_REPEATS = 5, 10_000  # of a timed piece of work
SLOW_SECONDS = 10.0  # of timed work, after which it is not repeated any more


class Timing(NamedTuple):
    """Measurements before the first step: mean seconds of an update and of a validation pass; watts, their source;
    the mean number of cores that other programs used meanwhile."""

    step_seconds: float
    validation_seconds: float
    watts: float
    source: str
    busy_cores: float = 0.0


class Repeat:
    """Repeats work on a device, equally often on all ranks, and returns the duration of each repetition."""

    def __init__(self, device: torch.device, ranks: Ranks) -> None:
        self.device, self.ranks = device, ranks

    def __call__(self, work: Callable[[], object], seconds: float, least: int, most: int = MAX_REPEATS) -> list[float]:
        """Repeat the work for this time, at least (unless slow) and at most so often."""
        machine.synchronize(self.device)
        times = [time.perf_counter()]

        def again() -> bool:
            n, spent = len(times) - 1, times[-1] - times[0]
            return not n or (spent < seconds and n < most) or (spent < SLOW_SECONDS and n < least)

        while self.ranks.broadcast(again):
            work()
            machine.synchronize(self.device)
            times.append(time.perf_counter())
        return [end - start for start, end in pairwise(times)]


def robust_mean(seconds: Sequence[float]) -> float:
    """Mean duration of repeated work. A few pauses of the machine hardly change it: a duration counts as at most three
    times the ninth decile. Batches of different lengths remain as they are."""
    if len(seconds) < 10:
        return fmean(seconds)
    limit = 3 * quantiles(seconds, n=10)[-1]
    return fmean(min(duration, limit) for duration in seconds)
