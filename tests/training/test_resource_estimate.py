"""Estimates of memory, steps, time and energy."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from harken import machine, run_folder
from harken.data.synthetic.tales import tales
from harken.experiments.report.formatting import format_duration, format_quantity
from harken.experiments.train import prepare
from harken.recipe import resolve
from harken.training import cost, resource_estimate
from harken.training.loop import Trainer
from harken.training.resource_estimate import estimate_memory, plan
from harken.training.timing import Timing

MIB = 2**20
SMALL = {"model.d": 32, "model.layers": 2, "model.heads": 2, "model.context": 16, "train.batch": 4}


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("\n".join(tales(20)))
    return tmp_path / "a.txt"


@pytest.fixture
def trainer(text: Path):
    """A factory of trainers on a short text."""

    def make(**settings: object) -> Trainer:
        overrides = {name.replace("__", "."): value for name, value in settings.items()}
        fixed = {"data.path": str(text), "train.device": "cpu", "train.precision": "float32"} | SMALL | overrides
        if "model.kind" in overrides:
            del fixed["model.heads"]
        return prepare(resolve(("test", fixed)), lambda *_, **__: None)[1]

    return make


def weights(trainer: Trainer) -> int:
    return sum(p.nbytes for p in trainer.model.parameters())


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has allocated nothing, so that only the estimate remains."""
    monkeypatch.setattr(cost, "allocated_memory", lambda device: 0)
    monkeypatch.setattr(cost, "peak_memory", lambda device: 0)


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize(
    ("settings", "copies"),  # of the weights: gradients, optimizer state, best and current
    [
        ({"train__optimizer": "adamw"}, 1 + 2 + 2),
        ({"train__optimizer": "rmsprop"}, 1 + 1 + 2),
        ({"train__optimizer": "rmsprop", "train__momentum": 0.9}, 1 + 2 + 2),
        ({"train__optimizer": "sgd"}, 1 + 1 + 2),
        ({"train__optimizer": "sgd", "train__momentum": 0.0}, 1 + 0 + 2),
        ({"train__keep_best": False}, 1 + 2 + 1),
        ({"data__valid": 0.0}, 1 + 2),
        ({"train__average": "ema"}, 1 + 2 + 2 + 1),
        ({"train__average": "last", "train__average_last": 3}, 1 + 2 + 2 + 4),
    ],
)
def test_each_optimizer_and_setting_has_its_copies_of_the_weights(trainer, settings, copies):
    plain, other = trainer(data__valid=0.0, train__optimizer="sgd", train__momentum=0.0), trainer(**settings)
    assert estimate_memory(other) - estimate_memory(plain) == weights(plain) * (copies - 1)


@pytest.mark.usefixtures("empty")
def test_muon_has_one_moment_for_a_hidden_matrix(trainer):
    adamw, muon = trainer(train__optimizer="adamw"), trainer(train__optimizer="muon")
    hidden = [m.weight for name, m in muon.model.named_modules() if isinstance(m, nn.Linear) and name != "head"]
    assert estimate_memory(adamw) - estimate_memory(muon) == sum(W.nbytes for W in hidden)


@pytest.mark.parametrize("optimizer", ["adamw", "rmsprop", "sgd", "muon"])
def test_the_estimated_optimizer_state_has_the_real_size(trainer, optimizer):
    built = trainer(train__optimizer=optimizer, train__keep_best=False, data__valid=0.0)
    estimate = resource_estimate.bytes_between_steps(built.model, built.task, built.train) - weights(built)
    built.update(10)
    states = built.update_step.optimizer.state.values()
    tensors = [t for state in states for t in state.values() if isinstance(t, torch.Tensor)]
    assert estimate == sum(t.nbytes for t in tensors if t.dim())


@pytest.mark.usefixtures("empty")
def test_the_memory_grows_linearly_with_the_rows(trainer):
    estimates = [estimate_memory(trainer(train__batch=rows)) for rows in (2, 4, 8)]
    assert estimates[2] - estimates[1] == 2 * (estimates[1] - estimates[0]) > 0


@pytest.mark.usefixtures("empty")
def test_micro_batches_need_the_memory_of_one_micro_batch(trainer):
    micro, small, large = (
        trainer(train__batch=8, train__micro_batch=2),
        trainer(train__batch=2),
        trainer(train__batch=8),
    )
    assert estimate_memory(micro) == pytest.approx(estimate_memory(small), rel=0.01)  # plus the tokens of the batch
    assert estimate_memory(micro) < 0.7 * estimate_memory(large)


@pytest.mark.usefixtures("empty")
def test_dropout_masks_are_counted(trainer):
    assert estimate_memory(trainer(model__dropout=0.1)) > estimate_memory(trainer())


def test_memory_already_in_use_is_counted(trainer, monkeypatch):
    built = trainer()
    before = estimate_memory(built)
    monkeypatch.setattr(cost, "allocated_memory", lambda device: 10**12)
    assert estimate_memory(built) > 10**12 > before


def test_the_estimate_is_at_least_the_peak_so_far(trainer, monkeypatch):
    monkeypatch.setattr(cost, "peak_memory", lambda device: 10**12)
    assert estimate_memory(trainer()) == 10**12


