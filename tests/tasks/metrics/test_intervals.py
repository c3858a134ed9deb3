"""Intervals equal those of SciPy, and have a width at the ends of the range of a metric."""

import numpy as np
import pytest
from scipy import stats

from harken.tasks.metrics import weighted
from harken.tasks.metrics.intervals import (
    bootstrap,
    intervals,
    percentile_interval,
    resampled_weights,
    student_t,
    wilson_interval,
)

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("n_correct", "n"), [(0, 1), (0, 33), (33, 33), (7, 20), (999, 1000)])
def test_the_interval_of_a_share_equals_that_of_scipy(n_correct, n):
    expected = stats.binomtest(n_correct, n).proportion_ci(method="wilson")
    assert wilson_interval(n_correct, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 4.7, 60, 199, 200, 5000])
@pytest.mark.parametrize("confidence", [0.95, 0.998])
def test_the_quantiles_of_t_equal_those_of_scipy(freedom, confidence):
    assert student_t(freedom, confidence) == pytest.approx(stats.t.ppf((1 + confidence) / 2, freedom), rel=1e-6)


def test_the_bootstrap_interval_equals_that_of_scipy():
    values = RNG.gamma(2.0, size=400)
    expected = stats.bootstrap((values,), np.mean, n_resamples=9999, method="percentile", rng=1).confidence_interval
    low, high = intervals({"loss": weighted.mean(values)})["loss"]
    assert (low, high) == pytest.approx(tuple(expected), abs=0.1 * (high - low))


def test_few_examples_have_the_interval_of_student_t():
    values = RNG.normal(size=6)
    low, high = stats.t.interval(0.95, 5, values.mean(), stats.sem(values))
    draws = bootstrap({"x": weighted.mean(values)})["x"]
    expanded, plain = percentile_interval(draws, 6), np.quantile(draws, [0.025, 0.975])
    assert expanded[1] - expanded[0] == pytest.approx(high - low, rel=0.2)
    assert plain[1] - plain[0] < 0.8 * (high - low)


def test_faultless_predictions_have_an_interval_below_the_best_value():
    labels = np.arange(33) % 2
    ends = intervals(weighted.label_metrics(labels, labels, 2))
    assert ends["accuracy"] == wilson_interval(33, 33)
    assert ends["f1"] == pytest.approx(wilson_interval(33, 33))
    assert ends["matthews"] == pytest.approx((1 - 2 * wilson_interval(0, 33)[1], 1))
    assert intervals({"bleu": weighted.bleu(np.zeros((33, 10)))})["bleu"] == (0, pytest.approx(10.4, abs=0.1))


def test_the_interval_of_a_sum_of_shares_covers_the_truth_and_has_a_width_without_faults():
    rng, truth, weights = np.random.default_rng(0), np.array([0.99, 0.9, 0.5, 0.2]), np.array([0.6, 0.15, 0.07, 0.04])
    index = np.repeat(np.arange(4), 25)
    samples = [rng.random(100) < truth[index] for _ in range(400)]
    found = [intervals({"x": weighted.ClassShares(sample, index, weights)})["x"] for sample in samples]
    assert 0.93 <= np.mean([low <= truth @ weights <= high for low, high in found]) <= 0.99
    low, high = intervals({"x": weighted.ClassShares(np.ones(100), index, weights)})["x"]
    assert low < weights.sum() - 0.05
    assert high == pytest.approx(weights.sum())


def test_a_class_counts_as_clearly_above_a_threshold_if_its_whole_wilson_interval_is():
    index = np.repeat(np.arange(3), 100)
    values = np.concatenate([np.ones(100), np.arange(100) < 97, np.arange(100) < 50])
    assert intervals({"x": weighted.ClassShares(values, index, threshold=0.95)})["x"] == (1, 2)


@pytest.mark.parametrize("n_labels", [3, 5, 7])
def test_rounding_gives_faultless_predictions_of_several_labels_no_narrow_interval(n_labels):
    labels = np.arange(24) % n_labels
    ends = intervals(weighted.label_metrics(labels, labels, n_labels))
    assert ends["matthews"] == pytest.approx((1 - 2 * wilson_interval(0, 24)[1], 1))


def test_undefined_metrics_and_single_examples_have_no_interval():
    outcomes = {
        "loss": weighted.mean([np.nan, 1.0]),
        "perplexity": weighted.perplexity([3.0], [2]),
        "bleu": weighted.mean([]),
    }
    assert intervals(outcomes) == {}
    assert intervals({"em": weighted.mean([1.0])}) == {"em": wilson_interval(1, 1)}


def test_a_constant_prediction_has_no_interval_of_its_correlation():
    targets, constant = np.arange(40) % 2, np.zeros(40, int)
    assert intervals(weighted.label_metrics(targets, constant, 2)).keys() == {"accuracy", "f1"}
    assert intervals(weighted.number_metrics(RNG.normal(size=33), np.full(33, 0.1))) == {}


def test_resamples_depend_on_the_number_of_examples_only():
    first, second = (np.concatenate(list(resampled_weights(5, 50))) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert (first.sum(1) == 5).all()
    assert len(np.unique(first, axis=0)) > 20
