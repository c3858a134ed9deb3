"""A verdict claims a difference only if its interval excludes 0, and says otherwise how many examples would show it."""

from typing import Any

import pytest

from harken.experiments.report import verdict
from harken.experiments.report.page import report_page
from harken.experiments.report.verdict import NOT_BETTER, interval_texts, run_verdict
from harken.tasks.metrics import paired_difference


def facts(low: float, value: float, high: float, **more: object) -> dict[str, Any]:
    """A classifier with an accuracy of 0.64 on 50 texts, and the difference to its best baseline."""
    difference = {"value": value, "low": low, "high": high, "needed": 2100, "size": max(abs(value), 0.01), **more}
    baselines = {"bag of words": {"accuracy": 0.64 - value}, "most frequent label": {"accuracy": 0.1}}
    return {
        "name": "x",
        "metrics": {"test": {"loss": 0.7, "accuracy": 0.64}},
        "intervals": {"test": {"loss": [0.6, 0.81], "accuracy": [0.5, 0.76]}},
        "protocol": {"test": {"texts": 50, "primary_metric": "accuracy"}},
        "baseline": {"test": baselines},
        "differences": {"test": {"bag of words": {"accuracy": difference}}},
    }


def test_a_difference_whose_interval_excludes_0_is_better_or_worse():
    assert run_verdict(facts(0.05, 0.12, 0.19)) == (
        "Accuracy 0.640 on the test split, better than the best trivial baseline 0.520 (bag of words): the accuracy is "
        "higher by 0.120 (95 % interval 0.050 to 0.190).",
        "",
    )
    assert run_verdict(facts(-0.19, -0.12, -0.05)) == (
        "Accuracy 0.640 on the test split, worse than the best trivial baseline 0.760 (bag of words): the accuracy is "
        "lower by 0.120 (95 % interval 0.050 to 0.190).",
        NOT_BETTER,
    )


def test_a_difference_whose_interval_includes_0_is_not_clear_and_the_needed_number_is_named():
    assert run_verdict(facts(-0.11, 0.02, 0.15)) == (
        "Accuracy 0.640 on the test split; no clear difference from the best trivial baseline 0.620 (bag of words) "
        "with 50 texts: the accuracy is higher by 0.02 (95 % interval -0.11 to 0.15). About 2,100 texts would be "
        "needed.",
        NOT_BETTER,
    )
    same = run_verdict(facts(-0.1, 0.0, 0.1))[0]
    assert "the accuracy is the same (95 % interval -0.10 to 0.10)" in same
    assert same.endswith(" About 2,100 texts would be needed to see a difference of 0.01.")
    assert "needed" not in run_verdict(facts(-0.001, 0.0, 0.001, needed=12))[0]


def test_a_perfect_model_beside_a_perfect_baseline_needs_no_further_examples():
    x = facts(-0.07, 0.0, 0.07, needed=8100)
    x["metrics"]["test"]["accuracy"] = x["baseline"]["test"]["bag of words"]["accuracy"] = 1.0
    assert run_verdict(x) == (
        "Accuracy 1.00 on the test split, the highest possible value, and so has the baseline bag of words; these "
        "examples are too easy to show a difference.",
        verdict.EASY_ADVICE,
    )
    x["baseline"]["test"]["bag of words"]["accuracy"] = 0.98
    assert "no clear difference" in run_verdict(x)[0]


def test_the_verdict_on_grouped_texts_counts_the_groups():
    x = facts(-0.11, 0.02, 0.15, needed=90)
    x["protocol"]["test"]["groups"] = 12
    text, problem = run_verdict(x)
    assert " with 50 texts in 12 groups: " in text
    assert text.endswith(" About 90 groups would be needed.")
    assert problem == NOT_BETTER


@pytest.mark.parametrize("low", [-0.1, 0.05])
def test_few_groups_are_too_few_for_a_verdict(low):
    assert verdict.MIN_GROUPS == paired_difference.MIN_GROUPS
    x = facts(low, 0.12, 0.3)
    x["protocol"]["test"]["groups"] = 7
    assert run_verdict(x) == (
        "Accuracy 0.640 on the test split; best trivial baseline 0.520 (bag of words). 7 groups are too few for a "
        "comparison; at least 8 are needed.",
        "Add groups, or hold out more of them (data.test).",
    )


def test_a_lower_loss_is_better_and_the_perplexity_is_shown():
    x: dict[str, Any] = {"name": "x", "metrics": {"valid": {"loss": 1.71, "perplexity": 5.53}}}
    x["baseline"] = {"valid": {"unigram": {"loss": 2.13, "perplexity": 8.4}}}
    x["protocol"] = {"valid": {"tokens": 5000}}
    x["differences"] = {"valid": {"unigram": {"loss": {"value": 0.42, "low": 0.4, "high": 0.44}}}}
    assert run_verdict(x)[0] == (
        "Perplexity 5.53 on the validation split, better than the best trivial baseline 8.40 (unigram): the loss is "
        "lower by 0.420 (95 % interval 0.400 to 0.440)."
    )


@pytest.mark.parametrize("row", [None, [], [1], [0.1, None], "0 to 1", {"low": 0.0}])
def test_malformed_intervals_are_left_out(row):
    x = facts(-0.1, 0.0, 0.1)
    x["intervals"]["test"]["loss"] = row
    assert interval_texts(x, "test") == {"accuracy": "0.50 to 0.76"}
    assert report_page(x)


def test_the_page_shows_the_interval_of_each_metric():
    page = report_page(facts(-0.1, 0.0, 0.1))
    assert "test split, 95 % interval 0.50 to 0.76" in page
    assert "95 % interval, lower end" in page
