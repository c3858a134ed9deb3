"""The loop: the same update however it is cut, the budget in steps, and nothing lost when it is stopped."""

import json
import math
import os
import signal
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harken import machine, run_folder
from harken.data.batch import Batch
from harken.data.synthetic.tales import tales
from harken.data.text.source import TextSource
from harken.errors import BadRun, HarkenError, Stopped
from harken.models.gpt import Shape
from harken.tasks import Loss, Score
from harken.tasks.next_word import Task
from harken.training import loop
from harken.training.cost import Meter
from harken.training.loop import Pace, Trainer, as_before
from harken.training.optimizers import clip, optimizer, rate
from harken.training.parallel import Ranks
from harken.training.resource_estimate import plan
from harken.training.settings import Train
from harken.training.step import Compiled

SHAPE = Shape(d=16, layers=1, heads=2, context=8)


def settings(**fields) -> Train:
    plain = {"steps": 6, "batch": 5, "warmup": 0, "schedule": "constant", "precision": "float32"}
    plain |= {"device": "cpu", "clip": 0}
    return Train(**plain | fields)


def words(
    tmp_path: Path, *, shape: Shape = SHAPE, dtype: torch.dtype = torch.float32, smoothing: float = 0.0, **data
) -> Callable[..., Trainer]:
    """A maker of trainers on a little text, each from the same first weights."""
    path = tmp_path / "tales.txt"
    path.write_text("\n".join(tales(6)).replace(" ", "\n" if "documents" in data else " "))
    opened = TextSource(path=str(path), **data).open()

    def make(listen=lambda *_, **__: None, **train) -> Trainer:
        chosen = settings(**train)
        torch.manual_seed(0)
        model, task = shape.build(opened.vocab).to(dtype), Task(label_smoothing=smoothing)
        return Trainer(model, task.bind(opened, shape, batch=chosen.batch, seed=0), chosen, listen=listen)

    return make


