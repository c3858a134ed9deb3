"""Metrics of weighted examples equal those of scikit-learn and SciPy on the resampled examples."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn

from harken.experiments.report.formatting import LOWER_IS_BETTER
from harken.tasks.metrics import weighted
from harken.tasks.metrics.intervals import resampled_weights

N = 60
RNG = np.random.default_rng(0)
WEIGHTS = next(resampled_weights(N, 3))
ROWS = [np.repeat(np.arange(N), row.astype(int)) for row in WEIGHTS]


def expect(metric, oracle):
    np.testing.assert_allclose(metric(WEIGHTS), [oracle(rows) for rows in ROWS], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n_labels", [2, 3, 9])
def test_label_metrics_of_weights_are_those_of_the_resample(n_labels):
    targets = RNG.integers(n_labels, size=N)
    predictions = np.where(RNG.random(N) < 0.6, targets, RNG.integers(n_labels, size=N))
    metrics = weighted.label_metrics(targets, predictions, n_labels)
    average = "binary" if n_labels == 2 else "macro"
    expect(metrics["accuracy"], lambda rows: (targets == predictions)[rows].mean())
    expect(metrics["f1"], lambda rows: sklearn.f1_score(targets[rows], predictions[rows], average=average))
    expect(metrics["matthews"], lambda rows: sklearn.matthews_corrcoef(targets[rows], predictions[rows]))


def test_multilabel_metrics_of_weights_are_those_of_the_resample():
    targets, predictions = RNG.random((N, 4)) < 0.5, RNG.random((N, 4)) < 0.5
    metrics = weighted.multilabel_metrics(targets, predictions)
    expect(metrics["f1"], lambda rows: sklearn.f1_score(targets[rows], predictions[rows], average="macro"))
    expect(metrics["accuracy"], lambda rows: sklearn.accuracy_score(targets[rows], predictions[rows]))


@pytest.mark.parametrize("digits", [0, 9])  # with and without ties
def test_metrics_of_numbers_and_ranks_are_those_of_the_resample(digits):
    targets = RNG.normal(size=N).round(digits)
    predictions = (targets + RNG.normal(size=N)).round(digits)
    metrics = weighted.number_metrics(targets, predictions) | weighted.squared_error_metrics(targets, predictions)
    metrics |= weighted.error_metrics(targets, predictions)
    expect(metrics["mae"], lambda rows: sklearn.mean_absolute_error(targets[rows], predictions[rows]))
    expect(metrics["rmse"], lambda rows: sklearn.mean_squared_error(targets[rows], predictions[rows]) ** 0.5)
    expect(metrics["pearson"], lambda rows: stats.pearsonr(targets[rows], predictions[rows])[0])
    expect(metrics["spearman"], lambda rows: stats.spearmanr(targets[rows], predictions[rows])[0])
    expect(metrics["r2"], lambda rows: sklearn.r2_score(targets[rows], predictions[rows]))
    expect(metrics["mse"], lambda rows: sklearn.mean_squared_error(targets[rows], predictions[rows]))
    expect(
        weighted.auc(targets > 0, predictions), lambda rows: sklearn.roc_auc_score(targets[rows] > 0, predictions[rows])
    )


def test_metrics_of_the_shares_of_classes_are_those_of_the_resample():
    classes, correct = RNG.integers(3, size=N), RNG.random(N) < 0.6
    weights = np.array([0.5, 0.3, 0.1])

    def shares(rows):
        return np.array([correct[rows][classes[rows] == k].mean() for k in range(3)])

    expect(weighted.ClassShares(correct, classes, weights), lambda rows: shares(rows) @ weights)
    expect(weighted.ClassShares(correct, classes, threshold=0.6), lambda rows: (shares(rows) >= 0.6).sum())


def test_constant_predictions_have_the_values_of_the_metrics_of_a_split():
    constant, targets = np.zeros(N), RNG.normal(size=N)
    assert all((metric(WEIGHTS) == 0).all() for metric in weighted.number_metrics(targets, constant).values())
    assert (weighted.label_metrics(np.arange(N) % 2, np.zeros(N, int), 2)["matthews"](WEIGHTS) == 0).all()
    assert (weighted.auc(np.ones(N), targets)(WEIGHTS) == 0.5).all()


def test_ratios_are_those_of_the_sums():
    losses, counts = RNG.random(N), RNG.integers(1, 9, size=N)
    expect(weighted.ratio(losses, counts), lambda rows: losses[rows].sum() / counts[rows].sum())
    expect(weighted.perplexity(losses, counts), lambda rows: np.exp(losses[rows].sum() / counts[rows].sum()))
    assert (weighted.ratio(losses, 0 * counts)(WEIGHTS) == 0).all()


def test_reports_and_verdicts_agree_on_the_metrics_that_are_better_when_lower():
    assert weighted.LOWER_IS_BETTER == LOWER_IS_BETTER


def test_a_metric_of_groups_has_the_weight_of_its_group_for_each_example(monkeypatch):
    monkeypatch.setattr(weighted, "CHUNK", 10)
    values, groups = RNG.normal(size=6), weighted.index_groups(["b", "a", "b", "", "", "a"])
    assert groups.tolist() == [0, 1, 0, 2, 3, 1]  # an example without a group is its own
    metric = weighted.by_group({"mean": weighted.mean(values)}, groups)["mean"]
    assert metric.n == 4
    weights = RNG.integers(1, 4, size=(7, 4)).astype(float)
    np.testing.assert_allclose(metric(weights), [np.average(values, weights=row[groups]) for row in weights])
    assert weighted.index_groups(["", ""]) is None
    single = {"mean": weighted.mean(values)}
    assert weighted.by_group(single, np.arange(6)) is single
