"""Training: the loop, the optimizers and the cost of training."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from harken.data.synthetic.tales import tales
from harken.events import silent
from harken.experiments.audit.audit import audit
from harken.experiments.costs import lecture_costs
from harken.experiments.train import prepare
from harken.models.gpt import GPTSettings
from harken.recipe import resolve
from harken.run_folder import weights
from harken.training import cost
from harken.training.loop import Trainer
from harken.training.optimizers import build_optimizer, clip_gradients
from harken.training.settings import Train

from . import EXACT, Measurement, gap, private_cache, show

LAB_SECONDS = 48  # one epoch of Lab 01 on a Tesla P100, as printed
LAB_WORDS = 929_589  # of the training text of PTB


@contextmanager
def small_trainer(**settings: Any) -> Iterator[Trainer]:
    """A trainer on 150 generated tales in words, 26 steps per epoch; settings as model__d=32, train__lr=0.01."""
    small: dict[str, Any] = {"model.d": 32, "model.layers": 1, "model.context": 32}
    if settings.get("model__kind", "gpt") == "gpt":
        small |= {"model.layers": 2, "model.heads": 2, "model.positions": "rotary"}
    fixed = {"data.tokenizer": "word", "train.precision": "float32", "train.device": "cpu", "train.lr": 1e-2}
    overrides = {name.replace("__", "."): value for name, value in settings.items()}
    with tempfile.TemporaryDirectory() as folder, private_cache(folder):
        text = Path(folder) / "tales.txt"
        text.write_text("\n\n".join(tales(150)), "utf-8")
        yield prepare(resolve(("here", {"data.path": str(text), **small, **fixed, **overrides})), silent)[1]


def train_steps(trainer: Trainer, steps: int) -> float:
    """Train for this number of steps; return the perplexity on the validation split."""
    for _ in range(steps):
        trainer.update(steps)
    return float(trainer.evaluate("valid").metrics["perplexity"])


@show(slow=True)
def language_models() -> Measurement:
    """Context helps: a Transformer and recurrent models are better than a unigram model."""
    perplexity = {}
    for kind in ("gpt", "rnn", "gru", "lstm"):
        with small_trainer(model__kind=kind) as trainer:
            perplexity[kind] = train_steps(trainer, 120)
            perplexity["unigram"] = trainer.task.baselines("valid")["unigram"]["perplexity"]
    rest = ", ".join(f"{kind} {x:.0f}" for kind, x in perplexity.items() if kind != "gpt")
    words = f"perplexity of the Transformer after 120 steps; with the same, untuned settings: {rest}"
    return Measurement(
        perplexity["gpt"],
        words,
        max(x for kind, x in perplexity.items() if kind != "unigram") < 0.9 * perplexity["unigram"],
    )


@show(slow=True)
def norm_converges() -> Measurement:
    """With layer normalization, the perplexity is lower after the same number of steps."""
    perplexities = []
    for norm in ("pre", "none"):
        with small_trainer(model__norm=norm, model__layers=3) as trainer:
            perplexities.append(train_steps(trainer, 80))
    return Measurement(
        perplexities[0],
        f"perplexity after 80 steps with LN, {perplexities[1]:.0f} without (3 blocks)",
        perplexities[0] < 0.5 * perplexities[1],
    )


def _scale_embeddings_to_positions(model: Any) -> None:
    """Scale the initial word vectors to standard deviation 1, so that sin and cos do not dominate."""
    model.embedding_scale = 1.0
    sizes: list[Tensor] = []
    with patch.object(model.stack.positions, "add", lambda x, pos: sizes.append(x.std()) or x), torch.no_grad():
        model(torch.arange(30)[None])
        model.embed.weight.div_(sizes[0])


@show(slow=True)
def unseen_lengths() -> Measurement:
    """Trained on 32 words, evaluated at words 33 to 64: the model was never trained on these sinusoids."""
    beyond = {}
    for kind in ("sinusoid", "alibi"):
        with small_trainer(model__positions=kind, model__tie_embeddings=False) as trainer:
            _scale_embeddings_to_positions(trainer.model)
            train_steps(trainer, 150)
            text = torch.as_tensor(trainer.task.data.splits["valid"][0].tokens[:1281].astype("int64"))
            rows, targets = text[:-1].view(-1, 64), text[1:].view(-1, 64)
            trainer.model.eval()
            with torch.no_grad():
                logits = trainer.model.logits(trainer.model(rows))
            losses = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(-1, 64)
            beyond[kind] = losses[:, 32:].mean().exp() / losses[:, :32].mean().exp()
    words = f"ratio of the perplexities at words 33 to 64 and 1 to 32 with sin/cos, {beyond['alibi']:.2f} with ALiBi"
    return Measurement(float(beyond["sinusoid"]), words, beyond["alibi"] < 1.1 < beyond["sinusoid"])


@show(slow=True)
def dropout_of_the_lab() -> Measurement:
    """With dropout 0.95 the perplexity is much higher than with 0.05."""
    perplexities = []
    for dropout in (0.95, 0.05):
        with small_trainer(model__dropout=dropout) as trainer:
            perplexities.append(train_steps(trainer, 100))
    return Measurement(
        perplexities[0],
        f"perplexity after 100 steps with dropout 0.95, {perplexities[1]:.0f} with 0.05",
        perplexities[0] > 1.5 * perplexities[1],
    )


@show(slow=True, timed=True)
def lab01_epoch() -> Measurement:
    """Seconds per epoch of the model of Lab 01 on this machine, extrapolated from six steps; 10,000 words."""
    shape = GPTSettings(d=128, layers=2, heads=4, context=100, input_projection=True, tie_embeddings=False)
    model = shape.build(10_000)
    optimizer = build_optimizer(model, Train())
    times = []
    for _ in range(6):
        start = time.perf_counter()
        words = torch.randint(10_000, (20, 101))
        logits = model.logits(model(words[:, :-1]))
        nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    x = min(times) * LAB_WORDS / 2000  # the fastest step: least disturbed by other processes
    words = f"seconds per epoch of {LAB_WORDS:,} words, extrapolated for this machine"
    return Measurement(x, f"{words} (threads: {torch.get_num_threads()}); printed {LAB_SECONDS}", x > 0)


@show()
def audited() -> Measurement:
    """After parallel training, the audit checks future words, decoding word by word, packing and batching."""
    with small_trainer() as trainer:
        train_steps(trainer, 10)
        report = audit(trainer.model, trainer.task)
    x = max(check.difference or 0.0 for check in report.checks)
    return Measurement(
        x, f"largest difference in {len(report.checks)} checks of the audit after 10 training steps", report.passed
    )


# --- batches and steps ------------------------------------------------------------------------------------------------


@show()
def parts_of_a_batch() -> Measurement:
    """The sum of the gradients of micro-batches is the gradient of the batch."""
    final_weights = []
    for micro in (16, 3):
        torch.manual_seed(0)
        with small_trainer(train__micro_batch=micro, train__optimizer="sgd", train__lr=0.5, train__warmup=0) as trainer:
            trainer.update(2)
            final_weights.append(torch.cat([w.flatten() for w in weights(trainer.model).values()]).clone())
    x = gap(*final_weights)
    return Measurement(
        x,
        "largest difference of a weight after one step with a batch of 16 rows and with micro-batches of 3",
        x < EXACT,
    )


@show()
def noise_of_a_batch() -> Measurement:
    """The gradient of a batch is a noisy estimate: four times the rows halve the noise."""
    with small_trainer(train__batch=64) as trainer:
        model = trainer.model
        batch, rows = trainer.task.batch(0, 0), []
        for r in range(64):
            model.zero_grad()
            trainer.task.loss(model, batch.slice_rows(r, r + 1)).total.backward()
            rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    gradients = torch.stack(rows)
    small, large = (gradients.view(-1, B, gradients.shape[1]).mean(1).var(0).sum().sqrt() for B in (4, 16))
    x = float(small / large)
    return Measurement(x, "ratio of the gradient noise with batches of 4 and of 16; 2 expected", 1.6 < x < 2.4)


@show()
def adaptive() -> Measurement:
    """On a quadratic function with condition number 10,000, AdamW adapts the rate per parameter; SGD is slow."""
    distance = {}
    for name, lr in (("adamw", 0.05), ("sgd", 1.5e-4)):  # SGD diverges above 2e-4
        point = nn.Parameter(torch.tensor([1.0, 1.0]))
        holder = nn.ParameterList([point])
        optimizer = build_optimizer(holder, Train(optimizer=name, lr=lr, momentum=0.0))
        for _ in range(300):
            optimizer.zero_grad()
            (0.5 * (point[0] ** 2 + 1e4 * point[1] ** 2)).backward()
            optimizer.step()
        distance[name] = float(point.detach()[0].abs())
    words = f"of the initial distance to the minimum remains after 300 steps with AdamW, {distance['sgd']:.2f} with SGD"
    return Measurement(distance["adamw"], words, distance["adamw"] < 0.1 < 0.5 < distance["sgd"])


@show()
def exploding() -> Measurement:
    """A gradient that explodes over 60 steps is clipped to norm 1 and keeps its direction."""
    cell = nn.RNN(64, 64, nonlinearity="relu", batch_first=True)
    nn.init.normal_(cell.weight_hh_l0, std=0.25)
    cell(torch.randn(1, 60, 64))[0][:, -1].sum().backward()
    before = torch.cat([p.grad.flatten().clone() for p in cell.parameters()])
    norm = float(clip_gradients(cell, 1.0))
    after = torch.cat([p.grad.flatten() for p in cell.parameters()])
    rotation = float(1 - torch.cosine_similarity(before, after, 0))
    words = f"gradient norm before clipping, {float(after.norm()):.2f} after"
    return Measurement(norm, words, norm > 1e3 and rotation < EXACT)


@show()
def cost_table() -> Measurement:
    """Every row of the cost table that has a power and a time: W x hours x PUE, times the pounds per kWh."""
    rows = lecture_costs()["rows"]
    computed = [row for row in rows if row["kwh"] is not None]
    off = max(abs(row["co2e_lb"] / row["printed_co2e_lb"] - 1) for row in computed if row["printed_co2e_lb"] > 100)
    words = f"of {len(rows)} rows have power and hours; the computed pounds agree with the printed ones within "
    return Measurement(
        len(computed), f"{words}{100 * off:.2f} % (26 is 25.6, rounded)", all(row["agrees"] for row in computed)
    )


@show()
def cloud_prices() -> Measurement:
    """The cloud costs of the table: hours x devices x price per hour, preemptible to on-demand."""
    rows = [row for row in lecture_costs()["rows"] if row["usd"]]
    agree = sum(row["usd_agrees"] for row in rows)
    big = next(row for row in rows if row["model"] == "Transformer (big)")
    words = f"of {len(rows)} ranges of cloud costs agree with the printed ones; Transformer (big) costs"
    return Measurement(agree, f"{words} {big['usd'][0]:.0f} to {big['usd'][1]:.0f} USD", agree == len(rows) - 1)


@show()
def other_consumption() -> Measurement:
    """The CO2e of trainings next to that of flights, lives and cars."""
    rows = {row["consumption"].partition(",")[0]: row["printed_co2e_lb"] for row in lecture_costs()["consumption"]}
    car = rows["the same with neural architecture search"] / rows["car"]
    flight = rows["air travel"] / rows["training Transformer (big)"]
    words = "lifetimes of a car emit as much as a neural architecture search; a flight emits as much as"
    words = f"{words} {flight:.1f} trainings of Transformer (big)"
    return Measurement(car, words, 4.9 < car < 5 and 10 < flight < 11)


@show()
def carbon() -> Measurement:
    """Transformer (big): 1515.43 W for 84 hours, times PUE 1.58 = 201 kWh, times 0.954 pounds per kWh = 192 pounds."""
    emissions = cost.emissions(1515.43 * 84 / 1000)
    return Measurement(
        emissions["co2e_lb"],
        f"pounds of CO2e from {emissions['kwh']:.0f} kWh; printed 192 and 201",
        round(emissions["co2e_lb"]) == 192,
    )
