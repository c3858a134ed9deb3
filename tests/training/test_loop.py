"""The training loop: updates, micro-batches, budgets, logs, checkpoints and resuming."""

import json
import math
import os
import signal
import warnings
from collections.abc import Callable
from itertools import count, cycle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harken import machine, run_folder
from harken.core.layers import Block
from harken.data.batch import Batch
from harken.data.synthetic.tales import tales
from harken.data.text.source import TextSource
from harken.errors import BadRun, HarkenError, Stopped
from harken.files import sha256_of
from harken.models.gpt import GPTSettings
from harken.tasks import BoundTask, Loss, Score
from harken.tasks.next_word import NextWordSettings
from harken.training import cost
from harken.training.cost import Meter
from harken.training.loop import Trainer, restore_torch_state
from harken.training.optimizers import build_optimizer, clip_gradients
from harken.training.parallel import Ranks
from harken.training.resource_estimate import plan
from harken.training.schedules import learning_rate
from harken.training.settings import Train
from harken.training.step import CompiledModel
from harken.training.timing import Timing

SHAPE = GPTSettings(d=16, layers=1, heads=2, context=8)


def settings(**fields) -> Train:
    defaults = {"steps": 6, "batch": 5, "warmup": 0, "schedule": "constant", "precision": "float32"}
    defaults |= {"device": "cpu", "grad_clip": 0}
    return Train(**defaults | fields)


def text_trainers(
    tmp_path: Path, *, shape: GPTSettings = SHAPE, dtype: torch.dtype = torch.float32, smoothing: float = 0.0, **data
) -> Callable[..., Trainer]:
    """A factory of trainers on a short text, each with the same initial weights."""
    path = tmp_path / "tales.txt"
    path.write_text("\n".join(tales(6)).replace(" ", "\n" if "documents" in data else " "))
    dataset = TextSource(path=str(path), **data).load_data()

    def make(listen=lambda *_, **__: None, **train) -> Trainer:
        train_settings = settings(**train)
        torch.manual_seed(0)
        model, task = shape.build(dataset.vocab).to(dtype), NextWordSettings(label_smoothing=smoothing)
        return Trainer(
            model, task.bind(dataset, shape, batch=train_settings.batch, seed=0), train_settings, listen=listen
        )

    return make


