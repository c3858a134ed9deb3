"""Matrix problems: transposition, and eigenvalues of symmetric matrices. Numbers have three significant digits.

encoding   3.14 is        tokens
P10        + 3 1 4 E-2    2 signs, 10 digits, exponents
P1000      + 314 E-2      2 signs, 1,000 mantissas, exponents
B1999      314 E-2        1,999 signed mantissas, exponents
"""

import re
from collections.abc import Iterable

import torch
from torch import Tensor

from .problem import FIRST_ID, Distribution, Examples, Problem, UniformRng, hash_rows

MIN_EXPONENT, MAX_EXPONENT = -9, 9
TOLERANCE = 0.05  # of eigenvalues: sum of the absolute errors relative to the sum of the absolute values
LOG_DECADES = 3  # range of log-uniform entries below the maximum
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


class MatrixProblem(Problem):
    """Square matrices of one size. A number is a sign, a mantissa and an exponent."""

    chunk_size, grouped_by = 2**12, "dimension"

    def __init__(self, name: str, *, dimension: int, encoding: str, max_operand: float | None = None) -> None:
        self.name, self.n, self.encoding, self.max_operand = name, dimension, encoding, max_operand or 10
        signs = [] if encoding == "B1999" else ["+", "-"]
        mantissas = {"P10": range(10), "P1000": range(1000), "B1999": range(-999, 1000)}[encoding]
        exponents = [f"E{e}" for e in range(MIN_EXPONENT, MAX_EXPONENT + 1)]
        self.tokens = [*signs, *map(str, mantissas), *exponents]
        self.tokens_per_number = {"P10": 5, "P1000": 3, "B1999": 2}[encoding]
        self.mantissa_id = FIRST_ID + len(signs)  # of the first mantissa
        self.exponent_id = FIRST_ID + len(self.tokens) - 1 - MAX_EXPONENT  # of E0
        self.exact = name == "transposition"
        n_entries = dimension * dimension
        n_outcomes = n_entries if self.exact else dimension
        self.max_lengths = n_entries * self.tokens_per_number, n_outcomes * self.tokens_per_number
        self.n_distinct = 1e3**n_entries
        what = "transposed matrices" if self.exact else "eigenvalues of symmetric matrices"
        self.description = f"{what}, {dimension} x {dimension}, entries up to {self.max_operand:g} as {encoding}"

    # --- numbers ------------------------------------------------------------------------------------------------------

    def to_scientific(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The mantissa, from -999 to 999, and the exponent of each number."""
        size = x.abs().clamp_max(999 * 10.0**MAX_EXPONENT)
        e = size.clamp_min(10.0 ** (MIN_EXPONENT - 1)).log10().floor().long() - 2
        m = (size / 10.0**e).round().long()
        m, e = torch.where(m == 1000, 100, m), torch.where(m == 1000, e + 1, e)
        is_zero = (size == 0) | (e < MIN_EXPONENT)
        return torch.where(is_zero, 0, m * x.sign().long()), torch.where(is_zero, 0, e.clamp_max(MAX_EXPONENT))

    def encode_reals(self, m: Tensor, e: Tensor) -> Tensor:  # n k, n k -> n (k tokens)
        sign, size, exponent = FIRST_ID + (m < 0).long(), m.abs(), self.exponent_id + e
        ids = {
            "P10": [sign, *(self.mantissa_id + size // d % 10 for d in (100, 10, 1)), exponent],
            "P1000": [sign, self.mantissa_id + size, exponent],
            "B1999": [self.mantissa_id + 999 + m, exponent],
        }[self.encoding]
        return torch.stack(ids, -1).flatten(1)

    def decode_reals(self, ids: Iterable[int]) -> list[float] | None:
        """The numbers of these ids; None if they are not valid."""
        end_id = FIRST_ID + len(self.tokens)
        tokens = [self.tokens[i - FIRST_ID] if FIRST_ID <= i < end_id else "" for i in map(int, ids)]
        numbers = []
        for start in range(0, len(tokens), self.tokens_per_number):
            *mantissa, exponent = tokens[start : start + self.tokens_per_number]
            text, is_complete = "".join(mantissa), len(mantissa) + 1 == self.tokens_per_number
            if not is_complete or not exponent.startswith("E") or not re.fullmatch(r"[-+]?\d+", text):
                return None
            numbers.append(float(f"{text}{exponent}"))
        return numbers

    # --- draw ---------------------------------------------------------------------------------------------------------

    def draw(self, rng: UniformRng, n: int, distribution: Distribution, difficulty: Tensor | None = None) -> Examples:
        u = rng(n, self.n, self.n) * 2 - 1
        is_log = rng.choose(distribution.operands, ("uniform", "log-uniform"), n)[:, None, None] == 1
        x = torch.where(is_log, u.sign() * 10.0 ** (LOG_DECADES * (u.abs() - 1)), u) * self.max_operand
        x = x if difficulty is None else x * difficulty[:, None, None]
        x = x if self.exact else x.triu() + x.triu(1).mT
        m, e = self.to_scientific(x)
        if self.exact:
            target = self.encode_reals(m.mT.flatten(1), e.mT.flatten(1))
        else:  # of the rounded numbers
            eigenvalues = torch.linalg.eigvalsh(m.double() * 10.0 ** e.double()).flip(1)
            target = self.encode_reals(*self.to_scientific(eigenvalues))
        source = self.encode_reals(m.flatten(1), e.flatten(1))
        lengths = torch.tensor(self.max_lengths, device=u.device).expand(n, 2)
        group = torch.full((n,), self.n, device=u.device)
        return Examples(source, target, lengths, hash_rows(source), group)

    # --- text ---------------------------------------------------------------------------------------------------------

    def parse_source(self, text: str) -> list[int]:
        ids = self._parse(text, self.n * self.n)
        x = torch.tensor([float(number) for number in NUMBER.findall(text)]).view(self.n, self.n)
        if not self.exact and not torch.equal(x, x.mT):
            example = "; ".join(" ".join("2" if i == j else "1" for j in range(self.n)) for i in range(self.n))
            raise self.parse_error(text, f"a symmetric matrix, such as {example!r}")
        return ids

    def parse_target(self, text: str) -> list[int]:
        return self._parse(text, self.n * self.n if self.exact else self.n)

    def _parse(self, text: str, n_numbers: int) -> list[int]:
        numbers = NUMBER.findall(text)
        if len(numbers) != n_numbers or NUMBER.sub("", text).strip(" ;,\t[]"):
            example = "; ".join([" ".join(["1.5"] * self.n)] * (n_numbers // self.n))
            raise self.parse_error(text, f"{n_numbers} numbers, such as {example!r}")
        x = torch.tensor([[float(number) for number in numbers]], dtype=torch.float64)
        return [int(i) for i in self.encode_reals(*self.to_scientific(x))[0]]

    def format_source(self, ids: Iterable[int]) -> str:
        numbers = self.decode_reals(ids) or []
        rows = [numbers[start : start + self.n] for start in range(0, len(numbers), self.n)]
        return "; ".join(" ".join(f"{x:g}" for x in row) for row in rows)

    def format_target(self, ids: Iterable[int]) -> str:
        target_ids = list(ids)
        return self.format_source(target_ids) if self.decode_reals(target_ids) else self.join_tokens(target_ids)

    def is_correct(self, source: str, answer: str, reference: str) -> bool:
        if answer == reference or self.exact:
            return answer == reference
        values, expected = ([float(x) for x in NUMBER.findall(text)] for text in (answer, reference))
        error = sum(abs(a - b) for a, b in zip(values, expected, strict=False))
        return len(values) == len(expected) and error <= TOLERANCE * sum(map(abs, expected))
