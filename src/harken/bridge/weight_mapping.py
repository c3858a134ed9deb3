"""Weight mappings between model families of other libraries and ours. Each family is a class in `families/`.

class GPT2Mapping(ModelMapping):
    model_type, table, prefix = "gpt2", "gpt2", "transformer."  # `names.toml` has the tensor names of the table
    constants = {"model.kind": "gpt", "model.style": "gpt2"}    # settings of our recipe that all models have
    d: Count = Field(alias="n_embd")              # a setting of our model, by its key in config.json
    scale_attn_weights: Literal[True] = True      # another key that is read; all others are ignored
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from harken.data.images.source import ImageProcessor
from harken.data.labelled.examples import TokenLabelProcessor
from harken.data.tokenizers.pairs import PairTokenizers
from harken.data.tokenizers.pretrained import PretrainedTokenizer
from harken.data.tokenizers.spec import MAX_VOCAB
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadInput
from harken.models import Model
from harken.run_folder import weights

NAMES = tomllib.loads((files(__package__) / "names.toml").read_text("utf-8"))
ACTIVATIONS = {"gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "swish": "silu"}  # theirs: ours
EXPORTED_ACTIVATIONS = {"gelu-tanh": "gelu_new", "silu": "swish"}
CHUNK_SIZE = 1 << 24  # values checked at once
Count = Annotated[int, Field(ge=1, le=1_000_000)]
LayerCount = Annotated[int, Field(ge=1, le=1000)]
Epsilon = Annotated[float, Field(gt=0, lt=1)]
RunProcessor = Tokenizer | TokenLabelProcessor | PairTokenizers | ImageProcessor


@dataclass(frozen=True)
class TensorMapping:
    """The tensor of another library that holds one of our weights, and how it is stored there."""

    name: str
    part: int | None = None  # 0, 1 or 2 where q, k and v are stored in one matrix
    transposed: bool = False  # stored as inputs x outputs
    offset: float = 0.0  # added on import: norm weights may be stored as w - 1
    vocab_rows: bool = False  # one row per token: ours has the tokenizer's size, rounded up
    skip_rows: int = 0  # unused leading rows
    n_leading: int = 0  # leading dimensions of size 1

    def import_tensor(self, source: Tensor) -> Tensor:
        """Our weight."""
        for _ in range(self.n_leading):
            source = source.squeeze(0)
        source = source.mT if self.transposed and source.dim() > 1 else source[self.skip_rows :]
        source = source if self.part is None else source.tensor_split(3)[self.part]
        return source + self.offset if self.offset else source

    def export_tensor(self, weight: Tensor, vocab_size: int) -> Tensor:
        """The inverse: their rows for our weight, not yet transposed."""
        weight = (weight[:vocab_size] if self.vocab_rows else weight) - self.offset
        weight = torch.cat([weight.new_zeros(self.skip_rows, *weight.shape[1:]), weight]) if self.skip_rows else weight
        return weight[(None,) * self.n_leading]


class ModelMapping(BaseModel):
    """The validated fields of a config.json. Numbers are bounded and strings are enumerated; others are refused.

    A field with an alias is a setting of our model, and the alias is its key in config.json.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)

    model_type: ClassVar[str]  # of config.json
    architecture: ClassVar[str] = ""  # of an exported config.json; "": import only
    auto_class: ClassVar[str] = "AutoModelForCausalLM"  # of transformers
    data_kind: ClassVar[str] = "text"
    constants: ClassVar[Mapping[str, object]]  # settings of our recipe that are the same for all models
    offsets: ClassVar[Mapping[str, int]] = {}  # setting: our value minus theirs
    check: ClassVar[str] = "language model"  # comparison that the certificate makes
    prefix: ClassVar[str] = ""  # of tensor names; a folder may omit it
    ignored_tensors: ClassVar[str] = "(?!)"  # pattern of tensor names without learned weights
    table: ClassVar[str]  # of names.toml
    optional_tables: ClassVar[Mapping[str, str]] = {}  # setting: table, which exists if the source has its first tensor

    tensor_names: frozenset[str] = frozenset()
    vocab_size: int = Field(ge=1, le=MAX_VOCAB)

    def load_processor(self, source: "WeightSource") -> RunProcessor:
        """The processor of our run, from the files of the source."""
        tokenizer = PretrainedTokenizer.from_spec(source.tokenizer(), source.location)
        if tokenizer.vocab > self.vocab_size:
            sizes = f"the tokenizer has {tokenizer.vocab} ids, the model {self.vocab_size}"
            raise BadInput(f"{source.location}: {sizes}; the files belong to different models; fetch the folder again")
        return self.processor(tokenizer, source.location)

    def processor(self, tokenizer: Tokenizer, location: str) -> RunProcessor:
        """The processor of our run for this tokenizer."""
        return tokenizer

    def settings(self) -> dict[str, object]:
        """The settings of our recipe."""
        settings = dict(self.constants)
        for name in self.aliases():
            if (value := getattr(self, name)) is not None:
                value = value + self.offsets[name] if name in self.offsets else value
                settings[f"model.{name}"] = ACTIVATIONS.get(value, value) if name == "activation" else value
        return settings | {f"model.{name}": self.has(table) for name, table in self.optional_tables.items()}

    @classmethod
    def config(cls, settings: Mapping[str, object]) -> dict[str, object]:
        """The inverse: config.json for the settings of our model, without token ids and labels."""
        config: dict[str, object] = {"model_type": cls.model_type, "architectures": [cls.architecture]}
        for name, key in cls.aliases().items():
            value = settings[name]
            value = value - cls.offsets[name] if name in cls.offsets and isinstance(value, int) else value
            config[key] = EXPORTED_ACTIVATIONS.get(str(value), value) if name == "activation" else value
        return config

    @classmethod
    def aliases(cls) -> dict[str, str]:
        """Our setting: key of config.json."""
        return {name: field.alias for name, field in cls.model_fields.items() if field.alias}

    def has(self, table: str) -> bool:
        """Whether the source has the first tensor of this table."""
        return first_tensor(table) in {name.removeprefix(self.prefix) for name in self.tensor_names}

    def tables(self) -> list[str]:
        """The tables of names.toml with the weights of this model."""
        return [self.table, *(table for table in self.optional_tables.values() if self.has(table))]

    def weight_map(self) -> dict[str, TensorMapping]:
        """The source of each of our weights."""
        layers: int = dict(self)["layers"]  # a field of every family
        return {ours: item for table in self.tables() for ours, item in table_mappings(table, self.prefix, layers)}


