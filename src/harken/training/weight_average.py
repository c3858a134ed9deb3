"""Averages of the weights over time: exponential moving average and mean of the last checkpoints."""

from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from harken import run_folder

from .checkpoint_state import add_prefix, strip_prefix
from .settings import Train

Weights = dict[str, Tensor]


class WeightAverage:
    """No average: the current weights are used."""

    def after_update(self, model: nn.Module) -> None:
        """Hook after each update."""

    def before_validation(self, model: nn.Module) -> None:
        """Hook before each validation pass."""

    def weights(self) -> Weights:
        """The averaged weights; empty while there is no average."""
        return {}

    def state(self) -> Weights:
        return {}

    def load_state(self, saved: Mapping[str, Tensor]) -> None: ...


class ExponentialMovingAverage(WeightAverage):
    """a <- decay a + (1 - decay) w after each update; the decay is smaller in the first updates."""

    def __init__(self, decay: float) -> None:
        self.decay, self.average, self.n_updates = decay, Weights(), torch.zeros((), dtype=torch.long)

    @torch.no_grad()
    def after_update(self, model: nn.Module) -> None:
        if not self.average:
            self.average = {name: t.clone() for name, t in _floating_weights(model).items()}
        current = dict(model.named_parameters()) | dict(model.named_buffers())
        self.n_updates += 1
        decay = min(self.decay, float((1 + self.n_updates) / (10 + self.n_updates)))
        torch._foreach_lerp_(list(self.average.values()), [current[name] for name in self.average], 1 - decay)

    def weights(self) -> Weights:
        return self.average

    def state(self) -> Weights:
        return {**add_prefix("weights", self.average), "n_updates": self.n_updates.clone()}

    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        self.average = {name: t.clone() for name, t in strip_prefix("weights", saved).items()}
        self.n_updates = saved["n_updates"].clone()


class LastCheckpointsAverage(WeightAverage):
    """Mean of the weights at the last k validation passes."""

    def __init__(self, k: int) -> None:
        self.checkpoints: deque[Weights] = deque(maxlen=k)

    def before_validation(self, model: nn.Module) -> None:
        self.checkpoints.append({name: t.clone() for name, t in _floating_weights(model).items()})

    def weights(self) -> Weights:
        names = self.checkpoints[0] if self.checkpoints else {}
        return {name: torch.stack([w[name] for w in self.checkpoints]).mean(0) for name in names}

    def state(self) -> Weights:
        return {k: t for n, weights in enumerate(self.checkpoints) for k, t in add_prefix(str(n), weights).items()}

    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        numbers = sorted({int(name.partition(":")[0]) for name in saved})
        self.checkpoints.extend(strip_prefix(str(n), saved) for n in numbers)


def _floating_weights(model: nn.Module) -> Weights:
    """Weights that can be averaged, without integer buffers."""
    return {name: t for name, t in run_folder.weights(model).items() if t.is_floating_point()}


def build_weight_average(train: Train) -> WeightAverage:
    if train.average == "ema":
        return ExponentialMovingAverage(train.ema_decay)
    return LastCheckpointsAverage(train.average_last) if train.average == "last" else WeightAverage()
