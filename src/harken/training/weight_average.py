"""Weights averaged over time: steadier than the last ones, and often better than any."""

from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from harken import run_folder

from .checkpoint_state import of, under
from .settings import Train

Weights = dict[str, Tensor]


class Average:
    """No average: the weights as they are."""

    def step(self, model: nn.Module) -> None:
        """After each update."""

    def look(self, model: nn.Module) -> None:
        """Before each look at the valid split."""

    def weights(self) -> Weights:
        """The averaged weights; empty where there is no average yet."""
        return {}

    def state(self) -> Weights:
        return {}

    def load_state(self, saved: Mapping[str, Tensor]) -> None: ...


class Moving(Average):
    """a <- decay a + (1 - decay) w after each update; the first ones count for less, so that the start is forgotten."""

    def __init__(self, decay: float) -> None:
        self.decay, self.kept, self.n = decay, Weights(), torch.zeros((), dtype=torch.long)

    @torch.no_grad()
    def step(self, model: nn.Module) -> None:
        if not self.kept:
            self.kept = {name: t.clone() for name, t in _averaged(model).items()}
        now = dict(model.named_parameters()) | dict(model.named_buffers())
        self.n += 1
        decay = min(self.decay, float((1 + self.n) / (10 + self.n)))
        torch._foreach_lerp_(list(self.kept.values()), [now[name] for name in self.kept], 1 - decay)

    def weights(self) -> Weights:
        return self.kept

    def state(self) -> Weights:
        return {**under("weights", self.kept), "n": self.n.clone()}

    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        self.kept, self.n = {name: t.clone() for name, t in of("weights", saved).items()}, saved["n"].clone()


class Last(Average):
    """The mean of the weights at the last k looks."""

    def __init__(self, k: int) -> None:
        self.kept: deque[Weights] = deque(maxlen=k)

    def look(self, model: nn.Module) -> None:
        self.kept.append({name: t.clone() for name, t in _averaged(model).items()})

    def weights(self) -> Weights:
        first = self.kept[0] if self.kept else {}
        return {name: torch.stack([w[name] for w in self.kept]).mean(0) for name in first}

    def state(self) -> Weights:
        return {k: t for n, weights in enumerate(self.kept) for k, t in under(str(n), weights).items()}

    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        numbers = sorted({int(name.partition(":")[0]) for name in saved})
        self.kept.extend(of(str(n), saved) for n in numbers)


def _averaged(model: nn.Module) -> Weights:
    """What can be averaged: a counter among the weights is taken as it is."""
    return {name: t for name, t in run_folder.weights(model).items() if t.is_floating_point()}


def average(train: Train) -> Average:
    if train.average == "ema":
        return Moving(train.ema_decay)
    return Last(train.average_last) if train.average == "last" else Average()
