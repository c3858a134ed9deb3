"""Tasks: batches, loss, metrics and baselines. The training loop uses a task through `BoundTask` only."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from harken.data.batch import Batch
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
    """Settings of a task kind."""

    default_beam: ClassVar[int] = 0  # beam of `translate`; 0: the default of the search

    def bind(self, data: Any, model: Any, *, batch: int, seed: int) -> "BoundTask":
        """The task on this data for a model with these settings; settings that do not fit raise BadSetting."""
        raise NotImplementedError


class BoundTask:
    """A task bound to its data. Optional abilities have defaults."""

    steps: int  # of an epoch
    splits: tuple[str, ...]  # that can be evaluated
    tokens_per_batch: int
    data: Any = None
    fixed_shapes: bool = True  # all batches have the same shapes

    def batch(self, epoch: int, step: int) -> Batch:
        raise NotImplementedError

    def epoch_batch(self, epoch: int) -> Batch | None:
        """All batches of an epoch as one, if the task samples an epoch at once."""
        return None

    def loss(self, model: Any, batch: Any, start: int = 0) -> Loss:
        """Loss of a micro-batch; its first row is row `start` of the full batch."""
        raise NotImplementedError

    def evaluate(self, model: Any, split: str, *, quick: bool = False) -> Score:
        """Score on a split; `quick` evaluates a subset, for the learning curve."""
        raise NotImplementedError

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
    """A task that scores model outputs separately from the model, so that several models can be evaluated at once."""

    def split_outputs(self, model: Any, split: str, *, quick: bool = False) -> Tensor:  # N outputs
        raise NotImplementedError

    def score_outputs(self, y: Tensor, split: str, *, quick: bool = False) -> Score:
        raise NotImplementedError

    def evaluate(self, model: Any, split: str, *, quick: bool = False) -> Score:
        return self.score_outputs(self.split_outputs(model, split, quick=quick), split, quick=quick)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the context; restores the previous mode."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
