"""Speed beside a peer and below a ceiling: all take a turn in every round, so what slows the machine slows them all."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, cast

import torch

from harken import machine
from harken.errors import BadInput, HarkenError, did_you_mean
from harken.events import Listener, silent
from harken.models.gpt import Shape
from harken.recipe import resolve
from harken.training.loop import as_before

from . import transformers_gpt2
from .implementations import PROMPT, VOCAB, Contender, Plan, Turn, decoding, training

BENCHES = {"train": training, "decode": decoding}
USUAL = {
    ("train", "cuda"): {"size": "124m", "batch": 32, "tokens": 10_240},
    ("train", "cpu"): {"size": "small", "batch": 4, "tokens": 256},
    ("decode", "cuda"): {"size": "124m", "batch": 1, "tokens": 128},
    ("decode", "cpu"): {"size": "small", "batch": 1, "tokens": 64},
}
Clock = Callable[[], float]


@as_before()
def bench(name: str | None = None, *, device: str = "auto", listen: Listener = silent, **asked: Any) -> dict[str, Any]:
    """The rows of `train`, of `decode`, or of both.

    Asked may be size, batch, context, tokens (of each row in one turn), rounds, precisions and compiled. What is not,
    or is None, is what suits the device.
    """
    if name is not None and name not in BENCHES:
        raise BadInput(f"{name!r} is not a bench; accepted: {', '.join(BENCHES)}.{did_you_mean(name, BENCHES)}")
    if not transformers_gpt2.there():
        listen(
            "notice", text=f'{transformers_gpt2.NAME} is not installed, so no ratio; pip install "harken[hf]" brings it'
        )
    here, rows = machine.pick_device(device, "device"), []
    plans = {each: _plan(each, here, asked, listen) for each in ([name] if name else BENCHES)}
    for each, plan in plans.items():
        told = {"size": plan.shape.size, "vocab": VOCAB, "batch": plan.batch, "context": plan.shape.context}
        told["rounds"] = plan.rounds
        try:
            with torch.random.fork_rng([]):
                torch.manual_seed(0)
                found = compared(BENCHES[each](plan, listen), plan)
        except torch.OutOfMemoryError:
            words = f"bench {each}: out of memory with batch {plan.batch} and context {plan.shape.context}"
            raise HarkenError(f"{words}; take a smaller batch, context or size") from None
        rows += [{"bench": each, **row, **told} for row in found]
    return {"rows": rows, "machine": machine.describe(here)}


def _plan(name: str, device: torch.device, asked: Mapping[str, Any], listen: Listener) -> Plan:
    """What was asked for, and for the rest what suits the device."""
    own = str(machine.pick_precision("auto", device)).removeprefix("torch.")
    light = ("float32", "int8") if (name, device.type) == ("decode", "cpu") else (own,)
    chosen: dict[str, Any] = {"rounds": 5, "precisions": light, "compiled": device.type == "cuda"}
    chosen |= USUAL[name, device.type] | {key: value for key, value in asked.items() if value is not None}
    if name == "train":  # 8 bits can only write
        chosen["precisions"] = tuple(p for p in chosen["precisions"] if p != "int8") or (own,)
    elif device.type == "cuda" and "int8" in chosen["precisions"]:
        raise BadInput("precision='int8': it is for a CPU; take bfloat16")
    size, context = chosen.pop("size"), chosen.pop("context", None)
    shape = cast(Shape, resolve(("bench", {"model.style": "gpt2", "model.size": size})).model)
    least = PROMPT + chosen["tokens"] if name == "decode" else 1
    if context is not None and context < least:
        what = f"context={context}: a prompt of {PROMPT} and {chosen['tokens']} tokens need {least}"
        raise BadInput(f"{what}; take a longer context or fewer tokens")
    if chosen["compiled"] and (reason := machine.can_compile(device)):
        listen("notice", text=f"not compiled: {reason}")
        chosen["compiled"] = False
    shape = shape.model_copy(update={"context": context or max(shape.context, least)})
    return Plan(device=device, shape=shape, **chosen)


def compared(contenders: Sequence[Contender], plan: Plan, clock: Clock = time.perf_counter) -> list[dict[str, Any]]:
    """A row for each contender: median and spread of its speed, the ratio to the peer's, the share of its ceiling."""
    tops = list(dict.fromkeys(c.ceiling for c in contenders))
    ways = [way for top in tops for way in top.ways]
    for way in ways:
        way()  # what the first time sets up is set up once
    turns = [*(c.turn for c in contenders), *ways]
    seconds = iter(interleaved(turns, plan.rounds, wait=lambda: machine.wait(plan.device), clock=clock))
    speeds = [[c.tokens / s for s in next(seconds)] for c in contenders]
    height = {top: top.work / min(median(next(seconds)) for _ in top.ways) for top in tops}
    rival = next(
        (median(found) for c, found in zip(contenders, speeds, strict=True) if c.name == transformers_gpt2.NAME), None
    )
    rows = []
    for c, found in zip(contenders, speeds, strict=True):
        middle, top = median(found), height[c.ceiling]
        speed = {"tokens_per_second": middle, "spread": [min(found), max(found)], "ratio": rival and middle / rival}
        below = {"share": middle * c.need / top, "ceiling": top, "ceiling_unit": c.ceiling.unit}
        rows.append({"name": c.name, "precision": c.precision, **speed, **below, **c.facts})
    return rows


def interleaved(
    turns: Sequence[Turn], rounds: int, *, wait: Callable[[], None], clock: Clock = time.perf_counter
) -> list[list[float]]:
    """The seconds of each turn in each round; `wait` comes back when the device is done."""
    seconds: list[list[float]] = [[] for _ in turns]
    for _ in range(rounds):
        for turn, mine in zip(turns, seconds, strict=True):
            wait()
            begin = clock()
            turn()
            wait()
            mine.append(clock() - begin)
    return seconds