class Slope(nn.Module):
    """One weight. The loss is the weight, so each SGD step subtracts lr."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))


class Toy(BoundTask):
    """A task for Slope with predefined validation losses."""

    steps, splits, tokens_per_batch = 4, ("valid",), 10

    def __init__(self, valid: list[float] | None = None) -> None:
        self.valid, self.seen = valid or [0.0] * 99, []

    def batch(self, epoch: int, step: int) -> Batch:
        self.seen.append((epoch, step))
        return Batch(torch.zeros(2, 1), torch.zeros(2, 1))

    def loss(self, model: Slope, batch: Batch, part: int = 0) -> Loss:
        return Loss(model.w * batch.n_targets)

    def evaluate(self, model: Slope, split: str, *, quick: bool = False) -> Score:
        return Score({"loss": self.valid.pop(0)}, {})


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in run_folder.weights(trainer.model).items()}


def log(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("choice", "enabled"), [("auto", True), ("yes", True), ("no", False)])
def test_train_compile_applies_to_the_loss_in_updates_and_validation(choice, enabled, monkeypatch):
    seen = []

    class Recorder(Toy):
        def loss(self, *args) -> Loss:
            seen.append(machine.compile_enabled)
            return super().loss(*args)

        def evaluate(self, *args, **kwargs) -> Score:
            seen.append(machine.compile_enabled)
            return super().evaluate(*args, **kwargs)

    monkeypatch.setattr(machine, "compile_problem", lambda device: "not in this test")
    monkeypatch.setattr(machine, "compile_enabled", True)
    with restore_torch_state():
        trainer = Trainer(Slope(), Recorder(), settings(compile=choice))
        trainer.update(6)
        trainer.evaluate("valid")
        trainer.evaluate("valid", quick=False)
    assert seen == [enabled] * 3
    assert machine.compile_enabled


# --- one update -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [{}, {"batching": "packed", "documents": "line"}], ids=["windows", "ragged"])
@pytest.mark.parametrize("micro", [1, 2, 3, 4])
def test_accumulated_gradients_equal_those_of_the_large_batch(tmp_path, data, micro):
    make = text_trainers(tmp_path, dtype=torch.float64, **data)
    options = {"optimizer": "sgd", "momentum": 0, "weight_decay": 0, "grad_clip": 0, "lr": 0.5}
    full, accumulated = make(**options), make(micro_batch=micro, **options)
    for _ in range(3):
        lines = full.update(6), accumulated.update(6)
        assert lines[0]["loss"] == pytest.approx(lines[1]["loss"], rel=1e-6)
        assert lines[0]["gradient"] == pytest.approx(lines[1]["gradient"], rel=1e-9)
    torch.testing.assert_close(weights(accumulated), weights(full), rtol=0, atol=1e-12)


def test_the_ragged_batches_have_rows_of_different_lengths(tmp_path):
    batch = text_trainers(tmp_path, batching="packed", documents="line")().task.batch(0, 0)
    assert len({int(n) for n in (batch.targets != -100).sum(1)}) > 1


def test_the_reported_loss_is_the_mean_over_all_targets(tmp_path):
    trainer = text_trainers(tmp_path, batching="packed", documents="line")(micro_batch=2)
    batch = trainer.task.batch(0, 0)
    mean = float(trainer.task.loss(trainer.model, batch).total.detach()) / batch.n_targets
    assert trainer.update(6)["loss"] == pytest.approx(mean, rel=1e-5)


def test_label_smoothing_changes_the_weights_and_not_the_reported_loss(tmp_path):
    data = {"batching": "packed", "documents": "line"}
    plain, smoothed = text_trainers(tmp_path, **data)(), text_trainers(tmp_path, smoothing=0.3, **data)(micro_batch=2)
    assert smoothed.update(6)["loss"] == pytest.approx(plain.update(6)["loss"], rel=1e-6)
    assert any(not torch.equal(a, b) for a, b in zip(weights(plain).values(), weights(smoothed).values(), strict=True))
    run_folder.load_weights(smoothed.model, weights(plain))
    assert smoothed.evaluate("valid") == plain.evaluate("valid")


def test_each_step_uses_the_next_batch_and_an_epoch_ends_after_the_last(tmp_path):
    task = Toy()
    trainer = Trainer(Slope(), task, settings())
    lines = [trainer.update(6) for _ in range(6)]
    assert task.seen == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    assert [(line["step"], line["epoch"]) for line in lines] == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 1)]


def test_a_long_gradient_is_clipped(tmp_path):
    trainer = text_trainers(tmp_path)(optimizer="sgd", momentum=0, weight_decay=0, grad_clip=0.01, lr=1.0)
    before = weights(trainer)
    line = trainer.update(6)
    moved = math.sqrt(sum(float((t - before[n]).square().sum()) for n, t in weights(trainer).items()))
    assert line["gradient"] > 0.01
    assert moved == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(("max_norm", "clipped"), [(1.0, [0.6, 0.8]), (10.0, [3.0, 4.0]), (0.0, [3.0, 4.0])])
def test_clipping_keeps_the_direction(max_norm, clipped):
    model = nn.Linear(1, 2, bias=False)
    model.weight.grad = torch.tensor([[3.0], [4.0]])
    assert float(clip_gradients(model, max_norm)) == pytest.approx(5.0)
    torch.testing.assert_close(model.weight.grad[:, 0], torch.tensor(clipped), rtol=1e-5, atol=1e-5)


def test_matrices_decay_and_vectors_do_not():
    groups = build_optimizer(nn.LayerNorm(3), settings(weight_decay=0.3)).param_groups
    assert [g["weight_decay"] for g in groups] == [0.0]
    groups = build_optimizer(nn.Linear(3, 3), settings(weight_decay=0.3)).param_groups
    assert [(g["weight_decay"], g["params"][0].dim()) for g in groups] == [(0.3, 2), (0.0, 1)]


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_a_non_finite_loss_or_gradient_stops_the_run_before_the_update(tmp_path, broken):
    class NonFiniteThird(Toy):
        def loss(self, model: Slope, batch: Batch, part: int = 0) -> Loss:
            loss = super().loss(model, batch)
            if len(self.seen) < 3:
                return loss
            total = loss.total * math.nan if broken == "loss" else (model.w * 0).sqrt()  # sqrt at 0: 0 * inf
            return Loss(total)

    trainer = Trainer(Slope(), NonFiniteThird(), settings(optimizer="sgd", momentum=0, lr=0.5))
    for _ in range(2):
        trainer.update(6)
    with pytest.raises(HarkenError, match=r"^step 3 \(epoch 0, batch 2\): .*the update was skipped; .*train.lr"):
        trainer.update(6)
    assert (trainer.step, float(trainer.model.w.detach())) == (2, -1.0)


class NonFinite(Toy):
    """Its loss is NaN in these batches."""

    nan_batches = range(1, 99)

    def loss(self, model: Slope, batch: Batch, part: int = 0) -> Loss:
        return Loss(super().loss(model, batch).total * (math.nan if len(self.seen) in self.nan_batches else 1))


def collect_notices() -> tuple[list[str], Callable[..., None]]:
    """The list of notices, and the listener that fills it."""
    notices: list[str] = []
    return notices, lambda event, **facts: notices.append(facts["text"]) if event == "notice" else None


def test_skipped_updates_are_reported_at_the_first_and_each_time_their_number_doubles(tmp_path):
    notices, listen = collect_notices()
    fit(Trainer(Slope(), NonFinite(), settings(steps=9, on_nan="skip"), listen=listen), tmp_path / "r", 9)
    assert [text.partition(":")[0] for text in notices] == ["step 1", "step 2", "step 4", "step 8"]
    assert notices[-1].endswith("the update was skipped; 8 skipped so far")


def test_skipped_updates_of_the_timing_probe_are_not_reported(tmp_path):
    notices, listen = collect_notices()
    trainer = Trainer(Slope(), NonFinite(), settings(on_nan="skip"), listen=listen)
    trainer.measure(0.0, 10)
    assert notices == []
    trainer.update(6)
    assert len(notices) == 1


def test_the_log_of_non_finite_losses_is_strict_json(tmp_path):
    fit(Trainer(Slope(), NonFinite([math.nan] * 6), settings(on_nan="skip", eval_every=6)), tmp_path / "r")
    assert "NaN" not in (tmp_path / "r" / "log.jsonl").read_text()
    assert [(line["loss"], line["valid"]) for line in log(tmp_path / "r") if "valid" in line] == [(None, None)]


def test_the_hint_of_an_unfinished_run_has_the_error_that_ended_it_until_it_is_resumed(tmp_path):
    task = NonFinite()
    task.nan_batches = [5]
    with pytest.raises(HarkenError, match="step 5"):
        fit(Trainer(Slope(), task, settings(checkpoint_every=2)), tmp_path / "r")
    assert run_folder.unfinished_hint(tmp_path / "r").startswith(
        "it ended at step 5 (epoch 1, batch 0): the loss or the gradient"
    )
    Trainer(Slope(), Toy(), settings()).resume(tmp_path / "r")
    assert run_folder.unfinished_hint(tmp_path / "r").startswith("resume with: harken train")


# --- the learning rate ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "value"),
    [
        (0, 0.1),  # of 10 steps of warm-up, the first
        (4, 0.5),
        (9, 1.0),
        (10, 1.0),  # the cosine begins at its top
        (55, 0.6),  # half of it: 0.2 + 0.8 / 2
        (32, 0.2 + 0.4 * (1 + math.cos(math.pi * 22 / 90))),
        (100, 0.2),
    ],
)
def test_the_learning_rate_rises_linearly_and_falls_as_half_a_cosine(step, value):
    train = settings(lr=1.0, warmup=0.1, min_lr_ratio=0.2, schedule="cosine")
    assert learning_rate(step, 100, train) == pytest.approx(value)


def test_a_warm_up_of_one_or_more_counts_steps():
    train = settings(lr=1.0, warmup=4, schedule="constant")
    assert [learning_rate(step, 100, train) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(("warmup", "n_notices"), [(7, 1), (6, 0), (0.9, 0)])
def test_a_warm_up_longer_than_the_training_is_reported(tmp_path, warmup, n_notices):
    notices, listen = collect_notices()
    fit(Trainer(Slope(), Toy(), settings(warmup=warmup), listen=listen), tmp_path / "r")
    text = "train.warmup is 7 steps and the training 6 steps long: the learning rate never reaches train.lr"
    assert notices == [text] * n_notices


def test_the_logged_learning_rate_is_the_one_of_the_update(tmp_path):
    trainer = Trainer(Slope(), Toy(), settings(optimizer="sgd", momentum=0, lr=1.0, warmup=4))
    rates = [trainer.update(4)["lr"] for _ in range(4)]
    assert rates == [0.25, 0.5, 0.75, 1.0]
    assert float(trainer.model.w.detach()) == -sum(rates)


# --- how long ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "steps"),
    [
        ({"steps": 7, "minutes": 9, "tokens": 5}, 7),
        ({"steps": 0}, 0),
        ({"steps": None, "tokens": 101}, 11),  # 10 tokens a batch
        ({"steps": None, "epochs": 2.5}, 10),  # 4 steps an epoch
        ({"steps": None, "epochs": 0.1}, 1),
    ],
)
def test_a_budget_is_a_number_of_steps(budget, steps):
    assert plan(Trainer(Slope(), Toy(), settings(**budget))) == (steps, None, None)


def test_minutes_are_converted_to_steps_by_the_measured_time(monkeypatch):
    trainer = Trainer(Slope(), Toy(), settings(steps=None, minutes=0.5))
    timing = Timing(step_seconds=0.1, validation_seconds=0.2, watts=20.0, source="known")
    monkeypatch.setattr(trainer, "measure", lambda seconds, max_steps: timing)
    assert plan(trainer)[0] == (30 - 10 * 0.2) / 0.1


class Clock:
    """A clock that moves only when a ClockTask works."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class ClockTask(Toy):
    """A task whose updates and validation passes last for known times; the first pass also prepares the data."""

    def __init__(self, clock: Clock, updates: list[float], validation: list[float], preparation: float = 0.0) -> None:
        super().__init__()
        self.clock, self.updates, self.validation, self.preparation = clock, updates, cycle(validation), preparation

    def loss(self, model: Slope, batch: Batch, part: int = 0) -> Loss:
        self.clock.now += self.updates[len(self.seen) % len(self.updates)]
        return super().loss(model, batch)

    def evaluate(self, model: Slope, split: str, *, quick: bool = False) -> Score:
        self.clock.now += next(self.validation) + self.preparation
        self.preparation = 0.0
        return Score({"loss": 1.0}, {})


