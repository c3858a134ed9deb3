"""Measures of labels and amounts against scikit-learn and SciPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from harken.tasks.metrics import classification

CASES = [(2, 50), (2, 3), (5, 200), (3, 1)]


def drawn(many: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(many * n)
    gold = rng.integers(0, many, n)
    return gold, np.where(rng.random(n) < 0.6, gold, rng.integers(0, many, n))


@pytest.mark.parametrize(("many", "n"), CASES)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_measures_of_labels_are_those_of_scikit_learn(many, n):
    gold, found = drawn(many, n)
    assert classification.accuracy(gold, found) == pytest.approx(metrics.accuracy_score(gold, found))
    assert classification.matthews(gold, found, many) == pytest.approx(
        metrics.matthews_corrcoef(gold, found), abs=1e-12
    )
    ours = classification.precision_recall_f1(classification.one_hot(gold, many), classification.one_hot(found, many))
    theirs = metrics.precision_recall_fscore_support(gold, found, labels=range(many), zero_division=0)
    np.testing.assert_allclose(ours, theirs[:3], atol=1e-12)


def test_measures_of_several_labels_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    gold = rng.random((80, 4)) < 0.3
    found = np.where(rng.random((80, 4)) < 0.8, gold, ~gold)
    assert classification.accuracy(gold, found) == pytest.approx(metrics.accuracy_score(gold, found))
    assert classification.precision_recall_f1(gold, found)[2].mean() == pytest.approx(
        metrics.f1_score(gold, found, average="macro")
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.floats(-5, 5, width=16)), min_size=3, max_size=40))
def test_correlations_are_those_of_scipy_ties_and_all(pairs):
    gold, found = (np.array(side, float) for side in zip(*pairs, strict=True))
    if len(set(gold)) == 1 or len(set(found)) == 1:
        assert regression.pearson(gold, found) == regression.spearman(gold, found) == 0
    elif gold.std() > 1e-3 and found.std() > 1e-3:
        assert regression.pearson(gold, found) == pytest.approx(stats.pearsonr(gold, found)[0], abs=1e-9)
        assert regression.spearman(gold, found) == pytest.approx(stats.spearmanr(gold, found)[0], abs=1e-9)


def test_an_answer_that_never_changes_has_no_correlation():
    gold = np.array([0, 1, 1, 0])
    assert classification.matthews(gold, np.ones(4, int), 2) == 0
    assert classification.precision_recall_f1(classification.one_hot(gold, 2), classification.one_hot(np.ones(4, int), 2))[
        2
    ].tolist() == [0, 2 / 3]


def test_the_spread_of_an_accuracy_is_that_of_the_binomial():
    right = np.arange(1000) < 900
    half = classification.bootstrap_half_width(lambda drawn: right[drawn].mean(), 1000, 2000)
    assert half == pytest.approx(1.96 * np.sqrt(0.9 * 0.1 / 1000), rel=0.08)
