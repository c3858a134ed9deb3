"""Estimates before the first step: memory and disk by counting, minutes and energy from a timed probe."""

import math
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from harken import machine
from harken.data.batch import Batch
from harken.errors import HarkenError
from harken.tasks import BoundTask
from harken.tasks.linear_cross_entropy import CHUNK

from . import checkpoint_state, cost
from .loop import LOG_LINES, N_VALIDATIONS, Trainer
from .optimizers import hidden_matrices
from .parallel import local_tensor
from .settings import CostSettings, Train
from .threads import BUSY_CORES, fewer_threads
from .timing import MAX_REPEATS, Timing

MIN_STEPS = 20  # shorter trainings are not estimated
PROBE_SECONDS = 2.0  # of timed steps before a training, about
MATRIX = 1024  # rows of the matrix product that measures the machine
EFFICIENCY = 0.6  # of the rate of a matrix product, in a training
VALIDATION_SHARE = 0.2  # of a budget in minutes, at most
LOG_LINE_BYTES = 300  # of the log, of the report and of an event file
LOGIT_BYTES = 8  # of a logit in the backward pass: the logit and its log-probability


class Prediction(TypedDict):
    """Predicted resources of a training; `memory_mib` is the peak."""

    seconds: float
    kwh: float
    energy_source: str
    memory_mib: float


class Plan(NamedTuple):
    """Number of steps, steps between validation passes (none: ten passes in all), and the resources they need."""

    steps: int
    eval_every: int | None
    predicted: Prediction | None


def plan(trainer: Trainer, factors: CostSettings = cost.DEFAULT_FACTORS) -> Plan:
    """The budget in steps, with its resources. Minutes are converted to steps here, once."""
    steps, train = _fixed_steps(trainer.task, trainer.train), trainer.train
    if steps is not None and steps < MIN_STEPS:
        return Plan(steps, train.eval_every, None)
    planned = estimate_resources(trainer, PROBE_SECONDS if steps else min(PROBE_SECONDS, train.minutes * 6), factors)
    if planned.eval_every != train.eval_every:
        passes = math.ceil(planned.steps / (planned.eval_every or 1))
        why = (
            f"validation passes are slow: {passes} instead of {N_VALIDATIONS} fit into train.minutes={train.minutes:g}"
        )
        trainer.listen("notice", text=f"{why}; a smaller data.valid makes them faster")
    return planned