@pytest.mark.parametrize(
    ("times", "train"),
    [
        (([0.05], [0.1]), {}),
        (([0.05], [0.03]), {"eval_every": 1}),  # graphs validate after each step
        (([0.02], [0.04] * 10 + [0.01] * 10), {"eval_every": 1}),  # other work slows passes for a while
        (([0.05], [0.5]), {"eval_every": 7}),
        (([0.05], [3.0]), {}),  # ten passes would take longer than the budget
        (([0.05], [9.0]), {}),
        (([0.02, 0.02, 0.02, 0.2], [0.1]), {}),  # batches of different lengths: the median says nothing
        (([0.05], [0.1], 1.5), {"eval_every": 2}),
    ],
    ids=[
        "usual",
        "every step",
        "uneven passes",
        "every 7 steps",
        "slow validation",
        "very slow",
        "uneven batches",
        "preparation",
    ],
)
def test_the_training_lasts_for_its_minutes(tmp_path, monkeypatch, times, train):
    clock = Clock()
    monkeypatch.setattr("time.perf_counter", clock)
    notices, listen = collect_notices()
    trainer = Trainer(Slope(), ClockTask(clock, *times), settings(steps=None, minutes=0.3, **train), listen=listen)
    steps, eval_every, predicted = plan(trainer)
    trainer.train = trainer.train.model_copy(update={"eval_every": eval_every})
    (tmp_path / "r").mkdir()
    seconds = trainer.fit(tmp_path / "r", steps).reading().seconds
    assert seconds == pytest.approx(18, rel=0.1)
    assert predicted["seconds"] == pytest.approx(18, rel=0.1)
    slow = times[1][0] >= 3
    assert len(notices) == slow
    assert not slow or "1 instead of 10 fit into train.minutes=0.3" in notices[0]


