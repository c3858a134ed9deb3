"""Means, intervals and time to equal quality of a comparison."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harken.experiments.compare.summary import (
    Trial,
    comparison_table,
    eval_table,
    failures,
    format_interval,
    mean_and_interval,
    mean_metrics,
    seconds_to_level,
    summarize,
)


def trial(value: Any, seed: int, loss: float | None, **extra: Any) -> Trial:
    """A training of ten steps of 100 tokens at 50 tokens per second; the validation loss falls linearly to `loss`."""
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
    return Trial(settings, seed, run, facts | extra, cost, log)


def summarize_losses(**losses: list[float | None]) -> dict[str, Any]:
    return summarize([[trial(name, seed, loss) for seed, loss in enumerate(values)] for name, values in losses.items()])


# --- intervals --------------------------------------------------------------------------------------------------------


def test_the_interval_is_the_confidence_interval_of_the_mean():
    mean, interval = mean_and_interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert interval == pytest.approx([2 - 4.3027 / math.sqrt(3), 2 + 4.3027 / math.sqrt(3)], abs=1e-4)
    assert mean_and_interval([1.5]) == (1.5, None)


def test_only_common_metrics_are_averaged():
    facts = mean_metrics([{"loss": 1.0, "bleu": 3.0}, {"loss": 2.0, "bleu": math.nan}])
    assert facts["metrics"] == {"loss": 1.5}


def test_the_number_of_digits_follows_the_interval():
    texts = [
        format_interval(1.58312, i)
        for i in ([1.5621, 1.6041], [1.0, 2.0], [1.58297, 1.58327], [1.58312, 1.58312], None)
    ]
    assert texts == ["1.583 ± 0.021", "1.58 ± 0.50", "1.58312 ± 0.00015", "1.583 ± 0", "1.583"]
    assert format_interval(123.4, [100.0, 147.0]) == "123 ± 24"
    assert format_interval(1.0, [0.897, 1.0]) == "1.000 (0.897 to 1.000)"
    assert format_interval(None) == "-"


# --- time to equal quality --------------------------------------------------------------------------------------------


def test_the_time_to_a_level_is_interpolated():
    curve = [(10.0, 4.0), (20.0, 3.0), (30.0, 2.0)]
    assert [seconds_to_level(level, curve) for level in (5.0, 4.0, 3.5, 3.0, 2.25, 1.9)] == [10, 10, 15, 20, 27.5, None]


def test_the_seconds_of_a_curve_follow_from_steps_and_rate():
    assert trial("a", 0, 1.0).curve() == [
        (2.0, 4.0, 2.6),
        (4.0, 8.0, 2.2),
        (6.0, 12.0, 1.8),
        (8.0, 16.0, 1.4),
        (10.0, 20.0, 1.0),
    ]


def test_the_level_is_the_best_validation_loss_that_every_trial_reaches():
    facts = summarize_losses(best=[1.0, 1.2], worst=[1.6, 1.4], none=[None, None])
    assert facts["level"] == 1.6
    best, worst, none = (row["seconds_to_quality"] for row in facts["rows"])
    assert best == pytest.approx((14 + 16) / 2)
    assert worst == pytest.approx((20 + 18) / 2)
    assert none is None


def test_without_validation_there_is_no_common_level():
    without_log = trial("b", 0, 1.0)
    facts = summarize(
        [[trial("a", 0, 1.0)], [Trial(without_log.settings, 0, without_log.run, without_log.facts, without_log.cost)]]
    )
    assert facts["level"] is None
    assert [row["seconds_to_quality"] for row in facts["rows"]] == [None, None]


def bleu_trials(value: str, bleu: list[float], *, half: float | None = None, baseline: float = 3.0) -> list[Trial]:
    """A row of pairs: BLEU rises linearly to these values, the loss rises too."""
    protocol = {"tokens": 5000, "primary_metric": "bleu"}
    row = []
    for seed, score in enumerate(bleu):
        log = [
            {"step": s, "tokens_per_second": 50, "valid": 1.0 + s, "bleu": score - (10 - s)} for s in range(2, 11, 2)
        ]
        facts = {
            "metrics": {"valid": {"loss": score, "perplexity": math.exp(score), "bleu": score}},
            "protocol": {"valid": protocol}, "intervals": {"valid": {"bleu": [score - (half or 9), score + 1]}},
            "baseline": {"valid": {"copy of the source": {"bleu": baseline}}},
            "data": {"token": "bpe", "vocab": [60, 60]},
            "parts": {"valid": {"2 words": {"position": 2.0, "bleu": score + 1},
                                "5 words": {"position": 5.0, "bleu": score - 1}}},
        }  # fmt: skip
        row.append(replace(trial(value, seed, 1.0, **facts), log=log))
    return row


def test_the_primary_metric_of_the_task_decides():
    facts = summarize([bleu_trials("a", [20.0, 20.1]), bleu_trials("b", [30.0, 30.1])])
    assert (facts["metric"], facts["curve_metric"]) == ("bleu", "bleu")


def test_the_level_is_the_highest_bleu_that_every_trial_reaches():
    facts = summarize([bleu_trials("a", [20.0]), bleu_trials("b", [24.0])])
    assert facts["level"] == 20.0
    assert [row["seconds_to_quality"] for row in facts["rows"]] == pytest.approx([20.0, 12.0])


def test_a_rising_curve_reaches_a_level_from_below():
    curve = [(10.0, 1.0), (20.0, 2.0), (30.0, 4.0)]
    assert [seconds_to_level(level, curve, sign=-1) for level in (0.5, 1.5, 3.0, 5.0)] == [10, 15, 25, None]


def test_one_seed_has_the_interval_over_the_examples():
    [row] = summarize([bleu_trials("a", [20.0], half=0.5)])["rows"]
    assert row["interval"]["bleu"] == [19.5, 21.0]


def test_several_seeds_use_the_interval_over_the_seeds():
    [row] = summarize([bleu_trials("a", [20.0, 22.0], half=0.1)])["rows"]
    assert row["interval"]["bleu"] == pytest.approx([21 - 12.706, 21 + 12.706], abs=1e-3)


def test_bleu_is_comparable_across_tokenizers():
    another = [
        replace(t, facts={**t.facts, "data": {"token": "char", "vocab": [9, 9]}}) for t in bleu_trials("b", [30.0])
    ]
    facts = summarize([bleu_trials("a", [20.0]), another])
    assert (facts["metric"], facts["level"]) == ("bleu", 20.0)


def test_the_parts_of_a_split_are_averaged_over_the_seeds():
    [row] = summarize([bleu_trials("a", [20.0, 22.0])])["rows"]
    assert {name: part["metrics"] for name, part in row["parts"].items()} == {
        "2 words": {"position": 2.0, "bleu": 22.0},
        "5 words": {"position": 5.0, "bleu": 20.0},
    }


def test_steps_are_a_column_only_if_they_differ():
    assert "steps" not in comparison_table(summarize_losses(a=[1.0], b=[2.0]))[0]
    heads, lines = comparison_table(
        summarize([[trial("a", 0, 1.0)], [trial("b", 0, 1.0, steps=1494)], [trial("c", 0, None)]])
    )
    assert [line[heads.index("steps")] for line in lines] == ["10", "1,494", "-", "-"]


def test_without_a_level_there_is_no_column_for_the_time_to_it():
    without_log = [Trial({"model.heads": 1}, 0, Path("x"), trial(1, 0, 1.0).facts, trial(1, 0, 1.0).cost)]
    assert [head for head in comparison_table(summarize_losses(a=[1.0]))[0] if head.startswith("to ")] == ["to 1.00"]
    assert not [head for head in comparison_table(summarize([without_log]))[0] if head.startswith("to ")]


@pytest.mark.parametrize(("lowest", "heads"), [(0.0, []), (2.5, ["to 2.50"])])
def test_a_level_of_0_is_not_a_level(lowest, heads):
    def trained_trial(value: str, bleu: float) -> Trial:
        base = trial(value, 0, 1.0, metrics={"valid": {"bleu": bleu}}, baseline={"valid": {}})
        protocol = {"valid": {"tokens": 5000, "primary_metric": "bleu"}}
        log = [{"step": 2, "loss": 9.0, "tokens_per_second": 50, "valid": 1.0, "bleu": bleu}]
        return replace(base, facts={**base.facts, "protocol": protocol}, log=log)

    columns = comparison_table(summarize([[trained_trial("a", lowest)], [trained_trial("b", 5.0)]]))[0]
    assert [head for head in columns if head.startswith("to ")] == heads


def test_the_baselines_are_shown_for_every_split():
    scores = {split: {"loss": loss} for split, loss in (("valid", 1.0), ("test", 1.1))}
    baseline = {split: {"5-gram": {"loss": loss}} for split, loss in (("valid", 2.0), ("test", 2.1))}
    heads, lines = comparison_table(summarize([[trial("a", 0, 1.0, metrics=scores, baseline=baseline)]]))
    assert [lines[-1][heads.index(f"{split} loss")] for split in ("valid", "test")] == ["2.000", "2.100"]


def test_losses_of_different_tokenizers_are_not_compared():
    another = trial(
        "b",
        0,
        3.0,
        data={"token": "bpe", "vocab": 4096},
        baseline={"valid": {"5-gram": {"loss": 5.0, "bits_per_character": 1.3}}},
    )
    facts = summarize([[trial("a", 0, 1.0)], [another]])
    assert (facts["metric"], facts["level"]) == ("bits_per_character", None)
    assert facts["baseline"].keys() == {"5-gram", "5-gram, model.heads=b"}
    assert "valid bits per character" in comparison_table(facts)[0]


def test_failures_have_a_reason():
    evals = [{"settings": {"model.context": 32}, "metrics": {}, "failed": "too long"}]
    first = trial("a", 0, 1.0)
    facts = summarize(
        [[Trial(first.settings, 0, first.run, first.facts, first.cost, first.log, evals)], [trial("b", 0, None)]]
    )
    assert eval_table(facts) == (["", "valid loss, as trained", "model.context=32"], [["model.heads=a", "1.000", "-"]])
    assert failures(facts) == {
        "model.heads=b, seed 0": "no memory",
        "model.heads=a, evaluated with model.context=32": "too long",
    }
