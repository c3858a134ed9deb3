"""What is learned: target, loss, metric. The training loop knows a task only by the protocol below."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from harken.data.batch import Batch


@dataclass(frozen=True)
class Loss:
    """The summed loss of a batch, and its parts by name with how many answers each has (for mixed texts).

    Where what is learned from is not what a split is judged by, `told` is the latter: the log and the curves tell it.
    """

    total: Tensor
    parts: dict[str, tuple[Tensor, int]] = field(default_factory=dict)
    told: Tensor | None = None


@dataclass(frozen=True)
class Score:
    """How good a model is on a split, and by which protocol that was found.

    The weights with the lowest loss are kept, or those with the highest of another metric, `by`.
    """

    metrics: dict[str, float]
    protocol: dict[str, Any]
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    by: str = "loss"


class Judged(NamedTuple):
    """A score beside those that cost nothing, by their names."""

    score: Score
    baseline: dict[str, dict[str, float]]

    @property
    def metrics(self) -> dict[str, float]:
        return self.score.metrics


class Learning(Protocol):
    """A task bound to its data: all the loop asks for."""

    steps: int  # of one epoch
    splits: tuple[str, ...]  # that can be evaluated
    tokens: int  # of one whole batch, for tokens per second

    def batch(self, epoch: int, step: int) -> Batch: ...
    def loss(self, model: Any, batch: Batch, start: int = 0) -> Loss:
        """Of these rows, of which the first is row `start` of the whole batch."""
        ...

    def evaluate(self, model: Any, split: str, *, quick: bool = False) -> Score: ...
    def baselines(self, split: str) -> dict[str, dict[str, float]]: ...
    def state(self) -> dict[str, Tensor]:
        """What is carried from batch to batch; dimension 1 is the rows of the whole batch."""
        ...

    def load_state(self, state: dict[str, Tensor]) -> None: ...


class Stateless:
    """A task that carries nothing from batch to batch."""

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        pass


class Apart(Stateless):
    """A task whose outputs are judged apart from the model that gave them, so that many models are asked at once."""

    def evaluate(self: Any, model: Any, split: str, *, quick: bool = False) -> Score:
        score: Score = self.judged_of(self.outputs_of(model, split, quick=quick), split, quick=quick)
        return score
