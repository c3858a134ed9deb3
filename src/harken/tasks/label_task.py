"""Loss, metrics and baselines of tasks with one label, several labels or one number per example."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from harken.data.batch import IGNORE, Array
from harken.data.split import SplitData, SplitT
from harken.errors import BadSetting

from . import Baseline, BatchT, LabelPredictions, Loss, Metrics, ModelT, Score, SettingsT, Task
from .baselines.ablation import Columns, ablate, row_losses
from .baselines.linear import Features, fit_linear
from .metrics import labels, weighted

MIN_POSITIVES = 5  # examples of a label in the validation split; with fewer, its threshold stays 0.5
MAX_SHOWN = 8  # labels named in a protocol
# metrics by type of target; the first one is the default primary metric
METRICS = {"label": ("accuracy", "f1", "matthews"), "number": ("pearson", "spearman")}
METRICS |= {"multilabel": ("f1", "f1_micro", "accuracy")}


ClassWeights = Annotated[
    Literal["none", "balanced"],
    Field(description="weights of the labels in the training loss; balanced: inverse label frequency"),
]


class LabelTask(Task[SettingsT, SplitData[Any, SplitT], ModelT, BatchT]):
    """Base of these tasks. A subclass calls `set_targets` first, and implements `features`."""

    unit = "texts"  # name of the examples in the protocol
    explains_mistakes = True
    regression_name: str  # of the baseline
    class_weights: Tensor | None = None  # C: of the training loss
    thresholds: Array | None = None  # C: probabilities above which one of several labels is predicted; None: 0.5

    def features(self, part: SplitT) -> Features:
        """The features of the examples for the regression."""
        raise NotImplementedError

    def set_targets(self, labels: list[str], target_type: str, metric: str, *extra: str) -> None:
        """Set the labels, the type of target (a key of METRICS) and the primary metric, of these or of `extra` ones."""
        self.labels, self.target_type = labels, target_type
        self.baselines_follow_model = target_type == "multilabel"  # choose_thresholds
        self.primary_metric = choose_metric(metric, (*extra, *METRICS[target_type]), f"targets of type {target_type}")

    def set_class_weights(self, weights: str) -> None:
        """Set the weights of the labels in the training loss; call it after `set_up`."""
        if weights == "balanced":
            if self.target_type == "number":
                raise BadSetting("task.class_weights=balanced: the targets are numbers; set task.class_weights=none")
            self.class_weights = balanced_weights(self._targets_of(self.data.train), self.n_outputs)

    @property
    def n_outputs(self) -> int:
        return len(self.labels)

    @property
    def _binary(self) -> bool:
        return self.target_type == "label" and self.n_outputs == 2

    @property
    def target_std(self) -> float:
        """The standard deviation of numeric targets in training: the unit of the outputs."""
        return float(self.data.processor.std)

    def score(self, y: Tensor, targets: Array, *, parts: bool = True, groups: Sequence[str] = ()) -> Score:  # y: N C
        """Score of these outputs; `parts` adds the metrics of each label and the predictions.

        Examples of the same group are dependent, so the intervals count the groups.
        """
        group_index = weighted.index_groups(groups)
        protocol: dict[str, Any] = {self.unit: len(targets)}
        if group_index is not None:
            protocol["groups"] = int(group_index.max()) + 1
        protocol["primary_metric"] = self.primary_metric
        if self.target_type == "label" and len(targets):
            counts = labels.one_hot(targets, self.n_outputs).sum(0)
            share = f"{self.labels[int(counts.argmax())]!r} ({counts.max() / len(targets):.1%})"
            protocol["most_frequent_label"] = share
        if self.target_type == "number":
            protocol["errors"] = f"mae and rmse in the unit of {self.labels[0]!r}"
        else:
            if self.target_type == "multilabel":
                protocol["thresholds"] = "0.5" if self.thresholds is None else "chosen on valid"
            protocol["f1"] = f"of {self.labels[1]}" if self._binary else "mean over the labels"
        per_label = self._label_metrics(y, targets) if parts else {}
        if per_label and (missing := [label for label in self.labels if label not in per_label]):
            protocol["labels_without_examples"] = f"{len(missing)} ({', '.join(map(repr, missing[:MAX_SHOWN]))})"
        predictions = label_predictions(self.labels, y, targets) if parts and self.target_type == "label" else None
        outcomes = self.outcomes(y, targets)
        metrics, by_group = weighted.evaluate(outcomes), weighted.by_group(outcomes, group_index) if parts else {}
        return Score(metrics, protocol, per_label, self.primary_metric, predictions, outcomes=by_group)

    def label_counts(self) -> dict[str, dict[str, int]]:
        if self.target_type == "number":
            return {}
        names = self.data.parts if self.data.has_train else self.data.splits
        targets = {name: self._targets_of(self.data.parts[name]) for name in names}
        one_label = self.target_type == "label"
        counts = {k: labels.one_hot(t, self.n_outputs).sum(0) if one_label else t.sum(0) for k, t in targets.items()}
        return {name: dict(zip(self.labels, map(int, row), strict=True)) for name, row in counts.items()}

    def outcomes(
        self, y: Tensor, targets: Array, thresholds: Array | None = None
    ) -> dict[str, weighted.WeightedMetric]:  # N C
        """The metrics of these outputs as functions of the weights of the examples.

        Several labels per example are predicted at these thresholds, or at those of the task.
        """
        loss = {"loss": weighted.mean(example_losses(y, torch.from_numpy(targets), self.target_type).numpy())}
        if self.target_type == "number":
            pair = targets[:, 0], y[:, 0].double().numpy()
            return loss | weighted.number_metrics(*pair) | weighted.error_metrics(*(self.target_std * x for x in pair))
        if self.target_type == "multilabel":
            return loss | weighted.multilabel_metrics(*self._one_hot(y, targets, thresholds))
        return loss | weighted.label_metrics(targets, y.argmax(1).numpy(), self.n_outputs)

    def _one_hot(self, y: Tensor, targets: Array, thresholds: Array | None = None) -> tuple[Array, Array]:
        """Actual and predicted labels: N C each."""
        if self.target_type == "multilabel":
            thresholds = self.thresholds if thresholds is None else thresholds
            predicted = (y > 0).numpy() if thresholds is None else probabilities(y) > thresholds
            return targets > 0.5, predicted
        predictions = y.argmax(1).numpy()
        return labels.one_hot(targets, self.n_outputs), labels.one_hot(predictions, self.n_outputs)

    def _label_metrics(self, y: Tensor, targets: Array) -> dict[str, Metrics]:
        """F1, precision, recall and number of examples of each label that has some."""
        if self.target_type == "number":
            return {}
        actual, predicted = self._one_hot(y, targets)
        columns = *(x.tolist() for x in labels.precision_recall_f1(actual, predicted)), actual.sum(0)
        rows = zip(self.labels, *columns, strict=True)
        return {name: {"f1": f, "precision": p, "recall": r, self.unit: int(n)} for name, p, r, f, n in rows if n}

    def smoothed_loss(self, y: Tensor, targets: Tensor, smoothing: float = 0.0) -> Loss:
        """The loss with label smoothing and class weights; the reported loss has neither."""
        plain = label_loss(y, targets, self.target_type)
        weight = None if self.class_weights is None else self.class_weights.to(y.device)
        if weight is None and not smoothing:
            return Loss(plain)
        return Loss(label_loss(y, targets, self.target_type, weight, smoothing), reported=plain.detach())

    # --- baselines ----------------------------------------------------------------------------------------------------

    def evaluate_baselines(self, split: str) -> dict[str, Baseline]:
        """The most frequent label (or the mean), those of the subclass, and logistic or linear regression."""
        train, part, number = self.data.train, self.data.splits[split], self.target_type == "number"
        if not (self.data.has_train and len(train)):
            return {}
        prior = self.prior_outputs(self._targets_of(train)).expand(len(part), -1)
        outputs = {"mean of all" if number else "most frequent label": prior, **self._other_baselines(part)}
        outputs[self.regression_name] = self._regression(self.features(part)).float()
        half, targets = np.full(self.n_outputs, 0.5), self._targets_of(part)
        chosen = {} if self.thresholds is None else {self.regression_name: self._regression_thresholds}
        outcomes = {name: self.outcomes(y, targets, chosen.get(name, half)) for name, y in outputs.items()}
        groups = weighted.index_groups(self.groups_of(part))
        return {name: Baseline(weighted.evaluate(x), weighted.by_group(x, groups)) for name, x in outcomes.items()}

    def groups_of(self, part: SplitT) -> Sequence[str]:
        """The group of each example, empty if it has none."""
        return ()

    @cached_property
    def _regression_thresholds(self) -> Array:
        """The thresholds of the regression, chosen as those of the model."""
        valid = self.data.splits["valid"]
        return self.best_thresholds(self._regression(self.features(valid)).float(), self._targets_of(valid))

    def best_thresholds(self, y: Tensor, targets: Array) -> Array:  # N C -> C
        """The threshold of each label with the highest F1 on these examples."""
        return np.array(labels.best_thresholds(targets > 0.5, probabilities(y), MIN_POSITIVES))

    def use_thresholds(self, thresholds: Mapping[str, float]) -> None:
        if self.target_type == "multilabel" and thresholds:
            self.thresholds = np.array([thresholds.get(label, 0.5) for label in self.labels])

    def _targets_of(self, part: Any) -> Array:
        return part.targets

    def _other_baselines(self, part: SplitT) -> dict[str, Tensor]:
        """Outputs of further baselines for a split."""
        return {}

    def columns(self) -> Columns | None:
        """The features of the regression by column of the data, if the data has columns of numbers."""
        return None

    def ablation(self) -> dict[str, object]:
        """Columns without which the regression is not worse, by cross-validation on the training split."""
        if not (self.data.has_train and len(self.data.train)) or (columns := self.columns()) is None:
            return {}
        losses = row_losses(self.target_type, self._targets_of(self.data.train))
        if (outcome := ablate(columns, self.n_outputs, losses)) is None:
            return {}
        names = ("columns", "remaining", "loss", "loss_without", "clear")
        baseline = {"setting": columns.setting, "baseline": self.regression_name}
        return baseline | dict(zip(names, outcome, strict=True))

    @property
    def _regression_part(self) -> SplitT:
        return self.data.train

    @cached_property
    def _regression(self) -> Callable[[Features], Tensor]:
        part, dtype = self._regression_part, np.int64 if self.target_type == "label" else np.float64
        targets = torch.from_numpy(self._targets_of(part).astype(dtype))
        return fit_linear(self.features(part), self.n_outputs, lambda y: label_loss(y, targets, self.target_type))

    def prior_outputs(self, targets: Array) -> Tensor:  # 1 C
        """Outputs of the constant baseline: log frequency of each label, or the mean of the numbers."""
        if self.target_type == "number":
            return torch.from_numpy(targets.mean(0, keepdims=True))
        one_label = self.target_type == "label"
        frequency = (labels.one_hot(targets, self.n_outputs) if one_label else targets).mean(0)
        p = torch.from_numpy(np.clip(frequency, 1e-6, 1 - 1e-6)).float()[None]
        return p.log() if one_label else p.logit()


def probabilities(y: Tensor) -> Array:
    """The probability of each of several labels."""
    return y.double().sigmoid().numpy()


def balanced_weights(targets: Array, n_labels: int) -> Tensor:  # N or N C -> C
    """Weights inverse to the frequency of the labels; with several labels per example, of its positive ones."""
    one_label = targets.ndim == 1
    counts = np.bincount(targets[targets >= 0], minlength=n_labels) if one_label else targets.sum(0)
    expected = counts.sum() / n_labels if one_label else len(targets) - counts
    return torch.from_numpy((expected / np.maximum(1, counts)).astype(np.float32))


def label_predictions(names: Sequence[str], y: Tensor, targets: Array) -> LabelPredictions:  # N C
    """The predictions of these outputs."""
    return LabelPredictions(names, y.double().softmax(1).numpy(), targets)


def example_losses(y: Tensor, targets: Tensor, target_type: str) -> Tensor:  # N C -> N
    """The loss of each example: the mean over its labels if it has several."""
    if target_type == "label":
        return F.cross_entropy(y, targets, ignore_index=IGNORE, reduction="none")
    values = targets.nan_to_num()
    number = target_type == "number"
    losses = (y - values).square() if number else F.binary_cross_entropy_with_logits(y, values, reduction="none")
    return torch.where(targets.isnan(), 0.0, losses).mean(1)


def choose_metric(metric: str, accepted: tuple[str, ...], what: str) -> str:
    """The primary metric, "loss" or one of the accepted ones; "auto" is the first of these."""
    if metric not in ("auto", *accepted, "loss"):
        fix = f"set it to one of {', '.join(accepted)}, loss"
        raise BadSetting(f"task.metric={metric}: does not apply to {what}; {fix}")
    return accepted[0] if metric == "auto" else metric


def label_loss(
    y: Tensor, targets: Tensor, target_type: str, weight: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:  # N C
    """Summed loss: cross entropy, binary cross entropy of each label, or squared error. NaN targets are ignored."""
    if target_type == "label":
        return F.cross_entropy(y, targets, weight, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
    mask = ~targets.isnan()
    targets = torch.where(mask, targets, 0.0)
    if target_type == "number":
        losses = (y - targets).square()
    else:
        smoothed = targets * (1 - smoothing) + smoothing / 2
        losses = F.binary_cross_entropy_with_logits(y, smoothed, pos_weight=weight, reduction="none")
    return torch.where(mask, losses, 0.0).sum()
