"""Classification or regression of sets. Loss in nats, or squared error in standard deviations."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.core.similarity import precise
from harken.data.batch import Array
from harken.data.labelled.batch import evenly_spaced
from harken.data.sets.source import SetBatch, SetBatches, SetData, Sets, eval_batches
from harken.models import ModelSettings

from . import Loss, Score, TaskSettings, evaluating, in_order
from .baselines.ablation import Columns
from .label_task import ClassWeights, LabelTask
from .metrics.weighted import WeightedMetric, squared_error_metrics

QUICK_SETS = 1000  # sets of a quick evaluation
EVAL_BATCH_ROWS = 16384


class SetTaskSettings(TaskSettings[SetData, ModelSettings]):
    """Settings of tasks on sets."""

    kind: Literal["set"] = "set"
    metric: Literal["auto", "loss", "accuracy", "f1", "matthews", "r2", "pearson", "spearman"] = Field(
        "auto", description="metric that selects the best weights; auto: accuracy, of numbers r2"
    )
    class_weights: ClassWeights = "none"
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="label smoothing of the training loss")

    def bind(self, data: SetData, model: ModelSettings, *, batch: int, seed: int) -> "SetTask":
        return SetTask(self, data, batch=batch, seed=seed)


class SetTask(LabelTask[SetTaskSettings, Sets, nn.Module, SetBatch]):
    """Labels or numbers of the sets of one table."""

    unit, regression_name = "sets", "regression on means and standard deviations"

    def __init__(self, settings: SetTaskSettings, data: SetData, *, batch: int, seed: int) -> None:
        target_type = data.processor.target_type
        self.set_targets(data.processor.labels, target_type, settings.metric, *["r2"] * (target_type == "number"))
        batches = SetBatches(data.train, batch, seed=seed)
        self.fixed_shapes = batches.equal_sizes
        self.set_up(settings, data, batches, max(1, round(batches.rows * float(data.train.lengths.mean()))))
        self.set_class_weights(settings.class_weights)

    def loss(self, model: nn.Module, batch: SetBatch, start: int = 0) -> Loss:
        return self.smoothed_loss(batch_outputs(model, batch), batch.targets, self.settings.label_smoothing)

    def evaluate(self, model: nn.Module, split: str, *, quick: bool = False) -> Score:
        part: Sets = self.data.splits[split]
        sets = part.subset(evenly_spaced(len(part), QUICK_SETS)) if quick else part
        return self.score(predict(model, sets), sets.targets, parts=not quick)

    def outcomes(self, y: Tensor, targets: Array, thresholds: Array | None = None) -> dict[str, WeightedMetric]:
        """The metrics of the labels; for numbers also R^2, and the mean squared error in the unit of the data."""
        outcomes = super().outcomes(y, targets, thresholds)
        if self.target_type != "number":
            return outcomes
        errors = squared_error_metrics(targets[:, 0], y[:, 0].double().numpy(), self.data.processor.std)
        return {"loss": outcomes["loss"], **errors, **outcomes}

    def input_text(self, split: str, n: int) -> str:
        return self.data.parts[split].names[n]

    def input_sizes(self, split: str) -> tuple[str, Array] | None:
        return "rows", self.data.parts[split].lengths

    def features(self, part: Sets) -> Tensor:
        """Mean and standard deviation of each column of a set, and the logarithm of its size."""
        x, sizes = part.rows.double(), torch.from_numpy(part.lengths)[:, None]
        set_index = torch.repeat_interleave(torch.arange(len(part)), sizes[:, 0])
        zeros = torch.zeros(len(part), x.shape[1], dtype=x.dtype)
        mean = zeros.index_add(0, set_index, x) / sizes
        std = (zeros.index_add(0, set_index, (x - mean[set_index]).square()) / sizes).sqrt()
        return torch.cat([mean, std, sizes.log()], 1)

    def columns(self) -> Columns:
        names = [str(name) for name in self.data.processor.columns]
        features = {name: (n, len(names) + n) for n, name in enumerate(names)}  # mean and standard deviation
        return Columns(self.features(self.data.train), features, "data.columns", required=True)


def batch_outputs(model: nn.Module, batch: SetBatch) -> Tensor:  # B C
    return precise(model(batch.tokens.to(next(model.parameters()).dtype), **batch.model_inputs()))


def predict(model: nn.Module, sets: Sets) -> Tensor:  # N C
    """Outputs of each set."""
    device, batches = next(model.parameters()).device, eval_batches(sets, EVAL_BATCH_ROWS)
    with evaluating(model):
        return in_order((i, batch_outputs(model, b.to(device)).float().cpu()) for i, b in batches)
