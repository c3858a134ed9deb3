"""Tasks: batches, loss, metrics and baselines. The training loop uses a task through `BoundTask` only."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from harken.data.batch import Array, Batch
from harken.data.source import Dataset
from harken.settings import Settings

Metrics = dict[str, float]


@dataclass(frozen=True)
class Loss:
    """Summed loss of a batch, and per mixed text its summed loss and number of targets.

    `reported` is the loss for the log where it differs from the objective, e.g. without label smoothing.
    """

    total: Tensor
    parts: dict[str, tuple[Tensor, int]] = field(default_factory=dict)
    reported: Tensor | None = None


@dataclass(frozen=True)
class Score:
    """Metrics of a split, how they were computed, and the metrics of its parts (labels, groups, lengths).

    The best weights have the lowest loss, or the highest value of another primary metric.
    """

    metrics: Metrics
    protocol: dict[str, Any]
    parts: dict[str, Metrics] = field(default_factory=dict)
    primary_metric: str = "loss"


class Evaluation(NamedTuple):
    """Score of a model, and the metrics of the trivial baselines."""

    score: Score
    baseline: dict[str, Metrics]

    @property
    def metrics(self) -> Metrics:
        return self.score.metrics


class TaskSettings(Settings):
    """Settings of a task kind.

    `bind(data, model, *, batch, seed)` is the task on this data for a model with these settings; settings that do not
    fit raise BadSetting.
    """

    default_beam: ClassVar[int] = 0  # beam of `translate`; 0: the default of the search
    bind: ClassVar[Callable[..., "BoundTask"]]


class TrainingBatches(Protocol):
    """Batches of the training data, with `batch(epoch, step)` unless the task collates them."""

    steps: int  # per epoch


class BoundTask:
    """A task bound to its data. Optional abilities have defaults.

    A subclass implements `loss(model, batch, start=0)`, the loss of a micro-batch whose first row is row `start` of the
    full batch, and `evaluate(model, split, *, quick=False)`; `quick` evaluates a subset, for the learning curve.
    """

    steps: int  # of an epoch
    splits: tuple[str, ...]  # that can be evaluated
    tokens_per_batch: int
    settings: Any
    data: Any = None
    batches: Any
    fixed_shapes: bool = True  # all batches have the same shapes
    loss: Callable[..., Loss]
    evaluate: Callable[..., Score]

    def set_up(self, settings: TaskSettings, data: Dataset, batches: TrainingBatches, tokens: int) -> None:
        """Train on these batches with this number of tokens each, and evaluate the held-out splits of the data."""
        self.settings, self.data, self.batches = settings, data, batches
        self.steps, self.splits, self.tokens_per_batch = batches.steps, tuple(data.splits), tokens

    def batch(self, epoch: int, step: int) -> Batch:
        return self.batches.batch(epoch, step)

    def epoch_batch(self, epoch: int) -> Batch | None:
        """All batches of an epoch as one, if the task samples an epoch at once."""
        return None

    def baselines(self, split: str) -> dict[str, Metrics]:
        """Metrics of trivial baselines on a split."""
        return {}

    def sample_on(self, device: torch.device) -> None:
        """Use this device where the task samples its batches."""

    def state(self) -> dict[str, Tensor]:
        """State that is carried from batch to batch; dimension 1 is the rows of the full batch."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the result of `state`."""


class OutputScoredTask(BoundTask):
    """A task that scores model outputs separately from the model, so that several models can be evaluated at once.

    A subclass implements `split_outputs(model, split, *, quick)` and `score_outputs(y, split, *, quick)`.
    """

    split_outputs: Callable[..., Tensor]
    score_outputs: Callable[..., Score]

    def evaluate(self, model: nn.Module, split: str, *, quick: bool = False) -> Score:
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