def estimate_resources(trainer: Trainer, max_seconds: float, factors: CostSettings = cost.DEFAULT_FACTORS) -> Plan:
    """The budget in steps, with its resources; the probe takes at most about max_seconds."""
    fixed_steps = _fixed_steps(trainer.task, trainer.train)
    needed = estimate_memory(trainer)
    if trainer.device.type == "cpu" and needed > 2**30 * (ram := machine.ram_gib() or math.inf):
        sizes = f"the training needs about {needed / 2**30:.1f} GiB of memory, and the machine has {ram}"
        trainer.listen("notice", text=f"{sizes}; use a smaller train.micro_batch or a smaller model")
    timing = measure_steps(trainer, max_seconds, MAX_REPEATS if fixed_steps is None else min(200, fixed_steps // 50))
    return plan_steps(trainer.task, trainer.train, timing, needed, factors)


def measure_steps(trainer: Trainer, max_seconds: float, max_steps: int) -> Timing:
    """Time the steps. Next to other programs, also with one thread for each free core: the faster number is used."""
    timing, n_threads = trainer.measure(max_seconds, max_steps), torch.get_num_threads()
    one_process = trainer.device.type == "cpu" and trainer.ranks.world_size == 1
    if not one_process or n_threads == 1 or timing.busy_cores < BUSY_CORES:
        return timing
    if trainer.train.threads is None and (fewer := fewer_threads(timing.busy_cores)):
        torch.set_num_threads(fewer)
        with_fewer = trainer.measure(max_seconds, max_steps)
        if with_fewer.step_seconds < timing.step_seconds:
            timing = with_fewer
        else:
            torch.set_num_threads(n_threads)
    used = f"other programs use {timing.busy_cores:.1f} of {machine.cores()} cores"
    threads = f"train.threads={torch.get_num_threads()}, which is written into recipe.toml"
    trainer.listen("notice", text=f"the machine is busy: {used}; the training is slower, with {threads}")
    return timing


def plan_steps(
    task: BoundTask, train: Train, timing: Timing, memory: float, factors: CostSettings = cost.DEFAULT_FACTORS
) -> Plan:
    """The budget in steps, with its resources, from measured times and the bytes of memory.

    Validation passes count towards a budget in minutes. Ten of them may take VALIDATION_SHARE of it, else there are
    fewer.
    """
    step, validation, eval_every = timing.step_seconds, timing.validation_seconds, train.eval_every
    if (fixed_steps := _fixed_steps(task, train)) is not None:
        steps = fixed_steps
    elif eval_every is not None:
        steps = max(1, int((train.minutes * 60 - validation) / (step + validation / eval_every)))
    else:
        seconds = train.minutes * 60
        passes = min(N_VALIDATIONS, max(1, int(VALIDATION_SHARE * seconds / max(validation, 1e-9))))
        steps = max(1, int((seconds - passes * validation) / step))
        eval_every = None if passes == N_VALIDATIONS else math.ceil(steps / passes)
    passes = math.ceil(steps / (eval_every or max(1, math.ceil(steps / N_VALIDATIONS))))
    seconds = steps * step + passes * validation
    kwh = cost.emissions(timing.watts * seconds / 3.6e6, factors)["kwh"]
    used: Prediction = {"seconds": seconds, "kwh": kwh, "energy_source": timing.source, "memory_mib": memory / 2**20}
    return Plan(steps, eval_every, used)


def _fixed_steps(task: BoundTask, train: Train) -> int | None:
    """The budget in steps; None if it is in minutes."""
    if train.steps is not None:
        return train.steps
    if train.tokens is not None:
        return math.ceil(train.tokens / task.tokens_per_batch)
    return None if train.epochs is None else math.ceil(train.epochs * task.steps)


# --- large models -----------------------------------------------------------------------------------------------------


def count_resources(model: nn.Module, task: BoundTask, train: Train) -> tuple[Timing, float]:
    """The time of a step and the bytes of memory, from the sizes of the weights alone.

    The model may be on the meta device. Each token multiplies each weight matrix three times (forward, and both
    gradients), and the backward pass keeps the inputs and outputs of each matrix.
    """
    device, batch = machine.pick_device(train.device), task.batch(0, 0)
    matrices = [
        p.shape
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for p in module.parameters(recurse=False)
        if p.dim() > 1
    ]
    n_rows = len(batch.tokens)
    rows = min(train.micro_batch or n_rows, n_rows) / n_rows
    flops = 6 * task.tokens_per_batch * sum(shape.numel() for shape in matrices)
    saved = 4 * task.tokens_per_batch * rows * sum(shape[0] + shape[1:].numel() for shape in matrices)
    memory = _size(model.parameters()) + bytes_between_steps(model, task, train) + saved
    step_seconds = flops * train.seeds / _flops_per_second(device)
    watts, source = cost.Meter(device=device).power()
    return Timing(step_seconds, 0.0, watts, source), cost.allocated_memory(device) + memory * train.seeds


def _flops_per_second(device: torch.device) -> float:
    """Rate of this machine in a training, from the rate of a matrix product."""
    x, seconds = torch.ones(MATRIX, MATRIX, device=device), math.inf
    for _ in range(3):
        start = time.perf_counter()
        x @ x
        machine.synchronize(device)
        seconds = min(seconds, time.perf_counter() - start)
    return EFFICIENCY * 2 * MATRIX**3 / seconds


# --- memory -----------------------------------------------------------------------------------------------------------


def estimate_memory(trainer: Trainer) -> float:
    """Peak bytes: in use now, held between steps, held during a step. Computes two rows: the model may not fit."""
    batch = trainer.ranks.local_rows(trainer.task.batch(0, 0))
    n_rows = min(trainer.train.micro_batch or len(batch.tokens), len(batch.tokens))
    try:
        one, two = (_activation_bytes(trainer, batch.slice_rows(0, n)) for n in (1, min(2, n_rows)))
    except torch.OutOfMemoryError:  # all memory; the training raises the error
        return torch.cuda.get_device_properties(trainer.device).total_memory
    logits = batch.slice_rows(0, n_rows).tokens.numel() * getattr(trainer.model, "vocab", 0)
    chunk = min(logits, CHUNK.get(trainer.device.type, logits))
    step = one + (two - one) * (n_rows - 1) + LOGIT_BYTES * chunk
    between = bytes_between_steps(trainer.model, trainer.task, trainer.train) / (
        trainer.ranks.world_size if trainer.ranks.sharded else 1
    )
    return max(cost.peak_memory(trainer.device), cost.allocated_memory(trainer.device) + between + step)


def bytes_between_steps(model: nn.Module, task: BoundTask, train: Train) -> float:
    """Gradients, optimizer state and copies of the weights: the best, the current, the averaged."""
    temporary = (train.average == "last") + ("valid" in task.splits)  # mean and current weights in a validation
    return _size(model.parameters()) * (1 + temporary) + _bytes_beside_weights(model, task, train)


def _bytes_beside_weights(model: nn.Module, task: BoundTask, train: Train) -> int:
    """Size of a checkpoint without the weights: optimizer state, best weights, averaged weights."""
    matrices = hidden_matrices(model) if train.optimizer == "muon" else []
    moments = {"sgd": bool(train.momentum), "rmsprop": 1 + bool(train.momentum)}.get(train.optimizer, 2)
    copies = {"ema": 1, "last": train.average_last}.get(train.average, 0)
    copies += train.keep_best and "valid" in task.splits
    # Muon has one moment for a hidden matrix
    return _size(model.parameters()) * (moments + copies) - _size(matrices)


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(t.nbytes for t in tensors)


def _activation_bytes(trainer: Trainer, batch: Batch) -> int:
    """Bytes that a forward pass saves for the backward pass, without the weights. Leaves no side effects."""
    model, task = trainer.model, trainer.task
    weights = {local_tensor(t).untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    sizes: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return t.detach()

    rng, task_state = checkpoint_state.rng_state(), task.state()
    eager = torch.compiler.set_stance("force_eager")  # no compilation for shapes that the training does not use
    try:
        with eager, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), trainer.update_step.autocast():
            loss = task.loss(model, batch.to(trainer.device)).total
        loss.backward()
    finally:
        model.zero_grad(set_to_none=True)
        checkpoint_state.load_rng_state(rng)
        task.load_state(task_state)
    return sum(sizes.values())


# --- disk -------------------------------------------------------------------------------------------------------------


def estimate_disk(trainer: Trainer) -> int:
    """Bytes of the checkpoints to keep, of one more while it is written, of the weights and of the log."""
    train, weights = trainer.train, _size(trainer.model.parameters())
    lines = (
        LOG_LINES + N_VALIDATIONS
        if train.log_every is None
        else (_fixed_steps(trainer.task, train) or 0) // train.log_every
    )
    checkpoints = (train.keep_checkpoints + 1) * (weights + _bytes_beside_weights(trainer.model, trainer.task, train))
    return checkpoints + weights + (2 + train.tensorboard) * LOG_LINE_BYTES * lines


def check_disk_space(trainer: Trainer, folder: Path) -> None:
    """Raise before the first step if the files of the run do not fit on the disk."""
    existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    used = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())  # a run that is resumed or overwritten
    needed, free = estimate_disk(trainer) - used, shutil.disk_usage(existing).free
    if needed > free:
        problem = f"{folder}: needs about {math.ceil(needed / 2**20):,} MiB of disk, and {free >> 20:,} MiB are free"
        raise HarkenError(f"{problem}; free some space, use another folder, or lower train.keep_checkpoints")
