"""The difference of two systems with its interval: paired over the same examples, or over the seeds of trainings.

A difference is positive if the first system is better. A system is clearly better only if the interval excludes 0.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import NamedTuple

import numpy as np

from harken.data.batch import Array

from . import intervals
from .intervals import BOUNDS, CONFIDENCE, UNBOUNDED, Interval, bootstrap, percentile_interval, student_t
from .weighted import LOWER_IS_BETTER, Mean, OfGroups, Outcomes, WeightedMetric, evaluate

SMALLEST = 0.01  # a difference that matters: of a metric between 0 and 1, and of a loss in nats
MIN_GROUPS = 8  # with fewer groups of dependent examples there is no difference
SMALLEST_OF = {"bleu": 1.0, "chrf": 1.0}


class Difference(NamedTuple):
    """How much better one system is than another, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """The word "better" or "worse" if the interval excludes 0, else "unclear"."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "unclear"

    def adjusted(self, better: int = 1, worse: int = 1) -> "Difference":
        """The interval after a choice among several comparisons: each end has a part of its error rate (Bonferroni).

        `better` is the number of candidates of which this one was chosen because it is good, such as checkpoints that
        were compared on the same split; `worse` is the number of opponents of which the best was chosen. Each choice
        makes a lucky system look clearly better. The ends are scaled as those of a normal distribution.
        """
        down, up = (
            intervals.normal_quantile(1 - 0.025 / k) / intervals.normal_quantile(0.975) for k in (better, worse)
        )
        return Difference(
            self.value, self.value - down * (self.value - self.low), self.value + up * (self.high - self.value)
        )

    def needed(self, n: int, metric: str) -> tuple[int, float]:
        """With how many examples (or seeds) the interval would exclude 0, and for a difference of what size.

        Assumes further examples like these n: the difference stays, and the width of its interval falls with
        1 / sqrt(n). Of an observed difference near 0, the smallest one that matters takes the place. With this many
        examples the chance to see the difference is about one half. The number is rounded up to two digits.
        """
        size = max(abs(self.value), SMALLEST_OF.get(metric, SMALLEST))
        half = (self.high - self.low) / 2
        if size == abs(self.value):
            half = self.value - self.low if self.value > 0 else self.high - self.value
        return _rounded_up(n * (half / size) ** 2), size

    def facts(self, n: int, metric: str) -> dict[str, float]:
        """The difference as JSON, with the needed number of examples for a difference of a `size`."""
        count, size = self.needed(n, metric)
        return {**self._asdict(), "needed": count, "size": size}


class ShareDifference(Difference):
    """A difference of two shares of the same n examples, with Tango's score interval (1998).

    At 0 it is McNemar's score test: 0 is excluded if (wins - losses)^2 / (wins + losses) is above the squared quantile.
    """

    counts: tuple[int, int, int]  # examples on which only the first system is right, only the second one; all examples
    quantiles: tuple[float, float]  # of the lower and of the upper end

    @classmethod
    def of(cls, wins: int, losses: int, n: int, *, better: int = 1, worse: int = 1) -> "ShareDifference":
        """The difference of these counts; `better` and `worse` as in `adjusted`."""
        down, up = (intervals.normal_quantile(1 - (1 - CONFIDENCE) / 2 / k) for k in (better, worse))
        difference = cls((wins - losses) / n, -score_bound(losses, wins, n, down), score_bound(wins, losses, n, up))
        difference.counts, difference.quantiles = (wins, losses, n), (down, up)
        return difference

    def adjusted(self, better: int = 1, worse: int = 1) -> "ShareDifference":
        return ShareDifference.of(*self.counts, better=better, worse=worse)

    def needed(self, n: int, metric: str) -> tuple[int, float]:
        """With how many examples McNemar's score test would see the difference, or the smallest one that matters."""
        wins, losses, n_examples = self.counts
        size = max(abs(self.value), SMALLEST_OF.get(metric, SMALLEST))
        quantile, different = self.quantiles[wins < losses], max((wins + losses) / n_examples, size)
        return _rounded_up(n / n_examples * quantile**2 * different / size**2), size


def _rounded_up(count: float) -> int:
    """The number rounded up to two digits."""
    unit: int = 10 ** max(0, math.floor(math.log10(max(1.0, count))) - 1)
    return math.ceil(count / unit) * unit


def score_bound(wins: int, losses: int, n: int, quantile: float) -> float:
    """The upper end of Tango's interval: the largest difference of shares that the score test does not reject.

    For a difference d, the maximum likelihood estimate of the share of losses is the larger root of a quadratic
    equation. The score decreases with d, so bisection solves for the difference with the score -quantile.
    """

    def score(d: float) -> float:
        b = (2 * n - wins + losses) * d - wins - losses
        share = (math.sqrt(max(0.0, b**2 + 8 * n * losses * d * (1 - d))) - b) / (4 * n)
        deviation = math.sqrt(max(0.0, n * (2 * share + d * (1 - d))))
        return (wins - losses - n * d) / deviation if deviation else -math.inf

    low, high = (wins - losses) / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) > -quantile else (low, middle)
    return high


