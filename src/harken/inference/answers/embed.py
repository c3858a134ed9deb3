"""Embeddings: a vector for each input. Each family has an Embedder, which the registry names."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harken.errors import BadInput
from harken.events import Listener
from harken.inference.loaded_model import LoadedModel
from harken.suggestions import did_you_mean

from . import InputReader, OverflowMode, check_overflow

Vectors = npt.NDArray[np.float32]  # N d
POOLS = ("mean", "cls", "last")
CHUNK = 4096  # inputs that are embedded at once, or vectors that are compared


class NearbyWord(TypedDict):
    """A word and its cosine similarity."""

    word: str
    similarity: float


class EmbeddingOptions(TypedDict, total=False):
    """Options of `embed`; a family refuses those that have no effect on its inputs."""

    pool: str | None
    layer: int | None
    word: str | None
    occurrence: int | None
    overflow: OverflowMode


@dataclass(frozen=True)
class EmbeddingSettings:
    """The options of `embed` with their defaults."""

    pool: str | None = None  # None: that of the family
    layer: int | None = None  # None: the output of the model
    word: str | None = None  # the vector of this word instead of the text
    occurrence: int | None = None  # of the word, from 1; None: the mean over all
    overflow: OverflowMode = "truncate"

    def token_pool(self) -> str:
        """The pooling of token states."""
        if self.pool not in (None, *POOLS):
            raise BadInput(f"pool={self.pool!r}: not a pooling; accepted: {', '.join(POOLS)}")
        return self.pool or "mean"


class ExampleRequest(NamedTuple):
    """Which inputs to embed: those of a file, else of the training data, or of one of its splits."""

    path: str | None = None
    column: str | None = None  # of a table of texts
    split: str | None = None


class NamedInputs(NamedTuple):
    """Inputs of a run with their names, and their labels and lines in a file where they have some."""

    inputs: Sequence[Any]
    names: Sequence[str]
    labels: Sequence[str] = ()  # "": without a label
    lines: Sequence[int] = ()
    place: Sequence[str] = ()  # precedes the inputs, and any other input from the same file: the file of a graph


@dataclass(frozen=True)
class Embedder:
    """How the inputs of a family become vectors."""

    vectors: Callable[[LoadedModel, Sequence[Any], EmbeddingSettings, Listener], Vectors]  # not normalized
    examples: Callable[[LoadedModel, ExampleRequest, Listener], NamedInputs]
    inputs: str = "texts"
    options: AbstractSet[str] = frozenset()  # of `embed`, that have an effect
    reader: InputReader | None = None  # None: the inputs are texts

    @property
    def reads_lines(self) -> bool:
        """Whether each line of a text file is an input."""
        return self.inputs == "texts"

    def check(self, settings: EmbeddingSettings) -> None:
        """Refuse options that have no effect, and values that are not accepted."""
        for field in fields(settings):
            value = getattr(settings, field.name)
            if value != field.default and field.name not in self.options:
                accepted = f"; options that have one: {', '.join(sorted(self.options))}" if self.options else ""
                raise BadInput(f"{field.name}={value!r}: has no effect on vectors of {self.inputs}{accepted}")
        check_overflow(settings.overflow)
        if settings.occurrence is not None and settings.word is None:
            raise BadInput(f"occurrence={settings.occurrence!r}: has no effect without word")
        for name, value in (("pool", settings.pool), ("overflow", settings.overflow)):
            if settings.word is not None and value not in (None, "truncate"):
                raise BadInput(f"{name}={value!r}: has no effect with word, whose vector is the mean over its pieces")


def states_at_layer(
    blocks: Sequence[nn.Module], layer: int | None, forward: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """The function for the output of a block, as the next block receives it; 0: the input of the first block.

    `forward` computes the output of the model, which is that of the last block after a normalization; None keeps it.
    """
    if layer is None:
        return forward
    if not blocks:
        raise BadInput(f"layer={layer}: this run's model has no stack of blocks; omit layer")
    if not isinstance(layer, Integral) or not 0 <= layer <= len(blocks):
        raise BadInput(f"layer={layer}: this run has {len(blocks)} layers; 0 (the embeddings) to {len(blocks)}")

    def run_to_layer(*inputs: Tensor, **options: Tensor) -> Tensor:
        states = list[Tensor]()
        if layer:
            hook = blocks[layer - 1].register_forward_hook(lambda _, inputs, output: states.append(output))
        else:
            hook = blocks[0].register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
        with hook:
            forward(*inputs, **options)
        return states[0]

    return run_to_layer


class OwnData(NamedTuple):
    """The data that a run was trained on, and one or all of its splits."""

    data: Any
    parts: list[Any]


def own_splits(run: LoadedModel, split: str | None, listen: Listener) -> OwnData:
    """The data that a run was trained on, and one or all of its splits."""
    data: Any = run.recipe.load_data(run.tokenizer, listen=listen)
    parts: dict[str, Any] = data.parts
    if split is not None and split not in parts:
        raise BadInput(f"split {split}: not in this run, which has {', '.join(parts)}.{did_you_mean(split, parts)}")
    return OwnData(data, [part for name, part in parts.items() if split in (None, name)])


def embed_inputs(
    run: LoadedModel, inputs: Sequence[object], settings: EmbeddingSettings, listen: Listener, *, normalize: bool = True
) -> Vectors:
    """The vectors of inputs of a run, of length 1 unless `normalize` is false."""
    run.require("embed")
    run.embedder.check(settings)
    vectors = run.embedder.vectors(run, inputs, settings, listen)
    return np.asarray(F.normalize(torch.from_numpy(vectors), dim=-1)) if normalize else vectors


@torch.inference_mode()
def nearest_words(run: LoadedModel, word: str, k: int) -> list[NearbyWord]:
    """The k words of the embedding table with the highest cosine similarity to a word, best first."""
    if not run.model.reads_text or run.is_encoder_decoder:
        raise BadInput(f"{run.path}: this run {run.ability}; it has no table of the words of one text")
    table, tokenizer = run.backbone.embed.weight, run.text_tokenizer
    encodings = [tokenizer.encode(text).tolist() for text in (word, f" {word}")]  # in a text most words follow a space
    (word_id,) = next((ids for ids in encodings if len(ids) == 1), [None])
    if word_id is None or word_id == tokenizer.unk_id:
        pieces = ", ".join(map(repr, tokenizer.split(word)))
        reason = "it is unknown" if word_id is not None else f"it is split into {pieces}"
        raise BadInput(f"{word!r}: not a word of this run's vocabulary ({reason}); give another word")
    directions = F.normalize(table[: tokenizer.vocab].float(), dim=-1)
    cosines = directions @ directions[word_id]
    cosines[[word_id, *tokenizer.special_ids]] = -torch.inf
    best = cosines.topk(min(k, int((cosines > -torch.inf).sum())))
    words = tokenizer.token_texts(best.indices.tolist())
    return [{"word": w, "similarity": c} for w, c in zip(words, best.values.tolist(), strict=True)]
