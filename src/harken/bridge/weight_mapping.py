"""What a family says of itself: its config becomes a recipe, its names become ours. One file of this room each.

class GPT2(Config):
    prefix = "transformer."                       # their names may stand with it or without
    n_embd: Count                                 # what is read of config.json; all else is passed over
    def settings(self): return {"model.kind": "gpt", "model.d": self.n_embd, ...}
    def names(self): return {"embed.weight": Take("transformer.wte.weight", words=True), ...}
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Annotated, Any, ClassVar, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from harken.data.tokenizers.pretrained import Foreign
from harken.data.tokenizers.tokenizer import VOCAB_CAP, Tokenizer
from harken.errors import BadInput
from harken.run_folder import weights

FAMILIES = {
    "gpt2": "harken.bridge.families.gpt2:GPT2",
    "llama": "harken.bridge.families.llama:Llama",
    "mistral": "harken.bridge.families.llama:Mistral",
    "qwen2": "harken.bridge.families.llama:Qwen2",
    "gemma": "harken.bridge.families.gemma:Gemma",
    "bert": "harken.bridge.families.bert:BERT",
    "distilbert": "harken.bridge.families.bert:DistilBERT",
    "roberta": "harken.bridge.families.bert:RoBERTa",
    "vit": "harken.bridge.families.vit:ViT",
    "marian": "harken.bridge.families.marian:Marian",
    "bart": "harken.bridge.families.marian:BART",
    "bert labels": "harken.bridge.families.heads:BERTLabels",
    "bert tags": "harken.bridge.families.heads:BERTTags",
    "bert spans": "harken.bridge.families.heads:BERTSpans",
    "distilbert tags": "harken.bridge.families.heads:DistilBERTTags",
    "distilbert spans": "harken.bridge.families.heads:DistilBERTSpans",
    "gpt2 labels": "harken.bridge.families.heads:GPT2Labels",
}
HEADS = {  # that are read, by the architecture that a config names
    "BertForSequenceClassification": "bert labels",
    "BertForTokenClassification": "bert tags",
    "DistilBertForTokenClassification": "distilbert tags",
}
HEADED = re.compile(r"\w+For(Sequence|Token)Classification|\w+ForQuestionAnswering|\w+ForMultipleChoice", re.ASCII)
BATCH = 1 << 24  # numbers looked at at once
NEVER = -1e9  # the bias of a score that is not to win
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Layers = Annotated[int, Field(ge=1, le=1000)]
Small = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True)
class Take:
    """Where a weight of ours lies among theirs, and how it is written there."""

    name: str
    rows: tuple[int, int] | None = None  # q, k and v may lie in one matrix: these outputs of it
    turned: bool = False  # written as inputs by outputs
    plus: float = 0.0  # what is to be added: norms may be written as their distance from 1
    words: bool = False  # one row for each word: ours has as many as the tokenizer, rounded up
    skip: int = 0  # rows at the beginning that are never asked for

    def of(self, theirs: Tensor) -> Tensor:
        """Our weight, cut out of theirs."""
        theirs = theirs.mT if self.turned else theirs[self.skip :]
        theirs = theirs if self.rows is None else theirs[self.rows[0] : self.rows[1]]
        return theirs + self.plus if self.plus else theirs

    def back(self, ours: Tensor, vocab: int) -> Tensor:
        """Their part, made of our weight: the other way round, but not yet turned."""
        ours = (ours[:vocab] if self.words else ours) - self.plus
        return torch.cat([ours.new_zeros(self.skip, *ours.shape[1:]), ours]) if self.skip else ours


@dataclass(frozen=True)
class Edged(Take):
    """Rows of words, and behind them one more for the mark that begins and ends our sentences: a copy of this row."""

    mark: int = 0
    many: int = 0  # rows that they have; where ours are fewer, the mark is our edge, and what is behind it is no word
    instead: bool = False  # of scores: the row itself is never written then

    def of(self, theirs: Tensor) -> Tensor:
        theirs = theirs.flatten() if self.instead else theirs
        made = torch.cat([theirs, theirs[self.mark : self.mark + 1]])
        if self.instead:
            made[self.mark] = NEVER
        return made

    def back(self, ours: Tensor, vocab: int) -> Tensor:
        more = ours.new_full((self.many - vocab, *ours.shape[1:]), NEVER if self.instead else 0.0)
        made = torch.cat([ours[:vocab], more])
        made[self.mark] = ours[vocab]
        return made[None] if self.instead else made


class Config(BaseModel):
    """What is read of a config.json. Numbers have bounds, texts are one of a list; anything else is refused."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)

    prefix: ClassVar[str] = ""  # of their names; a folder may leave it out
    unread: ClassVar[str] = "(?!)"  # a pattern for tensors that hold nothing learned
    check: ClassVar[str] = "language model"  # which comparison the certificate makes
    auto: ClassVar[str] = "AutoModelForCausalLM"  # with what class of transformers

    vocab_size: int = Field(ge=1, le=VOCAB_CAP)

    def told(self, source: "Source") -> Any:
        """What the numbers of our run mean: its tokens."""
        tokenizer = Foreign.of(source.tokenizer(), source.place)
        if tokenizer.vocab > self.vocab_size:
            told = f"the tokenizer has {tokenizer.vocab} ids, the model {self.vocab_size} words"
            raise BadInput(f"{source.place}: {told}")
        return self.words(tokenizer)

    def words(self, tokenizer: Tokenizer) -> Any:
        """The tokens of our run, made of theirs."""
        return tokenizer

    def settings(self) -> dict[str, Any]:
        """The settings of our recipe."""
        raise NotImplementedError

    def names(self) -> dict[str, Take]:
        """For each weight of ours, where it lies."""
        raise NotImplementedError


