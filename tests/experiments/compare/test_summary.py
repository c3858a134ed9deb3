"""Means, intervals, time to equal quality and the verdict: what the numbers of many trainings allow to say."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.experiments.compare.summary import (
    Trial,
    averaged,
    elsewhere,
    grid,
    in_words,
    over_seeds,
    refused,
    seconds_to,
    student,
    tally,
)


def trial(value: Any, seed: int, loss: float | None, **more: Any) -> Trial:
    """A training of ten steps of 100 tokens at 50 tokens a second, whose valid loss falls evenly to this one."""
    settings, run = {"model.heads": value}, Path(f"runs/{value}-{seed}")
    if loss is None:
        return Trial(settings, seed, run, failed="no memory")
    log = [{"step": s, "loss": 9.0, "tokens_per_second": 50, "valid": loss + (10 - s) / 5} for s in range(2, 11, 2)]
    facts = {
        "kind": "gpt", "parameters": 1000, "steps": 10, "data": {"token": "char", "vocab": 60},
        "metrics": {"valid": {"loss": loss, "perplexity": math.exp(loss), "bits_per_character": loss / 2}},
        "protocol": {"valid": {"tokens": 5000}},
        "baseline": {"valid": {"5-gram": {"loss": 2.5, "perplexity": 12.2, "bits_per_character": 1.25}}},
    }  # fmt: skip
    cost = {"seconds": 25.0, "flops": 6e6, "tokens": 1000, "flops_per_token": 6e3, "kwh": 0.1, "co2e_kg": 0.2}
    return Trial(settings, seed, run, facts | more, cost, log)


def compared(**losses: list[float | None]) -> dict[str, Any]:
    return tally([[trial(name, seed, loss) for seed, loss in enumerate(some)] for name, some in losses.items()])


# --- intervals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (7, 2.365), (9, 2.262), (30, 2.042), (120, 1.980)],
)
def test_students_t_is_that_of_the_printed_tables(freedom, t):
    assert student(freedom) == pytest.approx(t, abs=6e-4)


def test_students_t_for_other_shares_is_that_of_the_printed_tables():
    assert student(5, 0.99) == pytest.approx(4.032, abs=6e-4)
    assert student(10, 0.90) == pytest.approx(1.812, abs=6e-4)


@given(st.integers(1, 200))
def test_more_seeds_never_make_the_factor_larger(freedom):
    assert student(freedom) > student(freedom + 1) > 1.959


def test_the_interval_is_that_of_the_mean():
    mean, interval = over_seeds([1.0, 2.0, 3.0])
    assert mean == 2
    assert interval == pytest.approx([2 - 4.3027 / math.sqrt(3), 2 + 4.3027 / math.sqrt(3)], abs=1e-4)
    assert over_seeds([1.5]) == (1.5, None)


def test_only_metrics_that_all_have_are_averaged():
    found = averaged([{"loss": 1.0, "bleu": 3.0}, {"loss": 2.0, "bleu": math.nan}])
    assert found["metrics"] == {"loss": 1.5}


def test_a_number_has_as_many_digits_as_its_interval_leaves():
    said = [in_words(1.58312, i) for i in ([1.5621, 1.6041], [1.0, 2.0], [1.58297, 1.58327], [1.58312, 1.58312], None)]
    assert said == ["1.583 ± 0.021", "1.58 ± 0.50", "1.58312 ± 0.00015", "1.583 ± 0", "1.583"]
    assert in_words(123.4, [100.0, 146.0]) == "123 ± 23"
    assert in_words(None) == "-"


# --- time to equal quality --------------------------------------------------------------------------------------------


def test_the_time_to_a_level_is_read_between_two_looks():
    curve = [(10.0, 4.0), (20.0, 3.0), (30.0, 2.0)]
    assert [seconds_to(level, curve) for level in (5.0, 4.0, 3.5, 3.0, 2.25, 1.9)] == [10, 10, 15, 20, 27.5, None]


def test_the_seconds_of_a_curve_come_from_the_steps_and_the_rate():
    assert trial("a", 0, 1.0).curve() == [
        (2.0, 4.0, 2.6),
        (4.0, 8.0, 2.2),
        (6.0, 12.0, 1.8),
        (8.0, 16.0, 1.4),
        (10.0, 20.0, 1.0),
    ]


def test_equal_quality_is_the_best_valid_loss_that_every_trial_reaches():
    found = compared(good=[1.0, 1.2], bad=[1.6, 1.4], none=[None, None])
    assert found["level"] == 1.6
    good, bad, none = (row["seconds_to_quality"] for row in found["rows"])
    assert good == pytest.approx((14 + 16) / 2)
    assert bad == pytest.approx((20 + 18) / 2)
    assert none is None


def test_a_trial_without_a_look_leaves_no_level_to_compare_at():
    blind = trial("b", 0, 1.0)
    found = tally([[trial("a", 0, 1.0)], [Trial(blind.settings, 0, blind.run, blind.facts, blind.cost)]])
    assert found["level"] is None
    assert [row["seconds_to_quality"] for row in found["rows"]] == [None, None]


# --- the verdict ------------------------------------------------------------------------------------------------------


def test_intervals_apart_make_a_winner():
    assert compared(a=[1.00, 1.01, 1.02], b=[2.0, 2.01, 2.02])["verdict"] == (
        "model.heads=a has the lowest valid loss, 1.010 ± 0.025; the next, model.heads=b, has 2.010 ± 0.025, "
        "and the intervals do not overlap."
    )


def test_where_intervals_overlap_no_difference_can_be_seen():
    assert compared(a=[1.0, 1.2], b=[1.1, 1.15], c=[2.4, 2.4])["verdict"] == (
        "No difference can be seen between model.heads=a and model.heads=b: their intervals of the valid loss overlap "
        "(1.1 ± 1.3, 1.12 ± 0.32); model.heads=c is worse."
    )


def test_equal_numbers_are_no_difference():
    assert compared(a=[1.0, 1.0], b=[1.0, 1.0])["verdict"].startswith("No difference can be seen between")


def test_one_seed_may_be_chance():
    assert compared(a=[1.0], b=[2.0])["verdict"] == (
        "model.heads=a has the lowest valid loss, 1.000 (model.heads=b: 2.000), but one seed has no interval: "
        "it may be chance."
    )


def test_the_same_number_of_one_seed_each_has_no_winner_and_a_free_one_may_be_as_good():
    said = compared(a=[2.5], b=[2.5])["verdict"]
    assert said == (
        "No difference is seen between model.heads=a and model.heads=b: valid loss 2.500 of each, "
        "but one seed has no interval: it may be chance; the free 5-gram is as good (2.500)."
    )


def test_of_three_with_one_seed_two_may_be_level():
    said = compared(a=[2.0], b=[2.0], c=[3.0])["verdict"]
    assert said.startswith("No difference is seen between model.heads=a and model.heads=b: valid loss 2.000 of each")
    assert said.endswith(" (model.heads=c: 3.000), but one seed has no interval: it may be chance.")


def test_a_row_of_which_one_seed_is_left_is_not_called_worse():
    said = compared(a=[1.0, 1.01], b=[2.0, None])["verdict"]
    assert said.startswith("No difference can be seen between model.heads=a and model.heads=b")


def test_what_failed_and_a_free_baseline_that_is_better_are_said():
    said = compared(a=[2.9, 2.91], b=[None, None])["verdict"]
    assert said == "model.heads=a: valid loss 2.905 ± 0.064; model.heads=b failed; the free 5-gram is better (2.500)."
    assert "free" not in compared(a=[1.0, 1.0])["verdict"]


def test_many_rows_are_counted_not_named():
    said = compared(**{letter: [1.0, 1.0] for letter in "abcdef"})["verdict"]
    assert (
        said
        == "No difference can be seen between model.heads=a and 5 others: their intervals of the valid loss overlap."
    )


def test_too_few_tokens_give_no_verdict():
    few = [[trial(x, seed, 1.0, protocol={"valid": {"tokens": 300}}) for seed in (0, 1)] for x in "ab"]
    assert tally(few)["verdict"] == "Only 300 tokens were judged, too few for a verdict: 1,000 are needed."


def test_nothing_held_out_and_nothing_finished_are_told_apart():
    assert (
        tally([[trial("a", 0, 1.0, metrics={}, baseline={})]])["verdict"]
        == "Nothing was held out, so nothing was judged."
    )
    assert compared(a=[None])["verdict"] == "Every trial failed."


def test_of_accuracy_more_is_better():
    rows = [
        [trial(x, s, 1.0, metrics={"valid": {"loss": 1.0, "accuracy": y + s / 100}}, baseline={}) for s in (0, 1)]
        for x, y in (("a", 0.2), ("b", 0.9))
    ]
    found = tally(rows)
    assert found["metric"] == "accuracy"
    assert found["verdict"].startswith(
        "model.heads=b has the highest valid accuracy, 0.905 ± 0.064; the next, model.heads=a"
    )


def translated(value: str, bleu: list[float], *, half: float | None = None, free: float = 3.0) -> list[Trial]:
    """A row of pairs: BLEU rises evenly to these numbers, while the loss says the opposite."""
    protocol = {"tokens": 5000, "judged_by": "bleu"} | ({} if half is None else {"bleu_interval": half})
    row = []
    for seed, score in enumerate(bleu):
        log = [
            {"step": s, "tokens_per_second": 50, "valid": 1.0 + s, "bleu": score - (10 - s)} for s in range(2, 11, 2)
        ]
        facts = {
            "metrics": {"valid": {"loss": score, "perplexity": math.exp(score), "bleu": score}},
            "protocol": {"valid": protocol}, "baseline": {"valid": {"copy of the source": {"bleu": free}}},
            "data": {"token": "bpe", "vocab": [60, 60]},
            "parts": {"valid": {"2 words": {"at": 2.0, "bleu": score + 1}, "5 words": {"at": 5.0, "bleu": score - 1}}},
        }  # fmt: skip
        row.append(replace(trial(value, seed, 1.0, **facts), log=log))
    return row


def test_the_metric_that_the_task_names_counts_not_the_loss():
    found = tally([translated("a", [20.0, 20.1]), translated("b", [30.0, 30.1])])
    assert (found["metric"], found["watched"]) == ("bleu", "bleu")
    assert found["verdict"].startswith(
        "model.heads=b has the highest valid bleu, 30.05 ± 0.64; the next, model.heads=a"
    )


def test_equal_quality_is_the_highest_bleu_that_every_trial_reaches():
    found = tally([translated("a", [20.0]), translated("b", [24.0])])
    assert found["level"] == 20.0
    assert [row["seconds_to_quality"] for row in found["rows"]] == pytest.approx([20.0, 12.0])


def test_a_rising_curve_reaches_a_level_from_below():
    curve = [(10.0, 1.0), (20.0, 2.0), (30.0, 4.0)]
    assert [seconds_to(level, curve, sign=-1) for level in (0.5, 1.5, 3.0, 5.0)] == [10, 15, 25, None]


def test_of_one_seed_the_interval_over_the_sentences_is_taken_and_named():
    found = tally([translated("a", [20.0], half=0.5), translated("b", [30.0], half=1.0)])
    assert [row["interval"]["bleu"] for row in found["rows"]] == [[19.5, 20.5], [29.0, 31.0]]
    assert found["verdict"] == (
        "model.heads=b has the highest valid bleu, 30.0 ± 1.0; the next, model.heads=a, has 20.00 ± 0.50, "
        "and the intervals over the sentences do not overlap, of one seed each: another may do otherwise."
    )
    near = tally([translated("a", [20.0], half=2.0), translated("b", [21.0], half=2.0)])
    assert "their intervals of the valid bleu over the sentences overlap" in near["verdict"]


def test_of_several_seeds_the_interval_is_over_the_seeds():
    [row] = tally([translated("a", [20.0, 22.0], half=0.1)])["rows"]
    assert row["interval"]["bleu"] == pytest.approx([21 - 12.706, 21 + 12.706], abs=1e-3)


def test_a_free_baseline_with_a_higher_bleu_is_better():
    assert "the free copy of the source is better (25.00)" in tally([translated("a", [20.0], free=25.0)])["verdict"]
    assert "free" not in tally([translated("a", [20.0], free=15.0)])["verdict"]


def test_bleu_is_compared_across_different_tokens():
    other = [replace(t, facts={**t.facts, "data": {"token": "char", "vocab": [9, 9]}}) for t in translated("b", [30.0])]
    found = tally([translated("a", [20.0]), other])
    assert (found["metric"], found["level"]) == ("bleu", 20.0)


def test_the_groups_of_a_split_are_averaged_over_the_seeds():
    [row] = tally([translated("a", [20.0, 22.0])])["rows"]
    assert {name: part["metrics"] for name, part in row["parts"].items()} == {
        "2 words": {"at": 2.0, "bleu": 22.0},
        "5 words": {"at": 5.0, "bleu": 20.0},
    }


def test_a_layer_is_told_by_its_formula():
    heads, lines = grid(tally([[replace(trial("a", 0, 1.0), formula={"order": "L d²", "products": 2.5e6})]]))
    assert [line[heads.index("a layer")] for line in lines] == ["L d² = 2.5 M", "-"]


def test_the_steps_are_a_column_only_where_the_rows_differ_in_them():
    assert "steps" not in grid(compared(a=[1.0], b=[2.0]))[0]
    heads, lines = grid(tally([[trial("a", 0, 1.0)], [trial("b", 0, 1.0, steps=1494)], [trial("c", 0, None)]]))
    assert [line[heads.index("steps")] for line in lines] == ["10", "1,494", "-", "-"]


def test_without_equal_quality_there_is_no_column_for_the_time_to_it():
    blind = [Trial({"model.heads": 1}, 0, Path("x"), trial(1, 0, 1.0).facts, trial(1, 0, 1.0).cost)]
    assert [head for head in grid(compared(a=[1.0]))[0] if head.startswith("to ")] == ["to 1.00"]
    assert not [head for head in grid(tally([blind]))[0] if head.startswith("to ")]


@pytest.mark.parametrize(("least", "heads"), [(0.0, []), (2.5, ["to 2.50"])])
def test_a_quality_of_nothing_is_no_quality_to_be_reached(least, heads):
    def learner(value: str, bleu: float) -> Trial:
        made = trial(value, 0, 1.0, metrics={"valid": {"bleu": bleu}}, baseline={"valid": {}})
        protocol = {"valid": {"tokens": 5000, "judged_by": "bleu"}}
        log = [{"step": 2, "loss": 9.0, "tokens_per_second": 50, "valid": 1.0, "bleu": bleu}]
        return replace(made, facts={**made.facts, "protocol": protocol}, log=log)

    found = grid(tally([[learner("a", least)], [learner("b", 5.0)]]))[0]
    assert [head for head in found if head.startswith("to ")] == heads


def test_the_free_baselines_are_shown_on_every_split():
    scores = {split: {"loss": loss} for split, loss in (("valid", 1.0), ("test", 1.1))}
    free = {split: {"5-gram": {"loss": loss}} for split, loss in (("valid", 2.0), ("test", 2.1))}
    heads, lines = grid(tally([[trial("a", 0, 1.0, metrics=scores, baseline=free)]]))
    assert [lines[-1][heads.index(f"{split} loss")] for split in ("valid", "test")] == ["2.000", "2.100"]


def test_losses_per_different_tokens_are_not_compared():
    other = trial(
        "b",
        0,
        3.0,
        data={"token": "bpe", "vocab": 4096},
        baseline={"valid": {"5-gram": {"loss": 5.0, "bits_per_character": 1.3}}},
    )
    found = tally([[trial("a", 0, 1.0)], [other]])
    assert (found["metric"], found["level"]) == ("bits_per_character", None)
    assert found["baseline"].keys() == {"5-gram", "5-gram, model.heads=b"}
    assert "valid bits per character" in grid(found)[0]


def test_what_was_refused_stands_with_its_reason():
    asked = [{"settings": {"model.context": 32}, "metrics": {}, "failed": "too long"}]
    one = trial("a", 0, 1.0)
    found = tally([[Trial(one.settings, 0, one.run, one.facts, one.cost, one.log, asked)], [trial("b", 0, None)]])
    assert elsewhere(found) == (["", "valid loss, as trained", "model.context=32"], [["model.heads=a", "1.000", "-"]])
    assert refused(found) == {
        "model.heads=b, seed 0": "no memory",
        "model.heads=a, judged under model.context=32": "too long",
    }
