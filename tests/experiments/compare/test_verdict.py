"""The verdict of a comparison: Welch's test over the seeds, or the paired interval over the examples of one seed."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harken.experiments.compare.summary import Trial, summarize
from harken.experiments.compare.verdict import add_verdict
from harken.tasks.metrics import weighted
from harken.tasks.metrics.intervals import wilson_interval


def trial(value: str, seed: int, loss: float | None, **extra: Any) -> Trial:
    settings, run = {"model.heads": value}, Path(f"runs/{value}-{seed}")
    if loss is None:
        return Trial(settings, seed, run, failed="no memory")
    facts = {
        "kind": "gpt", "parameters": 1000, "steps": 10, "data": {"token": "char", "vocab": 60},
        "metrics": {"valid": {"loss": loss, "perplexity": math.exp(loss)}},
        "protocol": {"valid": {"tokens": 5000}},
        "baseline": {"valid": {"5-gram": {"loss": 2.5, "perplexity": 12.2}}},
    }  # fmt: skip
    cost = {"seconds": 25.0, "flops": 6e6, "tokens": 1000, "flops_per_token": 6e3, "kwh": 0.1, "co2e_kg": 0.2}
    return Trial(settings, seed, run, facts | extra, cost)


def judge(groups: list[list[Trial]]) -> dict[str, Any]:
    return add_verdict(summarize(groups), groups)


def judge_losses(**losses: list[float | None]) -> str:
    groups = [[trial(name, seed, loss) for seed, loss in enumerate(values)] for name, values in losses.items()]
    return str(judge(groups)["verdict"])


# --- several seeds ----------------------------------------------------------------------------------------------------


def test_a_clear_difference_over_the_seeds_names_its_interval():
    assert judge_losses(a=[1.00, 1.01, 1.02], b=[2.0, 2.01, 2.02]) == (
        "model.heads=a has the lowest validation loss, 1.010 ± 0.025, clearly better than model.heads=b: a difference "
        "of 1.000 (95 % interval 0.977 to 1.023, 3 seeds each)."
    )


def test_overlapping_intervals_can_be_a_clear_difference():
    first, second = [1.0, 1.1, 1.2], [1.3, 1.4, 1.5]
    groups = [[trial(name, n, loss) for n, loss in enumerate(row)] for name, row in (("a", first), ("b", second))]
    facts = judge(groups)
    (_, high), (low, _) = (row["interval"]["loss"] for row in facts["rows"])
    assert high > low
    assert "clearly better than model.heads=b" in facts["verdict"]


def test_no_clear_difference_names_the_needed_number_of_seeds():
    verdict = judge_losses(a=[1.0, 1.2, 1.1], b=[1.1, 1.15, 1.2])
    assert verdict.startswith(
        "No clear difference in validation loss between model.heads=a and model.heads=b (1.10 ± 0.25, 1.15 ± 0.12): a "
        "difference of 0.05 (95 % interval -0."
    )
    assert verdict.endswith("seeds each would be needed.")


def test_rows_that_are_clearly_worse_are_named_beside_a_tie():
    verdict = judge_losses(a=[1.0, 1.01, 1.02], b=[1.0, 1.02, 1.03], c=[2.4, 2.4, 2.41])
    assert "between model.heads=a and model.heads=b" in verdict
    assert "corrected for the number of rows" in verdict
    assert "; model.heads=c is clearly worse. About " in verdict


def test_more_rows_need_a_larger_difference():
    a, b = [1.0, 1.1, 1.2], [1.3, 1.4, 1.5]
    assert "clearly better" in judge_losses(a=a, b=b)
    assert "No clear difference" in judge_losses(a=a, b=b, c=b, d=b)


def test_a_row_with_one_remaining_seed_is_not_called_worse():
    assert judge_losses(a=[1.0, 1.01], b=[2.0, None]).startswith("model.heads=a has the lowest validation loss")
    three = judge_losses(a=[1.0, 1.01], b=[2.0, None], c=[3.0, 3.01])
    assert "between model.heads=a and model.heads=b" in three


def test_equal_rows_claim_a_difference_in_at_most_5_percent_of_the_comparisons():
    rng = np.random.default_rng(0)
    verdicts = []
    for _ in range(150):
        losses = rng.normal(1, 0.1, (4, 3)).tolist()
        verdicts.append(judge_losses(a=losses[0], b=losses[1], c=losses[2], d=losses[3]))
    claims = sum("clearly" in verdict for verdict in verdicts)
    assert claims <= 16  # 5 % are 7.5; more than 16 appear in 0.2 % of such tests


def test_higher_accuracy_is_better():
    groups = [
        [trial(x, s, 1.0, metrics={"valid": {"loss": 1.0, "accuracy": y + s / 100}}, baseline={}) for s in (0, 1)]
        for x, y in (("a", 0.2), ("b", 0.9))
    ]
    facts = judge(groups)
    assert facts["metric"] == "accuracy"
    assert facts["verdict"].startswith(
        "model.heads=b has the highest validation accuracy, 0.905 ± 0.064, clearly better"
    )


# --- one seed ---------------------------------------------------------------------------------------------------------


def one_seed(name: str, losses: Any, **extra: Any) -> list[Trial]:
    single = trial(name, 0, float(np.mean(losses)), **extra)
    return [replace(single, outcomes={"valid": {"loss": weighted.mean(losses)}})]


def test_one_seed_each_is_compared_on_the_same_examples():
    rng = np.random.default_rng(0)
    hard = rng.gamma(2.0, size=300)
    better, worse = hard + rng.normal(0, 0.1, 300), hard + rng.normal(0.05, 0.1, 300)
    facts = judge([one_seed("a", better), one_seed("b", worse)])
    assert facts["differences"]["model.heads=b"]["over"] == "tokens"
    assert "clearly better than model.heads=b: a difference of 0.0" in facts["verdict"]
    assert "over the same 5,000 tokens). Each has one seed; other seeds may differ." in facts["verdict"]
    close = judge([one_seed("a", hard), one_seed("b", hard + rng.normal(0, 0.1, 300))])["verdict"]
    assert close.startswith("No clear difference in validation loss between ")
    assert " tokens would be needed" in close


def test_one_seed_without_outcomes_may_differ_by_chance():
    assert judge_losses(a=[1.0], b=[2.0]) == (
        "model.heads=a has the lowest validation loss, 1.000 (model.heads=b: 2.000). With one seed there is no "
        "interval, so the difference may be noise."
    )


def test_rows_whose_seeds_all_have_the_same_value_are_compared_by_the_noise_of_their_examples():
    def row(name: str, n_correct: int) -> list[Trial]:
        facts = {"metrics": {"valid": {"loss": 1.0, "accuracy": n_correct / 100}}, "baseline": {}}
        facts["intervals"] = {"valid": {"accuracy": wilson_interval(n_correct, 100)}}
        facts["protocol"] = {"valid": {"texts": 100, "primary_metric": "accuracy"}}
        return [trial(name, seed, 1.0, **facts) for seed in (0, 1, 2)]

    assert "No clear difference" in judge([row("a", 52), row("b", 48)])["verdict"]
    assert "clearly better than model.heads=b" in judge([row("a", 100), row("b", 0)])["verdict"]
    assert judge_losses(a=[1.0, 1.0], b=[2.0, 2.0]).endswith(
        "(model.heads=b: 2.000 ± 0). All seeds of a row have the same value: there is no interval, so the difference "
        "may be noise."
    )


def classifier(name: str, correct: Any, n_groups: int | None = None) -> list[Trial]:
    protocol = {"texts": len(correct), "primary_metric": "accuracy"} | ({"groups": n_groups} if n_groups else {})
    metrics = {"valid": {"loss": 1.0, "accuracy": float(np.mean(correct))}}
    baseline = {"valid": {"bag of words": {"accuracy": 0.2}}}
    groups = np.arange(len(correct)) % n_groups if n_groups else None
    outcomes = {"valid": weighted.by_group({"accuracy": weighted.mean(correct)}, groups)}
    single = trial(name, 0, 1.0, metrics=metrics, protocol={"valid": protocol}, baseline=baseline)
    return [replace(single, outcomes=outcomes)]


def test_perfect_rows_need_no_further_examples():
    verdict = judge([classifier("a", np.ones(60)), classifier("b", np.ones(60))])["verdict"]
    assert "They have the highest possible value; these examples are too easy to show a difference." in verdict
    assert "needed" not in verdict


def test_grouped_examples_are_compared_by_group_and_few_groups_not_at_all():
    rows = np.arange(60) % 10 < 9, np.arange(60) % 10 < 8
    many = judge([classifier(name, row, 20) for name, row in zip("ab", rows, strict=True)])["verdict"]
    assert "over the same 20 groups" in many
    few = judge([classifier(name, row, 4) for name, row in zip("ab", rows, strict=True)])
    assert not few["differences"]
    assert few["verdict"].endswith("4 groups are too few for a comparison; at least 8 are needed.")


# --- clauses ----------------------------------------------------------------------------------------------------------


def test_failures_and_a_better_baseline_are_in_the_verdict():
    assert judge_losses(a=[2.9, 2.91], b=[None, None]) == (
        "model.heads=a: validation loss 2.905 ± 0.064. Failed: model.heads=b. The baseline 5-gram is better (2.500)."
    )
    assert "baseline" not in judge_losses(a=[1.0, 1.0])
    assert judge_losses(a=[2.4, 2.5]).endswith("There is no clear difference from the baseline 5-gram (2.500).")


def test_the_baseline_of_one_seed_is_compared_on_the_same_examples():
    difference = {"value": 0.1, "low": -0.1, "high": 0.3}
    differences = {"valid": {"5-gram": {"loss": difference}}}
    assert "no clear difference from the baseline" in judge([[trial("a", 0, 2.4, differences=differences)]])["verdict"]
    difference["low"] = 0.01
    assert "baseline" not in judge([[trial("a", 0, 2.4, differences=differences)]])["verdict"]


def test_many_rows_are_counted_instead_of_named():
    verdict = judge_losses(**{letter: [1.0, 1.0] for letter in "abcdef"})
    assert "between model.heads=a and 5 others" in verdict


def test_too_few_tokens_give_no_verdict():
    groups = [[trial(x, seed, 1.0, protocol={"valid": {"tokens": 300}}) for seed in (0, 1)] for x in "ab"]
    assert judge(groups)["verdict"] == "Only 300 tokens were evaluated; a verdict needs at least 1,000."


def test_no_held_out_split_and_no_finished_trial_are_distinguished():
    unevaluated = judge([[trial("a", 0, 1.0, metrics={}, baseline={})]])
    assert unevaluated["verdict"] == "No split was held out, so the models were not evaluated."
    assert judge_losses(a=[None]) == "Every trial failed."


@pytest.mark.parametrize(("seconds", "time"), [(25.0, "in about the same time"), (99.0, "in different times")])
def test_different_numbers_of_steps_are_in_the_verdict(seconds, time):
    slow = [
        replace(x, cost={**x.cost, "seconds": seconds}) for x in (trial("b", n, 2.0 + n / 9, steps=3) for n in (0, 1))
    ]
    verdict = judge([[trial("a", 0, 1.0), trial("a", 1, 1.1)], slow])["verdict"]
    assert verdict.endswith(f" Steps {time}: 10 (model.heads=a), 3 (model.heads=b).")
    assert "Steps" not in judge_losses(a=[1.0], b=[2.0])
