"""The task of mathematics: whole answers, class by class, and what costs nothing."""

import math

import pytest
import torch

from harken.data.maths.source import MathsSource
from harken.errors import BadSetting
from harken.models.seq2seq import TransformerSettings
from harken.tasks.solve import SolveTask, SolveSettings, ranges

TINY = TransformerSettings(d=16, layers=1, heads=2, d_ff=32, context=32, positions="learned")


def bound(**settings: object) -> SolveTask:
    opened = MathsSource(**{"valid": 300, "test": 0, "max_operand": 500, "classes": 10, **settings}).load_data()
    return SolveSettings().bind(opened, TINY, batch=32, seed=0)


def learned_a_little(task: SolveTask, steps: int = 40) -> torch.nn.Module:
    torch.manual_seed(0)
    model = TINY.build(task.data.vocab)
    base_divisor = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(steps):
        base_divisor.zero_grad()
        batch = task.batch(0, step)
        (task.loss(model, batch).total / batch.n_targets).backward()
        base_divisor.step()
    return model


def test_a_quick_look_knows_without_writing_which_answers_would_be_right():
    task = bound()
    model = learned_a_little(task)
    quick, slow = (task.evaluate(model, "valid", quick=quick) for quick in (True, False))
    assert 0.05 < slow.metrics["accuracy"] < 1
    assert quick.metrics == {name: slow.metrics[name] for name in ("accuracy", "loss")}


def test_each_gcd_is_judged_apart_and_beside_what_the_base_gives_away():
    task = bound()
    score = task.evaluate(learned_a_little(task, 1), "valid")
    assert [part["position"] for part in score.parts.values()] == list(range(1, 11))
    assert [part["base_divisor"] for part in score.parts.values()] == [1, 2, 1, 4, 5, 2, 1, 8, 1, 10]
    assert sum(part["pairs"] for part in score.parts.values()) == 300
    mean = sum(part["accuracy"] * part["pairs"] for part in score.parts.values()) / 300
    assert score.metrics["accuracy"] == pytest.approx(mean)
    assert score.protocol["grouped_by"] == "gcd"
    assert score.protocol["predictable_from_base"].startswith("6 of 10")


def test_a_gcd_is_learned_if_nineteen_of_twenty_are_right():
    parts = {f"gcd {k}": {"position": k, "accuracy": a} for k, a in {1: 1.0, 2: 0.95, 3: 0.94, 4: 0.0}.items()}
    metrics, notes = bound()._learned(parts)
    assert (metrics["learned"], notes["gcds_learned"]) == (2, "1-2")
    assert metrics["natural_accuracy"] == pytest.approx(6 / math.pi**2 * (1 + 0.95 / 4 + 0.94 / 9))


def test_always_1_is_right_where_the_gcd_is():
    task = bound()
    ones = task.data.splits["valid"].groups.count("1")
    free = task.baselines("valid")
    assert free["always 1"]["accuracy"] == pytest.approx(ones / 300)
    assert free["most frequent answer"] == free["always 1"]
    assert free["always 1"]["natural_accuracy"] == pytest.approx(6 / math.pi**2)


def test_the_most_frequent_answer_is_that_of_what_is_learned_from():
    task = bound(operation="modular-multiplication", modulus=4, max_operand=100)
    assert list(task.baselines("valid")) == ["most frequent answer"]
    share = sum(each == ["0"] for each in task.data.splits["valid"].references) / 300  # 0 is the commonest by far
    assert task.baselines("valid")["most frequent answer"]["accuracy"] == pytest.approx(share)


def test_answers_that_need_not_be_the_written_one_are_written_in_every_look():
    task = bound(operation="eigenvalues", dimension=2, encoding="B1999")
    model, asked = TINY.build(task.data.vocab), []
    task.data.problem.is_correct = lambda source, said, true: bool(asked.append(said))
    assert task.evaluate(model, "valid", quick=True).metrics["accuracy"] == 0
    assert len(asked) == 200


def test_a_problem_that_is_longer_than_the_model_reads_is_refused():
    opened = MathsSource(operation="transposition", dimension=4, encoding="P10", valid=5, test=0).load_data()
    with pytest.raises(
        BadSetting, match=r"model.context=32: a problem has 80 tokens and its end; set model.context=81"
    ):
        SolveSettings().bind(opened, TINY, batch=4, seed=0)


def test_numbers_that_follow_each_other_are_told_in_short():
    assert ranges([10, 1, 2, 3, 8]) == "1-3, 8, 10"
    assert ranges([]) == "none"
