"""harken bench: speed next to transformers' GPT-2 and relative to the measured ceiling of the machine.

All implementations take turns in every round, so a slow phase of the machine affects all of them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypedDict, cast

import torch

from harken import machine
from harken.errors import BadInput, HarkenError
from harken.events import Listener, silent
from harken.models.gpt import GPTSettings
from harken.recipe import resolve
from harken.suggestions import did_you_mean
from harken.training.loop import restore_torch_state

from . import transformers_gpt2
from .implementations import BENCHES, PROMPT, VOCAB, BenchPlan, Implementation, Turn

DEFAULTS = {
    ("train", "cuda"): {"size": "124m", "batch": 32, "tokens": 10_240},
    ("train", "cpu"): {"size": "small", "batch": 4, "tokens": 256},
    ("decode", "cuda"): {"size": "124m", "batch": 1, "tokens": 128},
    ("decode", "cpu"): {"size": "small", "batch": 1, "tokens": 64},
}
Clock = Callable[[], float]


class BenchFacts(TypedDict):
    """The measurements, and the machine."""

    rows: list[Any]
    machine: dict[str, str | float | None]


@restore_torch_state()
def bench(name: str | None = None, *, device: str = "auto", listen: Listener = silent, **options: object) -> BenchFacts:
    """The rows of `train`, of `decode`, or of both.

    Options: size, batch, context, tokens (of each row in one turn), rounds, precisions and compiled. An option that is
    missing or None has a default for the device.
    """
    if name is not None and name not in BENCHES:
        raise BadInput(f"{name!r}: expected one of {', '.join(BENCHES)}.{did_you_mean(name, BENCHES)}")
    if not transformers_gpt2.is_installed():
        fix = 'install it with: pip install "harken[hf]"'
        listen("notice", text=f"{transformers_gpt2.NAME} is not installed, so there is no ratio; {fix}")
    torch_device, rows = machine.pick_device(device, "device"), list[dict[str, Any]]()
    plans = {key: _plan(key, torch_device, options, listen) for key in ([name] if name else BENCHES)}
    for bench_name, plan in plans.items():
        settings = plan.settings
        facts = {"size": settings.size, "vocab": VOCAB, "batch": plan.batch, "context": settings.context}
        facts["rounds"] = plan.rounds
        try:
            with torch.random.fork_rng([]):
                torch.manual_seed(0)
                measured = measure(BENCHES[bench_name](plan, listen), plan)
        except torch.OutOfMemoryError:
            problem = f"bench {bench_name}: out of memory with batch {plan.batch} and context {settings.context}"
            raise HarkenError(f"{problem}; use a smaller batch, context or size") from None
        rows += [{"bench": bench_name, **row, **facts} for row in measured]
    return {"rows": rows, "machine": machine.describe(torch_device)}


def _plan(name: str, device: torch.device, options: Mapping[str, Any], listen: Listener) -> BenchPlan:
    """The options, with the defaults of the device."""
    default = str(machine.pick_precision("auto", device)).removeprefix("torch.")
    precisions = ("float32", "int8") if (name, device.type) == ("decode", "cpu") else (default,)
    values: dict[str, Any] = {"rounds": 5, "precisions": precisions, "compiled": device.type == "cuda"}
    values |= DEFAULTS[name, device.type] | {key: value for key, value in options.items() if value is not None}
    if name == "train":  # int8 is for inference only
        values["precisions"] = tuple(p for p in values["precisions"] if p != "int8") or (default,)
    elif device.type == "cuda" and "int8" in values["precisions"]:
        raise BadInput("precision='int8': is supported on a CPU only; use bfloat16")
    size, context = values.pop("size"), values.pop("context", None)
    settings = cast(GPTSettings, resolve(("bench", {"model.style": "gpt2", "model.size": size})).model)
    min_context = PROMPT + values["tokens"] if name == "decode" else 1
    if context is not None and context < min_context:
        problem = f"context={context}: a prompt of {PROMPT} and {values['tokens']} tokens need {min_context}"
        raise BadInput(f"{problem}; use a longer context or fewer tokens")
    if values["compiled"] and (reason := machine.compile_problem(device)):
        listen("notice", text=f"not compiled: {reason}")
        values["compiled"] = False
    settings = settings.model_copy(update={"context": context or max(settings.context, min_context)})
    return BenchPlan(device=device, settings=settings, **values)


def measure(
    implementations: Sequence[Implementation], plan: BenchPlan, clock: Clock = time.perf_counter
) -> list[dict[str, object]]:
    """A row per implementation: median and range of its speed, ratio to transformers, fraction of the ceiling."""
    ceilings = list(dict.fromkeys(i.ceiling for i in implementations))
    variants = [variant for ceiling in ceilings for variant in ceiling.variants]
    for variant in variants:
        variant()  # warm up
    turns = [*(i.turn for i in implementations), *variants]
    seconds = iter(interleaved_seconds(turns, plan.rounds, wait=lambda: machine.synchronize(plan.device), clock=clock))
    speeds = [[i.tokens / s for s in next(seconds)] for i in implementations]
    limits = {ceiling: ceiling.work / min(median(next(seconds)) for _ in ceiling.variants) for ceiling in ceilings}
    timed = list(zip(implementations, speeds, strict=True))
    reference = next((median(speed) for i, speed in timed if i.name == transformers_gpt2.NAME), None)
    rows = list[dict[str, object]]()
    for i, speed in timed:
        middle, limit = median(speed), limits[i.ceiling]
        row = {"name": i.name, "precision": i.precision, "tokens_per_second": middle}
        row |= {"spread": [min(speed), max(speed)], "ratio": reference and middle / reference}
        row |= {"utilization": middle * i.need / limit, "ceiling": limit, "ceiling_unit": i.ceiling.unit}
        rows.append({**row, **i.facts})
    return rows


def interleaved_seconds(
    turns: Sequence[Turn], rounds: int, *, wait: Callable[[], None], clock: Clock = time.perf_counter
) -> list[list[float]]:
    """The seconds of each turn in each round; `wait` synchronizes the device."""
    seconds: list[list[float]] = [[] for _ in turns]
    for _ in range(rounds):
        for turn, turn_seconds in zip(turns, seconds, strict=True):
            wait()
            start = clock()
            turn()
            wait()
            turn_seconds.append(clock() - start)
    return seconds
