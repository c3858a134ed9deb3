"""Mathematics as translation: a problem and its answer as token sequences. Examples are drawn, not read.

Training examples are new in every step, from the distribution in the settings. Held-out examples have their own seeds
and a fixed distribution, and are never trained on.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from harken.data.pairs.files import find_pair_file
from harken.data.pairs.source import Pairs
from harken.data.rng import RngStream, rng_for
from harken.data.source import DataSource
from harken.data.tables.read import SkippedRows
from harken.data.tokenizers.pairs import Array, PairTokenizers, RaggedTokens
from harken.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.suggestions import did_you_mean

from .batch import SampledBatches
from .integers import IntegerProblem
from .integrals import IntegralProblem
from .matrices import MatrixProblem
from .problem import Distribution, Examples, Problem, UniformRng

SCHEME = "maths:"  # prefix of a problem named as data
IntegerName = Literal["gcd", "addition", "multiplication", "modular-addition", "modular-multiplication", "fractions"]
MatrixName = Literal["transposition", "eigenvalues"]
ProblemName = Literal[IntegerName, MatrixName, "integrals"]
PROBLEMS: tuple[str, ...] = get_args(ProblemName)
SPLIT_SEEDS = {"test": 1, "valid": 2}
MAX_ROUNDS, OVERSAMPLING = 50, 2  # to draw enough distinct held-out examples
MAX_HELD_OUT = 0.1  # fraction of all distinct examples per split
OperandLaw = Literal["uniform", "log-uniform"]
OutcomeLaw = Literal["natural", "uniform", "log-uniform"]


class MathsSource(DataSource["MathsTokenizers"]):
    """Settings of mathematical problems."""

    task: ClassVar[str] = "solve"

    kind: Literal["maths"] = "maths"
    operation: ProblemName = Field("gcd", description="name of the problem, as in maths:gcd")
    base: int = Field(10, ge=2, le=100_000, description="base of the numerals; one token per digit")
    max_operand: int | None = Field(None, ge=2, description="largest operand; none: depends on the problem")
    operands: OperandLaw | dict[OperandLaw, float] = Field(
        "uniform", description="distribution of the training operands; a table of weights: a mixture"
    )
    outcomes: OutcomeLaw | dict[OutcomeLaw, float] = Field(
        "natural", description="gcd: distribution of the outcomes up to data.classes; a table of weights: a mixture"
    )
    classes: int = Field(100, ge=1, description="gcd: largest outcome that is evaluated as a class")
    modulus: int = Field(97, ge=2, description="modulus of the modular problems")
    dimension: int = Field(3, ge=1, le=20, description="number of rows and columns of the matrices")
    encoding: Literal["P10", "P1000", "B1999"] = Field(
        "P1000", description="encoding of matrix entries: +, 3, 1, 4, E-2; or +, 314, E-2; or 314, E-2"
    )
    eval_operands: OperandLaw = Field("uniform", description="distribution of the held-out operands")
    examples: int = Field(300_000, ge=1, description="number of new examples per epoch")
    curriculum: int = Field(0, ge=0, description="epochs over which the operands grow to the largest; 0: none")
    shuffle_curriculum: bool = Field(False, description="shuffle the examples of the curriculum")
    valid: int = Field(2000, ge=0, description="number of validation examples")
    test: int = Field(10_000, ge=0, description="number of test examples")
    sha256: str | None = Field(None, description="checksum of the held-out examples; a mismatch gives a notice")

    @field_validator("operands", "outcomes")
    @classmethod
    def _check_weights(cls, value: Any) -> Any:
        weights = value.values() if isinstance(value, dict) else (1.0,)
        if not all(0 <= weight < np.inf for weight in weights) or not sum(weights) > 0:
            raise ValueError("weights must be finite and not negative, and their sum positive")
        return value

    @field_validator("outcomes")
    @classmethod
    def _check_outcomes(cls, value: Any, context: ValidationInfo) -> Any:
        if value != "natural" and context.data.get("operation") != "gcd":
            raise ValueError("a distribution of outcomes is supported only for gcd; set data.outcomes=natural")
        return value

    def problem(self) -> Problem:
        if self.operation == "integrals":
            return IntegralProblem(self.base)
        name, largest = self.operation, self.max_operand
        if name in get_args(MatrixName):
            return MatrixProblem(name, dimension=self.dimension, encoding=self.encoding, max_operand=largest)
        return IntegerProblem(name, base=self.base, max_operand=largest, modulus=self.modulus, classes=self.classes)

    def operand_distribution(self) -> Distribution:
        """The distribution of training examples."""
        operands, outcomes = (x if isinstance(x, dict) else {x: 1.0} for x in (self.operands, self.outcomes))
        return Distribution(operands, outcomes)  # type: ignore[arg-type]

    def with_absolute_paths(self) -> Self:
        return self

    def load_processor(self, folder: Path) -> "MathsTokenizers":
        tokenizers = PairTokenizers.load(folder)
        return MathsTokenizers(tokenizers.source, tokenizers.target, self.problem())

    def load_data(
        self, *, stateful: bool = False, tokenizer: "MathsTokenizers | None" = None, listen: Listener = silent
    ) -> "MathsData":
        """Draw the held-out examples."""
        problem = self.problem()
        tokenizers = tokenizer or MathsTokenizers.from_problem(problem)
        examples, keys = dict[str, Examples](), torch.empty(0, dtype=torch.long)
        for split, seed in SPLIT_SEEDS.items():
            if n := min(getattr(self, split), int(problem.n_distinct * MAX_HELD_OUT)):
                examples[split] = self._draw_split(problem, n, seed, keys)
                keys = torch.cat([keys, examples[split].key]).sort().values
        splits = {split: tokenizers.to_pairs(examples[split]) for split in reversed(SPLIT_SEEDS) if split in examples}
        digest = hashlib.sha256(b"".join(splits[split].source.ids.tobytes() for split in splits)).hexdigest()
        if self.sha256 not in (None, digest):
            listen("notice", text=f"{SCHEME}{self.operation}: the held-out examples differ from data.sha256")
        return MathsData(self, problem, tokenizers, splits, keys, digest)

    def _draw_split(self, problem: Problem, n: int, seed: int, used_keys: Tensor) -> Examples:
        """Up to n distinct examples with new keys; uniform over the classes if the outcome is drawn first."""
        outcomes = {"uniform" if problem.by_outcome else "natural": 1.0}
        distribution = Distribution({self.eval_operands: 1.0}, outcomes)
        rng, parts, n_drawn = UniformRng(rng_for(0, RngStream.MATHS_EVAL, seed)), list[Examples](), 0
        for _ in range(MAX_ROUNDS):
            examples = problem.draw(rng, min(OVERSAMPLING * n, problem.chunk_size), distribution)
            first = torch.from_numpy(np.unique(examples.key.numpy(), return_index=True)[1]).sort().values
            examples = examples.subset(first[~torch.isin(examples.key[first], used_keys)])
            parts.append(examples)
            used_keys, n_drawn = torch.cat([used_keys, examples.key]), n_drawn + len(examples.key)
            if n_drawn >= n:
                break
        return Examples(*map(torch.cat, zip(*parts, strict=True))).subset(slice(n))

    @property
    def file_encoding(self) -> None:
        """None: `encoding` is that of matrix entries."""
        return None

    def with_encoding(self, encoding: str) -> Self:
        raise BadInput(f"encoding={encoding}: examples are generated, not read; remove the option")

    def load_split(
        self, path: str, split: str, *, tokenizer: "MathsTokenizers", stateful: bool = False, listen: Listener = silent
    ) -> "MathsData":
        """The same data with one split replaced by a table of problems and answers."""
        data = self.load_data(tokenizer=tokenizer, listen=listen)
        if path.startswith(SCHEME):
            if parse_problem_name(path) != self.operation:
                trained = f"{SCHEME}{self.operation}"
                raise BadInput(f"{path}: this run was trained on {trained}; evaluate it on that, or on a table")
            return data
        skipped = SkippedRows()
        texts = dict(find_pair_file(path, None, None).pairs(skipped))
        skipped.report(listen)
        try:
            return replace(data, splits={**data.splits, split: tokenizer.parse_pairs(texts)})
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from None


def parse_problem_name(data: str) -> str:
    """The name of the problem in maths:NAME."""
    name = data.removeprefix(SCHEME)
    if name not in PROBLEMS:
        accepted = ", ".join(SCHEME + problem for problem in PROBLEMS)
        raise BadInput(f"{data}: no such problem; accepted: {accepted}.{did_you_mean(name, PROBLEMS)}")
    return name


@dataclass(frozen=True, eq=False)
class MathsTokenizers(PairTokenizers):
    """The tokens of a problem, shared by both sides; the texts are what users type and read."""

    problem: Problem

    @classmethod
    def from_problem(cls, problem: Problem) -> "MathsTokenizers":
        text = " ".join(problem.tokens)  # unique tokens keep their order, after <unk> and <eos>
        tokenizer = train_tokenizer("word", lambda: [text], len(problem.tokens) + 2)
        return cls(tokenizer, tokenizer, problem)

    def encode_source(self, text: str) -> Array:
        return np.array([*self.problem.parse_source(text), self.source.vocab])

    def unknown_pieces(self, text: str, tokenizer: Tokenizer | None = None) -> list[str]:
        return []  # parsing refuses unknown input

    def encode_target(self, text: str, words: Sequence[str] = ()) -> Array:
        try:
            return np.array(self.problem.parse_target(text))
        except BadInput:
            if self.target.unknown_pieces(text):
                raise
            return self.target.encode(text).astype(np.int64)  # an invalid answer, token by token

    def decode_source(self, ids: Iterable[int], words: Sequence[str] = ()) -> str:
        return self.problem.format_source(ids)

    def decode_target(self, ids: Iterable[int], words: Sequence[str] = ()) -> str:
        target_ids = list(map(int, ids))
        end = target_ids.index(self.target.vocab) if self.target.vocab in target_ids else len(target_ids)
        return self.problem.format_target(target_ids[:end])

    def to_pairs(self, examples: Examples) -> Pairs:
        """Drawn examples as a split."""
        source_lengths, target_lengths = examples.lengths.unbind(1)
        source = self._to_ragged(examples.source, source_lengths)
        target = self._to_ragged(examples.target, target_lengths)
        sources = [self.problem.format_source(source[n]) for n in range(len(source))]
        references = [[self.problem.format_target(target[n])] for n in range(len(target))]
        return Pairs(source, target, sources, references, list(map(str, examples.group.tolist())))

    def parse_pairs(self, texts: dict[str, str]) -> Pairs:
        """Problems and answers that a user typed as a split. Raises if an answer is wrong."""
        sources = [self.problem.parse_source(text) for text in texts]
        targets = [self.problem.parse_target(text) for text in texts.values()]
        source, target = (
            RaggedTokens.from_blocks([(np.array(ids), np.array([len(ids)])) for ids in side], self.source)
            for side in (sources, targets)
        )
        answers = [self.problem.format_target(target[n]) for n in range(len(target))]
        for text, answer in zip(texts, answers, strict=True):
            if (correct := self.problem.solve(text)) not in (None, answer):
                raise BadInput(f"{text!r}: the answer {answer} is wrong; it is {correct}; fix or delete the row")
        groups = answers if self.problem.by_outcome else []
        return Pairs(source, target, list(texts), [[answer] for answer in answers], groups)

    def _to_ragged(self, ids: Tensor, lengths: Tensor) -> RaggedTokens:
        is_token = torch.arange(ids.shape[1]) < lengths[:, None]
        block = ids[is_token].numpy().astype(self.source.dtype), lengths.numpy()
        return RaggedTokens.from_blocks([block], self.source)


@dataclass(frozen=True, eq=False)
class MathsData:
    """A problem with its held-out examples."""

    settings: MathsSource
    problem: Problem
    tokenizers: MathsTokenizers
    splits: dict[str, Pairs]
    held_out_keys: Tensor  # sorted
    sha256: str

    @property
    def vocab(self) -> tuple[int, int]:
        return self.tokenizers.vocab

    @property
    def tokenizer(self) -> MathsTokenizers:
        return self.tokenizers

    @property
    def max_length(self) -> int:
        return max(self.problem.max_lengths)

    def batches(self, rows: int, seed: int) -> SampledBatches:
        return SampledBatches(self, rows, seed)

    def facts(self) -> dict[str, object]:
        """Summary of the data for the report."""
        counts = {split: len(pairs) for split, pairs in self.splits.items()}
        return {
            "examples": {"train": self.settings.examples, **counts},
            "unit": "examples",
            "summary": f"{self.problem.description}, {self._describe_distribution()}",
            "generated": True,
            "overlap": 0,  # drawn examples that are held out have no targets
            "vocab": list(self.vocab),
            "token": "digits",
            "sha256": self.sha256,
        }

    def _describe_distribution(self) -> str:
        distribution = self.settings.operand_distribution()
        laws = {"operands": distribution.operands}
        laws |= {"outcomes": distribution.outcomes} if self.settings.outcomes != "natural" else {}
        return ", ".join(
            f"{name} {' + '.join(law if weight == 1 else f'{weight:g} {law}' for law, weight in mixture.items())}"
            for name, mixture in laws.items()
        )
