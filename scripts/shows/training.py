"""Training: demonstrations of the loop, the optimizers and the cost meters in seconds."""

import os
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
from harken.experiments.lecture_costs import lecture_costs
from harken.experiments.train import prepare
from harken.models.gpt import GPTSettings
from harken.recipe import resolve
from harken.run_folder import weights
from harken.training import cost
from harken.training.loop import Trainer
from harken.training.optimizers import build_optimizer, clip_gradients
from harken.training.settings import Train

from . import EXACT, Seen, gap, show

LAB_SECONDS = 48  # one epoch of Lab 01 on a Tesla P100, as the lecture prints it
LAB_WORDS = 929_589  # of PTB's training text


@contextmanager
def learning(**settings: Any) -> Iterator[Trainer]:
    """A trainer on 150 of harken's own tales in words, 26 steps an epoch; settings as model__d=32, train__lr=0.01."""
    small: dict[str, Any] = {"model.d": 32, "model.layers": 1, "model.context": 32}
    if settings.get("model__kind", "gpt") == "gpt":
        small |= {"model.layers": 2, "model.heads": 2, "model.positions": "rotary"}
    fixed = {"data.tokenizer": "word", "train.precision": "float32", "train.device": "cpu", "train.lr": 1e-2}
    overrides = {name.replace("__", "."): value for name, value in settings.items()}
    before = os.environ.get("HARKEN_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "tales.txt"
        text.write_text("\n\n".join(tales(150)), "utf-8")
        os.environ["HARKEN_CACHE"] = str(Path(folder) / "cache")
        try:
            yield prepare(resolve(("here", {"data.path": str(text), **small, **fixed, **overrides})), silent)[1]
        finally:
            os.environ.pop("HARKEN_CACHE") if before is None else os.environ.update(HARKEN_CACHE=before)


def learn(trainer: Trainer, steps: int) -> float:
    """The perplexity on the valid split after this number of steps."""
    for _ in range(steps):
        trainer.update(steps)
    return float(trainer.evaluate("valid").metrics["perplexity"])


@show(slow=True)
def language_models() -> Seen:
    """Words in their context: a Transformer and the recurrent models beside what counting words alone can do."""
    perplexity = {}
    for kind in ("gpt", "rnn", "gru", "lstm"):
        with learning(model__kind=kind) as trainer:
            perplexity[kind] = learn(trainer, 120)
            perplexity["unigram"] = trainer.task.baselines("valid")["unigram"]["perplexity"]
    rest = ", ".join(f"{kind} {x:.0f}" for kind, x in perplexity.items() if kind != "gpt")
    words = f"perplexity of the LM Transformer after 120 steps; same settings, untuned: {rest}"
    return Seen(
        perplexity["gpt"],
        words,
        max(x for kind, x in perplexity.items() if kind != "unigram") < 0.9 * perplexity["unigram"],
    )


@show(slow=True)
def norm_converges() -> Seen:
    """With layer normalisation the same training gets further in the same steps."""
    perplexities = []
    for norm in ("pre", "none"):
        with learning(model__norm=norm, model__layers=3) as trainer:
            perplexities.append(learn(trainer, 80))
    return Seen(
        perplexities[0],
        f"perplexity after 80 steps with LN, {perplexities[1]:.0f} without (3 blocks)",
        perplexities[0] < 0.5 * perplexities[1],
    )


def _scale_embeddings_to_positions(model: Any) -> None:
    """Start the word vectors at the size of the sin and cos that are added to them, as nn.Embedding does."""
    model.embedding_scale = 1.0
    sizes: list[Tensor] = []
    with patch.object(model.stack.positions, "add", lambda x, pos: sizes.append(x.std()) or x), torch.no_grad():
        model(torch.arange(30)[None])
        model.embed.weight.div_(sizes[0])


@show(slow=True)
def unseen_lengths() -> Seen:
    """Trained on 32 words, asked at 33 to 64: waves can be computed there, but what they say was never learned."""
    beyond = {}
    for kind in ("sinusoid", "alibi"):
        with learning(model__positions=kind, model__tie_embeddings=False) as trainer:
            _scale_embeddings_to_positions(trainer.model)
            learn(trainer, 150)
            text = torch.as_tensor(trainer.task.data.splits["valid"][0].tokens[:1281].astype("int64"))
            rows, targets = text[:-1].view(-1, 64), text[1:].view(-1, 64)
            trainer.model.eval()
            with torch.no_grad():
                logits = trainer.model.logits(trainer.model(rows))
            losses = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(-1, 64)
            beyond[kind] = losses[:, 32:].mean().exp() / losses[:, :32].mean().exp()
    words = f"times the perplexity at words 33 to 64 with sin/cos, {beyond['alibi']:.2f} with ALiBi"
    return Seen(float(beyond["sinusoid"]), words, beyond["alibi"] < 1.1 < beyond["sinusoid"])


@show(slow=True)
def dropout_of_the_lab() -> Seen:
    """What dropout 0.95 costs, beside 0.05: most of what could be learned."""
    perplexities = []
    for dropout in (0.95, 0.05):
        with learning(model__dropout=dropout) as trainer:
            perplexities.append(learn(trainer, 100))
    return Seen(
        perplexities[0],
        f"perplexity after 100 steps with dropout 0.95, {perplexities[1]:.0f} with 0.05",
        perplexities[0] > 1.5 * perplexities[1],
    )


@show(slow=True, timed=True)
def lab01_epoch() -> Seen:
    """Seconds of one epoch of Lab 01's shape on this machine, from six steps; 10,000 words in the dictionary."""
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
    x = min(times) * LAB_WORDS / 2000  # the step least disturbed by others
    threads = f"on {torch.get_num_threads()} threads of this machine"
    return Seen(x, f"seconds an epoch of {LAB_WORDS:,} words would take {threads}; printed {LAB_SECONDS}", x > 0)


@show()
def audited() -> Seen:
    """Trained on all words in parallel, then asked: other words to come, one word at a time, packed, in a batch."""
    with learning() as trainer:
        learn(trainer, 10)
        report = audit(trainer.model, trainer.task)
    x = max(check.difference or 0.0 for check in report.checks)
    return Seen(x, f"largest difference in {len(report.checks)} checks after 10 steps of training", report.passed)


# --- batches and steps ------------------------------------------------------------------------------------------------


@show()
def parts_of_a_batch() -> Seen:
    """Gradients of parts of a batch can be computed apart and added: the step is that of the whole batch."""
    final_weights = []
    for micro in (16, 3):
        torch.manual_seed(0)
        with learning(train__micro_batch=micro, train__optimizer="sgd", train__lr=0.5, train__warmup=0) as trainer:
            trainer.update(2)
            final_weights.append(torch.cat([w.flatten() for w in weights(trainer.model).values()]).clone())
    x = gap(*final_weights)
    return Seen(x, "largest difference of a weight after one step: 16 rows at once, or 3 at a time", x < EXACT)


@show()
def noise_of_a_batch() -> Seen:
    """The gradient of a small batch is a noisy guess: four times the rows halve the noise."""
    with learning(train__batch=64) as trainer:
        model = trainer.model
        batch, rows = trainer.task.batch(0, 0), []
        for r in range(64):
            model.zero_grad()
            trainer.task.loss(model, batch.slice_rows(r, r + 1)).total.backward()
            rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    each = torch.stack(rows)
    small, large = (each.view(-1, B, each.shape[1]).mean(1).var(0).sum().sqrt() for B in (4, 16))
    x = float(small / large)
    return Seen(x, "times the noise with batches of 4 beside 16; 2 expected", 1.6 < x < 2.4)


@show()
def adaptive() -> Seen:
    """An ill-conditioned valley, one slope 10,000 times the other: SGD crawls along it, AdamW has a rate for each."""
    distance = {}
    for name, lr in (("adamw", 0.05), ("sgd", 1.5e-4)):  # SGD would leave the valley above 2e-4
        point = nn.Parameter(torch.tensor([1.0, 1.0]))
        holder = nn.ParameterList([point])
        optimizer = build_optimizer(holder, Train(optimizer=name, lr=lr, momentum=0.0))
        for _ in range(300):
            optimizer.zero_grad()
            (0.5 * (point[0] ** 2 + 1e4 * point[1] ** 2)).backward()
            optimizer.step()
        distance[name] = float(point.detach()[0].abs())
    words = f"of the way is left after 300 steps with AdamW, {distance['sgd']:.2f} with SGD"
    return Seen(distance["adamw"], words, distance["adamw"] < 0.1 < 0.5 < distance["sgd"])


@show()
def exploding() -> Seen:
    """A gradient that explodes on its way through 60 steps is shortened to 1, in the same direction."""
    cell = nn.RNN(64, 64, nonlinearity="relu", batch_first=True)
    nn.init.normal_(cell.weight_hh_l0, std=0.25)
    cell(torch.randn(1, 60, 64))[0][:, -1].sum().backward()
    before = torch.cat([p.grad.flatten().clone() for p in cell.parameters()])
    length = float(clip_gradients(cell, 1.0))
    after = torch.cat([p.grad.flatten() for p in cell.parameters()])
    turned = float(1 - torch.cosine_similarity(before, after, 0))
    return Seen(
        length, f"length of the gradient before, {float(after.norm()):.2f} after", length > 1e3 and turned < EXACT
    )


@show()
def cost_table() -> Seen:
    """Every row of the cost table that has a power and a time: W x hours x PUE, times the pounds of a kWh."""
    rows = lecture_costs()["rows"]
    computed = [row for row in rows if row["kwh"] is not None]
    off = max(abs(row["co2e_lb"] / row["printed_co2e_lb"] - 1) for row in computed if row["printed_co2e_lb"] > 100)
    words = f"of {len(rows)} rows have power and hours; they give the printed pounds up to {100 * off:.2f} %"
    return Seen(len(computed), f"{words} (26 is 25.6, rounded)", all(row["agrees"] for row in computed))


@show()
def carbon() -> Seen:
    """Transformer (big): 1515.43 W for 84 hours, times PUE 1.58 = 201 kWh, times 0.954 pounds a kWh = 192 pounds."""
    emissions = cost.emissions(1515.43 * 84 / 1000)
    return Seen(
        emissions["co2e_lb"],
        f"pounds of CO2e from {emissions['kwh']:.0f} kWh; printed 192 and 201",
        round(emissions["co2e_lb"]) == 192,
    )
