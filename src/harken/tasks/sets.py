"""Say what a set is: one of some labels, or a number. Loss in nats (of a number, squared, in spreads)."""

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.labelled.batch import evenly
from harken.data.sets.batch import SetBatch, SetBatches, scoring
from harken.settings import Part

from . import Loss, Score, Stateless
from .baselines.linear import Rows, fit
from .label_task import Answering, loss_of
from .metrics import classification

if TYPE_CHECKING:
    from harken.data.sets.source import SetData, Sets

QUICK = 1000  # sets that a look during the training answers
AT_ONCE = 16384  # rows read at a time, in judging


class Task(Part):
    """The settings of what is said of sets."""

    kind: Literal["set"] = "set"
    metric: Literal["auto", "loss", "accuracy", "f1", "matthews", "r2", "pearson", "spearman"] = Field(
        "auto", description="what picks the weights that are kept; auto: accuracy, of numbers r2"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of each label spread over all, in training")

    def bind(self, data: "SetData", model: Any, *, batch: int, seed: int) -> "OfSets":
        return OfSets(self, data, model, batch=batch, seed=seed)


class OfSets(Answering, Stateless):
    """What is said of the sets of one table."""

    unit = "sets"

    def __init__(self, task: Task, data: "SetData", shape: Any, *, batch: int, seed: int) -> None:
        self.task, self.data, self.splits = task, data, tuple(data.splits)
        share = data.words.target_type == "number" and task.metric in ("auto", "r2")
        self.asks(data.words.labels, data.words.target_type, "auto" if share else task.metric)
        self.by = "r2" if share else self.by
        self.batches = SetBatches(data.train, batch, seed=seed)
        self.one_shape, self.steps = self.batches.alike, self.batches.steps
        self.tokens = max(1, round(self.batches.rows * float(data.train.lengths.mean())))

    def batch(self, epoch: int, step: int) -> SetBatch:
        return self.batches.batch(epoch, step)

    def loss(self, model: Any, batch: SetBatch, start: int = 0) -> Loss:
        y, smooth = says(model, batch), self.task.label_smoothing
        told = loss_of(y, batch.targets, self.target_type)
        if not smooth or self.target_type == "number":
            return Loss(told)
        return Loss(loss_of(y, batch.targets, self.target_type, smoothing=smooth), told=told.detach())

    # --- judge --------------------------------------------------------------------------------------------------------

    def evaluate(self, model: Any, split: str, *, quick: bool = False) -> Score:
        """The metrics that fit what is asked; `quick` answers few sets, for the curve."""
        part: Sets = self.data.splits[split]
        some = part.some(evenly(len(part), QUICK)) if quick else part
        return self.judged(answers(model, some), some, parts=not quick)

    def metrics(self, y: Tensor, targets: Any) -> dict[str, float]:
        """Of numbers also the share of their variance that is explained, and the mean square in their own units."""
        found = super().metrics(y, targets)
        if self.target_type != "number":
            return found
        mse, variance = found["loss"] * self.data.words.spread**2, float(np.var(targets))
        return {"loss": found["loss"], "r2": classification.r2(found["loss"], variance), "mse": mse, **found}

    # --- what costs nothing -------------------------------------------------------------------------------------------

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        """The most frequent label (of numbers: their mean), and a regression on the means and spreads of columns."""
        if not self.data.learned:
            return {}
        part: Sets = self.data.splits[split]
        free = self.frequent(self.data.train.targets).expand(len(part), -1)
        name = "mean of all" if self.target_type == "number" else "most frequent label"
        return {
            name: self.metrics(free, part.targets),
            "regression on means and spreads": self.metrics(self._regression(bag(part)).float(), part.targets),
        }

    @cached_property
    def _regression(self) -> Any:
        train: Sets = self.data.train
        targets = torch.from_numpy(train.targets.astype(np.int64 if self.target_type == "label" else np.float64))
        return fit(bag(train), self.outputs, lambda y: loss_of(y, targets, self.target_type))


def says(model: Any, batch: SetBatch) -> Tensor:  # B C
    """What the model says of the sets of a batch."""
    y: Tensor = model(batch.tokens.to(model.W_y.weight.dtype), **batch.told())
    return y if y.dtype == torch.float64 else y.float()


@torch.no_grad()
def answers(model: Any, sets: "Sets") -> Tensor:  # N C
    """What the model says of each set."""
    was, device = model.training, next(model.parameters()).device
    model.eval()
    found = torch.empty(len(sets), model.W_y.out_features)
    for picks, batch in scoring(sets, AT_ONCE):
        found[torch.from_numpy(picks)] = says(model, batch.to(device)).float().cpu()  # type: ignore[arg-type]
    model.train(was)
    return found


def bag(sets: "Sets") -> Rows:
    """Of each set the mean and the spread of each column, and the logarithm of its size."""
    x, sizes = sets.rows.double(), torch.from_numpy(sets.lengths)[:, None]
    of = torch.repeat_interleave(torch.arange(len(sets)), sizes[:, 0])
    sums = torch.zeros(len(sets), x.shape[1], dtype=x.dtype)
    mean = sums.index_add(0, of, x) / sizes
    spread = (sums.index_add(0, of, (x - mean[of]).square()) / sizes).sqrt()
    return Rows(torch.cat([mean, spread, sizes.log()], 1))
