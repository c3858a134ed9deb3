"""Classification or regression of sets. Loss in nats, or squared error in standard deviations."""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.batch import Array
from harken.data.labelled.batch import evenly_spaced
from harken.data.sets.batch import SetBatch, SetBatches, eval_batches
from harken.models import ModelSettings

from . import BoundTask, Loss, Metrics, Score, TaskSettings, evaluating
from .baselines.linear import Features, MatrixFeatures, fit_linear
from .label_task import LabelTask, label_loss
from .metrics import regression

if TYPE_CHECKING:
    from harken.data.sets.source import SetData, Sets

QUICK_SETS = 1000  # sets of a quick evaluation
EVAL_BATCH_ROWS = 16384


class SetTaskSettings(TaskSettings):
    """Settings of tasks on sets."""

    kind: Literal["set"] = "set"
    metric: Literal["auto", "loss", "accuracy", "f1", "matthews", "r2", "pearson", "spearman"] = Field(
        "auto", description="metric that selects the best weights; auto: accuracy, of numbers r2"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="label smoothing of the training loss")

    def bind(self, data: "SetData", model: ModelSettings, *, batch: int, seed: int) -> "SetTask":
        return SetTask(self, data, batch=batch, seed=seed)


class SetTask(LabelTask, BoundTask):
    """Labels or numbers of the sets of one table."""

    unit = "sets"

    def __init__(self, settings: SetTaskSettings, data: "SetData", *, batch: int, seed: int) -> None:
        self.settings, self.data, self.splits = settings, data, tuple(data.splits)
        use_r2 = data.processor.target_type == "number" and settings.metric in ("auto", "r2")
        self.set_targets(data.processor.labels, data.processor.target_type, "auto" if use_r2 else settings.metric)
        self.primary_metric = "r2" if use_r2 else self.primary_metric
        self.batches = SetBatches(data.train, batch, seed=seed)
        self.fixed_shapes, self.steps = self.batches.equal_sizes, self.batches.steps
        self.tokens_per_batch = max(1, round(self.batches.rows * float(data.train.lengths.mean())))

    def batch(self, epoch: int, step: int) -> SetBatch:
        return self.batches.batch(epoch, step)

    def loss(self, model: Any, batch: SetBatch, start: int = 0) -> Loss:
        y, smoothing = batch_outputs(model, batch), self.settings.label_smoothing
        plain = label_loss(y, batch.targets, self.target_type)
        if not smoothing or self.target_type == "number":
            return Loss(plain)
        return Loss(label_loss(y, batch.targets, self.target_type, smoothing=smoothing), reported=plain.detach())

    def evaluate(self, model: Any, split: str, *, quick: bool = False) -> Score:
        part: Sets = self.data.splits[split]
        sets = part.subset(evenly_spaced(len(part), QUICK_SETS)) if quick else part
        return self.score(predict(model, sets), sets.targets, parts=not quick)

    def metrics(self, y: Tensor, targets: Array) -> Metrics:
        """The metrics of the labels; for numbers also R^2, and the mean squared error in the unit of the data."""
        metrics = super().metrics(y, targets)
        if self.target_type != "number":
            return metrics
        mse, variance = metrics["loss"] * self.data.processor.std**2, float(np.var(targets))
        return {"loss": metrics["loss"], "r2": regression.r2(metrics["loss"], variance), "mse": mse, **metrics}

    def baselines(self, split: str) -> dict[str, Metrics]:
        """The most frequent label (or the mean), and a regression on means and standard deviations of the columns."""
        if not self.data.has_train:
            return {}
        part: Sets = self.data.splits[split]
        prior = self.prior_outputs(self.data.train.targets).expand(len(part), -1)
        name = "mean of all" if self.target_type == "number" else "most frequent label"
        y = self._regression(summary_features(part)).float()
        return {
            name: self.metrics(prior, part.targets),
            "regression on means and standard deviations": self.metrics(y, part.targets),
        }

    @cached_property
    def _regression(self) -> Callable[[Features], Tensor]:
        train: Sets = self.data.train
        targets = torch.from_numpy(train.targets.astype(np.int64 if self.target_type == "label" else np.float64))
        return fit_linear(summary_features(train), self.n_outputs, lambda y: label_loss(y, targets, self.target_type))


def batch_outputs(model: Any, batch: SetBatch) -> Tensor:  # B C
    y: Tensor = model(batch.tokens.to(model.W_y.weight.dtype), **batch.model_inputs())
    return y if y.dtype == torch.float64 else y.float()


@torch.no_grad()
def predict(model: Any, sets: "Sets") -> Tensor:  # N C
    """Outputs of each set."""
    device, outputs = next(model.parameters()).device, torch.empty(len(sets), model.W_y.out_features)
    with evaluating(model):
        for indices, batch in eval_batches(sets, EVAL_BATCH_ROWS):
            y = batch_outputs(model, cast(SetBatch, batch.to(device)))
            outputs[torch.from_numpy(indices)] = y.float().cpu()
    return outputs


def summary_features(sets: "Sets") -> MatrixFeatures:
    """Mean and standard deviation of each column of a set, and the logarithm of its size."""
    x, sizes = sets.rows.double(), torch.from_numpy(sets.lengths)[:, None]
    set_index = torch.repeat_interleave(torch.arange(len(sets)), sizes[:, 0])
    zeros = torch.zeros(len(sets), x.shape[1], dtype=x.dtype)
    mean = zeros.index_add(0, set_index, x) / sizes
    std = (zeros.index_add(0, set_index, (x - mean[set_index]).square()) / sizes).sqrt()
    return MatrixFeatures(torch.cat([mean, std, sizes.log()], 1))
