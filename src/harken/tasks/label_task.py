"""Loss, metrics and trivial baseline of tasks with one label, several labels or one number per example."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.data.batch import IGNORE, Array
from harken.errors import BadSetting

from . import Metrics, Score
from .metrics import classification, regression

METRICS = {
    "label": ("accuracy", "f1", "matthews"),
    "multilabel": ("f1", "accuracy"),
    "number": ("pearson", "spearman"),
}  # by type of target; the first one is the default primary metric


class LabelTask:
    """Mixin of these tasks. A subclass calls `set_targets` first."""

    unit = "texts"  # name of the examples in the protocol

    def set_targets(self, labels: list[str], target_type: str, metric: str) -> None:
        """Set the labels, the type of target ("label", "multilabel", "number") and the primary metric or "auto"."""
        self.labels, self.target_type, accepted = labels, target_type, METRICS[target_type]
        self.primary_metric = accepted[0] if metric == "auto" else metric
        if metric not in ("auto", "loss", *accepted):
            raise BadSetting(
                f"task.metric={metric}: does not apply to targets of type {target_type}; "
                f"set it to one of {', '.join(accepted)}, loss"
            )

    @property
    def n_outputs(self) -> int:
        return len(self.labels)

    @property
    def _binary(self) -> bool:
        return self.target_type == "label" and self.n_outputs == 2

    def score(self, y: Tensor, targets: Array, *, parts: bool = True) -> Score:  # N C
        """Score of these outputs; `parts` adds the metrics of each label."""
        protocol: dict[str, Any] = {self.unit: len(targets), "primary_metric": self.primary_metric}
        if self.target_type != "number":
            protocol["f1"] = f"of {self.labels[1]}" if self._binary else "mean over the labels"
        per_label = self._label_metrics(y, targets) if parts else {}
        return Score(self.metrics(y, targets), protocol, per_label, self.primary_metric)

    def metrics(self, y: Tensor, targets: Array) -> Metrics:  # N C
        """Metrics of these outputs."""
        loss = float(label_loss(y, torch.from_numpy(targets), self.target_type)) / max(1, targets.size)
        if self.target_type == "number":
            values, predictions = targets[:, 0].astype(float), y[:, 0].double().numpy()
            correlations = regression.pearson(values, predictions), regression.spearman(values, predictions)
            return {"loss": loss, "pearson": correlations[0], "spearman": correlations[1]}
        actual, predicted = self._one_hot(y, targets)
        f1 = classification.precision_recall_f1(actual, predicted)[2]
        if self.target_type == "label" and not self._binary:  # without labels that occur nowhere
            f1 = f1[(actual | predicted).any(0)]
        accuracy = classification.accuracy(actual, predicted)
        metrics = {"loss": loss, "accuracy": accuracy, "f1": float(f1[1] if self._binary else f1.mean())}
        if self.target_type == "multilabel":
            return metrics
        matthews = classification.matthews(actual.argmax(1), predicted.argmax(1), self.n_outputs)
        return {**metrics, "matthews": matthews}

    def _one_hot(self, y: Tensor, targets: Array) -> tuple[Array, Array]:
        """Actual and predicted labels: N C each."""
        if self.target_type == "multilabel":
            return targets > 0.5, (y > 0).numpy()
        predictions = y.argmax(1).numpy()
        return classification.one_hot(targets, self.n_outputs), classification.one_hot(predictions, self.n_outputs)

    def _label_metrics(self, y: Tensor, targets: Array) -> dict[str, Metrics]:
        """F1, precision, recall and number of examples of each label."""
        if self.target_type == "number":
            return {}
        actual, predicted = self._one_hot(y, targets)
        columns = *(x.tolist() for x in classification.precision_recall_f1(actual, predicted)), actual.sum(0)
        rows = zip(self.labels, *columns, strict=True)
        return {name: {"f1": f, "precision": p, "recall": r, self.unit: int(n)} for name, p, r, f, n in rows}

    def prior_outputs(self, targets: Array) -> Tensor:  # 1 C
        """Outputs of the constant baseline: log frequency of each label, or the mean of the numbers."""
        if self.target_type == "number":
            return torch.from_numpy(targets.mean(0, keepdims=True))
        one_label = self.target_type == "label"
        frequency = (classification.one_hot(targets, self.n_outputs) if one_label else targets).mean(0)
        p = torch.from_numpy(np.clip(frequency, 1e-6, 1 - 1e-6)).float()[None]
        return p.log() if one_label else p.logit()


def label_loss(
    y: Tensor, targets: Tensor, target_type: str, weight: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:  # N C
    """Summed loss: cross entropy, binary cross entropy of each label, or squared error. NaN targets are ignored."""
    if target_type == "label":
        return F.cross_entropy(
            y, targets, ignore_index=IGNORE, reduction="sum", weight=weight, label_smoothing=smoothing
        )
    mask = ~targets.isnan()
    targets = torch.where(mask, targets, 0.0)
    if target_type == "number":
        losses = (y - targets).square()
    else:
        smoothed = targets * (1 - smoothing) + smoothing / 2
        losses = F.binary_cross_entropy_with_logits(y, smoothed, pos_weight=weight, reduction="none")
    return torch.where(mask, losses, 0.0).sum()
