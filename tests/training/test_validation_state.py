"""Validation state: plateau schedule and early stopping; weight averages."""

import pytest
import torch
from torch import nn

from harken.training.settings import Train
from harken.training.validation_state import ValidationState
from harken.training.weight_average import ExponentialMovingAverage, LastCheckpointsAverage


def after(losses: list[float], **settings) -> ValidationState:
    state, train = ValidationState(), Train(**settings)
    for n, loss in enumerate(losses):
        state.record(loss, n + 1, train)
    return state


def test_the_learning_rate_drops_after_each_patience_without_improvement():
    settings = {"schedule": "plateau", "plateau_patience": 2, "plateau_factor": 0.5}
    assert after([3, 2, 2.5], **settings).lr_factor == 1
    assert after([3, 2, 2.5, 2.5], **settings).lr_factor == 0.5
    assert after([3, 2, 2.5, 2.5, 2.5], **settings).lr_factor == 0.5
    assert after([3, 2, 2.5, 2.5, 2.5, 2.5], **settings).lr_factor == 0.25
    assert after([3, 2, 2.5, 1.0, 2.5], **settings).lr_factor == 1


def test_other_schedules_do_not_drop_the_learning_rate():
    assert after([1] + [2] * 9, schedule="cosine").lr_factor == 1


def test_early_stopping_after_the_patience_without_improvement():
    assert not after([3, 2, 2.5, 2.5], early_stopping_patience=3).stops_early(Train(early_stopping_patience=3))
    assert after([3, 2, 2.5, 2.5, 2.0], early_stopping_patience=3).stops_early(Train(early_stopping_patience=3))
    assert not after([3, 2] + [9] * 50).stops_early(Train())


def test_a_state_is_equal_after_a_round_trip():
    for state in (ValidationState(), after([3, 2, 2.5, 2.5], schedule="plateau")):
        assert ValidationState.from_dict(state.to_dict()) == state


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))


def averaged(average, values: list[float], validate: bool = False):
    model = Point()
    for value in values:
        model.w.data.fill_(value)
        average.before_validation(model) if validate else average.after_update(model)
    return average


def test_an_exponential_moving_average_follows_its_formula():
    average = averaged(ExponentialMovingAverage(0.5), [1.0, 2.0, 4.0]).weights()["w"]
    expected, n = 1.0, 1
    for value in (2.0, 4.0):
        n += 1
        decay = min(0.5, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * value
    assert float(average) == pytest.approx(expected)


def test_the_average_of_the_last_validation_passes_is_their_mean():
    assert float(
        averaged(LastCheckpointsAverage(3), [9.0, 1.0, 2.0, 6.0], validate=True).weights()["w"]
    ) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("build", "validate"), [(lambda: ExponentialMovingAverage(0.9), False), (lambda: LastCheckpointsAverage(2), True)]
)
def test_an_average_resumes_from_its_saved_state(build, validate):
    full = averaged(build(), [1.0, 5.0, 2.0, 8.0], validate)
    half = averaged(build(), [1.0, 5.0], validate)
    resumed = build()
    resumed.load_state(half.state())
    averaged(resumed, [2.0, 8.0], validate)
    assert torch.equal(resumed.weights()["w"], full.weights()["w"])
