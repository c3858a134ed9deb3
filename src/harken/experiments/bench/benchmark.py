"""harken bench: speed next to other implementations and relative to the measured ceiling of the machine.

All implementations take turns in every round, so a slow phase of the machine affects all of them.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, TypedDict

import torch

from harken import machine
from harken.errors import BadInput, HarkenError
from harken.events import Listener, silent
from harken.suggestions import did_you_mean
from harken.training.loop import restore_torch_state

from .implementations import BENCHES, OURS, Implementation, Turn
from .peers import missing_notice
from .plan import BenchPlan, make_plans

Clock = Callable[[], float]


class BenchFacts(TypedDict):
    """The measurements, and the machine."""

    rows: list[Any]
    machine: dict[str, str | float | None]


@restore_torch_state()
def bench(
    name: str | None = None, *, device: str = "auto", quick: bool = False, listen: Listener = silent, **options: object
) -> BenchFacts:
    """The rows of `train`, of `decode`, or of both.

    Options: size, batch (one, or several with a table each), context, tokens (of each row in one turn), rounds,
    precisions and compiled. An option that is missing or None has a default for the device; `quick` has smaller ones.
    """
    if name is not None and name not in BENCHES:
        raise BadInput(f"{name!r}: expected one of {', '.join(BENCHES)}.{did_you_mean(name, BENCHES)}")
    names, torch_device, rows = [name] if name else [*BENCHES], machine.pick_device(device, "device"), list[Any]()
    if notice := missing_notice(names):
        listen("notice", text=notice)
    plans = [(key, plan) for key in names for plan in make_plans(key, torch_device, options, listen, quick=quick)]
    for bench_name, plan in plans:
        context = plan.settings.context
        facts = {"size": plan.size, "vocab": plan.vocab, "batch": plan.batch, "context": context, "rounds": plan.rounds}
        try:
            with torch.random.fork_rng([]):
                torch.manual_seed(0)
                measured = measure(BENCHES[bench_name](plan, listen), plan)
        except torch.OutOfMemoryError:
            problem = f"bench {bench_name}: out of memory with batch {plan.batch} and context {context}"
            raise HarkenError(f"{problem}; use a smaller batch, context or size") from None
        rows += [{"bench": bench_name, **row, **facts} for row in measured]
    return {"rows": rows, "machine": machine.describe(torch_device)}


def measure(
    implementations: Sequence[Implementation], plan: BenchPlan, clock: Clock = time.perf_counter
) -> list[dict[str, object]]:
    """A row per implementation: median and range of its speed, ratio to the best peer, fraction of the ceiling."""
    ceilings = list(dict.fromkeys(i.ceiling for i in implementations))
    variants = [variant for ceiling in ceilings for variant in ceiling.variants]
    for variant in variants:
        variant()  # warm up
    turns = [*(i.turn for i in implementations), *variants]
    seconds = iter(interleaved_seconds(turns, plan.rounds, wait=lambda: machine.synchronize(plan.device), clock=clock))
    speeds = {i: [i.tokens / s for s in next(seconds)] for i in implementations}
    limits = {ceiling: ceiling.work / min(median(next(seconds)) for _ in ceiling.variants) for ceiling in ceilings}
    rows = list[dict[str, object]]()
    for i, speed in speeds.items():
        middle, limit = median(speed), limits[i.ceiling]
        peer = best_peer(i.precision, {other: median(values) for other, values in speeds.items()})
        row = {"name": i.name, "precision": i.precision, "tokens_per_second": middle}
        row |= {"spread": [min(speed), max(speed)], "ratio": peer and middle / median(speeds[peer])}
        row |= {"peer": peer and f"{peer.name}, {peer.precision}"}
        row |= {"utilization": middle * i.need / limit, "ceiling": limit, "ceiling_unit": i.ceiling.unit}
        rows.append({**row, **i.facts})
    return rows


def best_peer(precision: str, speeds: dict[Implementation, float]) -> Implementation | None:
    """The fastest peer in this precision, or in any if no peer has it."""
    peers = [i for i in speeds if i.name != OURS]
    return max([i for i in peers if i.precision == precision] or peers, key=speeds.__getitem__, default=None)


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
