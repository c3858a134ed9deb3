"""Weight mappings between model families of other libraries and ours. Each family is a class in `families/`.

class GPT2Mapping(ModelMapping):
    prefix = "transformer."                       # of tensor names; a folder may omit it
    n_embd: Count                                 # the config.json fields that are read; others are ignored
    def settings(self): return {"model.kind": "gpt", "model.d": self.n_embd, ...}
    def weight_map(self): return {"embed.weight": TensorMapping("transformer.wte.weight", vocab_rows=True), ...}
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

from harken.data.tokenizers.pretrained import PretrainedTokenizer
from harken.data.tokenizers.spec import MAX_VOCAB
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadInput
from harken.models import Model
from harken.run_folder import weights

MODEL_FAMILIES = {
    "gpt2": "harken.bridge.families.gpt2:GPT2Mapping",
    "llama": "harken.bridge.families.llama:LlamaMapping",
    "mistral": "harken.bridge.families.llama:MistralMapping",
    "qwen2": "harken.bridge.families.llama:Qwen2Mapping",
    "gemma": "harken.bridge.families.gemma:GemmaMapping",
    "bert": "harken.bridge.families.bert:BERTMapping",
    "distilbert": "harken.bridge.families.bert:DistilBERTMapping",
    "roberta": "harken.bridge.families.bert:RoBERTaMapping",
    "vit": "harken.bridge.families.vit:ViTMapping",
    "marian": "harken.bridge.families.marian:MarianMapping",
    "bart": "harken.bridge.families.marian:BARTMapping",
    "bert labels": "harken.bridge.families.heads:BERTClassifierMapping",
    "bert tags": "harken.bridge.families.heads:BERTTaggerMapping",
    "bert spans": "harken.bridge.families.heads:BERTSpanMapping",
    "distilbert tags": "harken.bridge.families.heads:DistilBERTTaggerMapping",
    "distilbert spans": "harken.bridge.families.heads:DistilBERTSpanMapping",
    "gpt2 labels": "harken.bridge.families.heads:GPT2ClassifierMapping",
}
HEAD_ARCHITECTURES = {  # models with a head that can be imported, by `architectures` of the config
    "BertForSequenceClassification": "bert labels",
    "BertForTokenClassification": "bert tags",
    "DistilBertForTokenClassification": "distilbert tags",
}
HEAD_PATTERN = re.compile(
    r"\w+For(Sequence|Token)Classification|\w+ForQuestionAnswering|\w+ForMultipleChoice", re.ASCII
)
CHUNK_SIZE = 1 << 24  # values checked at once
NEVER_LOGIT = -1e9  # bias of a token that is never predicted
Count = Annotated[int, Field(ge=1, le=1_000_000)]
LayerCount = Annotated[int, Field(ge=1, le=1000)]
Epsilon = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True)
class TensorMapping:
    """The tensor of another library that holds one of our weights, and how it is stored there."""

    name: str
    rows: tuple[int, int] | None = None  # output rows, where q, k and v are stored in one matrix
    transposed: bool = False  # stored as inputs x outputs
    offset: float = 0.0  # added on import: norm weights may be stored as w - 1
    vocab_rows: bool = False  # one row per token: ours has the tokenizer's size, rounded up
    skip_rows: int = 0  # unused leading rows

    def import_tensor(self, source: Tensor) -> Tensor:
        """Our weight."""
        source = source.mT if self.transposed else source[self.skip_rows :]
        source = source if self.rows is None else source[self.rows[0] : self.rows[1]]
        return source + self.offset if self.offset else source

    def export_tensor(self, weight: Tensor, vocab_size: int) -> Tensor:
        """The inverse: their rows for our weight, not yet transposed."""
        weight = (weight[:vocab_size] if self.vocab_rows else weight) - self.offset
        return torch.cat([weight.new_zeros(self.skip_rows, *weight.shape[1:]), weight]) if self.skip_rows else weight


@dataclass(frozen=True)
class EdgeTokenMapping(TensorMapping):
    """One row per token, plus a copy of row `token_id` for our edge token, which starts and ends a sequence."""

    token_id: int = 0
    n_rows: int = 0  # of their tensor; if ours has fewer, `token_id` is our edge token and later rows are unused
    is_bias: bool = False  # of the logits: the copied token is then never predicted itself

    def import_tensor(self, source: Tensor) -> Tensor:
        source = source.flatten() if self.is_bias else source
        weight = torch.cat([source, source[self.token_id : self.token_id + 1]])
        if self.is_bias:
            weight[self.token_id] = NEVER_LOGIT
        return weight

    def export_tensor(self, weight: Tensor, vocab_size: int) -> Tensor:
        padding = weight.new_full((self.n_rows - vocab_size, *weight.shape[1:]), NEVER_LOGIT if self.is_bias else 0.0)
        rows = torch.cat([weight[:vocab_size], padding])
        rows[self.token_id] = weight[vocab_size]
        return rows[None] if self.is_bias else rows


class ModelMapping(BaseModel):
    """The validated fields of a config.json. Numbers are bounded and strings are enumerated; others are refused."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)

    prefix: ClassVar[str] = ""  # of tensor names; a folder may omit it
    ignored_tensors: ClassVar[str] = "(?!)"  # pattern of tensor names without learned weights
    check: ClassVar[str] = "language model"  # comparison that the certificate makes
    auto_class: ClassVar[str] = "AutoModelForCausalLM"  # of transformers

    vocab_size: int = Field(ge=1, le=MAX_VOCAB)

    def load_processor(self, source: "WeightSource") -> Any:
        """The processor of our run, from the files of the source."""
        tokenizer = PretrainedTokenizer.from_spec(source.tokenizer(), source.location)
        if tokenizer.vocab > self.vocab_size:
            sizes = f"the tokenizer has {tokenizer.vocab} ids, the model {self.vocab_size}"
            raise BadInput(f"{source.location}: {sizes}; the files belong to different models; fetch the folder again")
        return self.processor(tokenizer)

    def processor(self, tokenizer: Tokenizer) -> Any:
        """The processor of our run for this tokenizer."""
        return tokenizer

    def settings(self) -> dict[str, Any]:
        """The settings of our recipe."""
        raise NotImplementedError

    def weight_map(self) -> dict[str, TensorMapping]:
        """The source of each of our weights."""
        raise NotImplementedError


