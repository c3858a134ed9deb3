"""Mathematics as translation: a problem and its answer, both as tokens. Nothing is read: examples are drawn.

Fresh ones for each step of the training, by the distribution that the settings say; those held out are drawn from seeds
of their own, always by the same distribution, and never learned from.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from harken.data.batch import dice
from harken.data.pairs.files import one
from harken.data.pairs.source import Pairs
from harken.data.tables.read import Flaws
from harken.data.tokenizers import tokenizer as tokens
from harken.data.tokenizers.pairs import Ids, Side, Tokenizers
from harken.errors import BadInput, did_you_mean
from harken.events import Listener, silent
from harken.settings import Part

from .batch import Fresh, Order
from .integers import Integers
from .integrals import Integrals
from .matrices import Matrices
from .problem import Chance, Drawn, Law, Problem

SCHEME = "maths:"  # before the name of a problem, where data is named
Name = Literal[
    "gcd",
    "addition",
    "multiplication",
    "modular-addition",
    "modular-multiplication",
    "fractions",
    "transposition",
    "eigenvalues",
    "integrals",
]
PROBLEMS: tuple[str, ...] = get_args(Name)
SEEDS = {"test": 1, "valid": 2}
ROUNDS, MORE = 50, 2  # times that held-out examples are drawn until there are enough, and how many more than needed
MOST = 0.1  # of all examples there are, held out for each split
Operands = Literal["uniform", "log-uniform"]
Outcomes = Literal["natural", "uniform", "log-uniform"]


class MathsSource(Part):
    """The settings of problems of mathematics."""

    task: ClassVar[str] = "solve"
    model: ClassVar[str] = "transformer"
    of: ClassVar[str] = " of pairs"

    kind: Literal["maths"] = "maths"
    operation: Name = Field("gcd", description="the problem; the data maths:gcd is this one")
    base: int = Field(10, ge=2, le=100_000, description="in which numbers are written; a digit is a token")
    max_operand: int | None = Field(None, ge=2, description="largest operand; none: the problem's own")
    operands: Operands | dict[Operands, float] = Field(
        "uniform", description="how operands are drawn; log-uniform: small ones as often as large; a table: a mixture"
    )
    outcomes: Outcomes | dict[Outcomes, float] = Field(
        "natural", description="gcd: how its outcomes up to data.classes are drawn; natural: as they come; or a mixture"
    )
    classes: int = Field(100, ge=1, description="gcd: outcomes up to this one are judged one by one")
    modulus: int = Field(97, ge=2, description="of modular problems")
    dimension: int = Field(3, ge=1, le=20, description="rows of matrices, and columns")
    encoding: Literal["P10", "P1000", "B1999"] = Field(
        "P1000", description="of the numbers in matrices: +, 3, 1, 4, E-2; or +, 314, E-2; or 314, E-2"
    )
    eval_operands: Operands = Field("uniform", description="how the operands of held-out examples are drawn")
    examples: int = Field(300_000, ge=1, description="fresh examples that are called an epoch")
    curriculum: int = Field(0, ge=0, description="epochs in which operands grow to the largest; 0: none")
    shuffle_curriculum: bool = Field(False, description="the examples of the curriculum in any order")
    valid: int = Field(2000, ge=0, description="examples held out while learning")
    test: int = Field(10_000, ge=0, description="examples kept for the last judgement")
    sha256: str | None = Field(None, description="fingerprint of the held-out examples; others are told of")

    @field_validator("operands", "outcomes")
    @classmethod
    def _weighed(cls, given: Any) -> Any:
        weights = given.values() if isinstance(given, dict) else (1.0,)
        if not all(0 <= weight < np.inf for weight in weights) or not sum(weights) > 0:
            raise ValueError("weights are numbers from 0 on, and one of them is above 0")
        return given

    @field_validator("outcomes")
    @classmethod
    def _drawn_first(cls, given: Any, info: ValidationInfo) -> Any:
        if given != "natural" and info.data.get("operation") != "gcd":
            raise ValueError("only the outcomes of gcd can be drawn first; set data.outcomes=natural")
        return given

    def problem(self) -> Problem:
        if self.operation == "integrals":
            return Integrals(self.base)
        if self.operation in ("transposition", "eigenvalues"):
            size: dict[str, Any] = {"dimension": self.dimension, "encoding": self.encoding, "largest": self.max_operand}
            return Matrices(self.operation, **size)
        how: dict[str, Any] = {
            "base": self.base,
            "largest": self.max_operand,
            "modulus": self.modulus,
            "classes": self.classes,
        }
        return Integers(self.operation, **how)

    def law(self) -> Law:
        """How training examples are drawn."""
        operands, outcomes = (x if isinstance(x, dict) else {x: 1.0} for x in (self.operands, self.outcomes))
        return Law(operands, outcomes)  # type: ignore[arg-type]

    def located(self) -> "MathsSource":
        return self

    def words(self, folder: Path) -> "MathsTokens":
        """The tokens that a run kept."""
        kept = Tokenizers.load(folder)
        return MathsTokens(kept.source, kept.target, self.problem())

    def open(
        self, *, stateful: bool = False, tokenizer: "MathsTokens | None" = None, listen: Listener = silent
    ) -> "MathsData":
        """Draw the held-out examples."""
        problem = self.problem()
        known = tokenizer or MathsTokens.of(problem)
        drawn, taken = dict[str, Drawn](), torch.empty(0, dtype=torch.long)
        for split, seed in SEEDS.items():
            if many := min(getattr(self, split), int(problem.space * MOST)):
                drawn[split] = self._held(problem, many, seed, taken)
                taken = torch.cat([taken, drawn[split].key]).sort().values
        splits = {split: known.pairs(drawn[split]) for split in reversed(SEEDS) if split in drawn}
        digest = hashlib.sha256(b"".join(splits[split].source.ids.tobytes() for split in splits)).hexdigest()
        if self.sha256 not in (None, digest):
            listen("notice", text=f"{SCHEME}{self.operation}: other examples are held out than data.sha256 says")
        return MathsData(self, problem, known, splits, taken, digest)

    def _held(self, problem: Problem, many: int, seed: int, taken: Tensor) -> Drawn:
        """So many different examples that are not taken, if there are: of each class as many, where it is drawn."""
        law = Law({self.eval_operands: 1.0}, {"uniform" if problem.by_outcome else "natural": 1.0})
        chance, parts, known, found = Chance(dice(0, 6, seed)), list[Drawn](), taken, 0
        for _ in range(ROUNDS):
            some = problem.draw(chance, min(MORE * many, problem.at_once), law)
            new = torch.from_numpy(np.unique(some.key.numpy(), return_index=True)[1]).sort().values
            some = some.some(new[~torch.isin(some.key[new], known)])
            parts.append(some)
            known, found = torch.cat([known, some.key]), found + len(some.key)
            if found >= many:
                break
        return _stacked(parts).some(slice(many))

    def other(
        self, path: str, split: str, *, tokenizer: "MathsTokens", stateful: bool = False, listen: Listener = silent
    ) -> "MathsData":
        """The same data with other examples as one of its splits: a table of problems and answers."""
        opened = self.open(tokenizer=tokenizer, listen=listen)
        if path.startswith(SCHEME):
            if named(path) != self.operation:
                raise BadInput(f"{path}: this run learned {SCHEME}{self.operation}; judge it by that, or by a table")
            return opened
        flaws = Flaws()
        texts = dict(one(path, None, None).pairs(flaws))
        if flaws.count:
            listen("notice", text=str(flaws))
        try:
            return replace(opened, splits={**opened.splits, split: tokenizer.typed(texts)})
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from None


def named(what: str) -> str:
    """The problem that data is named after: maths:gcd."""
    name = what.removeprefix(SCHEME)
    if name not in PROBLEMS:
        near = did_you_mean(name, PROBLEMS)
        raise BadInput(f"{what}: there is no such problem; accepted: {', '.join(SCHEME + p for p in PROBLEMS)}.{near}")
    return name


def _stacked(parts: list[Drawn]) -> Drawn:
    names = ("source", "target", "lengths", "key", "group")
    return Drawn(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, eq=False)
class MathsTokens(Tokenizers):
    """The tokens of a problem, the same on both sides; texts are what people type and read."""

    problem: Problem

    @classmethod
    def of(cls, problem: Problem) -> "MathsTokens":
        words = " ".join(problem.words)  # each once: they keep their order, behind <unk> and <eos>
        made = tokens.train("word", lambda: [words], len(problem.words) + 2)
        return cls(made, made, problem)

    def encode_source(self, text: str) -> Ids:
        return np.array([*self.problem.read(text), self.source.vocab])

    def missing(self, text: str, tokenizer: Any = None) -> list[str]:
        return []  # what cannot be read is refused

    def encode_target(self, text: str) -> Ids:
        try:
            return np.array(self.problem.read_target(text))
        except BadInput:
            if self.target.missing(text):
                raise
            return self.target.encode(text).astype(np.int64)  # what is no answer is told token by token

    def decode_source(self, ids: Iterable[int]) -> str:
        return self.problem.asked(ids)

    def decode_target(self, ids: Iterable[int]) -> str:
        found = list(map(int, ids))
        end = found.index(self.target.vocab) if self.target.vocab in found else len(found)
        return self.problem.said(found[:end])

    def pairs(self, drawn: Drawn) -> Pairs:
        """Drawn examples as a split."""
        sides = [
            self._side(ids, lengths)
            for ids, lengths in zip((drawn.source, drawn.target), drawn.lengths.unbind(1), strict=True)
        ]
        sources = [self.problem.asked(sides[0][n]) for n in range(len(sides[0]))]
        references = [[self.problem.said(sides[1][n])] for n in range(len(sides[1]))]
        return Pairs(sides[0], sides[1], sources, references, list(map(str, drawn.group.tolist())))

    def typed(self, texts: dict[str, str]) -> Pairs:
        """Problems and answers as people type them, as a split."""
        sides = [
            Side.of([(np.array(ids), np.array([len(ids)])) for ids in each], self.source)
            for each in ([self.problem.read(t) for t in texts], [self.problem.read_target(t) for t in texts.values()])
        ]
        said = [[self.problem.said(sides[1][n])] for n in range(len(sides[1]))]
        for source, (told,) in zip(texts, said, strict=True):
            if (true := self.problem.truth(source)) not in (None, told):
                raise BadInput(
                    f"{source!r}: the answer is {true}, not {told} as the table says; mend it, or leave it out"
                )
        return Pairs(sides[0], sides[1], list(texts), said, [each[0] for each in said if self.problem.by_outcome])

    def _side(self, ids: Tensor, lengths: Tensor) -> Side:
        real = torch.arange(ids.shape[1]) < lengths[:, None]
        return Side.of([(ids[real].numpy().astype(self.source.dtype), lengths.numpy())], self.source)


@dataclass(frozen=True, eq=False)
class MathsData:
    """A problem that is open: its held-out examples, and what is needed to draw others."""

    settings: MathsSource
    problem: Problem
    tokenizers: MathsTokens
    splits: dict[str, Pairs]
    held: Tensor  # the keys of the held-out examples, sorted
    sha256: str

    @property
    def vocab(self) -> tuple[int, int]:
        return self.tokenizers.vocab

    @property
    def tokenizer(self) -> MathsTokens:
        return self.tokenizers

    @property
    def max_length(self) -> int:
        return max(self.problem.widths)

    def batches(self, rows: int, seed: int) -> Fresh:
        how, order = self.settings, Order(self.settings.curriculum, self.settings.shuffle_curriculum)
        told = {"examples": how.examples, "order": order, "held": self.held, "edge": self.vocab[0] - 1}
        return Fresh(self.problem, how.law(), rows, seed=seed, **told)  # type: ignore[arg-type]

    def facts(self) -> dict[str, Any]:
        """What the report says of the data."""
        many = {split: len(pairs) for split, pairs in self.splits.items()}
        return {
            "examples": {"train": self.settings.examples, **many},
            "unit": "examples",
            "told": f"{self.problem.told}, {self._law()}",
            "fresh": True,
            "overlap": 0,  # those that chance draws again ask nothing
            "vocab": list(self.vocab),
            "token": "digits",
            "sha256": self.sha256,
        }

    def _law(self) -> str:
        how = self.settings
        drawn = [("operands", how.operands)] + [("outcomes", how.outcomes)] * (how.outcomes != "natural")
        mixed = {name: {x: 1} if isinstance(x, str) else x for name, x in drawn}
        return ", ".join(f"{name} {' + '.join(_share(*each) for each in some.items())}" for name, some in mixed.items())


def _share(name: str, weight: float) -> str:
    return name if weight == 1 else f"{weight:g} {name}"
