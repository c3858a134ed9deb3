"""Image classification. Loss in nats."""

from functools import cached_property
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from harken.core.similarity import precise
from harken.data.images.source import Augmentation, ImageBatch, ImageBatches, ImageData, ImageProcessor, ImageSplit
from harken.models import EncoderWithHead, ModelSettings

from . import Loss, OutputScoredTask, Score, TaskSettings, evaluating
from .label_task import ClassWeights, LabelTask, label_loss

QUICK_IMAGES = 2000  # images of a quick evaluation
EVAL_BATCH = 256  # images
THUMBNAIL_SIZE, MAX_BASELINE_IMAGES = 28, 20_000  # pixels per side, and training images, of the regression


class ImageTaskSettings(TaskSettings[ImageData, ModelSettings]):
    """Settings of image classification."""

    kind: Literal["image"] = "image"
    metric: Literal["auto", "loss", "accuracy", "f1", "matthews"] = Field(
        "auto", description="metric that selects the best weights; auto: accuracy"
    )
    class_weights: ClassWeights = "none"
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="label smoothing of the training loss")
    shift: float = Field(
        0.0, ge=0, le=1, description="maximum random shift in whole pixels, as a fraction of the image size"
    )
    zoom: float = Field(0.0, ge=0, le=3, description="maximum random zoom in either direction; 0.2: by a fifth")
    rotation: float = Field(0.0, ge=0, le=180, description="maximum random rotation in either direction, in degrees")
    flip: bool = Field(False, description="random horizontal flip of half of the images")
    erase: float = Field(0.0, ge=0, le=1, description="fraction of images with a randomly erased box")
    mixup: float = Field(0.0, ge=0, description="parameter a of the Beta(a, a) distribution of mixup; 0: no mixup")
    cutmix: float = Field(0.0, ge=0, description="parameter a of the Beta(a, a) distribution of cutmix; 0: no cutmix")

    def bind(self, data: ImageData, model: ModelSettings, *, batch: int, seed: int) -> "ImageTask":
        return ImageTask(self, data, model, batch=batch, seed=seed)


class ImageTask(
    OutputScoredTask[ImageTaskSettings, ImageData, EncoderWithHead, ImageBatch],
    LabelTask[ImageTaskSettings, ImageSplit, EncoderWithHead, ImageBatch],
):
    """Classification of one set of images."""

    unit, regression_name = "images", "regression on pixels"

    def __init__(
        self, settings: ImageTaskSettings, data: ImageData, model: ModelSettings, *, batch: int, seed: int
    ) -> None:
        self.set_targets(data.processor.labels, "label", settings.metric)
        excluded = {"kind", "metric", "class_weights", "label_smoothing"}
        augmentation = Augmentation(**settings.model_dump(exclude=excluded))
        n_patches = model.n_tokens(data.processor.image_size)
        batches = ImageBatches(data.train, batch, n_patches=n_patches, augmentation=augmentation, seed=seed)
        self.set_up(settings, data, batches, batches.rows * n_patches)
        self.set_class_weights(settings.class_weights)

    def loss(self, model: EncoderWithHead, batch: ImageBatch, start: int = 0) -> Loss:
        y = precise(model(batch.inputs(self.data.processor).to(model.W_y.weight.dtype)))
        weight, smoothing = batch.target_weight(), self.settings.label_smoothing
        if weight is None or batch.mix_targets is None:
            return self.smoothed_loss(y, batch.targets, self.settings.label_smoothing)
        targets = batch.targets, batch.mix_targets
        label_weight = None if self.class_weights is None else self.class_weights.to(y.device)
        first, second = (
            F.cross_entropy(y, t, label_weight, reduction="none", label_smoothing=smoothing) for t in targets
        )
        plain = label_loss(y, batch.targets, "label").detach()
        return Loss((weight * first + (1 - weight) * second).sum(), reported=plain)

    def split_outputs(self, model: EncoderWithHead, split: str, *, quick: bool = False) -> Tensor:  # N outputs
        return predict(model, self._images(split, quick=quick).pixels, self.data.processor)

    def score_outputs(self, y: Tensor, split: str, *, quick: bool = False) -> Score:
        return self.score(y, self._images(split, quick=quick).targets, parts=not quick)

    def _images(self, split: str, *, quick: bool) -> ImageSplit:
        part: ImageSplit = self.data.parts[split]
        return part.subset(QUICK_IMAGES) if quick else part

    def input_text(self, split: str, n: int) -> str:
        return self.data.parts[split].locations[n]

    def features(self, part: ImageSplit) -> Tensor:
        """The pixels of each image."""
        return thumbnails(part.pixels)

    @cached_property
    def _regression_part(self) -> ImageSplit:
        return self.data.train.subset(MAX_BASELINE_IMAGES)

    def _other_baselines(self, part: ImageSplit) -> dict[str, Tensor]:
        """The label with the nearest mean image."""
        return {"nearest mean image": -torch.cdist(thumbnails(part.pixels), self._mean_images).square().float()}

    @cached_property
    def _mean_images(self) -> Tensor:  # C pixels
        x, targets = thumbnails(self._regression_part.pixels), torch.from_numpy(self._regression_part.targets)
        one_hot = F.one_hot(targets, self.n_outputs).T.to(x.dtype)
        return one_hot @ x / one_hot.sum(1, keepdim=True).clamp_min(1)


def thumbnails(pixels: Tensor, max_size: int = THUMBNAIL_SIZE) -> Tensor:  # N C S S -> N pixels
    """Downscaled images as rows of pixels from 0 to 1."""
    size = min(max_size, pixels.shape[-1])
    rows = [F.adaptive_avg_pool2d(x.double() / 255, size).flatten(1) for x in pixels.split(EVAL_BATCH)]
    return torch.cat(rows)


def predict(model: nn.Module, pixels: Tensor, processor: ImageProcessor) -> Tensor:  # N C S S -> N outputs
    """Outputs of each image."""
    weight = next(model.parameters())
    with evaluating(model):
        batches = (processor.normalize(x.to(weight.device)).to(weight.dtype) for x in pixels.split(EVAL_BATCH))
        return torch.cat([model(x).float().cpu() for x in batches])
