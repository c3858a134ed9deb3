"""What a training will need, before its first step: memory and disk by counting, minutes and energy by a probe."""

import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harken import machine
from harken.data.batch import Batch
from harken.errors import HarkenError
from harken.tasks.linear_cross_entropy import CHUNK

from . import checkpoint_state, cost
from .loop import EVALS, LINES, Pace, Trainer
from .optimizers import hidden
from .parallel import held

SHORT = 20  # steps; so few are over before anything is learned about them
LINE = 300  # bytes of the log, of the report that shows it, and of an event file
SCORE = 8  # bytes of a word score while its gradient is taken: the score and its logarithm


def plan(trainer: Trainer) -> tuple[int, dict[str, Any] | None]:
    """How many steps the budget is, and what they will take. Minutes become steps here, once; then steps count."""
    known = _known(trainer)
    if known is not None and known < SHORT:
        return known, None
    return forecast(trainer, 20.0 if known else min(20.0, max(1.0, trainer.train.minutes * 6)))


def forecast(trainer: Trainer, seconds: float) -> tuple[int, dict[str, Any]]:
    """The steps, and their seconds, kWh and MiB, from counting and from measuring for so long at most."""
    known, train = _known(trainer), trainer.train
    needed = memory(trainer)
    if trainer.device.type == "cpu" and needed > 2**30 * (there := machine.describe()["ram_gib"] or math.inf):
        words = f"about {needed / 2**30:.1f} GiB of memory are needed and {there} are there"
        trainer.listen("notice", text=f"{words}; fewer rows at a time (train.micro_batch) or a smaller model need less")
    pace = trainer.measure(seconds, 200 if known is None else min(200, known // 50))
    steps = _affordable(train.minutes * 60, pace) if known is None else known
    looks = math.ceil(steps / (train.eval_every or max(1, math.ceil(steps / EVALS))))
    spent = steps * pace.step + looks * pace.look
    kwh = cost.emissions(pace.watts * spent / 3.6e6)["kwh"]
    return steps, {"seconds": spent, "kwh": kwh, "energy_source": pace.source, "memory_mib": needed / 2**20}


def _affordable(seconds: float, pace: Pace) -> int:
    """How many steps of this length the time holds, with the looks at the valid split between them."""
    return max(1, int((seconds - EVALS * min(pace.look, seconds / 50)) / pace.step))


def _known(trainer: Trainer) -> int | None:
    """The budget in steps, where it is not in minutes."""
    train, task = trainer.train, trainer.task
    if train.steps is not None:
        return train.steps
    if train.tokens is not None:
        return math.ceil(train.tokens / task.tokens)
    return None if train.epochs is None else math.ceil(train.epochs * task.steps)


# --- memory -----------------------------------------------------------------------------------------------------------


def memory(trainer: Trainer) -> float:
    """Bytes at the peak: what is there now, what will be held between the steps, and what one step keeps.

    Nothing larger than two rows is computed, so the question may be asked of what would not fit.
    """
    batch = trainer.ranks.rows(trainer.task.batch(0, 0))
    rows = min(trainer.train.micro_batch or len(batch.tokens), len(batch.tokens))
    try:
        one, two = (_kept(trainer, batch.rows(0, n)) for n in (1, min(2, rows)))
    except torch.OutOfMemoryError:  # all there is; the training will say what can be done
        return torch.cuda.get_device_properties(trainer.device).total_memory
    scores = batch.rows(0, rows).tokens.numel() * getattr(trainer.model, "vocab", 0)
    chunk = min(scores, CHUNK.get(trainer.device.type, scores))
    step = one + (two - one) * (rows - 1) + SCORE * chunk
    between = _between(trainer) / (trainer.ranks.world if trainer.ranks.sharded else 1)
    return max(cost.peak(trainer.device), cost.held(trainer.device) + between + step)


def _between(trainer: Trainer) -> float:
    """Gradients, moments, and the copies of the weights: the best, those of the moment, the averaged."""
    train, weights = trainer.train, _size(trainer.model.parameters())
    passing = (train.average == "last") + ("valid" in trainer.task.splits)  # of a look: the mean, those of the moment
    return weights * (1 + passing) + _saved(trainer)


def _saved(trainer: Trainer) -> int:
    """What a checkpoint has beside the weights: moments, and their copies that are the best, or averaged."""
    train, inner = trainer.train, hidden(trainer.model) if trainer.train.optimizer == "muon" else []
    moments = {"sgd": bool(train.momentum), "rmsprop": 1 + bool(train.momentum)}.get(train.optimizer, 2)
    copies = {"ema": 1, "last": train.average_last}.get(train.average, 0) + (
        train.keep_best and "valid" in trainer.task.splits
    )
    return _size(trainer.model.parameters()) * (moments + copies) - _size(inner)  # Muon: one moment a hidden matrix


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(t.nbytes for t in tensors)


def _kept(trainer: Trainer, batch: Batch) -> int:
    """Bytes that a forward pass keeps for its way back, beside the weights. Nothing else stays of it."""
    model, task = trainer.model, trainer.task
    own = {held(t).untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    found: dict[int, int] = {}

    def note(t: Tensor) -> Tensor:
        place = t.untyped_storage()
        if place.data_ptr() not in own:
            found[place.data_ptr()] = place.nbytes()
        return t.detach()

    chance, carry = checkpoint_state.random_state(), task.state()
    eager = torch.compiler.set_stance("force_eager")  # kernels are compiled for the sizes of the training alone
    try:
        with eager, torch.autograd.graph.saved_tensors_hooks(note, lambda t: t), trainer.make.numbers():
            loss = task.loss(model, batch.to(trainer.device)).total
        loss.backward()
    finally:
        model.zero_grad(set_to_none=True)
        checkpoint_state.load_random_state(chance)
        task.load_state(carry)
    return sum(found.values())


# --- disk -------------------------------------------------------------------------------------------------------------


def disk(trainer: Trainer) -> int:
    """Bytes of the checkpoints that are kept, of one more that is being written, of the weights and of the log."""
    train, weights = trainer.train, _size(trainer.model.parameters())
    lines = LINES + EVALS if train.log_every is None else (_known(trainer) or 0) // train.log_every
    return (train.keep_checkpoints + 1) * (weights + _saved(trainer)) + weights + (2 + train.tensorboard) * LINE * lines


def refuse_a_small_disk(trainer: Trainer, folder: Path) -> None:
    """Say before the first step, not after hours, that what will be written does not fit beside what is there."""
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    mine = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())  # a run that goes on, or is written over
    needed, free = disk(trainer) - mine, shutil.disk_usage(there).free
    if needed > free:
        what = f"{folder}: about {math.ceil(needed / 2**20):,} MiB of disk are needed and {free >> 20:,} are free"
        raise HarkenError(f"{what}; make room, take another folder, or keep fewer checkpoints (train.keep_checkpoints)")