def compare_outcomes(first: Outcomes, opponents: Mapping[str, Outcomes]) -> dict[str, dict[str, Difference]]:
    """How much better each metric of the first system is than that of each other one: other system -> metric.

    Systems with the same examples are resampled together, so what is hard for both cancels. Shares have Tango's score
    interval, other metrics the expanded percentile interval of the bootstrap. Fewer than MIN_GROUPS groups have none.
    """
    pairs = {
        (other, name): (first[name], x) for other, row in opponents.items() for name, x in row.items() if name in first
    }
    differences = {(o, name): _difference_of_shares(a, b) for (o, name), (a, b) in pairs.items() if _are_shares(a, b)}
    rest = {key: pair for key, pair in pairs.items() if key not in differences and all(map(_are_enough, pair))}
    own: dict[tuple[str | None, str], WeightedMetric] = {(None, name): first[name] for _, name in rest}
    draws = bootstrap(own | {key: b for key, (_, b) in rest.items()})
    for (other, name), (a, b) in rest.items():
        values, opposed = draws[None, name], draws[other, name]
        size, sign = min(len(values), len(opposed)), -1 if name in LOWER_IS_BETTER else 1
        own_value, value = (evaluate({name: x})[name] for x in (a, b))
        changes = sign * (values[:size] - opposed[:size])
        difference = _bootstrap_difference(name, sign * (own_value - value), changes, min(a.n, b.n))
        if difference is not None:
            differences[other, name] = difference
    return {
        other: {name: differences[other, name] for name in row if (other, name) in differences}
        for other, row in opponents.items()
    }


def _are_enough(metric: WeightedMetric) -> bool:
    return metric.n >= (MIN_GROUPS if isinstance(metric, OfGroups) else 2)


def _are_shares(a: WeightedMetric, b: WeightedMetric) -> bool:
    return isinstance(a, Mean) and isinstance(b, Mean) and a.n == b.n > 0 and a.is_share and b.is_share


def _difference_of_shares(a: WeightedMetric, b: WeightedMetric) -> Difference:
    assert isinstance(a, Mean)
    assert isinstance(b, Mean)
    return ShareDifference.of(int((a.values > b.values).sum()), int((a.values < b.values).sum()), a.n)


def _bootstrap_difference(name: str, value: float, draws: Array, n: int) -> Difference | None:
    """The interval of bootstrap differences; None if they are not finite."""
    if not (np.isfinite(draws).all() and math.isfinite(value)):
        return None
    low, high = percentile_interval(draws, n)
    if (
        high - low < intervals.ROUNDING and name not in UNBOUNDED
    ):  # each system may have the faults of a metric at the end of its range
        lowest, highest = BOUNDS.get(name, (0.0, 1.0))
        width = 2 * intervals.wilson_interval(0, n)[1] * (highest - lowest)
        low, high = value - width, value + width
    return Difference(value, low, high)


def welch_difference(
    first: Sequence[float], second: Sequence[float], *, sign: int, comparisons: int = 1
) -> Difference | None:
    """How much better the mean over the seeds of the first system is, with the interval of Welch's t test.

    The seeds of two settings are independent samples with their own variances. sign is 1 if higher is better, else -1.
    With several comparisons each interval has a part of the error rate (Bonferroni). None if all seeds of each setting
    have the same value and the settings differ: then the seeds do not show how much a training varies.
    """
    a, b = (variance(values) / len(values) for values in (first, second))
    value, error = sign * (fmean(first) - fmean(second)), math.sqrt(a + b)
    if not error:
        return None if value else Difference(value, value, value)
    freedom = (a + b) ** 2 / (a**2 / (len(first) - 1) + b**2 / (len(second) - 1))
    half = student_t(freedom, 1 - (1 - CONFIDENCE) / comparisons) * error
    return Difference(value, value - half, value + half)


def newcombe_difference(first: float, second: float, ends: Sequence[Interval], *, sign: int) -> Difference:
    """The difference of two values with these 95 % intervals, as if of independent examples (Newcombe 1998).

    It is wider than the interval of a paired difference. sign is 1 if higher is better, else -1.
    """
    (low, high), (other_low, other_high) = ends
    value = first - second
    difference = (
        value - math.hypot(first - low, other_high - second),
        value + math.hypot(high - first, second - other_low),
    )
    return Difference(sign * value, *sorted(sign * end for end in difference))
