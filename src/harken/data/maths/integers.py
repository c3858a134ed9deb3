"""Problems of whole numbers: greatest common divisors, sums, products, remainders, sums of fractions."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from harken.errors import BadSetting

from .problem import Chance, Drawn, Law, Numerals, joined, keyed, plain, refuse

TRIES = 6  # pairs drawn to find one without a common divisor; two large numbers have none in 61 of 100 cases
TYPED = re.compile(r"[\s\d+*/,()]*")
LETTERS = 4000  # of what is typed: Python reads no longer numbers
LARGEST = 2**62  # what 64 bits hold, and a little room


@dataclass(frozen=True)
class Operation:
    """What is asked: `answer` makes the outcomes of operands (n k -> n o), for a modulus."""

    told: str
    written: str  # a source as it is typed
    answer: Callable[[Tensor, int], Tensor]
    largest: int  # operands up to here, if nothing else is said
    most: Callable[[int, int], int]  # the largest outcome, of operands up to the first number and of this modulus
    outcomes: int = 1

    @property
    def operands(self) -> int:
        return self.written.count("{}")


def _gcd(x: Tensor, m: int) -> Tensor:
    return torch.gcd(x[:, 0], x[:, 1])[:, None]


def _sum_of_fractions(x: Tensor, m: int) -> Tensor:
    a, b, c, d = x.unbind(1)
    top, below = a * d + c * b, b * d
    shared = torch.gcd(top, below)
    return torch.stack([top // shared, below // shared], 1)


OPERATIONS = {
    "gcd": Operation("greatest common divisors", "{} {}", _gcd, 10**6, lambda n, m: n),
    "addition": Operation("sums", "{} + {}", lambda x, m: x.sum(1, keepdim=True), 10**6, lambda n, m: 2 * n),
    "multiplication": Operation("products", "{} * {}", lambda x, m: x.prod(1, keepdim=True), 10**3, lambda n, m: n * n),
    "modular-addition": Operation(
        "remainders of sums", "{} + {}", lambda x, m: x.sum(1, keepdim=True) % m, 10**3, lambda n, m: m - 1
    ),
    "modular-multiplication": Operation(
        "remainders of products", "{} * {}", lambda x, m: x.prod(1, keepdim=True) % m, 10**3, lambda n, m: m - 1
    ),
    "fractions": Operation(
        "sums of fractions in lowest terms", "{}/{} + {}/{}", _sum_of_fractions, 30, lambda n, m: 2 * n * n, outcomes=2
    ),
}


class Integers(Numerals):
    """One of the operations above."""

    exact, at_once = True, 2**14

    def __init__(
        self, name: str, *, base: int = 10, largest: int | None = None, modulus: int = 97, classes: int = 100
    ) -> None:
        super().__init__(base)
        self.name, self.how, self.modulus = name, OPERATIONS[name], modulus
        self.largest = largest or self.how.largest
        self.most = self.how.most(self.largest, modulus)
        if max(self.most, self.largest**2) > LARGEST:
            raise BadSetting(
                f"data.max_operand={self.largest}: outcomes of {name} would leave 64 bits; take a smaller one"
            )
        operands = self.how.operands
        self.classes = min(classes, self.largest)
        self.widths = operands * self.width(self.largest), self.how.outcomes * self.width(self.most)
        self.space = float(self.largest**operands) / 2  # whatever stands first
        self.by_outcome = name == "gcd"
        self.grouped_by = "gcd" if name == "gcd" else "digits"
        modulo = f" modulo {modulus:,}" if name.startswith("modular") else ""
        self.told = f"{self.how.told}{modulo} of numbers up to {self.largest:,} in base {base:,}"

    # --- drawn --------------------------------------------------------------------------------------------------------

    def draw(self, chance: Chance, n: int, law: Law, reach: Tensor | None = None) -> Drawn:
        most = torch.full((n,), float(self.largest), dtype=torch.float64, device=chance.device)
        most = most if reach is None else (most**reach).clamp_min(2)
        x = self._by_outcome(chance, n, law, most) if self.by_outcome else self._operands(chance, law, most)
        y = self.how.answer(x, self.modulus)
        sides = [self._written(x, self.largest), self._written(y, self.most)]
        group = y[:, 0] if self.by_outcome else sides[1][1] - self.how.outcomes
        lengths = torch.stack([many for _, many in sides], 1)
        return Drawn(sides[0][0], sides[1][0], lengths, keyed(self._sorted(x)), group)

    def _sorted(self, x: Tensor) -> Tensor:  # n k -> n 2
        """The two things that are added, multiplied or divided as a number each, the smaller first."""
        parts = x.unflatten(1, (2, -1)).unbind(2)  # of fractions those above, and those below
        whole = sum(part * (self.largest + 1) ** place for place, part in enumerate(parts))
        return torch.as_tensor(whole).sort(1).values

    def _written(self, x: Tensor, most: int) -> tuple[Tensor, Tensor]:
        width = self.width(most)
        return joined([self.write(column, width) for column in x.unbind(1)])

    def _operands(self, chance: Chance, law: Law, most: Tensor, tries: int = 1) -> Tensor:
        """Numbers from 1 to `most`, all of an example by one distribution: n -> n (tries * operands)."""
        n, u = len(most), chance(len(most), tries * self.how.operands)
        logs = chance.which(law.operands, ("uniform", "log-uniform"), n)[:, None] == 1
        top = most[:, None].floor()
        even, by_size = u * top, (u * (top + 1).log()).exp() - 1
        return torch.minimum(torch.where(logs, by_size, even).floor() + 1, top).long()

    def _by_outcome(self, chance: Chance, n: int, law: Law, most: Tensor) -> Tensor:
        """Two numbers, their greatest common divisor drawn first, unless it is to be as it comes: n 2."""
        names = ("natural", "uniform", "log-uniform")
        if not law.outcomes.keys() - {"natural"}:
            return self._operands(chance, law, most)
        way, u = chance.which(law.outcomes, names, n), chance(n)
        top = most.floor().clamp_max(self.classes)
        weights = 1 / torch.arange(1, self.classes + 1, dtype=torch.float64, device=most.device)
        ends = weights.cumsum(0)  # of the outcomes 1, 2, ...: as often as 1 / outcome
        by_size = torch.searchsorted(ends, u * ends[top.long() - 1], right=True).double().clamp_max(top - 1)
        k = torch.where(way == 1, (u * top).floor(), by_size).long() + 1
        k = torch.where(way == 0, 1, k)
        pairs = self._operands(chance, law, most / k, TRIES).view(n, TRIES, 2)
        shared = torch.gcd(pairs[..., 0], pairs[..., 1])  # n TRIES
        alone = (shared == 1).long()
        pick = torch.where(way == 0, 0, alone.argmax(1))
        x = pairs[torch.arange(n, device=k.device), pick]
        left = torch.where(way == 0, 1, shared.gather(1, pick[:, None])[:, 0])  # of a row where no try was alone
        return x // left[:, None] * k[:, None]

    # --- as people write it -------------------------------------------------------------------------------------------

    def read(self, text: str) -> list[int]:
        ids = self._read(text, self.how.operands, self.how.written)
        if self.name == "fractions" and 0 in self._typed(text)[1::2]:
            raise refuse(text, f"maths:{self.name}", "lower numbers that are not 0, such as '1/2 + 1/3'")
        return ids

    def read_target(self, text: str) -> list[int]:
        return self._read(text, self.how.outcomes, self._answer)

    @property
    def _answer(self) -> str:
        return "{}/{}" if self.how.outcomes == 2 else "{}"

    @staticmethod
    def _typed(text: str) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", text[:LETTERS])]

    def _read(self, text: str, many: int, written: str) -> list[int]:
        found = self._typed(text)
        if not TYPED.fullmatch(text) or len(found) != many or text[LETTERS:]:
            example = written.format(*(160, 120, 7, 9)[:many])
            takes = f"{many} whole number{'s' * (many > 1)}, such as {example!r}"
            raise refuse(text, f"maths:{self.name}", takes)
        return [i for number in found for i in self.ids(number)]

    def asked(self, ids: Iterable[int]) -> str:
        return self.how.written.format(*self.numbers(ids) or ())

    def said(self, ids: Iterable[int]) -> str:
        given = list(ids)
        found = self.numbers(given)
        many = self.how.outcomes
        return self._answer.format(*found) if found and len(found) == many else plain(self.words, given)

    def right(self, source: str, said: str, true: str) -> bool:
        return said == true

    def truth(self, source: str) -> str | None:
        found = self._typed(source)
        if max(found) > self.largest:  # whose outcome may leave 64 bits
            return None
        return self._answer.format(*self.how.answer(torch.tensor([found]), self.modulus)[0].tolist())


# --- what a base gives away -------------------------------------------------------------------------------------------


def rule(k: int, base: int) -> int:
    """The largest divisor of k whose primes all divide the base: the last digits tell whether it divides a number."""
    found, rest = 1, k
    while (shared := math.gcd(rest, base)) > 1:
        found, rest = found * shared, rest // shared
    return found
