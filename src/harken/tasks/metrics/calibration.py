"""Calibration: whether predictions with a probability of 0.8 are correct in 80 % of the cases."""

import math
from typing import NamedTuple

import numpy as np

from harken.data.batch import Array

N_BINS = 10
Z = 1.96  # of a 95 % interval


class CalibrationBin(NamedTuple):
    """Predictions of similar confidence: their mean confidence, the share of correct ones, and their number."""

    confidence: float
    accuracy: float
    examples: int


def calibration_bins(confidence: Array, correct: Array, n_bins: int = N_BINS) -> list[CalibrationBin]:  # N, N
    """Bins of equal width from 0 to 1; empty ones are left out."""
    index = np.searchsorted(np.linspace(0, 1, n_bins + 1)[1:-1], confidence)
    rows = ((index == n) for n in range(n_bins))
    return [
        CalibrationBin(float(confidence[row].mean()), float(correct[row].mean()), int(row.sum()))
        for row in rows
        if row.any()
    ]


def expected_calibration_error(bins: list[CalibrationBin]) -> float:
    """ECE: the mean distance of confidence and accuracy, weighted by the number of predictions."""
    total = sum(x.examples for x in bins)
    return sum(x.examples * abs(x.confidence - x.accuracy) for x in bins) / max(1, total)


def wilson_interval(n_correct: int, n: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share."""
    share, squared = n_correct / n, Z**2
    center = (share + squared / (2 * n)) / (1 + squared / n)
    half = Z / (1 + squared / n) * math.sqrt(share * (1 - share) / n + squared / (4 * n**2))
    return max(0.0, center - half), min(1.0, center + half)
