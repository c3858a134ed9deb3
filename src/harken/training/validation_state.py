"""State of the validation passes: best weights so far, plateau schedule, early stopping."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .settings import Train


@dataclass
class ValidationState:
    """Best validation score and its step, validation passes since then, and the learning-rate factor."""

    best: float = math.inf
    step: int = -1
    since_best: int = 0  # validation passes
    since_change: int = 0  # validation passes since the best or since the last drop of the learning rate
    lr_factor: float = 1.0
    skipped: int = 0  # updates with a non-finite loss or gradient

    def record(self, score: float, step: int, train: Train) -> bool:
        """Record a validation pass; return whether it is the best so far. Lower scores are better."""
        if score < self.best:
            self.best, self.step, self.since_best, self.since_change = score, step, 0, 0
            return True
        self.since_best, self.since_change = self.since_best + 1, self.since_change + 1
        if train.schedule == "plateau" and self.since_change >= train.plateau_patience:
            self.lr_factor, self.since_change = self.lr_factor * train.plateau_factor, 0
        return False

    def stops_early(self, train: Train) -> bool:
        return train.early_stopping_patience is not None and self.since_best >= train.early_stopping_patience

    @property
    def best_weights_name(self) -> str:
        return f"the weights of step {self.step:,}"

    def to_dict(self) -> dict[str, object]:
        return asdict(self) | {"best": None if math.isinf(self.best) else self.best}

    @classmethod
    def from_dict(cls, saved: Mapping[str, object]) -> "ValidationState":
        fields: dict[str, Any] = {**saved, "best": math.inf if saved.get("best") is None else saved["best"]}
        return cls(**fields)