@pytest.mark.parametrize(("steps", "n_passes"), [(20, 6), (1_000, 21), (10**6, 201)])
def test_the_probe_of_fixed_steps_makes_a_validation_pass_per_50_steps_between_5_and_200(monkeypatch, steps, n_passes):
    """Each of them is quick: a limit of time alone lets the probe last longer than a short training."""
    clock, passes = Clock(), []
    monkeypatch.setattr("time.perf_counter", clock)
    task = ClockTask(clock, [0.001], (passes.append(n) or 0.001 for n in count()))
    seconds = plan(Trainer(Slope(), task, settings(steps=steps, eval_every=1))).predicted["seconds"]
    assert len(passes) == n_passes
    assert seconds == pytest.approx(0.002 * steps)


def test_the_recipe_of_a_run_stores_the_steps_of_its_minutes(tmp_path, monkeypatch):
    from harken.experiments import train as experiment

    measured = []
    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 2)
    timing = Timing(step_seconds=1.0, validation_seconds=0.0, watts=20.0, source="known")
    monkeypatch.setattr(Trainer, "measure", lambda self, seconds, max_steps: (measured.append(seconds), timing)[1])
    (tmp_path / "a.txt").write_text("\n".join(tales(4)))
    tiny = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 8, "train.batch": 2}
    first = experiment.train(tmp_path / "a.txt", settings=tiny, minutes=0.1, out=tmp_path / "one")
    again = experiment.train(tmp_path / "one" / "recipe.toml", out=tmp_path / "two")
    assert (first.recipe.train.steps, again.recipe.train.steps) == (6, 6)
    assert len(measured) == 1
    assert sha256_of(tmp_path / "one" / "model.safetensors") == sha256_of(tmp_path / "two" / "model.safetensors")


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_the_timing_probe_changes_neither_weights_nor_random_state(tmp_path, kind):
    from harken.recipe import resolve

    overrides = {"model.kind": kind, "model.d": 16, "model.layers": 2, "model.context": 8, "model.dropout": 0.3}
    shape = resolve(("test", overrides | ({"model.heads": 2} if kind == "gpt" else {}))).model
    make = text_trainers(tmp_path, shape=shape, batching="stream" if kind == "lstm" else "windows")
    plain, measured = make(), make()
    before = weights(measured)
    torch.manual_seed(1)
    expected = [plain.update(6)["loss"] for _ in range(3)]
    torch.manual_seed(1)
    measured.measure(0.0, 10)
    assert all(torch.equal(t, before[n]) for n, t in weights(measured).items())
    assert [measured.update(6)["loss"] for _ in range(3)] == expected


