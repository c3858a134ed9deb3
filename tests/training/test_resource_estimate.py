"""What a training will need: its memory counted, its steps, time and energy from a measured pace."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from harken import machine, run_folder
from harken.data.synthetic.tales import tales
from harken.experiments.report.line_chart import duration, scaled
from harken.experiments.train import prepare
from harken.recipe import resolve
from harken.training import cost as meter
from harken.training import resource_estimate
from harken.training.loop import Pace, Trainer
from harken.training.resource_estimate import memory, plan

MIB = 2**20
SMALL = {"model.d": 32, "model.layers": 2, "model.heads": 2, "model.context": 16, "train.batch": 4}


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("\n".join(tales(20)))
    return tmp_path / "a.txt"


@pytest.fixture
def trainer(text: Path):
    """A maker of trainers on a little text."""

    def make(**settings: object) -> Trainer:
        given = {name.replace("__", "."): value for name, value in settings.items()}
        fixed = {"data.path": str(text), "train.device": "cpu", "train.precision": "float32"} | SMALL | given
        if "model.kind" in given:
            del fixed["model.heads"]
        return prepare(resolve(("test", fixed)), lambda *_, **__: None)[1]

    return make


def weights(trainer: Trainer) -> int:
    return sum(p.nbytes for p in trainer.model.parameters())


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that holds nothing yet, so that what is added to it can be seen."""
    monkeypatch.setattr(meter, "held", lambda device: 0)
    monkeypatch.setattr(meter, "peak", lambda device: 0)


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize(
    ("settings", "copies"),  # of the weights: gradients, moments, best and present
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
def test_each_rule_and_setting_holds_its_copies_of_the_weights(trainer, settings, copies):
    plain, other = trainer(data__valid=0.0, train__optimizer="sgd", train__momentum=0.0), trainer(**settings)
    assert memory(other) - memory(plain) == weights(plain) * (copies - 1)


@pytest.mark.usefixtures("empty")
def test_muon_holds_one_moment_of_a_hidden_matrix(trainer):
    adamw, muon = trainer(train__optimizer="adamw"), trainer(train__optimizer="muon")
    hidden = [m.weight for name, m in muon.model.named_modules() if isinstance(m, nn.Linear) and name != "head"]
    assert memory(adamw) - memory(muon) == sum(W.nbytes for W in hidden)


@pytest.mark.parametrize("rule", ["adamw", "adam", "rmsprop", "sgd", "muon"])
def test_the_moments_that_are_counted_are_those_the_rule_keeps(trainer, rule):
    made = trainer(train__optimizer=rule, train__keep_best=False, data__valid=0.0)
    counted = resource_estimate._between(made) - weights(made)
    made.update(10)
    kept = [t for held in made.make.optimizer.state.values() for t in held.values() if isinstance(t, torch.Tensor)]
    assert counted == sum(t.nbytes for t in kept if t.dim())


@pytest.mark.usefixtures("empty")
def test_a_step_keeps_as_much_for_each_row(trainer):
    needs = [memory(trainer(train__batch=rows)) for rows in (2, 4, 8)]
    assert needs[2] - needs[1] == 2 * (needs[1] - needs[0]) > 0


@pytest.mark.usefixtures("empty")
def test_rows_in_small_parts_need_the_memory_of_a_part(trainer):
    cut, small, large = trainer(train__batch=8, train__micro_batch=2), trainer(train__batch=2), trainer(train__batch=8)
    assert memory(cut) == pytest.approx(memory(small), rel=0.01)  # the tokens of the whole batch are there too
    assert memory(cut) < 0.7 * memory(large)


@pytest.mark.usefixtures("empty")
def test_dropout_keeps_its_masks(trainer):
    assert memory(trainer(model__dropout=0.1)) > memory(trainer())


def test_what_the_process_holds_already_is_counted(trainer, monkeypatch):
    made = trainer()
    before = memory(made)
    monkeypatch.setattr(meter, "held", lambda device: 10**12)
    assert memory(made) > 10**12 > before


def test_a_process_that_was_larger_before_is_never_predicted_smaller(trainer, monkeypatch):
    monkeypatch.setattr(meter, "peak", lambda device: 10**12)
    assert memory(trainer()) == 10**12


@pytest.mark.parametrize("kind", [{}, {"model__kind": "lstm"}], ids=["gpt", "lstm"])
def test_counting_leaves_no_trace(trainer, kind):
    plain, counted = trainer(model__dropout=0.3, **kind), trainer(model__dropout=0.3, **kind)
    torch.manual_seed(1)
    expected = [plain.update(6)["loss"] for _ in range(3)]
    torch.manual_seed(1)
    memory(counted)
    assert all(p.grad is None for p in counted.model.parameters())
    assert [counted.update(6)["loss"] for _ in range(3)] == expected


def test_what_does_not_fit_is_said_before_anything_is_computed(trainer, monkeypatch):
    heard = []
    monkeypatch.setattr(machine, "describe", lambda: {"ram_gib": 0.1})
    made = trainer(train__steps=50)
    monkeypatch.setattr(made, "listen", lambda event, **facts: heard.append(facts.get("text", event)))
    plan(made)
    said, after = heard
    assert said.endswith(
        "are needed and 0.1 are there; fewer rows at a time (train.micro_batch) or a smaller model need less"
    )
    assert after == "measure"
    monkeypatch.setattr(machine, "describe", lambda: {"ram_gib": None})  # where the system does not say
    plan(made)
    assert heard[2:] == ["measure"]


def test_what_does_not_fit_on_a_gpu_in_two_rows_takes_all_of_it(trainer, monkeypatch):
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    card = SimpleNamespace(total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    made, before = trainer(), torch.get_rng_state()
    monkeypatch.setattr(made.task, "loss", full)
    assert memory(made) == card.total_memory
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(not meter.FORGET.exists(), reason="this system keeps one peak of a process")
def test_the_memory_of_what_the_process_did_before_is_not_that_of_the_training(trainer):
    large = bytearray(300 * MIB)
    del large
    before = meter.peak(torch.device("cpu"))
    assert memory(trainer()) < before - 200 * MIB


# --- steps, time and energy -------------------------------------------------------------------------------------------


def test_time_is_that_of_the_steps_and_of_the_looks_between_them(trainer, monkeypatch):
    monkeypatch.setattr(
        Trainer, "measure", lambda self, seconds, most: Pace(step=0.5, look=2.0, watts=36.0, source="known")
    )
    steps, said = plan(trainer(train__steps=100))
    assert (steps, said["seconds"]) == (100, 100 * 0.5 + 10 * 2.0)
    assert said["kwh"] == pytest.approx(36 * 70 / 3.6e6 * 1.58)
    assert plan(trainer(train__steps=100, train__eval_every=30))[1]["seconds"] == 100 * 0.5 + 4 * 2.0
    assert plan(trainer(train__steps=25))[1]["seconds"] == 25 * 0.5 + 9 * 2.0  # every third step, and the last


def test_no_steps_take_no_time(trainer):
    assert resource_estimate.forecast(trainer(train__steps=0), 0.01)[1]["seconds"] == 0


def test_a_budget_in_minutes_is_predicted_to_take_them(trainer, monkeypatch):
    monkeypatch.setattr(
        Trainer, "measure", lambda self, seconds, most: Pace(step=0.01, look=0.1, watts=20.0, source="known")
    )
    steps, said = plan(trainer(train__minutes=2.0))
    assert said["seconds"] == pytest.approx(120, abs=0.02)
    assert steps == pytest.approx(11_900, abs=1)


def test_a_handful_of_steps_is_not_measured(trainer, monkeypatch):
    monkeypatch.setattr(Trainer, "measure", lambda *_: pytest.fail("measured"))
    assert plan(trainer(train__steps=19)) == (19, None)


def test_a_long_run_is_measured_for_a_small_part_of_it(trainer, monkeypatch):
    asked = []

    def measure(self: Trainer, seconds: float, most: int) -> Pace:
        asked.append(most)
        return Pace(1.0, 0.0, 20.0, "known")

    monkeypatch.setattr(Trainer, "measure", measure)
    for steps in (1000, 10**6):
        plan(trainer(train__steps=steps))
    assert asked == [20, 200]


def test_what_was_predicted_stands_beside_what_was_obtained(text, tmp_path, monkeypatch):
    from harken.experiments import train

    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 2)
    given = {**SMALL, "train.steps": 20, "train.checkpoint_every": 10}
    made = train.train(text, settings=given, out=tmp_path / "r")
    cost = run_folder.read_json(made.path / "cost.json")
    assert cost["predicted"].keys() == {"seconds", "kwh", "energy_source", "memory_mib"}
    assert 1 / 1.5 < cost["predicted"]["memory_mib"] / cost["memory_mib"] < 1.5
    newest, *_ = run_folder.newest_checkpoint(made.path)
    assert newest["notes"]["predicted"] == cost["predicted"]
    assert newest["cost"]["memory"] == pytest.approx(cost["memory_mib"] * MIB, rel=0.1)
    page = re.sub(r"<[^>]*>", " ", (made.path / "report.html").read_text())
    rows = {
        "time": ("seconds", duration),
        "memory": ("memory_mib", "{:,.0f} MiB".format),
        "energy": ("kwh", lambda kwh: scaled(kwh, "energy")),
    }
    for name, (key, written) in rows.items():
        assert re.search(rf"\b{name} +{written(cost[key])} +{written(cost['predicted'][key])} ", page), name
