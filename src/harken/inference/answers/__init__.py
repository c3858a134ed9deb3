"""One module per kind of answer of a loaded run; here the types of the answers and of the decoding options."""

from numbers import Integral
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

from harken.errors import BadInput
from harken.events import Listener

Image = str | Path | npt.NDArray[np.uint8]  # a file, one image of an array (x.npz[17]), or pixels: H W or H W 3
Array = npt.NDArray[np.generic]


class LabelScore(TypedDict):
    """A label with its probability, or the value of a regression target."""

    label: str
    probability: NotRequired[float]
    value: NotRequired[float]


class TokenProbability(TypedDict):
    """A candidate for the next token."""

    text: str
    probability: float


class WordProbability(TypedDict):
    """A candidate for a masked word."""

    word: str
    probability: float


class WordLogProb(TypedDict):
    """A word of a scored text; `logprob` is None for a first token without context."""

    word: str
    logprob: float | None


class TextScore(TypedDict):
    """Log-probabilities and perplexity of a text; `tokens` and `unknown` are counts."""

    words: list[WordLogProb]
    perplexity: float
    tokens: int
    unknown: int


class Candidate(TypedDict):
    """A generated target with its score (mean ln p)."""

    text: str
    score: float


class TaggedSpan(TypedDict):
    """A tagged span; `start` and `end` are character offsets."""

    label: str
    text: str
    start: int
    end: int
    probability: float


class SpanAnswer(TypedDict):
    """An answer that was extracted from a text; empty if the model predicts that there is none."""

    answer: str
    score: float
    start: int
    end: int


class StoryAnswer(TypedDict):
    """An answer about a story; `hops` has one attention weight per line for each hop."""

    question: str
    answer: str
    score: float
    lines: list[str]
    hops: list[list[float]]
    unknown: list[str]


class NearbyWord(TypedDict):
    """A word and its cosine similarity."""

    word: str
    similarity: float


class SearchHit(TypedDict):
    """A line of a corpus: line number from 1, text, cosine similarity."""

    line: int
    text: str
    score: float


class SamplingOptions(TypedDict, total=False):
    """How the next token is sampled; temperature 0 is greedy."""

    temperature: float
    top_k: int | None
    top_p: float | None


class GenerationOptions(SamplingOptions, total=False):
    """Options of text generation."""

    max_new_tokens: int
    seed: int
    index: int
    stop: str | None
    listen: Listener


class SearchOptions(SamplingOptions, total=False):
    """Options of beam search and of sampled targets."""

    beam: int
    length_penalty: float
    alternatives: int
    no_repeat: int
    max_new_tokens: int | None
    seed: int


def check_text(**arguments: object) -> None:
    """Refuse an argument that is not a string, by its name."""
    for name, value in arguments.items():
        if not isinstance(value, str):
            raise BadInput(f"{name}={value!r}: must be a string")


def check_count(**arguments: object) -> None:
    """Refuse an argument that is not an integer ≥ 0, by its name."""
    for name, value in arguments.items():
        if not isinstance(value, Integral) or value < 0:
            raise BadInput(f"{name}={value!r}: must be an integer ≥ 0")