@pytest.mark.parametrize("kind", [{}, {"model__kind": "lstm"}], ids=["gpt", "lstm"])
def test_the_estimate_changes_neither_weights_nor_random_state(trainer, kind):
    plain, counted = trainer(model__dropout=0.3, **kind), trainer(model__dropout=0.3, **kind)
    torch.manual_seed(1)
    expected = [plain.update(6)["loss"] for _ in range(3)]
    torch.manual_seed(1)
    estimate_memory(counted)
    assert all(p.grad is None for p in counted.model.parameters())
    assert [counted.update(6)["loss"] for _ in range(3)] == expected


def test_too_little_memory_is_reported_before_the_timing_probe(trainer, monkeypatch):
    events = []
    monkeypatch.setattr(machine, "ram_gib", lambda: 0.1)
    built = trainer(train__steps=50)
    monkeypatch.setattr(built, "listen", lambda event, **facts: events.append(facts.get("text", event)))
    plan(built)
    notice, event = events
    assert notice.endswith("of memory, and the machine has 0.1; use a smaller train.micro_batch or a smaller model")
    assert event == "measure"
    monkeypatch.setattr(machine, "ram_gib", lambda: None)  # not reported by the system
    plan(built)
    assert events[2:] == ["measure"]


def test_two_rows_that_do_not_fit_on_a_gpu_give_its_total_memory(trainer, monkeypatch):
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    card = SimpleNamespace(total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    built, before = trainer(), torch.get_rng_state()
    monkeypatch.setattr(built.task, "loss", full)
    assert estimate_memory(built) == card.total_memory
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(not cost.PROC_CLEAR_REFS.exists(), reason="the system cannot reset the peak of a process")
def test_memory_freed_before_the_training_is_not_counted(trainer):
    large = bytearray(300 * MIB)
    del large
    before = cost.peak_memory(torch.device("cpu"))
    assert estimate_memory(trainer()) < before - 200 * MIB


# --- steps, time and energy -------------------------------------------------------------------------------------------


def test_the_time_is_that_of_the_steps_and_validation_passes(trainer, monkeypatch):
    timing = Timing(step_seconds=0.5, validation_seconds=2.0, watts=36.0, source="known")
    monkeypatch.setattr(Trainer, "measure", lambda self, seconds, max_steps: timing)
    steps, _, estimate = plan(trainer(train__steps=100))
    assert (steps, estimate["seconds"]) == (100, 100 * 0.5 + 10 * 2.0)
    assert estimate["kwh"] == pytest.approx(36 * 70 / 3.6e6 * 1.58)
    assert plan(trainer(train__steps=100, train__eval_every=30)).predicted["seconds"] == 100 * 0.5 + 4 * 2.0
    assert plan(trainer(train__steps=25)).predicted["seconds"] == 25 * 0.5 + 9 * 2.0  # every third step, and the last


def test_zero_steps_take_no_time(trainer):
    assert resource_estimate.estimate_resources(trainer(train__steps=0), 0.01).predicted["seconds"] == 0


def test_a_budget_in_minutes_is_estimated_to_take_these_minutes(trainer, monkeypatch):
    timing = Timing(step_seconds=0.01, validation_seconds=0.1, watts=20.0, source="known")
    monkeypatch.setattr(Trainer, "measure", lambda self, seconds, max_steps: timing)
    steps, _, estimate = plan(trainer(train__minutes=2.0))
    assert estimate["seconds"] == pytest.approx(120, abs=0.02)
    assert steps == pytest.approx(11_900, abs=1)


def test_a_short_training_is_not_timed(trainer, monkeypatch):
    monkeypatch.setattr(Trainer, "measure", lambda *_: pytest.fail("measured"))
    assert plan(trainer(train__steps=19)) == (19, None, None)


def test_the_timing_probe_is_a_small_fraction_of_a_long_run(trainer, monkeypatch):
    limits = []

    def measure(self: Trainer, seconds: float, max_steps: int) -> Timing:
        limits.append(max_steps)
        return Timing(1.0, 0.0, 20.0, "known")

    monkeypatch.setattr(Trainer, "measure", measure)
    for steps in (1000, 10**6):
        plan(trainer(train__steps=steps))
    assert limits == [20, 200]


def test_the_report_shows_the_estimate_with_the_measured_cost(text, tmp_path, monkeypatch):
    from harken.experiments import train

    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 2)
    settings = {**SMALL, "train.steps": 20, "train.checkpoint_every": 10}
    run = train.train(text, settings=settings, out=tmp_path / "r")
    measured = run_folder.read_json(run.path / "cost.json")
    assert measured["predicted"].keys() == {"seconds", "kwh", "energy_source", "memory_mib"}
    assert 1 / 1.5 < measured["predicted"]["memory_mib"] / measured["memory_mib"] < 1.5
    newest, *_ = run_folder.newest_checkpoint(run.path)
    assert newest["notes"]["predicted"] == measured["predicted"]
    assert newest["cost"]["memory"] == pytest.approx(measured["memory_mib"] * MIB, rel=0.1)
    page = re.sub(r"<[^>]*>", " ", (run.path / "report.html").read_text())
    rows = {
        "time": ("seconds", format_duration),
        "memory": ("memory_mib", "{:,.0f} MiB".format),
        "energy": ("kwh", lambda kwh: format_quantity(kwh, "energy")),
    }
    for name, (key, format_value) in rows.items():
        assert re.search(
            rf"\b{name} +{format_value(measured[key])} +{format_value(measured['predicted'][key])} ", page
        ), name
