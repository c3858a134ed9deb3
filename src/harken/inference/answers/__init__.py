"""One module per kind of answer of a loaded run; here the types of the answers and of the decoding options."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, NotRequired, TypedDict, TypeVar, get_args

import numpy as np
import numpy.typing as npt
from torch import Tensor

from harken.core import View
from harken.data.tables.frame import MISSING, Frame
from harken.errors import BadInput
from harken.events import Listener

if TYPE_CHECKING:
    from harken.inference.loaded_model import LoadedModel

Image = str | Path | npt.NDArray[np.uint8]  # a file, one image of an array (x.npz[17]), or pixels: H W or H W 3
Array = npt.NDArray[np.generic]
OverflowMode = Literal["truncate", "windows"]  # of a text that is longer than a run reads
NEXT_SENTENCE_LABELS = ("is-next", "not-next")  # the classes 0 and 1 of BERT's NSP head
T = TypeVar("T")


class InputReader(NamedTuple):
    """Inputs of `classify` that are not texts, such as images: how arguments of the command line select them."""

    name: str  # JSON key of the names
    select: Callable[["LoadedModel", Sequence[str], Listener], tuple[list[str], Sequence[object]]]  # names, inputs
    one_batch: bool = False  # all inputs are computed in one pass
    is_table: bool = False  # a table of --in holds such inputs instead of a column of texts


class LabelScore(TypedDict):
    """A label with its probability, or the value of a regression target."""

    label: str
    probability: NotRequired[float]
    predicted: NotRequired[bool]  # of several labels: whether the probability is above the threshold of the label
    value: NotRequired[float]


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
    unknown_words: list[str]
    unasked_words: list[str]


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


class BeamOptions(SamplingOptions, total=False):
    """Options of beam search and of sampled targets, for the best target."""

    beam: int
    length_penalty: float
    no_repeat: int
    max_new_tokens: int | None
    seed: int


class SearchOptions(BeamOptions, total=False):
    """These options, and the number of targets."""

    alternatives: int


class CaptionOptions(BeamOptions, total=False):
    """Options of `caption`; `index` numbers the first image among those that share a seed."""

    index: int


class ClassifyOptions(TypedDict, total=False):
    """Options of `classify`."""

    prompt: str | None
    labels: Sequence[str]
    min_probability: float
    overflow: OverflowMode
    listen: Listener


class Trace:
    """Tokens of an input and the attention of every layer and head. Weights are computed on demand.

    A language model has `self`; an encoder-decoder has `encoder` (source to source), `self` (target to target) and
    `cross` (target to source), and the source tokens in `source`.
    """

    def __init__(self, tokens: list[str], views: Mapping[str, Sequence[View]], source: list[str] | None = None) -> None:
        self.tokens, self.views, self.source = tokens, views, source

    def attention(self, which: str = "self", *, layer: int, head: int) -> Tensor:
        """Attention weights of one head: queries by keys, each row sums to 1."""
        if which not in self.views:
            raise BadInput(f"{which!r}: this model has no such attention; it has {', '.join(self.views) or 'none'}")
        layers = self.views[which]
        if not 0 <= layer < len(layers):
            raise BadInput(f"layer {layer}: this model has {len(layers)} attention layers, counted from 0")
        if not 0 <= head < layers[layer].q.shape[1]:
            raise BadInput(f"head {head}: this layer has {layers[layer].q.shape[1]} heads, counted from 0")
        return layers[layer].full([head])[0, 0]


def check_overflow(overflow: str, *, allowed: bool = True) -> None:
    """Refuse a value that is not an OverflowMode, and windows of inputs that have none."""
    if overflow not in (accepted := get_args(OverflowMode)):
        raise BadInput(f"overflow={overflow!r}: must be {' or '.join(map(repr, accepted))}")
    if overflow == "windows" and not allowed:
        raise BadInput(f"overflow={overflow!r}: is for texts of a run that classifies texts; leave it out")


def check_text(**arguments: object) -> None:
    """Refuse an argument that is not a string, by its name."""
    for name, value in arguments.items():
        if not isinstance(value, str):
            raise BadInput(f"{name}={value!r}: must be a string")


def to_list(texts: Iterable[T], name: str = "text") -> list[T]:
    """The elements of a list, a tuple, an array or a column of a DataFrame, in order."""
    if isinstance(texts, Frame):
        raise BadInput(f"{type(texts).__name__}: give one column of it, such as df['text'], or use run.predict(df)")
    is_scalar = isinstance(texts, np.ndarray) and not texts.ndim
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping | AbstractSet) or is_scalar:
        raise BadInput(f"{name}={texts!r}: must be a string or a list of strings")
    return list(texts)


def check_texts(texts: Sequence[object], name: str = "text", *, allow_empty: bool = False) -> None:
    """Refuse an element that is not a string, and an empty or missing one by its index."""
    for n, text in enumerate(texts):
        is_empty = isinstance(text, str) and not text.strip()
        if is_missing_value(text) or (is_empty and not allow_empty):
            raise empty_text_error(n, len(texts), name, text)
        if not isinstance(text, str):
            raise BadInput(f"{name}={text!r}: must be a string or a list of strings")


def is_missing_value(value: object) -> bool:
    """Whether this is None, or a missing value of numpy, pandas or polars."""
    return value is None or (not isinstance(value, str) and str(value) in MISSING)


def empty_text_error(n: int, count: int, name: str, text: object) -> BadInput:
    """The error for the empty or missing text with this index among `count`."""
    problem = f"the {name} is empty" if isinstance(text, str) else f"the {name} is missing ({text})"
    fix = (
        "leave it out, or use run.predict(df), which returns None for it" if count > 1 else f"give a {name} with words"
    )
    return BadInput(f"item {n}: {problem}; {fix}" if count > 1 else f"{problem}; {fix}")


def check_count(minimum: int = 0, **arguments: object) -> None:
    """Refuse an argument that is not an integer ≥ the minimum, by its name."""
    for name, value in arguments.items():
        if not isinstance(value, Integral) or value < minimum:
            raise BadInput(f"{name}={value!r}: must be an integer ≥ {minimum}")
