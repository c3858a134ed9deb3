"""Estimate the resources of a training before it starts: parameters, memory, time, energy."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from harken import machine, run_folder
from harken.events import Listener, silent
from harken.recipe import Recipe
from harken.training.loop import restore_torch_state
from harken.training.resource_estimate import count_resources, estimate_resources, plan_steps

from . import transfer
from .train import prepare

PROBE_SECONDS = 1.0
STEP_SECONDS = 0.25  # a slower step is not timed
PARAMETERS = 100_000_000  # a larger model is not built
LIMIT_SECONDS = 3.0  # of all timed work


class _OutOfTime(Exception):
    """The timed work takes too long."""


@restore_torch_state()
def estimate(recipe: Recipe, *, listen: Listener = silent) -> dict[str, str | float | bool]:
    """Load the data, count the memory of the model and time a few steps. Nothing is written.

    A model that is too large to be timed in seconds is neither built nor trained: its time and memory follow from the
    sizes of its weights. If timing takes too long after all, the steps until then count.
    """

    def forward(event: str, /, **facts: Any) -> None:
        if event != "data":  # the estimate contains these facts
            listen(event, **facts)

    dataset = recipe.load_data(transfer.inherited_processor(recipe), listen=forward)
    task = recipe.bind(dataset)
    with torch.device("meta"), run_folder.SkipInit():  # initializing on meta imports torch._dynamo: one second
        model = recipe.build(dataset.vocab)
    parameters = run_folder.count_parameters(model) * recipe.train.seeds
    timing, memory = count_resources(model, task, recipe.train)
    timed = parameters <= PARAMETERS and timing.step_seconds <= STEP_SECONDS
    if timed:
        trainer = prepare(recipe, forward, dataset=dataset)[1]
        start = time.monotonic()
        try:
            with _time_limit(LIMIT_SECONDS):
                plan = estimate_resources(trainer, PROBE_SECONDS, recipe.cost)
        except _OutOfTime:
            timed = False
            spent = (time.monotonic() - start) / max(1, trainer.step)
            timing = timing._replace(step_seconds=max(timing.step_seconds, spent))
    if not timed:
        plan = plan_steps(task, recipe.train, timing, memory, recipe.cost)
    assert plan.predicted is not None
    facts: dict[str, Any] = dataset.facts()
    counts = facts.get(facts.get("unit", "pairs"), {})
    device = machine.pick_device(recipe.train.device)
    tokens = facts[unit := facts.get("unit", "tokens")]["train"]
    described = machine.describe(device)
    return {
        "parameters": parameters,
        "tokens": sum(tokens.values()) if isinstance(tokens, dict) else tokens,  # pairs: source and target
        "unit": unit,
        "examples": sum(n for n in counts.values() if isinstance(n, int)),  # of all splits; 0 for plain text
        "steps": plan.steps,
        "minutes": (seconds := plan.predicted["seconds"]) / 60,
        "timed": timed,
        **{name: plan.predicted[name] for name in ("kwh", "energy_source", "memory_mib")},
        "co2e_kg": plan.predicted["kwh"] * recipe.cost.grid_intensity,
        **({} if (price := recipe.cost.price_per_hour) is None else {"price_usd": price * seconds / 3600}),
        "machine": f"{described['cpu']}, {described['cores']} cores" if device.type == "cpu" else str(described["gpu"]),
    }


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _OutOfTime in the first call of a module after this time."""
    end = time.monotonic() + seconds

    def check(module: nn.Module, args: Any) -> None:
        if time.monotonic() > end:
            raise _OutOfTime

    hook = register_module_forward_pre_hook(check)
    try:
        yield
    finally:
        hook.remove()
