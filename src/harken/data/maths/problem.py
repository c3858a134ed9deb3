"""A problem of mathematics: how its examples are drawn, by thousands at once, and how they are written as tokens.

A number is a sign and its digits in some base, the first digit first and no zero before it: 160 and 120 in base 10 are
+ 1 6 0 + 1 2 0. What is drawn is a pure function of the numbers that chance gives.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from harken.errors import BadInput

FIRST = 2  # ids before those of the words: <unk> and the end of a line
PLACES = 800  # tokens of a number: what is longer is none
STEP = np.uint64(0x9E3779B97F4A7C15)  # from one random number of an example to the next
MIX = 0x5851F42D4C957F2D  # odd and large: what keys are multiplied with


@dataclass(frozen=True)
class Law:
    """By which chances examples are drawn: how often the operands, or the outcome, are drawn by which distribution."""

    operands: Mapping[str, float]
    outcomes: Mapping[str, float]


class Chance:
    """Random numbers between 0 and 1. They are drawn by a CPU, so that every device sees the same."""

    def __init__(self, dice: np.random.Generator, device: torch.device | None = None) -> None:
        self.dice, self.device = dice, device or torch.device("cpu")

    def __call__(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.dice.random(shape)).to(self.device)

    def of(self, row: int) -> np.random.Generator:
        """The dice of one example, where it is drawn by itself."""
        return self.dice

    def which(self, weights: Mapping[str, float], names: Sequence[str], n: int) -> Tensor:
        """For each of n examples the place of a name, drawn by the weights."""
        shares = torch.tensor([weights.get(name, 0.0) for name in names], dtype=torch.float64, device=self.device)
        ends = (shares / shares.sum()).cumsum(0)
        return torch.bucketize(self(n), ends[:-1], right=True)


class Numbered(Chance):
    """The same for examples that have numbers: one and the same is drawn by a number, wherever it stands."""

    def __init__(self, seed: int, numbers: Sequence[int], device: torch.device | None = None) -> None:
        self.device, self.drawn = device or torch.device("cpu"), 0
        self.keys = _mixed(_mixed(np.array([seed], np.uint64)) + np.array(numbers, np.uint64))

    def __call__(self, *shape: int) -> Tensor:
        first, self.drawn = self.drawn, self.drawn + math.prod(shape[1:])
        places = np.arange(first, self.drawn).astype(np.uint64)
        x = _mixed(self.keys[:, None] + places * STEP)
        return torch.from_numpy((x >> np.uint64(11)) * 2.0**-53).view(shape).to(self.device)

    def of(self, row: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(int(self.keys[row])))


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Each number as another that seems to have nothing to do with it: the mixer of SplitMix64."""
    for shift, odd in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(odd)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class Drawn:
    """Examples: the ids of both sides, 0 behind their ends; a number for each, and the class it is judged in."""

    source: Tensor  # n S
    target: Tensor  # n T
    lengths: Tensor  # n 2
    key: Tensor  # n: the same for the same example, whatever stands first
    group: Tensor  # n

    def some(self, which: Tensor | slice) -> "Drawn":
        return Drawn(*(x[which] for x in (self.source, self.target, self.lengths, self.key, self.group)))


class Problem(Protocol):
    """What a generator brings. `words` are its tokens, in the order of their ids, which begin at FIRST."""

    words: list[str]
    widths: tuple[int, int]  # most tokens of a source, and of a target
    space: float  # how many different examples there are
    told: str  # what it is, for people
    grouped_by: str  # what its classes are
    by_outcome: bool  # whether the outcome may be drawn first; then each is a class
    exact: bool  # whether there is one right answer, which is written in one way
    at_once: int  # examples drawn at a time

    def draw(self, chance: Chance, n: int, law: Law, reach: Tensor | None = None) -> Drawn:
        """n examples; `reach` (n, from 0 to 1) says of each how hard it may be."""
        ...

    def read(self, text: str) -> list[int]:
        """The ids of a source that was typed."""
        ...

    def read_target(self, text: str) -> list[int]: ...
    def asked(self, ids: Iterable[int]) -> str:
        """A source as people type it."""
        ...

    def said(self, ids: Iterable[int]) -> str:
        """A target as people read it; what is no answer, token by token."""
        ...

    def right(self, source: str, said: str, true: str) -> bool: ...
    def truth(self, source: str) -> str | None:
        """The one answer to what was typed; None where there is none, or it is not computed here."""
        ...


def joined(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Rows of ids one behind the other, each as long as its length says: (n W, n) -> n sum of W, n."""
    n, wide = len(parts[0][0]), sum(ids.shape[1] for ids, _ in parts)
    out = parts[0][0].new_zeros(n, wide + 1)  # the last column takes what is left out
    at = out.new_zeros(n)
    for ids, lengths in parts:
        place = torch.arange(ids.shape[1], device=ids.device)
        out.scatter_(1, torch.where(place < lengths[:, None], at[:, None] + place, wide), ids)
        at = at + lengths
    return out[:, :wide], at


def keyed(numbers: Tensor) -> Tensor:  # n k -> n
    """A number for each row; other rows have, by all odds, others."""
    key = numbers.new_zeros(len(numbers))
    for column in numbers.unbind(1):
        key = (key + column + 1) * MIX
        key = key ^ (key >> 29)
    return key


class Numerals:
    """Whole numbers as tokens, in a base."""

    signs: tuple[str, ...] = ("+", "-")

    def __init__(self, base: int) -> None:
        self.base = base
        self.words = [*self.signs, *map(str, range(base))]
        self.zero = FIRST + len(self.signs)  # the id of the digit 0

    def width(self, largest: int) -> int:
        """Tokens of a number of this size, its sign with them."""
        return len(self.ids(largest))

    def write(self, x: Tensor, width: int) -> tuple[Tensor, Tensor]:  # n -> n width, n
        """The tokens of each number, and how many there are."""
        size, places = x.abs(), width - 1
        powers = torch.tensor([self.base**p for p in range(places)], device=x.device)
        digits = size[:, None] // powers % self.base  # the last digit first
        many = (size[:, None] >= powers[1:]).sum(1) + 1
        order = (many[:, None] - 1 - torch.arange(places, device=x.device)).clamp_min(0)
        sign = FIRST + (x < 0).long()
        return torch.cat([sign[:, None], self.zero + digits.gather(1, order)], 1), many + 1

    def ids(self, number: int) -> list[int]:
        size, found = abs(number), list[int]()
        while size or not found:
            size, digit = divmod(size, self.base)
            found.append(self.zero + digit)
        return [FIRST + (number < 0), *reversed(found)]

    def numbers(self, ids: Iterable[int]) -> list[int] | None:
        """The numbers that these tokens are; None if they are none."""
        found: list[list[int]] = []
        for i in map(int, ids):
            if i < self.zero:
                found.append([i])
            elif not found or i >= self.zero + self.base:
                return None
            else:
                found[-1].append(i - self.zero)
        if not found or any(not 2 <= len(each) <= PLACES or each[0] < FIRST for each in found):
            return None
        return [(-1) ** (sign - FIRST) * self._value(digits) for sign, *digits in found]

    def _value(self, digits: Iterable[int]) -> int:
        value = 0
        for digit in digits:
            value = value * self.base + digit
        return value


def plain(words: Sequence[str], ids: Iterable[int]) -> str:
    """Token by token."""
    return " ".join(words[int(i) - FIRST] for i in ids)


def refuse(text: str, name: str, takes: str) -> BadInput:
    return BadInput(f"{text!r}: {name} takes {takes}")
