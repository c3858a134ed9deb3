"""What the looks at the valid split decide, and the averages that are judged."""

import pytest
import torch
from torch import nn

from harken.training.settings import Train
from harken.training.validation_state import Course
from harken.training.weight_average import Last, Moving


def after(losses: list[float], **settings) -> Course:
    course, train = Course(), Train(**settings)
    for n, loss in enumerate(losses):
        course.note(loss, n + 1, train)
    return course


def test_the_rate_falls_when_the_loss_stands_still_and_again_after_the_same_patience():
    settings = {"schedule": "plateau", "patience": 2, "drop": 0.5}
    assert after([3, 2, 2.5], **settings).left == 1
    assert after([3, 2, 2.5, 2.5], **settings).left == 0.5
    assert after([3, 2, 2.5, 2.5, 2.5], **settings).left == 0.5
    assert after([3, 2, 2.5, 2.5, 2.5, 2.5], **settings).left == 0.25
    assert after([3, 2, 2.5, 1.0, 2.5], **settings).left == 1


def test_the_rate_of_another_schedule_does_not_fall_by_itself():
    assert after([1] + [2] * 9, schedule="cosine").left == 1


def test_a_run_is_over_after_so_many_looks_without_a_better_one():
    assert not after([3, 2, 2.5, 2.5], early_stopping_patience=3).over(Train(early_stopping_patience=3))
    assert after([3, 2, 2.5, 2.5, 2.0], early_stopping_patience=3).over(Train(early_stopping_patience=3))
    assert not after([3, 2] + [9] * 50).over(Train())


def test_a_course_is_the_same_after_it_was_written_down():
    for course in (Course(), after([3, 2, 2.5, 2.5], schedule="plateau")):
        assert Course.of(course.facts()) == course


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))


def walked(average, values: list[float], look: bool = False):
    model = Point()
    for value in values:
        model.w.data.fill_(value)
        average.look(model) if look else average.step(model)
    return average


def test_a_moving_average_follows_its_formula():
    found = walked(Moving(0.5), [1.0, 2.0, 4.0]).weights()["w"]
    expected, n = 1.0, 1
    for value in (2.0, 4.0):
        n += 1
        decay = min(0.5, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * value
    assert float(found) == pytest.approx(expected)


def test_the_average_of_the_last_looks_is_their_mean():
    assert float(walked(Last(3), [9.0, 1.0, 2.0, 6.0], look=True).weights()["w"]) == pytest.approx(3.0)


@pytest.mark.parametrize(("made", "look"), [(lambda: Moving(0.9), False), (lambda: Last(2), True)])
def test_an_average_goes_on_from_its_saved_state(made, look):
    whole = walked(made(), [1.0, 5.0, 2.0, 8.0], look)
    half = walked(made(), [1.0, 5.0], look)
    resumed = made()
    resumed.load_state(half.state())
    walked(resumed, [2.0, 8.0], look)
    assert torch.equal(resumed.weights()["w"], whole.weights()["w"])
