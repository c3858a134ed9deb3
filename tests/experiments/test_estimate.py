"""The estimate of `harken check`: quick, whatever the model."""

from pathlib import Path

import pytest
from torch.overrides import TorchFunctionMode

from harken.data.synthetic.tales import tales
from harken.experiments import estimate as estimates
from harken.experiments.choose import choose
from harken.experiments.estimate import estimate
from harken.experiments.train import prepare
from harken.recipe import Recipe
from harken.training import cost
from harken.training.loop import Trainer
from harken.training.resource_estimate import count_resources, estimate_memory
from harken.training.timing import Timing

HUGE = {"model.d": 8192, "model.layers": 64, "model.heads": 64}
SMALL = {"model.d": 64, "model.layers": 2, "model.heads": 2, "model.context": 32, "train.batch": 8, "train.steps": 40}


@pytest.fixture
def recipe(tmp_path: Path):
    (tmp_path / "a.txt").write_text("\n".join(tales(20)))

    def make(settings: dict[str, object]) -> Recipe:
        fixed = {"train.device": "cpu", "train.precision": "float32"}
        return choose(str(tmp_path / "a.txt"), fixed | settings).recipe

    return make


@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_a_huge_model_is_neither_built_nor_timed(recipe, monkeypatch, kind):
    monkeypatch.setattr(estimates, "prepare", lambda *_, **__: pytest.fail("built"))
    actual = estimate(recipe({**HUGE, "model.kind": kind}))
    assert not actual["timed"]
    assert actual["parameters"] > 50e9
    assert actual["memory_mib"] > 5 * actual["parameters"] * 4 / 2**20  # weights, gradients, moments, copies
    assert actual["steps"] == 1
    assert actual["minutes"] > 4


def test_a_small_model_is_timed(recipe, monkeypatch):
    monkeypatch.setattr(estimates, "PROBE_SECONDS", 0.1)
    assert estimate(recipe(SMALL))["timed"]


def test_timing_that_takes_too_long_is_given_up(recipe, monkeypatch):
    monkeypatch.setattr(estimates, "LIMIT_SECONDS", 0.0)
    monkeypatch.setattr(Trainer, "measure", lambda *_: pytest.fail("timed"))
    actual = estimate(recipe(SMALL))
    assert not actual["timed"]
    assert actual["steps"] == 40


@pytest.mark.parametrize("settings", [{}, {"model.kind": "bert"}, {"model.kind": "gru"}], ids=["gpt", "bert", "gru"])
def test_the_counted_memory_is_near_the_estimate_that_runs_the_model(recipe, monkeypatch, settings):
    monkeypatch.setattr(cost, "allocated_memory", lambda device: 0)
    monkeypatch.setattr(cost, "peak_memory", lambda device: 0)
    shape = {name: value for name, value in SMALL.items() if "gru" not in settings.values() or name != "model.heads"}
    trainer = prepare(recipe(shape | settings), lambda *_, **__: None)[1]
    _, memory = count_resources(trainer.model, trainer.task, trainer.train)
    assert 0.5 < memory / estimate_memory(trainer) < 2


def test_steps_until_the_time_limit_count_where_the_sizes_of_the_weights_predict_no_time(recipe, monkeypatch):
    """The model multiplies no matrix that can be counted, and each step takes a second of a simulated clock."""
    clock = [0.0]
    monkeypatch.setattr(estimates.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(estimates, "count_resources", lambda *_: (Timing(0.0, 0.0, 10.0, "estimated"), 0.0))
    update = Trainer.update

    def slow_update(trainer: Trainer, steps: int, *, read: bool = True) -> dict[str, object]:
        clock[0] += 1.0
        return update(trainer, steps, read=read)

    monkeypatch.setattr(Trainer, "update", slow_update)
    actual = estimate(recipe(SMALL))
    assert not actual["timed"]
    assert actual["minutes"] * 60 == pytest.approx(40, rel=0.35)  # train.steps; one second each


class RecordedCalls(TorchFunctionMode):
    """The names of the torch functions that other modes pass on."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


def test_a_model_that_is_only_counted_draws_no_initial_weights(recipe):
    """Drawing them on the meta device imports torch._dynamo, which takes a second."""
    with RecordedCalls() as calls:
        assert not estimate(recipe({**HUGE, "model.kind": "bert"}))["timed"]
    assert "zeros_" in calls.names or "fill_" in calls.names
    assert not {"normal_", "uniform_", "trunc_normal_", "kaiming_uniform_"} & calls.names
