"""Regression metrics against SciPy and scikit-learn, and the bootstrap interval."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import r2_score

from harken.tasks.metrics.regression import bootstrap_half_width, pearson, r2, spearman


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.floats(-5, 5, width=16)), min_size=3, max_size=40))
def test_correlations_are_those_of_scipy_with_ties(pairs):
    targets, predictions = (np.array(side, float) for side in zip(*pairs, strict=True))
    if len(set(targets)) == 1 or len(set(predictions)) == 1:
        assert pearson(targets, predictions) == spearman(targets, predictions) == 0
    elif targets.std() > 1e-3 and predictions.std() > 1e-3:
        assert pearson(targets, predictions) == pytest.approx(stats.pearsonr(targets, predictions)[0], abs=1e-9)
        assert spearman(targets, predictions) == pytest.approx(stats.spearmanr(targets, predictions)[0], abs=1e-9)


def test_r2_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    targets, predictions = rng.normal(size=50), rng.normal(size=50)
    mse = float(np.mean((targets - predictions) ** 2))
    assert r2(mse, float(np.var(targets))) == pytest.approx(r2_score(targets, predictions))
    assert r2(1.0, 0.0) == 0


def test_the_bootstrap_interval_of_an_accuracy_is_that_of_the_binomial():
    correct = np.arange(1000) < 900
    half_width = bootstrap_half_width(lambda rows: correct[rows].mean(), 1000, 2000)
    assert half_width == pytest.approx(1.96 * np.sqrt(0.9 * 0.1 / 1000), rel=0.08)
