"""Problems of matrices: transposition, and the eigenvalues of symmetric ones. Numbers have three digits that count.

encoding   3.14 is        words
P10        + 3 1 4 E-2    2 signs, 10 digits, the exponents
P1000      + 314 E-2      2 signs, 1,000 mantissas, the exponents
B1999      314 E-2        1,999 mantissas with their signs, the exponents
"""

import re
from collections.abc import Iterable

import torch
from torch import Tensor

from .problem import FIRST, Chance, Drawn, Law, keyed, plain, refuse

LOW, HIGH = -9, 9  # exponents
TOLERANCE = 0.05  # of eigenvalues: the sum of the errors, as a share of the sum of their sizes
SPREAD = 3  # decades of log-uniform entries, below the largest
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


class Reals:
    """Real numbers as tokens: sign, mantissa, exponent."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        signs = [] if encoding == "B1999" else ["+", "-"]
        mantissas = {"P10": range(10), "P1000": range(1000), "B1999": range(-999, 1000)}[encoding]
        self.words = [*signs, *map(str, mantissas), *(f"E{e}" for e in range(LOW, HIGH + 1))]
        self.tokens = {"P10": 5, "P1000": 3, "B1999": 2}[encoding]  # of a number
        self.first, self.last = FIRST + len(signs), FIRST + len(self.words) - 1 - HIGH  # the first mantissa; E0

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The mantissa, from -999 to 999, and the exponent of each number."""
        size = x.abs().clamp_max(999 * 10.0**HIGH)
        e = size.clamp_min(10.0 ** (LOW - 1)).log10().floor().long() - 2
        m = (size / 10.0**e).round().long()
        m, e = torch.where(m == 1000, 100, m), torch.where(m == 1000, e + 1, e)
        none = (size == 0) | (e < LOW)
        return torch.where(none, 0, m * x.sign().long()), torch.where(none, 0, e.clamp_max(HIGH))

    def value(self, m: Tensor, e: Tensor) -> Tensor:
        return m.double() * 10.0 ** e.double()

    def write(self, m: Tensor, e: Tensor) -> Tensor:  # n k, n k -> n (k tokens)
        sign, size, power = FIRST + (m < 0).long(), m.abs(), self.last + e
        digits = {
            "P10": [sign, *(self.first + size // d % 10 for d in (100, 10, 1)), power],
            "P1000": [sign, self.first + size, power],
            "B1999": [self.first + 999 + m, power],
        }[self.encoding]
        return torch.stack(digits, -1).flatten(1)

    def numbers(self, ids: Iterable[int]) -> list[float] | None:
        """The numbers that these tokens are; None if they are none."""
        words = [self.words[i - FIRST] if FIRST <= i < FIRST + len(self.words) else "" for i in map(int, ids)]
        found = []
        for at in range(0, len(words), self.tokens):
            *mantissa, power = words[at : at + self.tokens]
            text = "".join(mantissa)
            if len(mantissa) + 1 < self.tokens or not power.startswith("E") or not re.fullmatch(r"[-+]?\d+", text):
                return None
            found.append(float(f"{text}{power}"))
        return found


class Matrices(Reals):
    """Matrices of one size."""

    at_once, by_outcome, grouped_by = 2**12, False, "dimension"

    def __init__(self, name: str, *, dimension: int, encoding: str, largest: float | None = None) -> None:
        super().__init__(encoding)
        self.name, self.n, self.largest = name, dimension, largest or 10
        self.exact = name == "transposition"
        entries = dimension * dimension
        self.widths = entries * self.tokens, (entries if self.exact else dimension) * self.tokens
        self.space = 1e3**entries
        what = "transposed matrices" if self.exact else "eigenvalues of symmetric matrices"
        self.told = f"{what}, {dimension} x {dimension}, entries up to {self.largest:g} as {encoding}"

    def draw(self, chance: Chance, n: int, law: Law, reach: Tensor | None = None) -> Drawn:
        u = chance(n, self.n, self.n) * 2 - 1
        logs = chance.which(law.operands, ("uniform", "log-uniform"), n)[:, None, None] == 1
        x = torch.where(logs, u.sign() * 10.0 ** (SPREAD * (u.abs() - 1)), u) * self.largest
        x = x if reach is None else x * reach[:, None, None]
        x = x if self.exact else x.triu() + x.triu(1).mT
        m, e = self.parts(x)
        if self.exact:
            target = self.write(m.mT.flatten(1), e.mT.flatten(1))
        else:  # of the numbers as they are written
            target = self.write(*self.parts(torch.linalg.eigvalsh(self.value(m, e)).flip(1)))
        source = self.write(m.flatten(1), e.flatten(1))
        lengths = torch.tensor(self.widths, device=u.device).expand(n, 2)
        return Drawn(source, target, lengths, keyed(source), torch.full((n,), self.n, device=u.device))

    # --- as people write it -------------------------------------------------------------------------------------------

    def read(self, text: str) -> list[int]:
        ids = self._read(text, self.n * self.n)
        x = torch.tensor([float(number) for number in NUMBER.findall(text)]).view(self.n, self.n)
        if not self.exact and not torch.equal(x, x.mT):
            example = "; ".join(" ".join("2" if i == j else "1" for j in range(self.n)) for i in range(self.n))
            raise refuse(text, f"maths:{self.name}", f"a symmetric matrix, such as {example!r}")
        return ids

    def read_target(self, text: str) -> list[int]:
        return self._read(text, self.n * self.n if self.exact else self.n)

    def _read(self, text: str, many: int) -> list[int]:
        found = NUMBER.findall(text)
        if len(found) != many or NUMBER.sub("", text).strip(" ;,\t[]"):
            example = "; ".join([" ".join(["1.5"] * self.n)] * (many // self.n))
            raise refuse(text, f"maths:{self.name}", f"{many} numbers, such as {example!r}")
        x = torch.tensor([[float(number) for number in found]], dtype=torch.float64)
        return [int(i) for i in self.write(*self.parts(x))[0]]

    def asked(self, ids: Iterable[int]) -> str:
        found = self.numbers(ids) or []
        rows = [found[at : at + self.n] for at in range(0, len(found), self.n)]
        return "; ".join(" ".join(f"{x:g}" for x in row) for row in rows)

    def said(self, ids: Iterable[int]) -> str:
        given = list(ids)
        return self.asked(given) if self.numbers(given) else plain(self.words, given)

    def right(self, source: str, said: str, true: str) -> bool:
        if said == true or self.exact:
            return said == true
        mine, theirs = ([float(x) for x in NUMBER.findall(text)] for text in (said, true))
        error = sum(abs(a - b) for a, b in zip(mine, theirs, strict=False))
        return len(mine) == len(theirs) and error <= TOLERANCE * sum(map(abs, theirs))

    def truth(self, source: str) -> str | None:
        return None