def test_the_energy_is_predicted_for_all_processes_of_a_machine(monkeypatch, tmp_path):
    class Two(Ranks):
        local_world_size = 2

    monkeypatch.setattr(machine, "cores", lambda: 8)
    monkeypatch.setattr(cost, "POWERCAP", tmp_path)
    torch.set_num_threads(3)
    timing = Trainer(Slope(), Toy(), settings(), ranks=Two()).measure(0.0, 10)
    assert (timing.watts, timing.source) == (60.0, "estimated: 6 cores x 10 W")


# --- the run ----------------------------------------------------------------------------------------------------------


def fit(trainer: Trainer, folder: Path, steps: int = 6) -> None:
    folder.mkdir(exist_ok=True)
    trainer.fit(folder, steps)


def test_the_best_weights_of_the_validation_passes_are_kept(tmp_path):
    trainer = Trainer(Slope(), Toy([5, 3, 4, 3, 6, 7]), settings(optimizer="sgd", momentum=0, lr=1.0, eval_every=1))
    fit(trainer, tmp_path / "r")
    assert float(trainer.model.w.detach()) == -6
    trainer.finish()
    assert float(trainer.model.w.detach()) == -2  # the first of two equal scores
    assert (trainer.validation.best, trainer.validation.step) == (3, 2)


def test_without_keep_best_the_last_weights_are_kept(tmp_path):
    fields = {"optimizer": "sgd", "momentum": 0, "lr": 1.0, "keep_best": False}
    trainer = Trainer(Slope(), Toy([5, 3, 4, 3, 6, 7]), settings(eval_every=1, **fields))
    fit(trainer, tmp_path / "r")
    trainer.finish()
    assert float(trainer.model.w.detach()) == -6


