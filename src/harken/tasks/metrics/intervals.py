"""Confidence intervals of metrics: Wilson's for shares, a bootstrap over the examples for all remaining."""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from statistics import NormalDist
from typing import TypeVar

import numpy as np

from harken.data.batch import Array
from harken.data.rng import RngStream, rng_for

from .weighted import ClassShares, Mean, Outcomes, WeightedMetric

CONFIDENCE = 0.95
DRAWS, MIN_DRAWS = 2000, 500  # resamples; fewer of many examples
MAX_DRAWN = 10_000_000  # examples of all resamples
ROUNDING = 1e-9  # a narrower interval has no width
CHUNK = 2_000_000  # weights computed at once: bounds the memory
SERIES_FREEDOM = 200  # degrees of freedom from which on the quantile of t is a series
# where a metric can be; (0, 1) if it is not listed
BOUNDS = dict.fromkeys(("matthews", "pearson", "spearman"), (-1.0, 1.0)) | dict.fromkeys(("bleu", "chrf"), (0.0, 100.0))
UNBOUNDED = frozenset({"loss", "perplexity", "bits_per_character", "mse", "mae", "rmse", "r2", "learned"})
Interval = tuple[float, float]
Key = TypeVar("Key")


def wilson_interval(n_correct: int, n: int, confidence: float = CONFIDENCE) -> Interval:
    """The Wilson score interval of a share; it has a width at 0 and at 1, too."""
    share, z = n_correct / n, normal_quantile((1 + confidence) / 2)
    center = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return 0.0 if n_correct == 0 else center - half, 1.0 if n_correct == n else center + half


def class_shares_interval(metric: ClassShares) -> Interval:
    """The interval of a function of shares, from the Wilson intervals of the shares, so it has a width at both ends.

    A sum has the square-root-and-add interval (MOVER; Zou and Donner, 2008). Of a number of classes the lower end
    counts those whose whole interval reaches the threshold, and the upper end those whose upper end does.
    """
    ones, sizes = metric.counts
    shares = ones / sizes
    ends = [wilson_interval(round(k), round(n)) for k, n in zip(ones, sizes, strict=True)]
    low, high = np.array(ends).T
    if metric.class_weights is None:
        return float(metric.combine(low)), float(metric.combine(high))
    value, weights = float(metric.combine(shares)), metric.class_weights
    down, up = (math.sqrt(float(((weights * (end - shares)) ** 2).sum())) for end in (low, high))
    return max(0.0, value - down), min(float(weights.sum()), value + up)


def normal_quantile(p: float) -> float:
    return NormalDist().inv_cdf(p)


def student_t(freedom: float, confidence: float = CONFIDENCE) -> float:
    """The two-sided quantile of Student's t distribution; the degrees of freedom need not be whole.

    P(|T| > sqrt(freedom) cot(a)) is the integral of sin^(freedom-1) from 0 to a, over its value for a = pi/2. Bisection
    solves for a. For many degrees of freedom the Cornish-Fisher series about the normal quantile is exact to 1e-6.
    """
    z = normal_quantile((1 + confidence) / 2)
    if freedom >= SERIES_FREEDOM:
        terms = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        return z + sum(term / freedom**k for k, term in enumerate(terms, 1))
    x, weights = _quadrature()
    log_total = math.log(math.pi) / 2 + math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2) - math.log(2)

    def tail(angle: float) -> float:  # the substitution angle * x^2 makes the integrand smooth at 0
        integrand = np.sin(angle * x**2) ** (freedom - 1) * 2 * x
        return float(angle * (weights @ integrand) * math.exp(-log_total))

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) < 1 - confidence else (low, middle)
    return math.sqrt(freedom) / math.tan((low + high) / 2)


@cache
def _quadrature() -> tuple[Array, Array]:
    """Nodes and weights of Gauss and Legendre for an integral from 0 to 1."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    return (nodes + 1) / 2, weights / 2


# --- bootstrap --------------------------------------------------------------------------------------------------------


def resampled_weights(n: int, draws: int = DRAWS) -> Iterator[Array]:  # R N
    """How often each of n examples is in each of `draws` resamples, in chunks; the same numbers for the same n."""
    rng, rows = rng_for(0, RngStream.BOOTSTRAP, n), max(1, CHUNK // n)
    for start in range(0, draws, rows):
        count = min(rows, draws - start)
        drawn = rng.integers(n, size=(count, n)) + n * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * n).reshape(count, n).astype(np.float64)


def bootstrap(metrics: Mapping[Key, WeightedMetric]) -> dict[Key, Array]:
    """The values of each metric on the same resamples of its examples."""
    values: dict[Key, list[Array]] = {key: [] for key in metrics}
    for n in {metric.n for metric in metrics.values()} - {0}:
        same_examples = {key: metric for key, metric in metrics.items() if metric.n == n}
        for weights in resampled_weights(n, max(MIN_DRAWS, min(DRAWS, MAX_DRAWN // n))):
            for key, metric in same_examples.items():
                values[key].append(metric(weights))
    return {key: np.concatenate(chunks) for key, chunks in values.items() if chunks}


def percentile_interval(values: Array, n: int, confidence: float = CONFIDENCE) -> Interval:
    """The expanded percentile interval of bootstrap values of n examples (Hesterberg 2015).

    The percentiles are those of Student's t in place of the normal distribution, times sqrt(n / (n-1)): plain
    percentiles are too narrow for few examples. For many examples both are equal.
    """
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * student_t(n - 1, confidence))
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def intervals(outcomes: Outcomes) -> dict[str, Interval]:
    """The 95 % interval of each metric.

    Metrics of fewer than two examples, undefined ones, and correlations with a constant prediction have none.
    """
    shares = {name: x for name, x in outcomes.items() if isinstance(x, Mean) and x.is_share and x.n}
    ends = {name: wilson_interval(round(x.values.sum()), x.n) for name, x in shares.items()}
    ends |= {name: class_shares_interval(x) for name, x in outcomes.items() if isinstance(x, ClassShares) and x.n}
    remaining = {name: x for name, x in outcomes.items() if name not in ends and x.n > 1}
    for name, values in bootstrap(remaining).items():
        if np.isfinite(values).all():
            n = remaining[name].n
            ends[name] = widen_at_ends(name, percentile_interval(values, n), n)
    is_count = {name: isinstance(x, ClassShares) for name, x in outcomes.items()}  # 0 to 0: no class reaches it
    return {name: ends[name] for name in outcomes if name in ends and (any(ends[name]) or is_count[name])}


def widen_at_ends(name: str, interval: Interval, n: int) -> Interval:
    """An interval without width at an end of the range of its metric, widened by Wilson's bound.

    No resample of n faultless examples has a fault, but the next example may have one: its probability is at most
    Wilson's bound, and this share of the range is added.
    """
    if name in UNBOUNDED or interval[1] - interval[0] > ROUNDING:
        return interval
    (lowest, highest), (_, fault) = BOUNDS.get(name, (0.0, 1.0)), wilson_interval(0, n)
    width = fault * (highest - lowest)
    if interval[0] >= highest - ROUNDING:
        return highest - width, highest
    return (lowest, lowest + width) if interval[1] <= lowest + ROUNDING else interval
