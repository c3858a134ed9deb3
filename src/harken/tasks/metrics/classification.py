"""How good answers are: labels, several labels at once, amounts. All are shares of 0 to 1, or correlations."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]


def accuracy(gold: Numbers, found: Numbers) -> float:
    """The share of texts answered rightly; of several labels at once, all of a text must be right."""
    right = gold == found
    return float(np.mean(right if right.ndim == 1 else right.all(1)))


def one_hot(labels: Numbers, many: int) -> Numbers:  # N -> N C
    return labels[:, None] == np.arange(many)


def by_label(gold: Numbers, found: Numbers) -> tuple[Numbers, Numbers, Numbers]:  # N C -> C, C, C
    """Precision, recall and F1 of each label; 0 where there is nothing to divide by."""
    gold, found = gold.astype(bool), found.astype(bool)
    right, said, there = (gold & found).sum(0), found.sum(0), gold.sum(0)
    return right / np.maximum(1, said), right / np.maximum(1, there), 2 * right / np.maximum(1, said + there)


def matthews(gold: Numbers, found: Numbers, many: int) -> float:
    """The correlation of labels with answers, of any number of labels; 0 where one of them never changes."""
    a, b = one_hot(gold, many).astype(float), one_hot(found, many).astype(float)
    both, own, other = (((x - x.mean(0)) * (y - y.mean(0))).sum() for x, y in ((a, b), (a, a), (b, b)))
    return float(both / np.sqrt(own * other)) if own * other > 0 else 0.0


def pearson(gold: Numbers, found: Numbers) -> float:
    """The correlation of amounts; 0 where one of them never changes."""
    a, b = gold - gold.mean(), found - found.mean()
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / size) if size > 0 else 0.0


def spearman(gold: Numbers, found: Numbers) -> float:
    """The correlation of their ranks; equal amounts share the mean of theirs."""
    return pearson(_ranks(gold), _ranks(found))


def r2(mse: float, variance: float) -> float:
    """The share of the variance that is explained; below 0: the mean alone would be nearer."""
    return 1 - mse / variance if variance > 0 else 0.0


def auc(gold: Numbers, found: Numbers) -> float:
    """The chance that a true one has a higher score than a false one, or half of it where they are equal."""
    true = int(gold.sum())
    pairs = true * (len(gold) - true)
    return float((_ranks(found)[gold].sum() - true * (true + 1) / 2) / pairs) if pairs else 0.5


def _ranks(values: Numbers) -> Numbers:
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[where]


def spread(score: Callable[[Numbers], float], rows: int, draws: int = 200) -> float:
    """Half the width that holds 95 % of the scores of sets drawn from these rows with replacement."""
    dice = np.random.default_rng(0)
    low, high = np.quantile([score(dice.integers(rows, size=rows)) for _ in range(draws)], [0.025, 0.975])
    return float(high - low) / 2
