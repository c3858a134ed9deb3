"""Regression metrics, and the bootstrap interval of any metric."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def pearson(targets: Array, predictions: Array) -> float:
    """Pearson correlation; 0 if one side is constant."""
    a, b = targets - targets.mean(), predictions - predictions.mean()
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / scale) if scale > 0 else 0.0


def spearman(targets: Array, predictions: Array) -> float:
    """Spearman rank correlation; ties have the mean of their ranks."""
    return pearson(ranks(targets), ranks(predictions))


def r2(mse: float, variance: float) -> float:
    """Coefficient of determination; negative if the mean of the targets is a better prediction."""
    return 1 - mse / variance if variance > 0 else 0.0


def ranks(values: Array) -> Array:
    """Ranks from 1; ties have the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def bootstrap_half_width(metric: Callable[[Array], float], n_rows: int, draws: int = 200) -> float:
    """Half the width of the 95 % bootstrap interval of metric(rows)."""
    rng = np.random.default_rng(0)
    low, high = np.quantile([metric(rng.integers(n_rows, size=n_rows)) for _ in range(draws)], [0.025, 0.975])
    return float(high - low) / 2
