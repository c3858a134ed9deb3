"""Calibration equals scikit-learn's curve and a computation by hand."""

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from harken.tasks.metrics.calibration import calibration_bins, expected_calibration_error


@pytest.mark.parametrize("n_bins", [2, 5, 10])
def test_the_calibration_curve_equals_that_of_scikit_learn(n_bins):
    rng = np.random.default_rng(0)
    confidence = np.append(rng.uniform(size=500), [0.0, 0.5, 1.0, 0.2])  # with edges of bins
    correct = rng.uniform(size=504) < confidence**2
    bins = calibration_bins(confidence, correct, n_bins)
    accuracy, mean = calibration_curve(correct, confidence, n_bins=n_bins)
    np.testing.assert_allclose([x.accuracy for x in bins], accuracy)
    np.testing.assert_allclose([x.confidence for x in bins], mean)
    assert sum(x.examples for x in bins) == 504


def test_the_expected_calibration_error_equals_a_computation_by_hand():
    confidence, correct = np.array([0.95, 0.91, 0.55, 0.52]), np.array([True, False, True, True])
    # bin 0.5-0.6: confidence 0.535, accuracy 1; bin 0.9-1.0: confidence 0.93, accuracy 0.5
    expected = 2 / 4 * (1 - 0.535) + 2 / 4 * (0.93 - 0.5)
    assert expected_calibration_error(calibration_bins(confidence, correct)) == pytest.approx(expected)
    assert expected_calibration_error(calibration_bins(np.ones(3), np.ones(3, bool))) == 0
    assert expected_calibration_error([]) == 0
