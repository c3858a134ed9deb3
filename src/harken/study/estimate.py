"""What a training would need, before it is begun: weights, memory, minutes, energy."""

from typing import Any

from harken.events import Listener, silent
from harken.recipe import Recipe
from harken.training import machine, meter

from .train import prepare

PROBE_SECONDS = 3.0


def estimate(recipe: Recipe, *, listen: Listener = silent) -> dict[str, Any]:
    """Open the data, build the model, time a few steps; nothing is kept."""
    opened, trainer = prepare(recipe.change(train__compile="no"), silent)
    with meter.Meter(device=trainer.device) as probe:
        step, look = trainer.measure(PROBE_SECONDS)
    watts = probe.reading().joules / probe.reading().seconds
    known = any(getattr(recipe.train, name) is not None for name in ("steps", "tokens", "epochs"))
    steps = trainer.plan() if known else max(1, int(recipe.train.minutes * 60 / step))
    seconds = steps * step + 10 * look
    here = machine.describe()
    parameters = sum(p.numel() for p in trainer.model.parameters())
    # weights, gradients, two moments; and for each token about 16 numbers a width and layer, and its word scores
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
        "machine": f"{here['cpu']}, {here['cores']} cores" if trainer.device.type == "cpu" else str(here["gpu"]),
    }