@pytest.mark.parametrize(("keep_best", "suffix"), [(True, "; the weights of step 2 are kept"), (False, "")])
def test_early_stopping_is_reported_with_step_and_reason(tmp_path, keep_best, suffix):
    notices, listen = collect_notices()
    trainer = Trainer(
        Slope(),
        Toy([5, 3, 4, 4, 1, 0]),
        settings(eval_every=1, early_stopping_patience=2, keep_best=keep_best),
        listen=listen,
    )
    fit(trainer, tmp_path / "r")
    text = "stopped early at step 4 of 6: no better validation loss for 2 validation passes"
    assert notices == [text + suffix]


def test_a_training_that_ends_with_its_last_step_reports_no_early_stop(tmp_path):
    notices, listen = collect_notices()
    fit(
        Trainer(Slope(), Toy([5, 3, 2, 1, 1, 1]), settings(eval_every=1, early_stopping_patience=2), listen=listen),
        tmp_path / "r",
    )
    assert notices == []


def test_every_step_is_logged_at_most_once(tmp_path):
    trainer = Trainer(Slope(), Toy(), settings(steps=12, log_every=3, eval_every=4))
    fit(trainer, tmp_path / "r", 12)
    lines = log(tmp_path / "r")
    assert [line["step"] for line in lines] == [1, 3, 4, 6, 8, 9, 12]
    assert [line["step"] for line in lines if "valid" in line] == [4, 8, 12]


def test_the_default_is_ten_validation_passes(tmp_path):
    fit(Trainer(Slope(), Toy(), settings(steps=40)), tmp_path / "r", 40)
    assert [line["step"] for line in log(tmp_path / "r") if "valid" in line] == list(range(4, 41, 4))


def test_resuming_truncates_the_log_to_the_steps_of_the_checkpoint(tmp_path):
    make = lambda: Trainer(Slope(), Toy(), settings(checkpoint_every=4, log_every=1))  # noqa: E731
    fit(make(), tmp_path / "r", 6)
    with (tmp_path / "r" / "log.jsonl").open("a") as file:
        file.write('{"step": 7, "loss": 1}\n{"step": 8, "lo')  # the log of a killed run
    again = make()
    again.resume(tmp_path / "r")
    assert [line["step"] for line in log(tmp_path / "r")] == [1, 2, 3, 4, 5, 6]
    again.fit(tmp_path / "r", 9)
    assert [line["step"] for line in log(tmp_path / "r")] == list(range(1, 10))


# --- stopping and resuming --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_run_after_the_step_with_a_checkpoint(tmp_path, number):
    def listen(event: str, **facts) -> None:
        if event == "step" and facts["step"] == 2:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    trainer = Trainer(Slope(), Toy(), settings(), listen=listen)
    with pytest.raises(Stopped, match=r"r: stopped at step 2 of 6; resume with: harken train .*r --resume$"):
        fit(trainer, tmp_path / "r")
    assert run_folder.newest_checkpoint(tmp_path / "r")[0]["step"] == 2
    assert signal.getsignal(number) is before


def test_a_second_interrupt_stops_at_once(tmp_path):
    def listen(event: str, **facts) -> None:
        if event == "step":
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(Trainer(Slope(), Toy(), settings(), listen=listen), tmp_path / "r")


def test_a_resumed_run_adds_to_its_previous_cost(tmp_path):
    fit(Trainer(Slope(), Toy(), settings(checkpoint_every=3)), tmp_path / "r")
    manifest = run_folder.newest_checkpoint(tmp_path / "r")[0]
    reading = Meter(manifest["cost"] | {"seconds": 100.0}).reading()
    assert reading.seconds == 100.0
    assert reading.energy_source == manifest["cost"]["energy_source"]


def test_another_thread_count_is_reported(tmp_path):
    notices = []
    torch.set_num_threads(1)
    fit(Trainer(Slope(), Toy(), settings()), tmp_path / "r")
    torch.set_num_threads(2)
    Trainer(Slope(), Toy(), settings(), listen=lambda event, **facts: notices.append(facts)).resume(tmp_path / "r")
    assert notices == [{"text": "the thread count or torch version has changed: resuming, but not bitwise"}]