class StandardConfigMapping(ModelMapping):
    """A family with the most common keys in config.json."""

    d: Count = Field(alias="hidden_size")
    layers: LayerCount = Field(alias="num_hidden_layers")
    heads: Count = Field(alias="num_attention_heads")
    d_ff: Count = Field(alias="intermediate_size")


class WeightSource(Protocol):
    """An opened folder or file. Weights are read on demand."""

    location: str  # its name in messages
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    def file(self, name: str) -> Path: ...  # of the folder; BadInput if it is missing
    def read(self, name: str) -> Tensor: ...  # one tensor, in float32
    def tokenizer(self) -> dict[str, object]: ...  # the content of its tokenizer.json
    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...  # with special tokens, by another library
    def tensors(self) -> dict[str, Tensor]: ...  # all, read by another library


def table_mappings(table: str, prefix: str, layers: int) -> Iterator[tuple[str, TensorMapping]]:
    """The mappings of a table of names.toml for all layers."""
    for ours, entry in NAMES["tensors"][table].items():
        item = TensorMapping(entry) if isinstance(entry, str) else TensorMapping(**entry)
        for n in range(layers if "#" in ours else 1):
            for part in ("weight", "bias") if "*" in ours else ("",):
                name = item.name.replace("@", prefix).replace("#", str(n)).replace("*", part)
                transposed = item.transposed and part != "bias"
                yield ours.replace("#", str(n)).replace("*", part), replace(item, name=name, transposed=transposed)


def first_tensor(table: str) -> str:
    """The first tensor of a table, without the prefix of its family."""
    return next(table_mappings(table, "", 1))[1].name


def match_tensors(source: WeightSource, mapping: ModelMapping) -> dict[str, TensorMapping]:
    """The weight map with the names of this source; missing and unexpected tensors are refused."""
    weight_map, prefix = mapping.weight_map(), mapping.prefix
    if not any(name.startswith(prefix) for name in source.shapes):
        weight_map = {ours: replace(item, name=item.name.removeprefix(prefix)) for ours, item in weight_map.items()}
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
    """Refuse tensors with shapes other than our model (on the meta device)."""
    for ours, weight in weights(model).items():
        if ours not in weight_map:
            raise BadInput(f"{source.location}: our {ours} has no counterpart; this config option is not supported")
        mapping = weight_map[ours]
        shape = torch.Size(source.shapes[mapping.name])
        part = mapping.import_tensor(torch.empty(shape, device="meta")).shape if len(shape) in (1, 2, 3) else shape
        fits = part == weight.shape
        if mapping.vocab_rows and len(part) == 2:  # ours has as many rows as the tokenizer has ids, rounded up
            fits = part[1:] == weight.shape[1:] and shape[0] == (vocab_size or shape[0])
        if not fits:
            problem = f"{mapping.name} has shape {list(shape)}; the config requires another shape"
            raise BadInput(f"{source.location}: {problem}")


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
