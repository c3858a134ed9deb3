"""Metrics as functions of the weights of the examples, so that a bootstrap evaluates thousands of resamples at once.

A resample of N examples is a row of N weights: how often each example was drawn. A metric maps R N weights to R values;
weights of one give the metric of the split. Most metrics need sums over the examples only (`OfSums`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from harken.data.batch import Array

CHUNK = 2_000_000  # weights of examples computed at once from weights of groups: bounds the memory
MAX_EXPONENT = 700.0  # exp of more overflows
MAX_ORDER = 4  # n-grams of BLEU
CHRF_BETA = 2
TINY = 1e-12  # smaller variances and correlations are rounding errors
LOWER_IS_BETTER = frozenset({"loss", "perplexity", "bits_per_character", "mse", "mae", "rmse"})


class WeightedMetric(Protocol):
    """A metric of N examples as a function of their weights."""

    @property
    def n(self) -> int:
        """Number of examples."""

    def __call__(self, weights: Array, /) -> Array:  # R N -> R
        """The value for each row of weights."""


Outcomes = Mapping[str, WeightedMetric]  # the metrics of a split by name


@dataclass(frozen=True, eq=False)
class Mean:
    """The mean of one value per example."""

    values: Array  # N

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def is_share(self) -> bool:
        """Whether each example counts as 0 or 1."""
        return bool(((self.values == 0) | (self.values == 1)).all())

    def __call__(self, weights: Array) -> Array:
        mean: Array = weights @ self.values / weights.sum(1)
        return mean


@dataclass(frozen=True, eq=False)
class ClassShares:
    """A function of the share of each class: the sum of the shares with a weight each, or how many reach a threshold.

    A class that a resample lacks keeps its share.
    """

    values: Array  # N: 0 or 1
    class_index: Array  # N
    class_weights: Array | None = None  # C
    threshold: float = 0.0  # without class weights

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def counts(self) -> tuple[Array, Array]:
        """The number of ones and of examples of each class."""
        ones, sizes = self._sums(np.ones((1, self.n)))
        return ones[0], sizes[0]

    def combine(self, shares: Array) -> Array:  # ... C -> ...
        """The metric of these shares."""
        if self.class_weights is None:
            above: Array = (shares >= self.threshold).sum(-1).astype(np.float64)
            return above
        total: Array = shares @ self.class_weights
        return total

    def __call__(self, weights: Array) -> Array:
        (ones, sizes), (all_ones, all_sizes) = self._sums(weights), self.counts
        return self.combine(np.where(sizes > 0, _divide(ones, sizes), _divide(all_ones, all_sizes)))

    def _sums(self, weights: Array) -> tuple[Array, Array]:  # R N -> R C each
        n_classes = int(self.class_index.max(initial=-1)) + 1
        return tuple(sum_by_group(weights * x, self.class_index, n_classes) for x in (self.values, 1.0))  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class OfSums:
    """A function of the sums of K values per example."""

    rows: Array  # N K
    metric: Callable[..., Array]  # of K arrays of R sums

    @property
    def n(self) -> int:
        return len(self.rows)

    def __call__(self, weights: Array) -> Array:
        return self.metric(*(weights @ self.rows).T)


@dataclass(frozen=True, eq=False)
class OfWeights:
    """Any function of the weights."""

    n: int
    metric: Callable[[Array], Array]

    def __call__(self, weights: Array) -> Array:
        return self.metric(weights)


@dataclass(frozen=True, eq=False)
class OfGroups:
    """A metric as a function of the weights of groups of examples, which a bootstrap draws as a whole."""

    metric: WeightedMetric
    group_index: Array  # N: the group of each example

    @property
    def n(self) -> int:
        return int(self.group_index.max(initial=-1)) + 1

    def __call__(self, weights: Array) -> Array:  # R G
        rows = max(1, CHUNK // max(1, self.metric.n))
        chunks = (weights[start : start + rows] for start in range(0, len(weights), rows))
        return np.concatenate([self.metric(chunk[:, self.group_index]) for chunk in chunks])


def evaluate(outcomes: Outcomes) -> dict[str, float]:
    """The value of each metric on the split, where every example has the weight 1."""
    return {name: float(metric(np.ones((1, metric.n)))[0]) for name, metric in outcomes.items()}


def index_groups(groups: Sequence[str]) -> Array | None:
    """The index of the group of each example; None if none has a group. One without a group is its own group."""
    if not any(groups):
        return None
    known: dict[str | int, int] = {}
    return np.array([known.setdefault(group or n, len(known)) for n, group in enumerate(groups)])


def by_group(outcomes: Outcomes, group_index: Array | None) -> Outcomes:
    """The metrics as functions of the weights of the groups, because the examples of a group are not independent."""
    if group_index is None or len(set(group_index.tolist())) == len(group_index):
        return outcomes
    return {name: OfGroups(metric, group_index) for name, metric in outcomes.items()}


def mean(values: ArrayLike) -> Mean:
    """The mean of one number or truth value per example."""
    return Mean(np.asarray(values, np.float64))


def ratio(numerators: ArrayLike, denominators: ArrayLike, transform: Callable[[Array], Array] = np.asarray) -> OfSums:
    """The ratio of two sums, such as loss and number of tokens, transformed."""
    rows = np.stack([np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)], 1)
    return OfSums(rows, lambda a, b: transform(_divide(a, b)))


def perplexity(losses: ArrayLike, counts: ArrayLike) -> OfSums:
    """exp of the mean loss."""
    return ratio(losses, counts, lambda mean: np.exp(np.minimum(mean, MAX_EXPONENT)))


def micro_f1(matched: ArrayLike, predicted: ArrayLike, actual: ArrayLike) -> OfSums:
    """F1 of the counts of all examples, such as the entities of each sentence."""
    return ratio(2.0 * np.asarray(matched), np.asarray(predicted) + np.asarray(actual))


def _divide(a: Array, b: Array) -> Array:
    """a / b, and 0 where b is 0."""
    return np.divide(a, b, out=np.zeros(np.broadcast(a, b).shape), where=b != 0)


def sum_by_group(weights: Array, groups: Array, n_groups: int) -> Array:  # R N, N -> R groups
    """The sum of the weights of each group."""
    order = np.argsort(groups, kind="stable")
    present, starts = np.unique(groups[order], return_index=True)
    sums = np.zeros((len(weights), n_groups))
    if len(present):
        sums[:, present] = np.add.reduceat(weights[:, order], starts, axis=1)
    return sums


# --- labels -----------------------------------------------------------------------------------------------------------


def label_metrics(targets: Array, predictions: Array, n_labels: int) -> dict[str, WeightedMetric]:
    """Accuracy, F1 (of the second of two labels, else the mean over labels that occur) and Matthews correlation."""
    correct = targets == predictions

    def counts(weights: Array) -> tuple[Array, Array, Array]:  # R C each
        actual, predicted = (sum_by_group(weights, side, n_labels) for side in (targets, predictions))
        return actual, predicted, sum_by_group(weights[:, correct], targets[correct], n_labels)

    def f1(weights: Array) -> Array:
        actual, predicted, both = counts(weights)
        scores = _divide(2 * both, actual + predicted)
        return scores[:, 1] if n_labels == 2 else _divide(scores.sum(1), (actual + predicted > 0).sum(1))

    def matthews(weights: Array) -> Array:
        actual, predicted, both = (x / weights.sum(1, keepdims=True) for x in counts(weights))
        covariance = both.sum(1) - (actual * predicted).sum(1)
        return _correlation(covariance, 1 - (actual**2).sum(1), 1 - (predicted**2).sum(1))

    n = len(targets)
    return {"accuracy": mean(correct), "f1": OfWeights(n, f1), "matthews": OfWeights(n, matthews)}


def multilabel_metrics(targets: Array, predictions: Array) -> dict[str, WeightedMetric]:  # N C each, bool
    """Accuracy (all labels of an example are correct), the mean F1 of the labels that occur, and micro F1."""
    sides = targets & predictions, targets, predictions
    counts = np.concatenate(sides, 1).astype(np.float64)

    def f1(*sums: Array) -> Array:
        both, actual, predicted = np.split(np.stack(sums), 3)
        n = actual + predicted
        return _divide(_divide(2 * both, n).sum(0), (n > 0).sum(0))

    exact, micro = mean((targets == predictions).all(1)), micro_f1(*(side.sum(1) for side in sides))
    return {"accuracy": exact, "f1": OfSums(counts, f1), "f1_micro": micro}


def auc(targets: Array, scores: Array) -> OfWeights:
    """Area under the ROC curve; ties count half."""
    values, groups = np.unique(scores, return_inverse=True)
    positive = targets.astype(bool)

    def metric(weights: Array) -> Array:
        ends = sum_by_group(weights[:, positive], groups[positive], len(values))
        other = sum_by_group(weights[:, ~positive], groups[~positive], len(values))
        outranked = (ends * (np.cumsum(other, 1) - other / 2)).sum(1)
        pairs = ends.sum(1) * other.sum(1)
        return np.where(pairs > 0, _divide(outranked, pairs), 0.5)

    return OfWeights(len(targets), metric)


# --- numbers ----------------------------------------------------------------------------------------------------------


def number_metrics(targets: Array, predictions: Array) -> dict[str, WeightedMetric]:
    """Pearson and Spearman correlation."""
    a, b = map(_standardize, (targets, predictions))
    values = np.stack([np.ones(len(a)), a, b, a * a, b * b, a * b], 1)

    def pearson(n: Array, a: Array, b: Array, aa: Array, bb: Array, ab: Array) -> Array:
        return _correlation(ab / n - a * b / n**2, aa / n - (a / n) ** 2, bb / n - (b / n) ** 2)

    sides = [np.unique(x, return_inverse=True) for x in (targets, predictions)]

    def spearman(weights: Array) -> Array:
        n, ranks = weights.sum(1), []
        for values, groups in sides:  # mean ranks of the resample, minus their mean
            size = sum_by_group(weights, groups, len(values))
            ranks.append((np.cumsum(size, 1) - (size + n[:, None]) / 2)[:, groups])
        a, b = ranks
        aa, bb, ab = ((weights * x * y).sum(1) / n for x, y in ((a, a), (b, b), (a, b)))
        return _correlation(ab, aa, bb)

    return {"pearson": OfSums(values, pearson), "spearman": OfWeights(len(a), spearman)}


def error_metrics(targets: Array, predictions: Array) -> dict[str, WeightedMetric]:
    """Mean absolute error, and root mean squared error."""
    difference = (targets - predictions).astype(np.float64)
    ones = np.ones(len(difference))
    return {"mae": ratio(np.abs(difference), ones), "rmse": ratio(difference**2, ones, np.sqrt)}


def _standardize(values: Array) -> Array:
    """The values with mean 0 and standard deviation 1; zeros if they are constant but for rounding."""
    centered = values.astype(np.float64) - values.mean(dtype=np.float64)
    std = float(centered.std())
    return centered / std if std > TINY * np.abs(values).max(initial=0.0) else np.zeros(len(values))


def squared_error_metrics(targets: Array, predictions: Array, unit: float = 1.0) -> dict[str, WeightedMetric]:
    """R^2, and the mean squared error of values that are multiples of this unit."""
    error, centered = (targets - predictions).astype(np.float64) ** 2, targets - targets.mean(dtype=np.float64)
    rows = np.stack([np.ones(len(error)), error, centered, centered**2], 1)

    def r2(n: Array, error: Array, sums: Array, squares: Array) -> Array:
        variance = squares / n - (sums / n) ** 2
        return np.where(variance > TINY, 1 - _divide(error / n, variance), 0.0)

    return {"r2": OfSums(rows, r2), "mse": mean(unit**2 * error)}


def _correlation(covariance: Array, variance: Array, other: Array) -> Array:
    """Covariance over both standard deviations; 0 if one side is constant."""
    product = variance * other
    defined = product > TINY * np.maximum(1.0, product.max(initial=0.0))
    values = np.where(defined, covariance / np.sqrt(np.where(defined, product, 1.0)), 0.0)
    return np.where(np.abs(values) < TINY, 0.0, values)


# --- generated texts --------------------------------------------------------------------------------------------------


def bleu(rows: Array) -> OfSums:  # N 10: lengths of text and reference, matched n-grams, all n-grams
    """Corpus BLEU (0-100) with the smoothing of sacreBLEU ("exp")."""

    def metric(length: Array, reference: Array, *ngrams: Array) -> Array:
        matched, total = np.stack(ngrams[:MAX_ORDER]), np.stack(ngrams[MAX_ORDER:])
        halvings = np.cumsum((matched == 0) & (total > 0), 0)  # the k-th order without a match counts 1 / 2^k
        precision = _divide(np.where(matched > 0, matched, 0.5**halvings), total)
        possible = (total > 0).all(0) & (matched > 0).any(0)
        log_precision = np.log(np.where(possible, precision, 1.0)).mean(0)
        brevity = np.minimum(0.0, 1 - reference / np.maximum(length, 1.0))
        return np.where(possible, 100 * np.exp(log_precision + brevity), 0.0)

    return OfSums(rows, metric)


def chrf(rows: Array) -> OfSums:  # N 18: n-grams of the text, of the reference, and matched ones, for each order
    """Corpus chrF2 (0-100) of character n-grams."""

    def metric(*sums: Array) -> Array:
        predicted, actual, matched = (np.stack(sums[k::3]) for k in range(3))
        used = (predicted > 0) & (actual > 0)
        orders = np.maximum(1, used.sum(0))
        precision, recall = (np.where(used, _divide(matched, n), 0.0).sum(0) / orders for n in (predicted, actual))
        factor = CHRF_BETA**2
        return 100 * _divide((1 + factor) * precision * recall, factor * precision + recall)

    return OfSums(rows, metric)