class WeightSource(Protocol):
    """An opened folder or file. Weights are read on demand."""

    location: str  # its name in messages
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    def read(self, name: str) -> Tensor:
        """One tensor, in float32."""

    def tokenizer(self) -> dict[str, Any]:
        """The content of its tokenizer.json."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of these texts with special tokens, by another library."""

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, read by another library."""


def mapping_class(family: str) -> type[ModelMapping]:
    """The mapping of a model family, imported on demand."""
    module, name = MODEL_FAMILIES[family].split(":")
    mapping: type[ModelMapping] = getattr(import_module(module), name)
    return mapping


def find_mapping(source: WeightSource) -> ModelMapping:
    """The mapping of a source, by the model_type and architecture of its config."""
    kind = source.config.get("model_type")
    known = [name for name in MODEL_FAMILIES if " " not in name]
    if not isinstance(kind, str) or kind not in known:
        raise BadInput(f"{source.location}: model_type {str(kind)[:40]!r} is unknown; known: {', '.join(known)}")
    architectures = source.config.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    if HEAD_PATTERN.fullmatch(architecture) and not HEAD_ARCHITECTURES.get(architecture, "").startswith(f"{kind} "):
        accepted = f"accepted models with a head: {', '.join(HEAD_ARCHITECTURES)}"
        raise BadInput(f"{source.location}: {architecture[:60]} is not supported; {accepted}")
    try:
        fields = {**source.config, "tensor_names": frozenset(source.shapes)}  # some layers appear only there
        return mapping_class(HEAD_ARCHITECTURES.get(architecture, kind)).model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field, value = ".".join(map(str, first["loc"])), first["input"]
        problem = "is missing" if first["type"] == "missing" else f"= {repr(value)[:60]}: {first['msg'][:120].lower()}"
        raise BadInput(f"{source.location}: config {field} {problem}; this {kind} cannot be imported") from None


def layer_mappings(
    layers: int, ours: str, source: str, mappings: Mapping[str, TensorMapping | str]
) -> Iterator[tuple[str, TensorMapping]]:
    """The mappings of all layers: # in a name is the layer index."""
    for n in range(layers):
        for name, item in mappings.items():
            mapping = TensorMapping(item) if isinstance(item, str) else item
            yield (
                f"{ours}{name}".replace("#", str(n)),
                replace(mapping, name=f"{source}{mapping.name}".replace("#", str(n))),
            )


