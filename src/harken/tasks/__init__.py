"""Tasks: batches, loss, metrics and baselines. The training loop uses a task through `BoundTask` only."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from harken.data.batch import Array, Batch
from harken.data.source import Dataset
from harken.events import Overflow
from harken.models import ModelSettings
from harken.settings import Settings

from .metrics.intervals import Interval, intervals
from .metrics.paired_difference import compare_outcomes
from .metrics.weighted import Outcomes

Metrics = dict[str, float]
Differences = dict[str, dict[str, dict[str, float]]]  # by baseline and metric: value, low, high ...
SettingsT = TypeVar("SettingsT", bound="TaskSettings[Any, Any]")
DataT = TypeVar("DataT", bound=Dataset)
ModelSettingsT = TypeVar("ModelSettingsT", bound=ModelSettings)
ModelT = TypeVar("ModelT", bound=nn.Module)
BatchT = TypeVar("BatchT", bound=Batch)
BatchT_co = TypeVar("BatchT_co", bound=Batch, covariant=True)


@dataclass(frozen=True)
class Loss:
    """Summed loss of a batch, and per mixed text its summed loss and number of targets.

    `reported` is the loss for the log where it differs from the objective, e.g. without label smoothing.
    """

    total: Tensor
    parts: dict[str, tuple[Tensor, int]] = field(default_factory=dict)
    reported: Tensor | None = None


@dataclass(frozen=True, eq=False)
class LabelPredictions:
    """The predictions for the examples of a split with one label each, for a report."""

    labels: Sequence[str]
    probabilities: Array  # N C
    targets: Array  # N: index of the label; negative: not one of the labels

    @property
    def predicted(self) -> Array:  # N
        return self.probabilities.argmax(1)

    @property
    def correct(self) -> Array:  # N
        return self.predicted == self.targets


class Baseline(NamedTuple):
    """Metrics of a trivial baseline, and its outcomes on the examples of the split, for a paired comparison."""

    metrics: Metrics
    outcomes: Outcomes = MappingProxyType({})


class Confusion(NamedTuple):
    """How often something was predicted in place of something else, and where it occurred first."""

    actual: str
    predicted: str
    times: int
    example: str


@dataclass(frozen=True)
class Score:
    """Metrics of a split, how they were computed, and the metrics of its parts (labels, groups, lengths).

    The best weights have the lowest loss, or the highest value of another primary metric. A full evaluation of a task
    that `explains_mistakes` adds the predictions of each example, or the confusions of tags and spans. It also has the
    outcomes: the metrics as functions of the weights of the examples, for intervals and paired differences.
    """

    metrics: Metrics
    protocol: dict[str, Any]
    parts: dict[str, Metrics] = field(default_factory=dict)
    primary_metric: str = "loss"
    predictions: LabelPredictions | None = field(default=None, compare=False, repr=False)
    confusions: list[Confusion] = field(default_factory=list, compare=False, repr=False)
    outcomes: Outcomes = field(default_factory=dict, compare=False, repr=False)
    differences: Differences = field(default_factory=dict, compare=False, repr=False)  # to the baselines

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """The 95 % interval of each metric over the examples; empty after a quick evaluation."""
        return intervals(self.outcomes)

    def compare(self, baselines: Mapping[str, Baseline], *, candidates: int = 1) -> Differences:
        """How much better the primary metric is than that of each baseline, with paired intervals: baseline -> metric.

        Of a baseline without the primary metric, every common metric. `candidates` is the number of checkpoints that
        were compared on this split. The interval allows for the choice among them, and for that of the best baseline.
        """
        primary, common = self.protocol.get("primary_metric"), {name: b.outcomes for name, b in baselines.items()}
        if primary and any(primary in outcomes for outcomes in common.values()):
            common = {name: {primary: x[primary]} for name, x in common.items() if primary in x}
        rows = compare_outcomes(self.outcomes, common)
        return {
            name: {
                metric: x.adjusted(better=candidates, worse=len(baselines)).facts(self.n_units, metric)
                for metric, x in row.items()
            }
            for name, row in rows.items()
        }

    @property
    def n_examples(self) -> int:
        """Number of examples (tokens, pairs, images ...): the first entry of the protocol."""
        return int(next(iter(self.protocol.values())))

    @property
    def n_units(self) -> int:
        """Number of independent units: the groups of the examples if they have some, else the examples."""
        return int(self.protocol.get("groups", self.n_examples))


def evaluation_facts(
    scores: Mapping[str, Score],
    baselines: Mapping[str, Mapping[str, Baseline]],
    candidates: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, object]:
    """What a run folder stores of the evaluation of each split; `candidates` is that of `Score.compare`."""
    compared = {s: score.compare(baselines[s], candidates=candidates.get(s, 1)) for s, score in scores.items()}
    return {
        "metrics": {split: score.metrics for split, score in scores.items()},
        "intervals": {split: score.intervals for split, score in scores.items()},
        "protocol": {split: score.protocol for split, score in scores.items()},
        "parts": {split: score.parts for split, score in scores.items() if score.parts},
        "baseline": {split: {name: x.metrics for name, x in rows.items()} for split, rows in baselines.items()},
        "differences": compared,
    }


class Evaluation(NamedTuple):
    """Score of a model, and the metrics of the trivial baselines."""

    score: Score
    baseline: dict[str, Metrics]

    @property
    def metrics(self) -> Metrics:
        return self.score.metrics


class TaskSettings(Settings, Generic[DataT, ModelSettingsT]):
    """Settings of a task kind."""

    default_beam: ClassVar[int] = 0  # beam of `translate`; 0: the default of the search

    def bind(self, data: DataT, model: ModelSettingsT, *, batch: int, seed: int) -> "BoundTask":
        """The task on this data for a model with these settings; settings that do not fit raise BadSetting."""
        raise NotImplementedError


class TrainingBatches(Protocol[BatchT_co]):
    """Batches of the training data."""

    steps: int  # per epoch

    def batch(self, epoch: int, step: int) -> BatchT_co: ...


class Task(Generic[SettingsT, DataT, ModelT, BatchT]):
    """A task bound to its data. A subclass implements `loss` and `evaluate`; optional abilities have defaults."""

    steps: int  # of an epoch
    splits: tuple[str, ...]  # that can be evaluated
    tokens_per_batch: int
    settings: SettingsT
    data: DataT
    batches: TrainingBatches[BatchT]
    fixed_shapes: bool = True  # all batches have the same shapes
    explains_mistakes: bool = False  # a full evaluation has predictions or confusions
    baselines_follow_model: bool = False  # the baselines depend on something that is chosen with the trained model

    def set_up(self, settings: SettingsT, data: DataT, batches: TrainingBatches[BatchT], tokens: int) -> None:
        """Train on these batches with this number of tokens each, and evaluate the held-out splits of the data."""
        self.settings, self.data, self.batches = settings, data, batches
        self.steps, self.splits, self.tokens_per_batch = batches.steps, tuple(data.splits), tokens

    def loss(self, model: ModelT, batch: BatchT, start: int = 0) -> Loss:
        """The loss of a micro-batch whose first row is row `start` of the full batch."""
        raise NotImplementedError

    def evaluate(self, model: ModelT, split: str, *, quick: bool = False) -> Score:
        """The score of a split; `quick` evaluates a subset, for the learning curve."""
        raise NotImplementedError

    def batch(self, epoch: int, step: int) -> BatchT:
        return self.batches.batch(epoch, step)

    def epoch_batch(self, epoch: int) -> BatchT | None:
        """All batches of an epoch as one, if the task samples an epoch at once."""
        return None

    def choose_thresholds(self, model: ModelT) -> dict[str, float]:
        """Choose and use the threshold of each of several labels on the validation split; empty for other targets."""
        return {}

    def use_thresholds(self, thresholds: Mapping[str, float]) -> None:
        """Use thresholds that `choose_thresholds` returned."""

    def baselines(self, split: str) -> dict[str, Metrics]:
        """Metrics of trivial baselines on a split."""
        return {name: baseline.metrics for name, baseline in self.evaluate_baselines(split).items()}

    def evaluate_baselines(self, split: str) -> dict[str, Baseline]:
        """Metrics of trivial baselines on a split, with their outcomes on each example."""
        return {}

    def label_counts(self) -> dict[str, dict[str, int]]:
        """For each split the number of examples of each label; empty if examples have no label."""
        return {}

    def input_text(self, split: str, n: int) -> str:
        """Example n of a split as text, or its name."""
        return ""

    def input_sizes(self, split: str) -> tuple[str, Array] | None:
        """The unit of the size of an example, and the size of each example of a split; None if all are equal."""
        return None

    def ablation(self) -> Mapping[str, object]:
        """Columns of the data without which a baseline is not worse; empty if there are none."""
        return {}

    def overflows(self) -> list[Overflow]:
        """The examples that the model cannot read as a whole, beyond those that the data reports."""
        return []

    def sample_on(self, device: torch.device) -> None:
        """Use this device where the task samples its batches."""

    def state(self) -> dict[str, Tensor]:
        """State that is carried from batch to batch; dimension 1 is the rows of the full batch."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the result of `state`."""


BoundTask = Task[Any, Any, Any, Any]  # of any kind


class OutputScoredTask(Task[SettingsT, DataT, ModelT, BatchT]):
    """A task that scores model outputs separately from the model, so that several models can be evaluated at once."""

    def split_outputs(self, model: ModelT, split: str, *, quick: bool = False) -> Tensor:
        """The outputs for a split."""
        raise NotImplementedError

    def score_outputs(self, y: Tensor, split: str, *, quick: bool = False) -> Score:
        """The score of these outputs."""
        raise NotImplementedError

    def evaluate(self, model: ModelT, split: str, *, quick: bool = False) -> Score:
        return self.score_outputs(self.split_outputs(model, split, quick=quick), split, quick=quick)


def in_order(parts: Iterable[tuple[Array, Tensor]]) -> Tensor:
    """The rows of all batches in the order of their indices."""
    indices, rows = zip(*parts, strict=True)
    return torch.cat(rows)[torch.from_numpy(np.argsort(np.concatenate(indices)))]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients inside the context; restores the previous mode."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
