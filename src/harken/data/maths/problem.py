"""Mathematical problems: how examples are drawn, thousands at a time, and how they are written as tokens.

A number is a sign and its digits in some base, the most significant digit first: 160 and 120 in base 10 are
+ 1 6 0 + 1 2 0. Examples are a pure function of the random numbers.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from harken.errors import BadInput

FIRST_ID = 2  # after <unk> and <eos>
MAX_NUMBER_TOKENS = 800  # longer token sequences are not read as a number
STEP = np.uint64(0x9E3779B97F4A7C15)  # from one random number of an example to the next (SplitMix64)
HASH_FACTOR = 0x5851F42D4C957F2D  # large and odd


@dataclass(frozen=True)
class Distribution:
    """Weights of the distributions from which the operands, or the outcomes, are drawn."""

    operands: Mapping[str, float]
    outcomes: Mapping[str, float]


class UniformRng:
    """Uniform random numbers in [0, 1), generated on the CPU so that they do not depend on the device."""

    def __init__(self, generator: np.random.Generator, device: torch.device | None = None) -> None:
        self.generator, self.device = generator, device or torch.device("cpu")

    def __call__(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.generator.random(shape)).to(self.device)

    def row_generator(self, row: int) -> np.random.Generator:
        """The generator for one example, if examples are drawn one by one."""
        return self.generator

    def choose(self, weights: Mapping[str, float], names: Sequence[str], n: int) -> Tensor:
        """For each of n examples the index of a name, drawn by weight."""
        fractions = torch.tensor([weights.get(name, 0.0) for name in names], dtype=torch.float64, device=self.device)
        cumulative = (fractions / fractions.sum()).cumsum(0)
        return torch.bucketize(self(n), cumulative[:-1], right=True)


class IndexedRng(UniformRng):
    """A counter-based variant: the numbers of an example depend only on the seed and its index."""

    def __init__(self, seed: int, indices: Sequence[int], device: torch.device | None = None) -> None:
        self.device, self.n_drawn = device or torch.device("cpu"), 0
        self.keys = _splitmix64(_splitmix64(np.array([seed], np.uint64)) + np.array(indices, np.uint64))

    def __call__(self, *shape: int) -> Tensor:
        first, self.n_drawn = self.n_drawn, self.n_drawn + math.prod(shape[1:])
        counters = np.arange(first, self.n_drawn).astype(np.uint64)
        x = _splitmix64(self.keys[:, None] + counters * STEP)
        return torch.from_numpy((x >> np.uint64(11)) * 2.0**-53).view(shape).to(self.device)

    def row_generator(self, row: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(int(self.keys[row])))


def _splitmix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The mixing function of SplitMix64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


class Examples(NamedTuple):
    """Examples as zero-padded token ids, with a hash and an evaluation class each."""

    source: Tensor  # n S
    target: Tensor  # n T
    lengths: Tensor  # n 2
    key: Tensor  # n: hash, equal for equal examples regardless of the order of commutative operands
    group: Tensor  # n

    def subset(self, selected: Tensor | slice) -> "Examples":
        return Examples(*(x[selected] for x in self))


class Problem(Protocol):
    """Generator of examples. The ids of its tokens start at FIRST_ID."""

    name: str
    tokens: list[str]
    max_lengths: tuple[int, int]  # tokens of a source, of a target
    n_distinct: float  # number of different examples
    description: str
    grouped_by: str  # name of the evaluation classes
    by_outcome: bool = False  # the outcome may be drawn first; then every outcome is a class
    exact: bool = False  # there is exactly one correct answer text
    chunk_size: int  # examples drawn at a time

    def draw(self, rng: UniformRng, n: int, distribution: Distribution, difficulty: Tensor | None = None) -> Examples:
        """Draw n examples; `difficulty` (n, from 0 to 1) limits the size of each."""

    def parse_source(self, text: str) -> list[int]: ...  # the ids of a problem that a user typed
    def parse_target(self, text: str) -> list[int]: ...
    def format_source(self, ids: Iterable[int]) -> str: ...  # as a user types it
    def format_target(self, ids: Iterable[int]) -> str: ...  # token by token if the ids are not a valid answer

    def is_correct(self, source: str, answer: str, reference: str) -> bool:
        return answer == reference

    def solve(self, source: str) -> str | None:
        """The correct answer; None if it is not unique or not computed here."""
        return None

    def join_tokens(self, ids: Iterable[int]) -> str:
        return " ".join(self.tokens[int(i) - FIRST_ID] for i in ids)

    def parse_error(self, text: str, accepted: str) -> BadInput:
        return BadInput(f"{text!r}: maths:{self.name} accepts {accepted}")


def concat_rows(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Concatenate rows of ids without their padding: (n W, n) ... -> n sum of W, n."""
    n, width = len(parts[0][0]), sum(ids.shape[1] for ids, _ in parts)
    out = parts[0][0].new_zeros(n, width + 1)  # the last column collects the padding
    offset = out.new_zeros(n)
    for ids, lengths in parts:
        positions = torch.arange(ids.shape[1], device=ids.device)
        out.scatter_(1, torch.where(positions < lengths[:, None], offset[:, None] + positions, width), ids)
        offset = offset + lengths
    return out[:, :width], offset


def hash_rows(numbers: Tensor) -> Tensor:  # n k -> n
    """A 64-bit hash of each row."""
    key = numbers.new_zeros(len(numbers))
    for column in numbers.unbind(1):
        key = (key + column + 1) * HASH_FACTOR
        key = key ^ (key >> 29)
    return key


class IntegerTokens(Problem):
    """Integers as tokens in a base."""

    signs: tuple[str, ...] = ("+", "-")

    def __init__(self, base: int) -> None:
        self.base = base
        self.tokens = [*self.signs, *map(str, range(base))]
        self.zero_id = FIRST_ID + len(self.signs)

    def n_tokens(self, number: int) -> int:
        """Number of tokens of an integer, including the sign."""
        return len(self.encode_integer(number))

    def encode_integers(self, x: Tensor, width: int) -> tuple[Tensor, Tensor]:  # n -> n width, n
        """The token ids of each integer, and their number."""
        size, n_places = x.abs(), width - 1
        powers = torch.tensor([self.base**p for p in range(n_places)], device=x.device)
        digits = size[:, None] // powers % self.base  # the least significant first
        n_digits = (size[:, None] >= powers[1:]).sum(1) + 1
        order = (n_digits[:, None] - 1 - torch.arange(n_places, device=x.device)).clamp_min(0)
        sign = FIRST_ID + (x < 0).long()
        return torch.cat([sign[:, None], self.zero_id + digits.gather(1, order)], 1), n_digits + 1

    def encode_integer(self, number: int) -> list[int]:
        size, ids = abs(number), list[int]()
        while size or not ids:
            size, digit = divmod(size, self.base)
            ids.append(self.zero_id + digit)
        return [FIRST_ID + (number < 0), *reversed(ids)]

    def decode_integers(self, ids: Iterable[int]) -> list[int] | None:
        """The integers of these ids; None if they are not valid."""
        numerals: list[list[int]] = []  # sign id and digits
        for i in map(int, ids):
            if i < self.zero_id:
                numerals.append([i])
            elif not numerals or i >= self.zero_id + self.base:
                return None
            else:
                numerals[-1].append(i - self.zero_id)
        if not numerals or any(not 2 <= len(n) <= MAX_NUMBER_TOKENS or n[0] < FIRST_ID for n in numerals):
            return None
        return [
            (-1) ** (sign - FIRST_ID) * reduce(lambda value, digit: value * self.base + digit, digits, 0)
            for sign, *digits in numerals
        ]
