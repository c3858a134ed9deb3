"""Batches of fresh examples, all of one shape. What stands in a batch is a pure function of (seed, epoch, step).

Examples are drawn for several steps at once, where the model is: a GPU is not waited for in each of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

import torch
from torch import Tensor

from harken.data.batch import IGNORE, dice
from harken.data.pairs.batch import PairBatch

from .problem import Chance, Drawn, Law, Numbered, Problem

CUT = {"source": "source", "tokens": "tokens", "targets": "tokens"}
GOLDEN = (math.sqrt(5) - 1) / 2  # of a whole: steps of this size visit all of it, near and far alike
CURRICULUM = 0.25  # of the logarithm of the largest operand, where a curriculum begins


@dataclass(frozen=True, kw_only=True)
class FreshBatch(PairBatch):
    """Pairs that were drawn for this step alone."""

    even: ClassVar[bool] = True
    steady: ClassVar[bool] = True

    asked: int | None = None  # how many targets count, where that is known already

    @property
    def count(self) -> int:
        return super().count if self.asked is None else self.asked

    def rows(self, start: int, stop: int) -> "FreshBatch":
        return replace(super().rows(start, stop), asked=None)  # type: ignore[return-value, call-arg]


@dataclass(frozen=True)
class Order:
    """How hard examples are over the training: harder and harder over so many epochs, or the same in any order."""

    epochs: int = 0  # 0: as hard as they come, from the start
    shuffled: bool = False

    def numbers(self, places: range, each: int) -> list[int]:
        """The numbers of the examples at these places, `each` of them an epoch; none behind the curriculum."""
        whole = self.epochs * each
        if places.start >= whole:
            return []
        stride = next(k for k in count(int(whole * GOLDEN) or 1) if math.gcd(k, whole) == 1)
        return [place * stride % whole if self.shuffled and place < whole else place for place in places]

    def reach(self, numbers: Sequence[int], each: int) -> Tensor:
        """How hard the examples of these numbers may be."""
        share = torch.tensor(numbers, dtype=torch.float64) / (self.epochs * each)
        return (CURRICULUM + (1 - CURRICULUM) * share).clamp_max(1)


class Fresh:
    """The training batches; an epoch is so many examples. Rows whose example is held out ask nothing."""

    def __init__(
        self, problem: Problem, law: Law, rows: int, *, seed: int, examples: int, order: Order, held: Tensor, edge: int
    ) -> None:
        self.problem, self.law, self.rows, self.seed, self.order, self.edge = problem, law, rows, seed, order, edge
        self.held, self.device = held, torch.device("cpu")  # the keys of the examples held out, sorted
        self.steps = max(1, examples // rows)
        self.at_once = min(self.steps, max(1, problem.at_once // rows))
        self._block: tuple[Any, dict[str, Tensor], list[int]] = (None, {}, [])
        found = self._drawn(0, 0)
        places = found["tokens"].numel() + found["source"].numel()
        filled = int((found["targets"] != IGNORE).sum()) + int(found["lengths"].sum())
        self.tokens, self.padding = max(1, self._block[2][0]), 1 - filled / places

    def batch(self, epoch: int, step: int) -> FreshBatch:
        block, place = divmod(step, self.at_once)
        found = {name: x[place].clone() for name, x in self._drawn(epoch, block).items()}  # a recording writes over it
        if self.device.type == "cpu":  # only what is recorded must be of one shape
            ends = {"source": int(found["lengths"].max()), "tokens": self._longest(found["targets"])}
            found |= {name: found[name][:, : ends[of]] for name, of in CUT.items()}
        return FreshBatch(**found, asked=self._block[2][place])  # type: ignore[arg-type]

    def _longest(self, targets: Tensor) -> int:
        return max(1, int((targets != IGNORE).sum(1).max()))

    def _drawn(self, epoch: int, block: int) -> Mapping[str, Tensor]:
        """The tensors of some steps: step, rows, ..."""
        if self._block[0] != (epoch, block, self.device):
            n, first = self.at_once * self.rows, (epoch * self.steps + block * self.at_once) * self.rows
            chance, reach = Chance(dice(self.seed, 5, epoch, block), self.device), None
            if numbers := self.order.numbers(range(first, first + n), each := self.steps * self.rows):
                chance = Numbered(self.seed, numbers, self.device)
                reach = self.order.reach(numbers, each).to(self.device)
            drawn = self.problem.draw(chance, n, self.law, reach)
            found = self._laid(drawn)
            counts = (found["targets"] != IGNORE).flatten(1).sum(1).tolist()
            self._block = (epoch, block, self.device), found, counts
        return self._block[1]

    def _laid(self, drawn: Drawn) -> dict[str, Tensor]:
        rows = laid(drawn, self.edge)
        if len(self.held):
            held = self.held.to(self.device)
            place = torch.searchsorted(held, drawn.key).clamp_max(len(held) - 1)
            rows["targets"].masked_fill_((held[place] == drawn.key)[:, None], IGNORE)
        return {name: x.unflatten(0, (self.at_once, self.rows)) for name, x in rows.items()}


def laid(drawn: Drawn, edge: int) -> dict[str, Tensor]:
    """Drawn examples as the rows of a batch: the source ends with the edge, the target begins and ends with it."""
    n, (long, wide) = len(drawn.source), drawn.lengths.unbind(1)
    places = [torch.arange(side.shape[1] + 1, device=long.device) for side in (drawn.source, drawn.target)]
    last = drawn.source.new_full((n, 1), edge)
    source = torch.where(places[0] < long[:, None], torch.cat([drawn.source, last], 1), edge)
    targets = torch.cat([drawn.target, last], 1)
    targets = torch.where(places[1] < wide[:, None], targets, edge)
    tokens = torch.cat([last, targets[:, :-1]], 1)
    targets = targets.masked_fill(places[1] > wide[:, None], IGNORE)
    index = torch.arange(n, device=long.device)
    return {"tokens": tokens, "targets": targets, "source": source, "lengths": long + 1, "index": index}
