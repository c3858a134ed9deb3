"""Baselines in a thread while a GPU trains."""

import threading
from types import SimpleNamespace

import pytest
import torch

from harken.errors import BadInput
from harken.experiments import train
from harken.experiments.background import Background
from harken.training.parallel import Ranks


def test_a_background_value_is_computed_in_another_thread():
    thread = Background(threading.current_thread).wait()
    assert thread is not threading.current_thread()
    assert thread.daemon


def test_an_error_of_a_background_computation_is_raised_where_the_value_is_needed():
    def compute() -> int:
        raise BadInput("no baseline")

    with pytest.raises(BadInput, match="no baseline"):
        Background(compute).wait()


@pytest.mark.parametrize(
    ("device", "follow_model", "early"), [("cuda", False, True), ("cuda", True, False), ("cpu", False, False)]
)
def test_baselines_are_computed_during_the_training_on_a_gpu_unless_they_need_the_trained_model(
    device, follow_model, early
):
    task = SimpleNamespace(
        splits=("valid", "test"),
        evaluate_baselines=lambda split: {"unigram": split},
        baselines_follow_model=follow_model,
    )
    trainer = SimpleNamespace(device=torch.device(device), ranks=Ranks(), task=task)
    baselines = train._start_baselines(trainer)
    assert (baselines is not None) == early
    assert not early or baselines.wait() == {"valid": {"unigram": "valid"}, "test": {"unigram": "test"}}


def test_early_baselines_are_those_of_the_final_evaluation(tales, tmp_path, monkeypatch):
    settings = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 16, "train.steps": 2}
    settings |= {"report.samples": 0, "train.batch": 8}
    plain = train.train(tales, settings=settings, out=tmp_path / "plain")
    monkeypatch.setattr(
        train,
        "_start_baselines",
        lambda trainer: Background(lambda: {s: trainer.task.evaluate_baselines(s) for s in trainer.task.splits}),
    )
    early = train.train(tales, settings=settings, out=tmp_path / "early")
    assert early.facts["baseline"] == plain.facts["baseline"]
    assert early.facts["metrics"] == plain.facts["metrics"]
