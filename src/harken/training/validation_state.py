"""What the looks at the valid split decide: which weights are kept, when the rate falls, when it is enough."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .settings import Train


@dataclass
class Course:
    """The best loss until now and its step, how many looks ago that was, and what is left of the learning rate."""

    best: float = math.inf
    step: int = -1
    waited: int = 0  # looks since the best
    stood: int = 0  # looks since the best or since the rate last fell
    left: float = 1.0
    skipped: int = 0  # updates left out because a number was not finite

    def note(self, loss: float, step: int, train: Train) -> bool:
        """Take in a look; whether it is the best yet."""
        if loss < self.best:
            self.best, self.step, self.waited, self.stood = loss, step, 0, 0
            return True
        self.waited, self.stood = self.waited + 1, self.stood + 1
        if train.schedule == "plateau" and self.stood >= train.plateau_patience:
            self.left, self.stood = self.left * train.plateau_factor, 0
        return False

    def over(self, train: Train) -> bool:
        return train.early_stopping_patience is not None and self.waited >= train.early_stopping_patience

    @property
    def kept(self) -> str:
        return f"the weights of step {self.step:,}"

    def facts(self) -> dict[str, Any]:
        return asdict(self) | {"best": None if math.isinf(self.best) else self.best}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Course":
        return cls(**{**facts, "best": math.inf if facts["best"] is None else facts["best"]})