class Slope(nn.Module):
    """One weight; its loss is that weight, so each step of SGD takes lr from it."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))


class Toy:
    """A task on a slope, with a valid loss that is given."""

    steps, splits, tokens = 4, ("valid",), 10

    def __init__(self, valid: list[float] | None = None) -> None:
        self.valid, self.seen = valid or [0.0] * 99, []

    def batch(self, epoch: int, step: int) -> Batch:
        self.seen.append((epoch, step))
        return Batch(torch.zeros(2, 1), torch.zeros(2, 1))

    def loss(self, model: Slope, batch: Batch, part: int = 0) -> Loss:
        return Loss(model.w * batch.count)

    def evaluate(self, model: Slope, split: str, *, quick: bool = False) -> Score:
        return Score({"loss": self.valid.pop(0)}, {})

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        return {}

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None: ...


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in run_folder.weights(trainer.model).items()}


def log(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("choice", "may"), [("auto", True), ("yes", True), ("no", False)])
def test_what_the_setting_says_of_compiling_reaches_the_loss_in_steps_and_looks(choice, may, monkeypatch):
    seen = []

    class Asks(Toy):
        def loss(self, *given) -> Loss:
            seen.append(machine.compiling)
            return super().loss(*given)

        def evaluate(self, *given, **named) -> Score:
            seen.append(machine.compiling)
            return super().evaluate(*given, **named)

    monkeypatch.setattr(machine, "can_compile", lambda device: "not in this test")
    monkeypatch.setattr(machine, "compiling", True)
    with as_before():
        trainer = Trainer(Slope(), Asks(), settings(compile=choice))
        trainer.update(6)
        trainer.look("valid")
        trainer.look("valid", quick=False)
    assert seen == [may] * 3
    assert machine.compiling


# --- one update -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [{}, {"batches": "packed", "documents": "line"}], ids=["windows", "ragged"])
@pytest.mark.parametrize("micro", [1, 2, 3, 4])
def test_accumulated_gradients_equal_those_of_the_large_batch(tmp_path, data, micro):
    make = words(tmp_path, dtype=torch.float64, **data)
    plain = {"optimizer": "sgd", "momentum": 0, "weight_decay": 0, "clip": 0, "lr": 0.5}
    whole, cut = make(**plain), make(micro_batch=micro, **plain)
    for _ in range(3):
        facts = whole.update(6), cut.update(6)
        assert facts[0]["loss"] == pytest.approx(facts[1]["loss"], rel=1e-6)
        assert facts[0]["gradient"] == pytest.approx(facts[1]["gradient"], rel=1e-9)
    torch.testing.assert_close(weights(cut), weights(whole), rtol=0, atol=1e-12)


def test_ragged_rows_are_really_ragged(tmp_path):
    batch = words(tmp_path, batches="packed", documents="line")().task.batch(0, 0)
    assert len({int(n) for n in (batch.targets != -100).sum(1)}) > 1


def test_the_loss_that_is_told_is_the_mean_over_all_targets(tmp_path):
    trainer = words(tmp_path, batches="packed", documents="line")(micro_batch=2)
    batch = trainer.task.batch(0, 0)
    mean = float(trainer.task.loss(trainer.model, batch).total.detach()) / batch.count
    assert trainer.update(6)["loss"] == pytest.approx(mean, rel=1e-5)


def test_a_smoothed_training_learns_another_thing_and_tells_the_loss_it_is_judged_by(tmp_path):
    data = {"batches": "packed", "documents": "line"}
    plain, smoothed = words(tmp_path, **data)(), words(tmp_path, smoothing=0.3, **data)(micro_batch=2)
    assert smoothed.update(6)["loss"] == pytest.approx(plain.update(6)["loss"], rel=1e-6)
    assert any(not torch.equal(a, b) for a, b in zip(weights(plain).values(), weights(smoothed).values(), strict=True))
    run_folder.load_weights(smoothed.model, weights(plain))
    assert smoothed.look("valid") == plain.look("valid")


def test_a_step_takes_the_next_batch_and_a_new_epoch_begins_after_the_last(tmp_path):
    task = Toy()
    trainer = Trainer(Slope(), task, settings())
    told = [trainer.update(6) for _ in range(6)]
    assert task.seen == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    assert [(facts["step"], facts["epoch"]) for facts in told] == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 1)]


def test_a_long_gradient_is_shortened_to_the_clip(tmp_path):
    trainer = words(tmp_path)(optimizer="sgd", momentum=0, weight_decay=0, grad_clip=0.01, lr=1.0)
    before = weights(trainer)
    facts = trainer.update(6)
    moved = math.sqrt(sum(float((t - before[n]).square().sum()) for n, t in weights(trainer).items()))
    assert facts["gradient"] > 0.01
    assert moved == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(("longest", "left"), [(1.0, [0.6, 0.8]), (10.0, [3.0, 4.0]), (0.0, [3.0, 4.0])])
def test_clipping_keeps_the_direction(longest, left):
    model = nn.Linear(1, 2, bias=False)
    model.weight.grad = torch.tensor([[3.0], [4.0]])
    assert float(clip(model, longest)) == pytest.approx(5.0)
    torch.testing.assert_close(model.weight.grad[:, 0], torch.tensor(left), rtol=1e-5, atol=1e-5)


def test_matrices_decay_and_vectors_do_not():
    groups = optimizer(nn.LayerNorm(3), settings(weight_decay=0.3)).param_groups
    assert [g["weight_decay"] for g in groups] == [0.0]
    groups = optimizer(nn.Linear(3, 3), settings(weight_decay=0.3)).param_groups
    assert [(g["weight_decay"], g["params"][0].dim()) for g in groups] == [(0.3, 2), (0.0, 1)]


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_a_number_that_is_none_stops_the_run_before_the_update(tmp_path, broken):
    class Breaks(Toy):
        def loss(self, model: Slope, batch: Batch, part: int = 0) -> Loss:
            good = super().loss(model, batch)
            if len(self.seen) < 3:
                return good
            total = good.total * math.nan if broken == "loss" else (model.w * 0).sqrt()  # sqrt at 0: 0 * inf
            return Loss(total)

    trainer = Trainer(Slope(), Breaks(), settings(optimizer="sgd", momentum=0, lr=0.5))
    for _ in range(2):
        trainer.update(6)
    with pytest.raises(HarkenError, match=r"^step 3 \(epoch 0, batch 2\): .*nothing was updated; .*train.lr"):
        trainer.update(6)
    assert (trainer.step, float(trainer.model.w.detach())) == (2, -1.0)


class Odd(Toy):
    """Its loss is not a number in these batches."""

    odd = range(1, 99)

    def loss(self, model: Slope, batch: Batch, part: int = 0) -> Loss:
        return Loss(super().loss(model, batch).total * (math.nan if len(self.seen) in self.odd else 1))


def heard() -> tuple[list[str], Callable[..., None]]:
    """What was told as a notice, and the listener that notes it."""
    said: list[str] = []
    return said, lambda event, **facts: said.append(facts["text"]) if event == "notice" else None


def test_skipped_updates_are_told_at_the_first_and_whenever_they_have_doubled(tmp_path):
    said, listen = heard()
    fit(Trainer(Slope(), Odd(), settings(steps=9, on_nan="skip"), listen=listen), tmp_path / "r", 9)
    assert [text.partition(":")[0] for text in said] == ["step 1", "step 2", "step 4", "step 8"]
    assert said[-1].endswith("nothing was updated; 8 skipped until now")


def test_what_is_skipped_while_the_speed_is_measured_is_not_told(tmp_path):
    said, listen = heard()
    trainer = Trainer(Slope(), Odd(), settings(on_nan="skip"), listen=listen)
    trainer.measure(0.0)
    assert said == []
    trainer.update(6)
    assert len(said) == 1


def test_the_log_of_losses_that_are_no_numbers_is_strict_json(tmp_path):
    fit(Trainer(Slope(), Odd([math.nan] * 6), settings(on_nan="skip", eval_every=6)), tmp_path / "r")
    assert "NaN" not in (tmp_path / "r" / "log.jsonl").read_text()
    assert [(line["loss"], line["valid"]) for line in log(tmp_path / "r") if "valid" in line] == [(None, None)]


def test_a_run_that_a_number_has_ended_says_so_to_whoever_asks_later_until_it_goes_on(tmp_path):
    task = Odd()
    task.odd = [5]
    with pytest.raises(HarkenError, match="step 5"):
        fit(Trainer(Slope(), task, settings(checkpoint_every=2)), tmp_path / "r")
    assert run_folder.unfinished(tmp_path / "r").startswith(
        "it ended at step 5 (epoch 1, batch 0): the loss or the gradient"
    )
    Trainer(Slope(), Toy(), settings()).resume(tmp_path / "r")
    assert run_folder.unfinished(tmp_path / "r").startswith("go on with: harken train")


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
def test_the_rate_rises_straight_and_falls_as_half_a_cosine(step, value):
    train = settings(lr=1.0, warmup=0.1, min_lr_ratio=0.2, schedule="cosine")
    assert rate(step, 100, train) == pytest.approx(value)


def test_a_warm_up_of_one_or_more_counts_steps():
    train = settings(lr=1.0, warmup=4, schedule="constant")
    assert [rate(step, 100, train) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(("warmup", "told"), [(7, 1), (6, 0), (0.9, 0)])
def test_a_warm_up_longer_than_the_training_is_told(tmp_path, warmup, told):
    said, listen = heard()
    fit(Trainer(Slope(), Toy(), settings(warmup=warmup), listen=listen), tmp_path / "r")
    text = "train.warmup is 7 steps long, and the training 6: the rate never gets up to train.lr"
    assert said == [text] * told


def test_the_rate_of_a_step_is_the_one_it_is_made_with(tmp_path):
    trainer = Trainer(Slope(), Toy(), settings(optimizer="sgd", momentum=0, lr=1.0, warmup=4))
    told = [trainer.update(4)["lr"] for _ in range(4)]
    assert told == [0.25, 0.5, 0.75, 1.0]
    assert float(trainer.model.w.detach()) == -sum(told)


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
    assert plan(Trainer(Slope(), Toy(), settings(**budget))) == (steps, None)


def test_minutes_become_steps_by_the_measured_rate(monkeypatch):
    trainer = Trainer(Slope(), Toy(), settings(steps=None, minutes=0.5))
    monkeypatch.setattr(trainer, "measure", lambda seconds, most: Pace(step=0.1, look=0.2, watts=20.0, source="known"))
    assert plan(trainer)[0] == (30 - 10 * 0.2) / 0.1


def test_the_recipe_of_a_run_keeps_the_steps_its_minutes_became(tmp_path, monkeypatch):
    from harken.experiments import train as study

    measured = []
    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 2)
    pace = Pace(step=1.0, look=0.0, watts=20.0, source="known")
    monkeypatch.setattr(Trainer, "measure", lambda self, seconds, most: (measured.append(seconds), pace)[1])
    (tmp_path / "a.txt").write_text("\n".join(tales(4)))
    tiny = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 8, "train.batch": 2}
    first = study.train(tmp_path / "a.txt", settings=tiny, minutes=0.1, out=tmp_path / "one")
    again = study.train(tmp_path / "one" / "recipe.toml", out=tmp_path / "two")
    assert (first.recipe.train.steps, again.recipe.train.steps) == (6, 6)
    assert len(measured) == 1
    assert run_folder.sha256(tmp_path / "one" / "model.safetensors") == run_folder.sha256(
        tmp_path / "two" / "model.safetensors"
    )


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_measuring_the_speed_leaves_no_trace(tmp_path, kind):
    from harken.recipe import resolve

    given = {"model.kind": kind, "model.d": 16, "model.layers": 2, "model.context": 8, "model.dropout": 0.3}
    shape = resolve(("test", given | ({"model.heads": 2} if kind == "gpt" else {}))).model
    make = words(tmp_path, shape=shape, batches="stream" if kind == "lstm" else "windows")
    plain, measured = make(), make()
    before = weights(measured)
    torch.manual_seed(1)
    expected = [plain.update(6)["loss"] for _ in range(3)]
    torch.manual_seed(1)
    measured.measure(0.0)
    assert all(torch.equal(t, before[n]) for n, t in weights(measured).items())
    assert [measured.update(6)["loss"] for _ in range(3)] == expected


def test_the_energy_is_predicted_for_all_processes_of_a_machine(monkeypatch, tmp_path):
    class Two(Ranks):
        here = 2

    monkeypatch.setattr(machine, "cores", lambda: 8)
    monkeypatch.setattr(loop, "Meter", partial(Meter, powercap=tmp_path))
    torch.set_num_threads(3)
    pace = Trainer(Slope(), Toy(), settings(), ranks=Two()).measure(0.0)
    assert (pace.watts, pace.source) == (60.0, "estimated: 6 cores x 10 W")


# --- the run ----------------------------------------------------------------------------------------------------------


def fit(trainer: Trainer, folder: Path, steps: int = 6) -> None:
    folder.mkdir(exist_ok=True)
    trainer.fit(folder, steps)


def test_the_weights_that_were_best_on_the_valid_split_are_taken(tmp_path):
    trainer = Trainer(Slope(), Toy([5, 3, 4, 3, 6, 7]), settings(optimizer="sgd", momentum=0, lr=1.0, eval_every=1))
    fit(trainer, tmp_path / "r")
    assert float(trainer.model.w.detach()) == -6
    trainer.finish()
    assert float(trainer.model.w.detach()) == -2  # the first of the two that are equally good
    assert (trainer.course.best, trainer.course.step) == (3, 2)


def test_without_best_the_last_weights_are_taken(tmp_path):
    fields = {"optimizer": "sgd", "momentum": 0, "lr": 1.0, "best": False}
    trainer = Trainer(Slope(), Toy([5, 3, 4, 3, 6, 7]), settings(eval_every=1, **fields))
    fit(trainer, tmp_path / "r")
    trainer.finish()
    assert float(trainer.model.w.detach()) == -6


@pytest.mark.parametrize(("best", "kept"), [(True, "; the weights of step 2 are kept"), (False, "")])
def test_a_training_that_stops_early_says_when_and_why(tmp_path, best, kept):
    said, listen = heard()
    trainer = Trainer(
        Slope(),
        Toy([5, 3, 4, 4, 1, 0]),
        settings(eval_every=1, early_stopping_patience=2, keep_best=best),
        listen=listen,
    )
    fit(trainer, tmp_path / "r")
    assert said == [f"stopped at step 4 of 6: the valid loss was no better for 2 looks{kept}"]


def test_a_training_that_ends_with_its_last_step_did_not_stop_early(tmp_path):
    said, listen = heard()
    fit(
        Trainer(Slope(), Toy([5, 3, 2, 1, 1, 1]), settings(eval_every=1, early_stopping_patience=2), listen=listen),
        tmp_path / "r",
    )
    assert said == []


def test_every_logged_step_stands_there_once(tmp_path):
    trainer = Trainer(Slope(), Toy(), settings(steps=12, log_every=3, eval_every=4))
    fit(trainer, tmp_path / "r", 12)
    lines = log(tmp_path / "r")
    assert [line["step"] for line in lines] == [1, 3, 4, 6, 8, 9, 12]
    assert [line["step"] for line in lines if "valid" in line] == [4, 8, 12]


def test_ten_looks_at_valid_unless_it_is_said(tmp_path):
    fit(Trainer(Slope(), Toy(), settings(steps=40)), tmp_path / "r", 40)
    assert [line["step"] for line in log(tmp_path / "r") if "valid" in line] == list(range(4, 41, 4))


def test_a_log_is_left_with_the_steps_before_the_checkpoint(tmp_path):
    make = lambda: Trainer(Slope(), Toy(), settings(checkpoint_every=4, log_every=1))  # noqa: E731
    fit(make(), tmp_path / "r", 6)
    with (tmp_path / "r" / "log.jsonl").open("a") as file:
        file.write('{"step": 7, "loss": 1}\n{"step": 8, "lo')  # as a killed run leaves it
    again = make()
    again.resume(tmp_path / "r")
    assert [line["step"] for line in log(tmp_path / "r")] == [1, 2, 3, 4, 5, 6]
    again.fit(tmp_path / "r", 9)
    assert [line["step"] for line in log(tmp_path / "r")] == list(range(1, 10))


# --- stopped, and going on --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_waits_for_the_step_and_leaves_a_checkpoint(tmp_path, number):
    def listen(event: str, **facts) -> None:
        if event == "step" and facts["step"] == 2:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    trainer = Trainer(Slope(), Toy(), settings(), listen=listen)
    with pytest.raises(Stopped, match=r"r: stopped at step 2 of 6; go on with: harken train .*r --resume$"):
        fit(trainer, tmp_path / "r")
    assert run_folder.newest_checkpoint(tmp_path / "r")[0]["step"] == 2
    assert signal.getsignal(number) is before


def test_a_second_interrupt_does_not_wait(tmp_path):
    def listen(event: str, **facts) -> None:
        if event == "step":
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(Trainer(Slope(), Toy(), settings(), listen=listen), tmp_path / "r")


def test_a_resumed_run_counts_on_what_it_has_cost(tmp_path):
    fit(Trainer(Slope(), Toy(), settings(checkpoint_every=3)), tmp_path / "r")
    facts = run_folder.newest_checkpoint(tmp_path / "r")[0]
    more = Meter(facts["cost"] | {"seconds": 100.0}).reading()
    assert more.seconds == 100.0
    assert more.source == facts["cost"]["energy_source"]


def test_another_number_of_threads_is_named(tmp_path):
    said = []
    torch.set_num_threads(1)
    fit(Trainer(Slope(), Toy(), settings()), tmp_path / "r")
    torch.set_num_threads(2)
    Trainer(Slope(), Toy(), settings(), listen=lambda event, **facts: said.append(facts)).resume(tmp_path / "r")
    assert said == [{"text": "another thread count or torch than before: the run goes on, but not bit for bit"}]


def test_another_way_to_share_the_work_is_named(tmp_path):
    said, listen = heard()
    fit(Trainer(Slope(), Toy(), settings(parallel="ddp")), tmp_path / "r")
    Trainer(Slope(), Toy(), settings(parallel="fsdp"), listen=listen).resume(tmp_path / "r")
    ways = "1 process (train.parallel=fsdp) instead of 1 process (train.parallel=ddp)"
    assert said == [f"{ways}: the run goes on, but not bit for bit"]


def test_a_damaged_checkpoint_is_told_of(tmp_path):
    said = []
    fit(Trainer(Slope(), Toy(), settings(checkpoint_every=3)), tmp_path / "r")
    (tmp_path / "r" / "checkpoints" / "step-000006" / "state.safetensors").write_bytes(b"")
    trainer = Trainer(Slope(), Toy(), settings(), listen=lambda event, **facts: said.append(facts["text"]))
    trainer.resume(tmp_path / "r")
    assert trainer.step == 3
    assert "its SHA-256 is not the one in the manifest; the checkpoint before it is taken" in said[0]


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    fit(Trainer(Slope(), Toy(), settings()), tmp_path / "r")
    with pytest.raises(BadRun, match="do not fit the model"):
        Trainer(nn.Linear(2, 2), Toy(), settings()).resume(tmp_path / "r")


# --- compiled ---------------------------------------------------------------------------------------------------------


def test_without_a_compiler_the_run_goes_on_plainly_and_says_so(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(machine, "can_compile", lambda device: "no compiler here")
    model = Slope()
    trainer = Trainer(model, Toy(), settings(compile="yes"), listen=lambda event, **facts: said.append((event, facts)))
    assert trainer.make.call is model
    assert said == [("notice", {"text": "not compiled: no compiler here"})]


@pytest.mark.parametrize(("x", "told"), [(-1.0, []), (1.0, ["not compiled, so slower: RuntimeError"])])
def test_a_compiler_that_chatters_or_fails_does_not_disturb_the_run(x, told, monkeypatch):
    def compiler(model, **how):
        def fast(x):
            warnings.warn("TensorFloat32 tensor cores could be had", UserWarning, stacklevel=1)
            if x > 0:
                raise RuntimeError("no such kernel")
            return model(x)

        return fast

    said, model = [], nn.Identity()
    monkeypatch.setattr(torch, "compile", compiler)
    fast, x = Compiled(model, lambda event, text: said.append(text)), torch.tensor(x)
    assert fast(x) == x
    assert said == told


@pytest.mark.process
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own parts
@pytest.mark.skipif(machine.can_compile("cpu") is not None, reason="there is no compiler here")
def test_compiled_losses_are_those_of_the_plain_model(tmp_path):
    make = words(tmp_path)
    plain, fast = make(), make(compile="yes")
    assert fast.make.call is not fast.model
    losses = [[trainer.update(6)["loss"] for _ in range(4)] for trainer in (plain, fast)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
