"""What a training would need, before it is begun: weights, memory, minutes, energy."""

from typing import Any

import torch

from harken.events import Listener, silent
from harken.recipe import Recipe
from harken.training import machine, meter
from harken.training.loop import Trainer

PROBE_SECONDS = 3.0


def estimate(recipe: Recipe, *, listen: Listener = silent) -> dict[str, Any]:
    """Open the data, build the model, time a few steps; nothing is kept."""
    opened = recipe.data.open(stateful=not hasattr(recipe.model, "heads"), listen=listen)
    torch.manual_seed(recipe.train.seed)
    model = recipe.model.build(opened.vocab)
    task = recipe.task.bind(opened, recipe.model, batch=recipe.train.batch, seed=recipe.train.seed)
    trainer = Trainer(model, task, recipe.train.model_copy(update={"compile": "no"}), listen=listen)
    with meter.Meter(device=trainer.device) as probe:
        step, look = trainer.measure(PROBE_SECONDS)
    watts = probe.reading().joules / probe.reading().seconds
    known = any(getattr(recipe.train, name) is not None for name in ("steps", "tokens", "epochs"))
    steps = trainer.plan() if known else max(1, int(recipe.train.minutes * 60 / step))
    seconds = steps * step + 10 * look
    parameters = sum(p.numel() for p in model.parameters())
    # weights, gradients and two moments, and the activations of one micro-batch: about 16 numbers a width, layer and token
    rows = recipe.train.micro or recipe.train.batch
    activations = (
        rows * recipe.model.context * (16 * recipe.model.d * recipe.model.layers + 3 * min(opened.vocab, 2**27))
    )
    return {
        "parameters": parameters,
        "tokens": opened.facts()["tokens"]["train"],
        "steps": steps,
        "minutes": seconds / 60,
        "kwh": meter.emissions(watts * seconds / 3.6e6)["kwh"],
        "memory_mib": (16 * parameters + 4 * activations) / 2**20,
        "machine": f"{machine.describe()['cpu']}, {machine.cores()} cores"
        if trainer.device.type == "cpu"
        else str(machine.describe()["gpu"]),
    }
