"""Metrics of labels and numbers against SciPy and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from harken.tasks.metrics import weighted
from harken.tasks.metrics.labels import one_hot, precision_recall_f1
from harken.tasks.metrics.weighted import evaluate


def random_labels(n_labels: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n_labels * n)
    targets = rng.integers(0, n_labels, n)
    return targets, np.where(rng.random(n) < 0.6, targets, rng.integers(0, n_labels, n))


@pytest.mark.parametrize(("n_labels", "n"), [(2, 50), (2, 3), (5, 200), (3, 1)])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_metrics_of_one_label_per_row_are_those_of_scikit_learn(n_labels, n):
    targets, predictions = random_labels(n_labels, n)
    values = evaluate(weighted.label_metrics(targets, predictions, n_labels))
    assert values["accuracy"] == pytest.approx(metrics.accuracy_score(targets, predictions))
    assert values["matthews"] == pytest.approx(metrics.matthews_corrcoef(targets, predictions), abs=1e-12)
    scores = precision_recall_f1(one_hot(targets, n_labels), one_hot(predictions, n_labels))
    options = {"labels": range(n_labels), "zero_division": 0}
    np.testing.assert_allclose(
        scores, metrics.precision_recall_fscore_support(targets, predictions, **options)[:3], atol=1e-12
    )


def test_metrics_of_several_labels_per_row_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    targets = rng.random((80, 4)) < 0.3
    predictions = np.where(rng.random((80, 4)) < 0.8, targets, ~targets)
    values = evaluate(weighted.multilabel_metrics(targets, predictions))
    assert values["accuracy"] == pytest.approx(metrics.accuracy_score(targets, predictions))
    assert values["f1"] == pytest.approx(metrics.f1_score(targets, predictions, average="macro"))
    assert values["f1_micro"] == pytest.approx(metrics.f1_score(targets, predictions, average="micro"))


def test_a_constant_prediction_has_a_matthews_correlation_of_0():
    targets, ones = np.array([0, 1, 1, 0]), np.ones(4, int)
    assert evaluate(weighted.label_metrics(targets, ones, 2))["matthews"] == 0
    assert precision_recall_f1(one_hot(targets, 2), one_hot(ones, 2))[2].tolist() == [0, 2 / 3]


def test_a_correlation_that_is_0_but_for_rounding_is_exactly_0():
    rng = np.random.default_rng(0)
    constants = [np.full(n, value) for n, value in ((33, 0.1), (77, 1 / 3), (1000, 0.7))]
    pairs = [(rng.normal(size=len(x)), x) for x in constants]
    assert {evaluate(weighted.number_metrics(*pair))["pearson"] for pair in pairs} == {0.0}
    sides = [(np.repeat([0, 1, 2], 2 * n), np.tile([0, 1], 3 * n)) for n in range(1, 40)]
    assert {evaluate(weighted.label_metrics(*side, 3))["matthews"] for side in sides} == {0.0}


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_a_correlation_does_not_depend_on_the_unit(scale):
    rng = np.random.default_rng(0)
    targets = rng.normal(size=30)
    predictions = targets + rng.normal(size=30)
    values = evaluate(weighted.number_metrics(targets, scale * predictions))
    assert values["pearson"] == pytest.approx(stats.pearsonr(targets, predictions)[0])


def test_auc_is_that_of_scikit_learn_with_ties():
    rng = np.random.default_rng(0)

    def auc(targets: np.ndarray, scores: np.ndarray) -> float:
        return evaluate({"auc": weighted.auc(targets, scores)})["auc"]

    targets, scores = rng.random(200) < 0.3, rng.integers(0, 10, 200)
    assert auc(targets, scores) == pytest.approx(metrics.roc_auc_score(targets, scores))
    assert auc(np.zeros(3, bool), np.arange(3)) == auc(np.ones(3, bool), np.arange(3)) == 0.5


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.floats(-5, 5, width=16)), min_size=3, max_size=40))
def test_correlations_are_those_of_scipy_with_ties(pairs):
    targets, predictions = (np.array(side, float) for side in zip(*pairs, strict=True))
    values = evaluate(weighted.number_metrics(targets, predictions))
    if len(set(targets)) == 1 or len(set(predictions)) == 1:
        assert values == {"pearson": 0, "spearman": 0}
    elif targets.std() > 1e-3 and predictions.std() > 1e-3:
        assert values["pearson"] == pytest.approx(stats.pearsonr(targets, predictions)[0], abs=1e-9)
        assert values["spearman"] == pytest.approx(stats.spearmanr(targets, predictions)[0], abs=1e-9)


def test_r2_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    targets, predictions = rng.normal(size=50), rng.normal(size=50)
    values = evaluate(weighted.squared_error_metrics(targets, predictions))
    assert values["r2"] == pytest.approx(metrics.r2_score(targets, predictions))
    assert evaluate(weighted.squared_error_metrics(np.ones(3), predictions[:3]))["r2"] == 0
