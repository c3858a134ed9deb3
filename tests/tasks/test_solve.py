"""Mathematical problems: accuracy of complete answers by class, and baselines."""

import math

import pytest
import torch

from harken.data.maths.source import MathsSource
from harken.errors import BadSetting
from harken.models.seq2seq import TransformerSettings
from harken.tasks.solve import SolveSettings, SolveTask, format_ranges

TINY = TransformerSettings(d=16, layers=1, heads=2, d_ff=32, context=32, positions="learned")


def bind(**settings: object) -> SolveTask:
    data = MathsSource(**{"valid": 300, "test": 0, "max_operand": 500, "classes": 10, **settings}).load_data()
    return SolveSettings().bind(data, TINY, batch=32, seed=0)


def train_briefly(task: SolveTask, steps: int = 40) -> torch.nn.Module:
    torch.manual_seed(0)
    model = TINY.build(task.data.vocab)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        batch = task.batch(0, step)
        (task.loss(model, batch).total / batch.n_targets).backward()
        optimizer.step()
    return model


def test_a_quick_evaluation_has_the_accuracy_of_greedy_answers_without_generating_them():
    task = bind()
    model = train_briefly(task)
    quick, full = (task.evaluate(model, "valid", quick=quick) for quick in (True, False))
    assert 0.05 < full.metrics["accuracy"] < 1
    assert quick.metrics == {name: full.metrics[name] for name in ("accuracy", "loss")}


def test_every_gcd_has_its_accuracy_and_the_divisor_that_the_base_reveals():
    task = bind()
    score = task.evaluate(train_briefly(task, 1), "valid")
    assert [part["position"] for part in score.parts.values()] == list(range(1, 11))
    assert [part["base_divisor"] for part in score.parts.values()] == [1, 2, 1, 4, 5, 2, 1, 8, 1, 10]
    assert sum(part["pairs"] for part in score.parts.values()) == 300
    mean = sum(part["accuracy"] * part["pairs"] for part in score.parts.values()) / 300
    assert score.metrics["accuracy"] == pytest.approx(mean)
    assert score.protocol["grouped_by"] == "gcd"
    assert score.protocol["predictable_from_base"].startswith("6 of 10")


def test_a_gcd_counts_as_learned_above_an_accuracy_of_95_percent():
    parts = {f"gcd {k}": {"position": k, "accuracy": a} for k, a in {1: 1.0, 2: 0.95, 3: 0.94, 4: 0.0}.items()}
    metrics, notes = bind()._learned(parts)
    assert (metrics["learned"], notes["gcds_learned"]) == (2, "1-2")
    assert metrics["natural_accuracy"] == pytest.approx(6 / math.pi**2 * (1 + 0.95 / 4 + 0.94 / 9))


def test_the_baseline_1_is_correct_where_the_gcd_is_1():
    task = bind()
    ones = task.data.splits["valid"].groups.count("1")
    baselines = task.baselines("valid")
    assert baselines["always 1"]["accuracy"] == pytest.approx(ones / 300)
    assert baselines["most frequent answer"] == baselines["always 1"]
    assert baselines["always 1"]["natural_accuracy"] == pytest.approx(6 / math.pi**2)


def test_the_most_frequent_answer_is_that_of_the_training_distribution():
    task = bind(operation="modular-multiplication", modulus=4, max_operand=100)
    assert list(task.baselines("valid")) == ["most frequent answer"]
    frequency = sum(answers == ["0"] for answers in task.data.splits["valid"].references) / 300  # 0 is most frequent
    assert task.baselines("valid")["most frequent answer"]["accuracy"] == pytest.approx(frequency)


def test_a_quick_evaluation_generates_answers_if_several_can_be_correct():
    task = bind(operation="eigenvalues", dimension=2, encoding="B1999")
    model, checked = TINY.build(task.data.vocab), []
    task.data.problem.is_correct = lambda source, answer, reference: bool(checked.append(answer))
    assert task.evaluate(model, "valid", quick=True).metrics["accuracy"] == 0
    assert len(checked) == 200


def test_a_problem_longer_than_the_context_is_rejected():
    data = MathsSource(operation="transposition", dimension=4, encoding="P10", valid=5, test=0).load_data()
    with pytest.raises(
        BadSetting, match=r"model.context=32: a problem has 80 tokens and its end; set model.context=81"
    ):
        SolveSettings().bind(data, TINY, batch=4, seed=0)


def test_consecutive_numbers_are_formatted_as_ranges():
    assert format_ranges([10, 1, 2, 3, 8]) == "1-3, 8, 10"
    assert format_ranges([]) == "none"
