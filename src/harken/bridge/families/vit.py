"""ViT: a picture in patches, with CLS before them and labels on top. How pixels become numbers, a file beside says."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from harken.bridge.weight_mapping import Config, Count, Layers, Small, Source, Take, both, stacked
from harken.data.images.source import Lens
from harken.data.tables.untrusted import read_json
from harken.errors import BadInput
from harken.inference.run import Run

from .bert import ACTS, Act

PIXELS, SMALL = "preprocessor_config.json", 1 << 20  # bytes
LOST = "how a picture of another size is made to fit: ours is squeezed by torch, theirs by Pillow"
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Wrapped(Take):
    """A weight that is written with so many dimensions of one before its own."""

    ones: int = 1

    def of(self, theirs: Tensor) -> Tensor:
        for _ in range(self.ones):
            theirs = theirs.squeeze(0)
        return theirs

    def back(self, ours: Tensor, vocab: int) -> Tensor:
        return ours[(None,) * self.ones]


class Seen(BaseModel):
    """What is read of a preprocessor_config.json."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    do_rescale: Literal[True] = True
    do_normalize: bool = True
    image_mean: list[Share] = [0.5, 0.5, 0.5]
    image_std: list[Annotated[float, Field(gt=0, le=10)]] = [0.5, 0.5, 0.5]
    rescale_factor: Annotated[float, Field(ge=0.0039, le=0.004)] = 1 / 255


class ViT(Config):
    """The config of a ViT with labels."""

    prefix: ClassVar = "vit."
    check: ClassVar = "pictures"
    auto: ClassVar = "AutoModelForImageClassification"

    vocab_size: int = 1  # there are no words
    hidden_size: Count
    num_hidden_layers: Layers
    num_attention_heads: Count
    intermediate_size: Count
    image_size: Annotated[int, Field(ge=2, le=1024)] = 224
    patch_size: Annotated[int, Field(ge=1, le=1024)] = 16
    num_channels: Literal[1, 3] = 3
    hidden_act: Act = "gelu"
    layer_norm_eps: Small = 1e-12
    qkv_bias: Literal[True] = True
    id2label: dict[str, Annotated[str, Field(max_length=1000)]] = Field({"0": "LABEL_0", "1": "LABEL_1"}, min_length=1)

    def told(self, source: Source) -> Lens:
        """The labels, and how pixels become numbers."""
        numbers = [str(n) for n in range(len(self.id2label))]
        if {*self.id2label} != {*numbers}:
            raise BadInput(f"{source.place}: config id2label: labels are numbered 0, 1, 2, ...; mend it")
        try:
            path = source.file(PIXELS)  # type: ignore[attr-defined]
            seen = Seen.model_validate(read_json(path, SMALL))
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise BadInput(f"{source.place}: {PIXELS} {where} is not what a ViT has; it cannot be read") from None
        mean, spread = (seen.image_mean, seen.image_std) if seen.do_normalize else ([0.0], [1.0])
        mean, spread = (some * self.num_channels if len(some) == 1 else some for some in (mean, spread))
        if not len(mean) == len(spread) == self.num_channels or self.image_size % self.patch_size:
            raise BadInput(f"{source.place}: its channels or patches do not fit its pictures; this ViT cannot be read")
        return Lens([self.id2label[n] for n in numbers], self.image_size, mean, spread)

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
            "model.activation": ACTS.get(self.hidden_act, self.hidden_act),
            "model.eps": self.layer_norm_eps,
        }

    def names(self) -> dict[str, Take]:
        layer = {
            **both("look.W_q", "attention.attention.query"),
            **both("look.W_k", "attention.attention.key"),
            **both("look.W_v", "attention.attention.value"),
            **both("look.W_o", "attention.output.dense"),
            **both("look_sub.norm", "layernorm_before"),
            **both("mlp.W_1", "intermediate.dense"),
            **both("mlp.W_2", "output.dense"),
            **both("mlp_sub.norm", "layernorm_after"),
        }
        return {
            "body.embed_cls": Wrapped("vit.embeddings.cls_token", ones=2),
            "body.stack.positions.table.weight": Wrapped("vit.embeddings.position_embeddings"),
            **both("body.embed", "vit.embeddings.patch_embeddings.projection"),
            **dict(stacked(self.num_hidden_layers, "body.stack.blocks.#.", "vit.encoder.layer.#.", layer)),
            **both("body.norm", "vit.layernorm"),
            **both("W_y", "classifier"),
        }


def config(shape: Any) -> dict[str, Any]:
    """What their config says of a shape of ours; what it has of the pictures, `written` says."""
    return {
        "architectures": ["ViTForImageClassification"],
        "hidden_size": shape.d,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.d_ff or 4 * shape.d,
        "hidden_act": {"gelu-tanh": "gelu_new"}.get(shape.activation, shape.activation),
        "layer_norm_eps": shape.eps,
    }


def written(run: Run) -> dict[str, Any]:
    """What a config says of the pictures and their labels."""
    lens: Any = run.tokenizer
    named = {str(n): label for n, label in enumerate(lens.labels)}
    return {
        "image_size": lens.image_size,
        "patch_size": run.recipe.model.cut(lens.image_size),
        "num_channels": len(lens.mean),
        "id2label": named,
        "label2id": {label: int(n) for n, label in named.items()},
        "dtype": "float32",
        "transformers_version": "4.50.0",
    }


def pixels(run: Run) -> dict[str, Any]:
    """The file that says how pixels become numbers."""
    lens: Any = run.tokenizer
    made = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "do_rescale": True, "do_normalize": True}
    size = {"size": {"height": lens.image_size, "width": lens.image_size}, "resample": 2, "rescale_factor": 1 / 255}
    return {PIXELS: {**made, **size, "image_mean": lens.mean, "image_std": lens.spread}}


@torch.inference_mode()
def said(run: Run, theirs: Any) -> tuple[Tensor, Tensor]:
    """What both say of some pictures drawn at random."""
    lens: Any = run.tokenizer
    drawn = np.random.default_rng(0).integers(0, 256, (4, len(lens.mean), lens.image_size, lens.image_size))
    x = lens.numbers(torch.from_numpy(drawn.astype(np.uint8)))
    return run.model(x), theirs(pixel_values=x).logits
