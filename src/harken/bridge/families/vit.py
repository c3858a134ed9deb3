"""ViT: patches with a CLS token and a classifier. preprocessor_config.json has the normalization of the pixels."""

from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from harken.bridge.weight_mapping import Epsilon, StandardConfigMapping, WeightSource
from harken.data.images.source import ImageProcessor
from harken.data.tables.untrusted import read_json
from harken.errors import BadInput
from harken.inference.run import Run

from .bert import Activation
from .heads import label_config, ordered_labels

PREPROCESSOR_FILE, MAX_CONFIG_BYTES = "preprocessor_config.json", 1 << 20  # bytes
NOT_COMPARED = "resizing of images of another size: ours uses torch, theirs Pillow"
Fraction = Annotated[float, Field(ge=0, le=1)]


class PreprocessorConfig(BaseModel):
    """The fields that are read from preprocessor_config.json."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    do_rescale: Literal[True] = True
    do_normalize: bool = True
    image_mean: list[Fraction] = [0.5, 0.5, 0.5]
    image_std: list[Annotated[float, Field(gt=0, le=10)]] = [0.5, 0.5, 0.5]
    rescale_factor: Annotated[float, Field(ge=0.0039, le=0.004)] = 1 / 255


class ViTMapping(StandardConfigMapping):
    """ViT with a classifier."""

    model_type: ClassVar = "vit"
    architecture: ClassVar = "ViTForImageClassification"
    auto_class: ClassVar = "AutoModelForImageClassification"
    data_kind: ClassVar = "images"
    constants: ClassVar = {"data.kind": "images", "model.kind": "vit"}
    check: ClassVar = "images"
    table: ClassVar = "vit"
    prefix: ClassVar = "vit."

    vocab_size: int = 1  # no tokens
    patch: Annotated[int, Field(ge=1, le=1024)] = Field(16, alias="patch_size")
    activation: Activation = Field("gelu", alias="hidden_act")
    eps: Epsilon = Field(1e-12, alias="layer_norm_eps")
    image_size: Annotated[int, Field(ge=2, le=1024)] = 224
    num_channels: Literal[1, 3] = 3
    qkv_bias: Literal[True] = True
    id2label: dict[str, Annotated[str, Field(max_length=1000)]] = Field({"0": "LABEL_0", "1": "LABEL_1"}, min_length=1)

    def load_processor(self, source: WeightSource) -> ImageProcessor:
        """The labels and the normalization of the pixels."""
        location, labels = source.location, ordered_labels(self.id2label, source.location)
        try:
            path = source.file(PREPROCESSOR_FILE)
            preprocessor = PreprocessorConfig.model_validate(read_json(path, MAX_CONFIG_BYTES))
        except ValidationError as error:
            problem = f"{'.'.join(map(str, error.errors()[0]['loc']))} is invalid; this ViT cannot be imported"
            raise BadInput(f"{location}: {PREPROCESSOR_FILE} {problem}") from None
        mean, std = (preprocessor.image_mean, preprocessor.image_std) if preprocessor.do_normalize else ([0.0], [1.0])
        mean, std = (stats * self.num_channels if len(stats) == 1 else stats for stats in (mean, std))
        if not len(mean) == len(std) == self.num_channels or self.image_size % self.patch:
            raise BadInput(f"{location}: channels or patch size do not fit the images; this ViT cannot be imported")
        return ImageProcessor(labels, self.image_size, mean, std)

    def settings(self) -> dict[str, object]:
        return super().settings() | {"data.image_size": self.image_size, "data.color": self.num_channels == 3}


def image_config(run: Run) -> dict[str, object]:
    """config.json fields of the images and their labels."""
    processor = run.tokenizer
    return {
        "image_size": processor.image_size,
        "patch_size": run.recipe.model.patch_size(processor.image_size),
        "num_channels": len(processor.mean),
        **label_config(run),
        "dtype": "float32",
        "transformers_version": "4.50.0",
    }


def preprocessor_files(run: Run) -> dict[str, dict[str, object]]:
    """preprocessor_config.json: the normalization of the pixels."""
    processor = run.tokenizer
    steps = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "do_rescale": True, "do_normalize": True}
    size = {"height": processor.image_size, "width": processor.image_size}
    scale = {"size": size, "resample": 2, "rescale_factor": 1 / 255}
    return {PREPROCESSOR_FILE: {**steps, **scale, "image_mean": processor.mean, "image_std": processor.std}}


@torch.inference_mode()
def compare_logits(run: Run, reference: nn.Module) -> tuple[Tensor, Tensor]:
    """The logits of both models for random images."""
    processor, size = run.tokenizer, run.tokenizer.image_size
    pixels = np.random.default_rng(0).integers(0, 256, (4, len(processor.mean), size, size))
    x = processor.normalize(torch.from_numpy(pixels.astype(np.uint8)))
    return run.model(x), reference(pixel_values=x).logits
