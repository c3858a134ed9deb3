"""What a training would need, before it is begun: weights, memory, minutes, energy."""

from typing import Any

from harken import machine, run_folder
from harken.events import Listener, silent
from harken.recipe import Recipe
from harken.training.loop import as_before
from harken.training.resource_estimate import forecast

from .train import prepare

PROBE_SECONDS = 3.0


@as_before()
def estimate(recipe: Recipe, *, listen: Listener = silent) -> dict[str, Any]:
    """Open the data, build the model, count its memory, time a few steps; nothing is kept."""

    def hear(event: str, /, **facts: Any) -> None:
        if event != "data":  # the estimate says it better
            listen(event, **facts)

    opened, trainer = prepare(recipe, hear)
    facts = opened.facts()
    tokens = facts[unit := facts.get("unit", "tokens")]["train"]
    steps, predicted = forecast(trainer, PROBE_SECONDS)
    here = machine.describe(trainer.device)
    return {
        "parameters": run_folder.size(trainer.model),
        "tokens": sum(tokens.values()) if isinstance(tokens, dict) else tokens,  # of both sides of pairs
        "unit": unit,  # what the tokens are, where they are none
        "steps": steps,
        "minutes": predicted["seconds"] / 60,
        **{name: predicted[name] for name in ("kwh", "energy_source", "memory_mib")},
        "machine": f"{here['cpu']}, {here['cores']} cores" if trainer.device.type == "cpu" else str(here["gpu"]),
    }
