"""What a training would need, before it is begun: weights, memory, minutes, energy."""

from typing import Any

from harken.events import Listener, silent
from harken.recipe import Recipe
from harken.training import machine, meter
from harken.training.loop import EVALS

from .train import prepare

PROBE_SECONDS = 3.0


def estimate(recipe: Recipe, *, listen: Listener = silent) -> dict[str, Any]:
    """Open the data, build the model, time a few steps; nothing is kept."""

    def hear(event: str, /, **facts: Any) -> None:
        if event != "data":  # the estimate says it better
            listen(event, **facts)

    opened, trainer = prepare(recipe.change(train__compile="no"), hear)
    with meter.Meter(device=trainer.device) as probe:
        step, look = trainer.measure(PROBE_SECONDS)
    used = probe.reading()
    known = any(getattr(recipe.train, name) is not None for name in ("steps", "tokens", "epochs"))
    steps = trainer.plan() if known else trainer.affordable(step, look)
    seconds = steps * step + EVALS * look
    here = machine.describe()
    parameters = sum(p.numel() for p in trainer.model.parameters())
    return {
        "parameters": parameters,
        "tokens": opened.facts()["tokens"]["train"],
        "steps": steps,
        "minutes": seconds / 60,
        "kwh": meter.emissions(used.joules / used.seconds * seconds / 3.6e6)["kwh"],
        "memory_mib": (20 * parameters + 4 * _activations(recipe)) / 2**20,  # gradients, two moments, the best weights
        "machine": f"{here['cpu']}, {here['cores']} cores" if trainer.device.type == "cpu" else str(here["gpu"]),
    }


def _activations(recipe: Recipe) -> int:
    """Numbers kept for the way back: for each token about 16 a width and layer; word scores are never kept."""
    rows, model = recipe.train.micro or recipe.train.batch, recipe.model
    inside = 16 * getattr(model, "d", 128) * getattr(model, "layers", 1)  # a plug-in may call them otherwise
    return int(rows * model.context * inside)