class Source(Protocol):
    """A folder or a file that was opened: nothing of its weights is read yet."""

    place: str  # how it is called in messages
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    def read(self, name: str) -> Tensor:
        """One tensor, in float32."""

    def tokenizer(self) -> dict[str, Any]:
        """The content of its tokenizer.json."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of these texts, marks around them included, as another library gives them."""

    def tensors(self) -> dict[str, Tensor]:
        """All of them, as another library reads them."""


def family(kind: str) -> type[Config]:
    """The family of this name, imported now."""
    module, name = FAMILIES[kind].split(":")
    found: type[Config] = getattr(import_module(module), name)
    return found


def find(source: Source) -> Config:
    """The family of a source, by the model_type of its config."""
    kind = source.config.get("model_type")
    known = [name for name in FAMILIES if " " not in name]
    if not isinstance(kind, str) or kind not in known:
        raise BadInput(f"{source.place}: model_type {str(kind)[:40]!r} is not known; known are {', '.join(known)}")
    said = source.config.get("architectures")
    top = str(said[0]) if isinstance(said, list) and said else ""
    if HEADED.fullmatch(top) and not HEADS.get(top, "").startswith(f"{kind} "):
        raise BadInput(f"{source.place}: a {top[:60]} is not read; of those with a head {', '.join(HEADS)} are")
    try:
        given = {**source.config, "there": frozenset(source.shapes)}  # some layers only the tensors tell of
        found = family(HEADS.get(top, kind)).model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where, given = ".".join(map(str, first["loc"])), first["input"]
        shown = "is missing" if first["type"] == "missing" else f"= {repr(given)[:60]}: {first['msg'][:120].lower()}"
        raise BadInput(f"{source.place}: config {where} {shown}; this {kind} cannot be read") from None
    return found


def stacked(layers: int, ours: str, theirs: str, each: Mapping[str, Take | str]) -> Iterator[tuple[str, Take]]:
    """The names of all layers: `each` is said once, and # is the number of the layer."""
    for n in range(layers):
        for name, take in each.items():
            take = Take(take) if isinstance(take, str) else take
            yield f"{ours}{name}".replace("#", str(n)), replace(take, name=f"{theirs}{take.name}".replace("#", str(n)))


def both(ours: str, theirs: str, *, turned: bool = False, rows: tuple[int, int] | None = None) -> dict[str, Take]:
    """A linear map with its bias."""
    return {
        f"{ours}.weight": Take(f"{theirs}.weight", turned=turned, rows=rows),
        f"{ours}.bias": Take(f"{theirs}.bias", rows=rows),
    }


def matched(source: Source, family: Config) -> dict[str, Take]:
    """The family's names as this source has them; a tensor that is missing, or is none of the family's, is refused."""
    names = family.names()
    if not any(name.startswith(family.prefix) for name in source.shapes):
        names = {ours: replace(take, name=take.name.removeprefix(family.prefix)) for ours, take in names.items()}
    asked = {take.name for take in names.values()}
    for name in asked - source.shapes.keys():
        raise BadInput(f"{source.place}: tensor {name} is missing; the config asks for it; fetch the folder again")
    for name in source.shapes.keys() - asked:
        if not re.fullmatch(family.unread, name):
            raise BadInput(
                f"{source.place}: tensor {name[:80]!r} is not one of this model; its config does not name it"
            )
    return names


def fitted(source: Source, names: Mapping[str, Take], model: nn.Module, vocab: int | None = None) -> None:
    """Whether their tensors have the shapes that our model (made of nothing yet) asks for;
    parts of one tensor use each of its numbers once."""
    used: dict[str, int] = {}
    for ours, own in weights(model).items():
        if ours not in names:
            raise BadInput(f"{source.place}: our {ours} has no counterpart; this choice of the config is not supported")
        take = names[ours]
        shape = source.shapes[take.name]
        got = take.of(torch.empty(shape, device="meta")).shape if len(shape) in (1, 2, 3) else torch.Size(shape)
        words = take.words and len(got) == 2  # ours has as many rows as the tokenizer has ids, rounded up
        fits = got[1:] == own.shape[1:] and shape[0] == (vocab or shape[0]) if words else got == own.shape
        if not fits:
            raise BadInput(f"{source.place}: {take.name} has shape {list(shape)}, and the config asks for another one")
        if take.rows is not None:
            used[take.name] = used.get(take.name, 0) + math.prod(got)
    for name, numbers in used.items():
        if numbers != math.prod(source.shapes[name]):
            raise BadInput(f"{source.place}: {name} has shape {list(source.shapes[name])}; the config asks for another")


def read(source: Source, names: Mapping[str, Take], model: nn.Module) -> dict[str, Tensor]:
    """Our weights, one after the other; each tensor of theirs is read once, and one with NaN in it is refused."""
    found: dict[str, Tensor] = {}
    mine = {name: own.shape for name, own in weights(model).items()}
    for theirs in dict.fromkeys(names[ours].name for ours in mine):
        tensor = source.read(theirs)
        if not all(bool(part.isfinite().all()) for part in tensor.flatten().split(BATCH)):
            raise BadInput(f"{source.place}: {theirs} holds NaN or infinite numbers; these weights are damaged")
        for ours in (ours for ours in mine if names[ours].name == theirs):
            got = names[ours].of(tensor)
            if got.shape != mine[ours]:
                vocab = getattr(model, "vocab", len(got))
                got = nn.functional.pad(got[:vocab], (0, 0, 0, mine[ours][0] - vocab))
            found[ours] = got.contiguous()
    return found
