"""ViT: patches with a CLS token and a classifier. preprocessor_config.json has the normalization of the pixels."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from harken.bridge.weight_mapping import (
    Count,
    Epsilon,
    LayerCount,
    ModelMapping,
    TensorMapping,
    WeightSource,
    affine,
    layer_mappings,
)
from harken.data.images.source import ImageProcessor
from harken.data.tables.untrusted import read_json
from harken.errors import BadInput
from harken.inference.run import Run

from .bert import ACTIVATIONS, Activation

PREPROCESSOR_FILE, MAX_CONFIG_BYTES = "preprocessor_config.json", 1 << 20  # bytes
NOT_COMPARED = "resizing of images of another size: ours uses torch, theirs Pillow"
Fraction = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class UnsqueezedMapping(TensorMapping):
    """A weight that is stored with leading dimensions of size 1."""

    n_leading: int = 1

    def import_tensor(self, source: Tensor) -> Tensor:
        for _ in range(self.n_leading):
            source = source.squeeze(0)
        return source

    def export_tensor(self, weight: Tensor, vocab_size: int) -> Tensor:
        return weight[(None,) * self.n_leading]


class PreprocessorConfig(BaseModel):
    """The fields that are read from preprocessor_config.json."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    do_rescale: Literal[True] = True
    do_normalize: bool = True
    image_mean: list[Fraction] = [0.5, 0.5, 0.5]
    image_std: list[Annotated[float, Field(gt=0, le=10)]] = [0.5, 0.5, 0.5]
    rescale_factor: Annotated[float, Field(ge=0.0039, le=0.004)] = 1 / 255


class ViTMapping(ModelMapping):
    """ViT with a classifier."""

    prefix: ClassVar = "vit."
    check: ClassVar = "images"
    auto_class: ClassVar = "AutoModelForImageClassification"

    vocab_size: int = 1  # no tokens
    hidden_size: Count
    num_hidden_layers: LayerCount
    num_attention_heads: Count
    intermediate_size: Count
    image_size: Annotated[int, Field(ge=2, le=1024)] = 224
    patch_size: Annotated[int, Field(ge=1, le=1024)] = 16
    num_channels: Literal[1, 3] = 3
    hidden_act: Activation = "gelu"
    layer_norm_eps: Epsilon = 1e-12
    qkv_bias: Literal[True] = True
    id2label: dict[str, Annotated[str, Field(max_length=1000)]] = Field({"0": "LABEL_0", "1": "LABEL_1"}, min_length=1)

    def load_processor(self, source: WeightSource) -> ImageProcessor:
        """The labels and the normalization of the pixels."""
        numbers = [str(n) for n in range(len(self.id2label))]
        if {*self.id2label} != {*numbers}:
            raise BadInput(
                f"{source.location}: config id2label: keys must be 0, 1, 2, ... without gaps; fix the config"
            )
        try:
            path = source.file(PREPROCESSOR_FILE)  # type: ignore[attr-defined]
            preprocessor = PreprocessorConfig.model_validate(read_json(path, MAX_CONFIG_BYTES))
        except ValidationError as error:
            field = ".".join(map(str, error.errors()[0]["loc"]))
            raise BadInput(
                f"{source.location}: {PREPROCESSOR_FILE} {field} is invalid; this ViT cannot be imported"
            ) from None
        mean, std = (preprocessor.image_mean, preprocessor.image_std) if preprocessor.do_normalize else ([0.0], [1.0])
        mean, std = (stats * self.num_channels if len(stats) == 1 else stats for stats in (mean, std))
        if not len(mean) == len(std) == self.num_channels or self.image_size % self.patch_size:
            raise BadInput(
                f"{source.location}: channels or patch size do not fit the images; this ViT cannot be imported"
            )
        return ImageProcessor([self.id2label[n] for n in numbers], self.image_size, mean, std)

    def settings(self) -> dict[str, Any]:
        return {
            "data.kind": "images",
            "data.image_size": self.image_size,
            "data.color": self.num_channels == 3,
            "model.kind": "vit",
            "model.d": self.hidden_size,
            "model.layers": self.num_hidden_layers,
            "model.heads": self.num_attention_heads,
            "model.d_ff": self.intermediate_size,
            "model.patch": self.patch_size,
            "model.activation": ACTIVATIONS.get(self.hidden_act, self.hidden_act),
            "model.eps": self.layer_norm_eps,
        }

    def weight_map(self) -> dict[str, TensorMapping]:
        layer = {
            **affine("attention.W_q", "attention.attention.query"),
            **affine("attention.W_k", "attention.attention.key"),
            **affine("attention.W_v", "attention.attention.value"),
            **affine("attention.W_o", "attention.output.dense"),
            **affine("attention_sublayer.norm", "layernorm_before"),
            **affine("mlp.W_1", "intermediate.dense"),
            **affine("mlp.W_2", "output.dense"),
            **affine("mlp_sublayer.norm", "layernorm_after"),
        }
        return {
            "body.embed_cls": UnsqueezedMapping("vit.embeddings.cls_token", n_leading=2),
            "body.stack.positions.table.weight": UnsqueezedMapping("vit.embeddings.position_embeddings"),
            **affine("body.embed", "vit.embeddings.patch_embeddings.projection"),
            **dict(layer_mappings(self.num_hidden_layers, "body.stack.blocks.#.", "vit.encoder.layer.#.", layer)),
            **affine("body.norm", "vit.layernorm"),
            **affine("W_y", "classifier"),
        }


def vit_config(model: Any) -> dict[str, Any]:
    """config.json fields for our model settings, without those of the images."""
    return {
        "architectures": ["ViTForImageClassification"],
        "hidden_size": model.d,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "intermediate_size": model.d_ff or 4 * model.d,
        "hidden_act": {"gelu-tanh": "gelu_new"}.get(model.activation, model.activation),
        "layer_norm_eps": model.eps,
    }


def image_config(run: Run) -> dict[str, Any]:
    """config.json fields of the images and their labels."""
    processor: Any = run.tokenizer
    id2label = {str(n): label for n, label in enumerate(processor.labels)}
    return {
        "image_size": processor.image_size,
        "patch_size": run.recipe.model.patch_size(processor.image_size),
        "num_channels": len(processor.mean),
        "id2label": id2label,
        "label2id": {label: int(n) for n, label in id2label.items()},
        "dtype": "float32",
        "transformers_version": "4.50.0",
    }


def preprocessor_files(run: Run) -> dict[str, Any]:
    """preprocessor_config.json: the normalization of the pixels."""
    processor: Any = run.tokenizer
    steps = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "do_rescale": True, "do_normalize": True}
    size = {
        "size": {"height": processor.image_size, "width": processor.image_size},
        "resample": 2,
        "rescale_factor": 1 / 255,
    }
    return {PREPROCESSOR_FILE: {**steps, **size, "image_mean": processor.mean, "image_std": processor.std}}


@torch.inference_mode()
def compare_logits(run: Run, reference: Any) -> tuple[Tensor, Tensor]:
    """The logits of both models for random images."""
    processor: Any = run.tokenizer
    pixels = np.random.default_rng(0).integers(
        0, 256, (4, len(processor.mean), processor.image_size, processor.image_size)
    )
    x = processor.normalize(torch.from_numpy(pixels.astype(np.uint8)))
    return run.model(x), reference(pixel_values=x).logits
