"""Integer problems: greatest common divisors, sums, products, modular arithmetic, sums of fractions."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from harken.errors import BadSetting

from .problem import Distribution, Examples, IntegerTokens, UniformRng, concat_rows, hash_rows

COPRIME_TRIES = 6  # candidate pairs for coprime operands; two large numbers are coprime with probability 0.61
INPUT = re.compile(r"[\s\d+*/,()]*")
MAX_INPUT = 4000  # characters; Python does not parse longer integers
MAX_INTEGER = 2**62  # fits into 64 bits with room for a sum


@dataclass(frozen=True)
class Operation:
    """`compute` maps operands to outcomes: n k -> n o."""

    description: str
    template: str  # of a source as typed
    compute: Callable[[Tensor], Tensor]
    default_max: int  # operand
    max_outcome: Callable[[int], int] | None = None  # given the largest operand; None: modulo data.modulus
    n_outcomes: int = 1

    @property
    def n_operands(self) -> int:
        return self.template.count("{}")


def _gcd(x: Tensor) -> Tensor:
    return torch.gcd(x[:, 0], x[:, 1])[:, None]


def _sum_of_fractions(x: Tensor) -> Tensor:
    a, b, c, d = x.unbind(1)
    numerator, denominator = a * d + c * b, b * d
    divisor = torch.gcd(numerator, denominator)
    return torch.stack([numerator // divisor, denominator // divisor], 1)


OPERATIONS = {
    "gcd": Operation("greatest common divisors", "{} {}", _gcd, 10**6, lambda n: n),
    "addition": Operation("sums", "{} + {}", lambda x: x.sum(1, keepdim=True), 10**6, lambda n: 2 * n),
    "multiplication": Operation("products", "{} * {}", lambda x: x.prod(1, keepdim=True), 10**3, lambda n: n * n),
    "modular-addition": Operation("sums", "{} + {}", lambda x: x.sum(1, keepdim=True), 10**3),
    "modular-multiplication": Operation("products", "{} * {}", lambda x: x.prod(1, keepdim=True), 10**3),
    "fractions": Operation(
        "reduced sums of fractions", "{}/{} + {}/{}", _sum_of_fractions, 30, lambda n: 2 * n * n, n_outcomes=2
    ),
}


class IntegerProblem(IntegerTokens):
    """One of the operations above."""

    exact, chunk_size = True, 2**14

    def __init__(
        self, name: str, *, base: int = 10, max_operand: int | None = None, modulus: int = 97, classes: int = 100
    ) -> None:
        super().__init__(base)
        self.name, self.operation, self.modulus = name, OPERATIONS[name], modulus
        self.max_operand = max_operand or self.operation.default_max
        max_outcome = self.operation.max_outcome
        self.max_outcome = max_outcome(self.max_operand) if max_outcome else modulus - 1
        if max(self.max_outcome, self.max_operand**2) > MAX_INTEGER:
            raise BadSetting(f"data.max_operand={self.max_operand}: outcomes of {name} exceed 64 bits; reduce it")
        n_operands = self.operation.n_operands
        self.classes = min(classes, self.max_operand)
        target_length = self.operation.n_outcomes * self.n_tokens(self.max_outcome)
        self.max_lengths = n_operands * self.n_tokens(self.max_operand), target_length
        self.n_distinct = float(self.max_operand**n_operands) / 2  # the operations are commutative
        self.by_outcome = name == "gcd"
        self.grouped_by = "gcd" if name == "gcd" else "digits"
        modulo = "" if max_outcome else f" modulo {modulus:,}"
        operands = f"of integers up to {self.max_operand:,} in base {base:,}"
        self.description = f"{self.operation.description}{modulo} {operands}"

    # --- draw ---------------------------------------------------------------------------------------------------------

    def draw(self, rng: UniformRng, n: int, distribution: Distribution, difficulty: Tensor | None = None) -> Examples:
        limit = torch.full((n,), float(self.max_operand), dtype=torch.float64, device=rng.device)
        limit = limit if difficulty is None else (limit**difficulty).clamp_min(2)
        draw = self._draw_by_outcome if self.by_outcome else self._draw_operands
        x = draw(rng, distribution, limit)
        y = self._compute(x)
        source, source_lengths = self._encode(x, self.max_operand)
        target, target_lengths = self._encode(y, self.max_outcome)
        group = y[:, 0] if self.by_outcome else target_lengths - self.operation.n_outcomes
        lengths = torch.stack([source_lengths, target_lengths], 1)
        return Examples(source, target, lengths, hash_rows(self._sort_operands(x)), group)

    def _compute(self, x: Tensor) -> Tensor:
        y = self.operation.compute(x)
        return y if self.operation.max_outcome else y % self.modulus

    def _sort_operands(self, x: Tensor) -> Tensor:  # n k -> n 2
        """The two operands (or fractions, as one integer each), the smaller first."""
        parts = x.unflatten(1, (2, -1)).unbind(2)  # of fractions the numerators and the denominators
        codes = sum(part * (self.max_operand + 1) ** place for place, part in enumerate(parts))
        return torch.as_tensor(codes).sort(1).values

    def _encode(self, x: Tensor, max_value: int) -> tuple[Tensor, Tensor]:
        width = self.n_tokens(max_value)
        return concat_rows([self.encode_integers(column, width) for column in x.unbind(1)])

    def _draw_operands(self, rng: UniformRng, distribution: Distribution, limit: Tensor, tries: int = 1) -> Tensor:
        """Integers from 1 to `limit`, one distribution per example: n -> n (tries * operands)."""
        n, u = len(limit), rng(len(limit), tries * self.operation.n_operands)
        is_log = rng.choose(distribution.operands, ("uniform", "log-uniform"), n)[:, None] == 1
        top = limit[:, None].floor()
        uniform, log_uniform = u * top, (u * (top + 1).log()).exp() - 1
        return torch.minimum(torch.where(is_log, log_uniform, uniform).floor() + 1, top).long()

    def _draw_by_outcome(self, rng: UniformRng, distribution: Distribution, limit: Tensor) -> Tensor:
        """Two operands; their gcd is drawn first, unless the distribution of outcomes is natural: n 2."""
        names = ("natural", "uniform", "log-uniform")
        if not distribution.outcomes.keys() - {"natural"}:
            return self._draw_operands(rng, distribution, limit)
        n = len(limit)
        choice, u = rng.choose(distribution.outcomes, names, n), rng(n)
        top = limit.floor().clamp_max(self.classes)
        weights = 1 / torch.arange(1, self.classes + 1, dtype=torch.float64, device=limit.device)
        cumulative = weights.cumsum(0)  # the outcomes 1, 2, ... have weight 1 / outcome
        log_uniform = torch.searchsorted(cumulative, u * cumulative[top.long() - 1], right=True)
        gcd = torch.where(choice == 1, (u * top).floor(), log_uniform.double().clamp_max(top - 1)).long() + 1
        gcd = torch.where(choice == 0, 1, gcd)
        pairs = self._draw_operands(rng, distribution, limit / gcd, COPRIME_TRIES).view(n, COPRIME_TRIES, 2)
        divisors = torch.gcd(pairs[..., 0], pairs[..., 1])  # n tries
        pick = torch.where(choice == 0, 0, (divisors == 1).long().argmax(1))
        x = pairs[torch.arange(n, device=gcd.device), pick]
        divisor = torch.where(choice == 0, 1, divisors.gather(1, pick[:, None])[:, 0])  # 1 unless all tries failed
        return x // divisor[:, None] * gcd[:, None]

    # --- text ---------------------------------------------------------------------------------------------------------

    def parse_source(self, text: str) -> list[int]:
        ids = self._parse(text, self.operation.n_operands, self.operation.template)
        if self.name == "fractions" and 0 in self._integers_in(text)[1::2]:
            raise self.parse_error(text, "denominators other than 0, such as '1/2 + 1/3'")
        return ids

    def parse_target(self, text: str) -> list[int]:
        return self._parse(text, self.operation.n_outcomes, self._answer_template)

    @property
    def _answer_template(self) -> str:
        return "{}/{}" if self.operation.n_outcomes == 2 else "{}"

    @staticmethod
    def _integers_in(text: str) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", text[:MAX_INPUT])]

    def _parse(self, text: str, n_numbers: int, template: str) -> list[int]:
        numbers = self._integers_in(text)
        if not INPUT.fullmatch(text) or len(numbers) != n_numbers or text[MAX_INPUT:]:
            example = template.format(*(160, 120, 7, 9)[:n_numbers])
            raise self.parse_error(text, f"{n_numbers} integer{'s' * (n_numbers > 1)}, such as {example!r}")
        return [i for number in numbers for i in self.encode_integer(number)]

    def format_source(self, ids: Iterable[int]) -> str:
        return self.operation.template.format(*self.decode_integers(ids) or ())

    def format_target(self, ids: Iterable[int]) -> str:
        target_ids = list(ids)
        numbers = self.decode_integers(target_ids)
        if numbers and len(numbers) == self.operation.n_outcomes:
            return self._answer_template.format(*numbers)
        return self.join_tokens(target_ids)

    def solve(self, source: str) -> str | None:
        operands = self._integers_in(source)
        if max(operands) > self.max_operand:  # the outcome may exceed 64 bits
            return None
        return self._answer_template.format(*self._compute(torch.tensor([operands]))[0].tolist())


def base_divisor(k: int, base: int) -> int:
    """The largest divisor of k with only prime factors of the base: the last digits reveal whether it divides."""
    divisor, rest = 1, k
    while (common := math.gcd(rest, base)) > 1:
        divisor, rest = divisor * common, rest // common
    return divisor