def test_another_parallelism_is_reported(tmp_path):
    notices, listen = collect_notices()
    fit(Trainer(Slope(), Toy(), settings(parallel="ddp")), tmp_path / "r")
    Trainer(Slope(), Toy(), settings(parallel="fsdp"), listen=listen).resume(tmp_path / "r")
    change = "1 process (train.parallel=fsdp) instead of 1 process (train.parallel=ddp)"
    assert notices == [f"{change}: resuming, but not bitwise"]


def test_a_damaged_checkpoint_is_reported(tmp_path):
    notices = []
    fit(Trainer(Slope(), Toy(), settings(checkpoint_every=3)), tmp_path / "r")
    (tmp_path / "r" / "checkpoints" / "step-000006" / "state.safetensors").write_bytes(b"")
    trainer = Trainer(Slope(), Toy(), settings(), listen=lambda event, **facts: notices.append(facts["text"]))
    trainer.resume(tmp_path / "r")
    assert trainer.step == 3
    assert "SHA-256 mismatch: the file was modified; using the checkpoint before it" in notices[0]


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    fit(Trainer(Slope(), Toy(), settings()), tmp_path / "r")
    with pytest.raises(BadRun, match="do not match the model"):
        Trainer(nn.Linear(2, 2), Toy(), settings()).resume(tmp_path / "r")


# --- compiled ---------------------------------------------------------------------------------------------------------


def test_without_a_compiler_the_run_is_eager_and_reports_why(tmp_path, monkeypatch):
    notices = []
    monkeypatch.setattr(machine, "compile_problem", lambda device: "no compiler here")
    model = Slope()
    trainer = Trainer(
        model, Toy(), settings(compile="yes"), listen=lambda event, **facts: notices.append((event, facts))
    )
    assert trainer.update_step.forward_model is model
    assert notices == [("notice", {"text": "not compiled: no compiler here"})]


@pytest.mark.parametrize(("x", "expected"), [(-1.0, []), (1.0, ["not compiled, so slower: RuntimeError"])])
def test_a_compiler_that_warns_or_fails_does_not_stop_the_run(x, expected, monkeypatch):
    def compiler(model, **options):
        def fast(x):
            warnings.warn("TensorFloat32 tensor cores could be had", UserWarning, stacklevel=1)
            if x > 0:
                raise RuntimeError("no such kernel")
            return model(x)

        return fast

    notices, model = [], nn.Identity()
    monkeypatch.setattr(torch, "compile", compiler)
    fast, x = CompiledModel(model, lambda event, text: notices.append(text)), torch.tensor(x)
    assert fast(x) == x
    assert notices == expected


def test_compile_blocks_compiles_one_block_for_all_layers_in_updates_alone(tmp_path, monkeypatch):
    compiled, calls = [], []

    def compiler(function, **_):
        compiled.append(function)
        return lambda *args, **kwargs: (calls.append(args[0]), function(*args, **kwargs))[1]

    monkeypatch.setattr(torch, "compile", compiler)
    monkeypatch.setattr(machine, "compile_problem", lambda device: None)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    make = text_trainers(tmp_path, shape=SHAPE.model_copy(update={"layers": 3}))
    plain, fast = make(), make(compile="blocks")
    losses = [[trainer.update(6)["loss"] for _ in range(2)] for trainer in (plain, fast)]
    assert losses[0] == losses[1]
    assert compiled == [Block.forward]
    assert calls == [*fast.model.stack.blocks] * 2
    assert fast.evaluate("valid").metrics == plain.evaluate("valid").metrics
    assert len(calls) == 6  # the evaluation is eager
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == os.path.join(os.environ["HARKEN_CACHE"], "compiled")


def test_compile_blocks_compiles_a_model_without_blocks_as_a_whole(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled.append(function) or function)
    model = nn.Linear(2, 2)
    CompiledModel(model, lambda *_, **__: None, blocks=True)
    assert compiled[-1] is model


@pytest.mark.process
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside the compiler
@pytest.mark.skipif(machine.compile_problem("cpu") is not None, reason="needs a compiler")
def test_the_compiled_model_has_the_losses_of_the_eager_model(tmp_path):
    make = text_trainers(tmp_path)
    plain, fast = make(), make(compile="yes")
    assert fast.update_step.forward_model is not fast.model
    losses = [[trainer.update(6)["loss"] for _ in range(4)] for trainer in (plain, fast)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
