"""train.precision=auto on a CPU: float32, unless bfloat16 was measured to be faster for this model on this machine.

A measurement is stored in the cache, and the choice in the recipe of the run, so a repeated run makes the same choice.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from harken import machine
from harken.data.batch import Batch
from harken.data.cache import cache_folder
from harken.files import write_atomic
from harken.tasks import BoundTask

from . import checkpoint_state

MIN_SPEED_UP = 1.2
MIN_PARAMETERS = 5_000_000  # in a smaller model the conversions cost more than the products save
TOKENS = 512  # of a measured step, about
ROUNDS, LIMIT_SECONDS = 3, 3.0  # after the first round, at most

Seconds = Callable[[nn.Module, BoundTask, Batch, torch.dtype], float]


def step_seconds(model: nn.Module, task: BoundTask, batch: Batch, precision: torch.dtype) -> float:
    """Seconds of a forward and a backward pass. The weights and the random state are unchanged."""
    rng, state = checkpoint_state.rng_state(), {name: t.clone() for name, t in task.state().items()}
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision != torch.float32):
        loss = task.loss(model, batch).total
    loss.backward()
    seconds = time.perf_counter() - start
    model.zero_grad(set_to_none=True)
    checkpoint_state.load_rng_state(rng)
    task.load_state(state)
    return seconds


def faster_precision(
    model: nn.Module, task: BoundTask, batch: Batch, *, seconds: Seconds = step_seconds
) -> torch.dtype:
    """bfloat16 if a step is at least MIN_SPEED_UP times faster in it, else float32."""
    rows = batch.slice_rows(0, math.ceil(len(batch.tokens) * min(1.0, TOKENS / max(1, batch.n_tokens))))
    path = cache_folder("precision") / f"{_key(model, rows)}.json"
    measured = _stored(path)
    if measured is None:
        measured = _measure(lambda precision: seconds(model, task, rows, precision))
        write_atomic(path, json.dumps(measured))
    faster = measured["float32"] >= MIN_SPEED_UP * measured["bfloat16"]
    return torch.bfloat16 if faster else torch.float32


def _measure(seconds: Callable[[torch.dtype], float]) -> dict[str, float]:
    """The shortest time of each precision, measured in turns; the first turn also prepares the kernels."""
    turns = [{name: seconds(precision) for name, precision in machine.PRECISIONS.items()}]
    start = time.perf_counter()
    while len(turns) <= ROUNDS and time.perf_counter() - start < LIMIT_SECONDS:
        turns.append({name: seconds(precision) for name, precision in machine.PRECISIONS.items()})
    return {name: min(turn[name] for turn in turns) for name in machine.PRECISIONS}


def _key(model: nn.Module, batch: Batch) -> str:
    """A hash of what decides the speed: the machine, the modules with their sizes, the shape of the batch."""
    facts = {name: machine.describe()[name] for name in ("cpu", "threads", "torch")}
    shapes = {name: list(t.shape) for name, t in batch.tensors().items()}
    return hashlib.sha256(json.dumps([facts, shapes, repr(model)]).encode()).hexdigest()[:16]


def _stored(path: Path) -> Mapping[str, float] | None:
    """The measurement in this file; None if it is missing or damaged."""
    try:
        stored = json.loads(path.read_text("utf-8"))
        return {name: float(stored[name]) for name in machine.PRECISIONS}
    except (OSError, ValueError, TypeError, KeyError):
        return None
