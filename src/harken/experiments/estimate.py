"""Estimate the resources of a training before it starts: parameters, memory, time, energy."""

from typing import Any

from harken import machine, run_folder
from harken.events import Listener, silent
from harken.recipe import Recipe
from harken.training.loop import restore_torch_state
from harken.training.resource_estimate import estimate_resources

from .train import prepare

PROBE_SECONDS = 3.0


@restore_torch_state()
def estimate(recipe: Recipe, *, listen: Listener = silent) -> dict[str, str | float]:
    """Load the data, build the model, count its memory and time a few steps. Nothing is written."""

    def forward(event: str, /, **facts: Any) -> None:
        if event != "data":  # the estimate contains these facts
            listen(event, **facts)

    dataset, trainer = prepare(recipe, forward)
    facts = dataset.facts()
    counts = facts.get(facts.get("unit", "pairs"), {})
    tokens = facts[unit := facts.get("unit", "tokens")]["train"]
    steps, predicted = estimate_resources(trainer, PROBE_SECONDS)
    device = machine.describe(trainer.device)
    return {
        "parameters": run_folder.count_parameters(trainer.model),
        "tokens": sum(tokens.values()) if isinstance(tokens, dict) else tokens,  # pairs: source and target
        "unit": unit,
        "examples": sum(n for n in counts.values() if isinstance(n, int)),  # of all splits; 0 for plain text
        "steps": steps,
        "minutes": predicted["seconds"] / 60,
        **{name: predicted[name] for name in ("kwh", "energy_source", "memory_mib")},
        "machine": f"{device['cpu']}, {device['cores']} cores" if trainer.device.type == "cpu" else str(device["gpu"]),
    }
