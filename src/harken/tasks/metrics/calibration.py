"""Calibration: whether predictions with a probability of 0.8 are correct in 80 % of the cases."""

from typing import NamedTuple

import numpy as np

from harken.data.batch import Array

N_BINS = 10


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