def affine(
    ours: str, source: str, *, transposed: bool = False, rows: tuple[int, int] | None = None
) -> dict[str, TensorMapping]:
    """Weight and bias of a linear map or a norm."""
    return {
        f"{ours}.weight": TensorMapping(f"{source}.weight", transposed=transposed, rows=rows),
        f"{ours}.bias": TensorMapping(f"{source}.bias", rows=rows),
    }


def match_tensors(source: WeightSource, mapping: ModelMapping) -> dict[str, TensorMapping]:
    """The weight map with the names of this source; missing and unexpected tensors are refused."""
    weight_map = mapping.weight_map()
    if not any(name.startswith(mapping.prefix) for name in source.shapes):
        weight_map = {
            ours: replace(item, name=item.name.removeprefix(mapping.prefix)) for ours, item in weight_map.items()
        }
    expected = {item.name for item in weight_map.values()}
    for name in expected - source.shapes.keys():
        raise BadInput(f"{source.location}: tensor {name} is missing; the config requires it; fetch the folder again")
    for name in source.shapes.keys() - expected:
        if not re.fullmatch(mapping.ignored_tensors, name):
            raise BadInput(f"{source.location}: tensor {name[:80]!r} is unexpected; the config has no such tensor")
    return weight_map


def check_shapes(
    source: WeightSource, weight_map: Mapping[str, TensorMapping], model: nn.Module, vocab_size: int | None = None
) -> None:
    """Refuse tensors with shapes other than our model (on the meta device); parts must cover a tensor exactly once."""
    used: dict[str, int] = {}
    for ours, weight in weights(model).items():
        if ours not in weight_map:
            raise BadInput(f"{source.location}: our {ours} has no counterpart; this config option is not supported")
        mapping = weight_map[ours]
        shape = source.shapes[mapping.name]
        meta = torch.empty(shape, device="meta") if len(shape) in (1, 2, 3) else None
        part = torch.Size(shape) if meta is None else mapping.import_tensor(meta).shape
        if mapping.vocab_rows and len(part) == 2:  # ours has as many rows as the tokenizer has ids, rounded up
            fits = part[1:] == weight.shape[1:] and shape[0] == (vocab_size or shape[0])
        else:
            fits = part == weight.shape
        if not fits:
            raise BadInput(
                f"{source.location}: {mapping.name} has shape {list(shape)}; the config requires another shape"
            )
        if mapping.rows is not None:
            used[mapping.name] = used.get(mapping.name, 0) + math.prod(part)
    for name, n_values in used.items():
        if n_values != math.prod(source.shapes[name]):
            shape = source.shapes[name]
            raise BadInput(f"{source.location}: {name} has shape {list(shape)}; the config requires another")


def read_weights(source: WeightSource, weight_map: Mapping[str, TensorMapping], model: Model) -> dict[str, Tensor]:
    """Our weights; every tensor is read once, and non-finite values are refused."""
    imported: dict[str, Tensor] = {}
    shapes = {name: weight.shape for name, weight in weights(model).items()}
    for name in dict.fromkeys(weight_map[ours].name for ours in shapes):
        tensor = source.read(name)
        if not all(bool(chunk.isfinite().all()) for chunk in tensor.flatten().split(CHUNK_SIZE)):
            raise BadInput(f"{source.location}: {name} has NaN or infinite values; the weights are damaged")
        for ours in (ours for ours in shapes if weight_map[ours].name == name):
            weight = weight_map[ours].import_tensor(tensor)
            if weight.shape != shapes[ours]:
                vocab_size = model.vocab or len(weight)
                weight = nn.functional.pad(weight[:vocab_size], (0, 0, 0, shapes[ours][0] - vocab_size))
            imported[ours] = weight.contiguous()
    return imported
