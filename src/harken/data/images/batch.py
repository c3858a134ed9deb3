"""Batches of augmented images: a pure function of (seed, epoch, step).

A batch holds the random draws (shift, erased box, ...) as numbers; the augmentation itself runs on the device of the
model, row by row, so parts of a batch equal the batch.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.data.batch import Batch
from harken.data.rng import RngStream, rng_for

from .files import Array
from .source import ImageProcessor, ImageSplit


@dataclass(frozen=True)
class Augmentation:
    """Strengths of the image augmentations."""

    shift: float = 0.0  # maximum, as a fraction of the size
    zoom: float = 0.0  # maximum, as a fraction
    rotation: float = 0.0  # maximum, in degrees
    flip: bool = False  # horizontal
    erase: float = 0.0  # fraction of images with an erased box
    mixup: float = 0.0  # a of Beta(a, a)
    cutmix: float = 0.0  # a of Beta(a, a)

    @property
    def moves(self) -> bool:
        return bool(self.shift or self.zoom or self.rotation or self.flip)

    @property
    def mixes(self) -> bool:
        return bool(self.mixup or self.cutmix)


@dataclass(frozen=True, kw_only=True)
class ImageBatch(Batch):
    """uint8 images (`tokens`, B C S S), their labels (`targets`, B), and the draws of the augmentation."""

    n_patches: int  # tokens of an image
    affine: Tensor | None = None  # B 2 3: output to input coordinates, both from -1 to 1
    erase_box: Tensor | None = None  # B 4: top, left, bottom, right as fractions of the size
    mix_pixels: Tensor | None = None  # B C S S: images to mix in
    mix_targets: Tensor | None = None  # B
    mix_weight: Tensor | None = None  # B: weight of the first image outside the box
    mix_box: Tensor | None = None  # B 4: box taken from the image to mix in

    @property
    def n_targets(self) -> int:
        return len(self.tokens)

    @property
    def n_tokens(self) -> int:
        return len(self.tokens) * self.n_patches

    def inputs(self, processor: ImageProcessor) -> Tensor:  # B C S S
        """The augmented, normalized images."""
        x = self._transform(self.tokens, processor)
        if self.mix_pixels is not None and self.mix_weight is not None and self.mix_box is not None:
            y, weight = self._transform(self.mix_pixels, processor), self.mix_weight[:, None, None, None]
            x = torch.where(_in_box(self.mix_box, x.shape[-1]), y, weight * x + (1 - weight) * y)
        return x if self.erase_box is None else x.masked_fill(_in_box(self.erase_box, x.shape[-1]), 0.0)

    def _transform(self, pixels: Tensor, processor: ImageProcessor) -> Tensor:
        if self.affine is None:
            return processor.normalize(pixels)
        centers = (2 * torch.arange(pixels.shape[-1], device=pixels.device) + 1) / pixels.shape[-1] - 1
        xy = torch.cartesian_prod(centers, centers).flip(-1).unflatten(0, (len(centers), len(centers)))  # S S 2
        grid = torch.einsum("hwj,bij->bhwi", xy, self.affine[..., :2]) + self.affine[:, None, None, :, 2]
        return processor.normalize(F.grid_sample(pixels.float() / 255, grid, align_corners=False))

    def target_weight(self) -> Tensor | None:  # B
        """The fraction of each mixed image that is from the first image; None without mixing."""
        if self.mix_weight is None or self.mix_box is None:
            return None
        size = self.tokens.shape[-1]
        box_fraction = _in_box(self.mix_box, size).flatten(1).sum(1) / size**2
        return self.mix_weight * (1 - box_fraction)


def _in_box(box: Tensor, size: int) -> Tensor:  # B 4 -> B 1 S S
    """True for the pixels with their center in the box."""
    centers = (torch.arange(size, device=box.device) + 0.5) / size
    top, left, bottom, right = (side[:, None] for side in box.unbind(1))
    rows, columns = (centers >= top) & (centers < bottom), (centers >= left) & (centers < right)
    return (rows[:, :, None] & columns[:, None, :])[:, None]


class ImageBatches:
    """The training batches: shuffled in every epoch, with new augmentations. All have the same shape."""

    def __init__(self, images: ImageSplit, rows: int, *, n_patches: int, augmentation: Augmentation, seed: int) -> None:
        self.images, self.n_patches, self.augmentation, self.seed = images, n_patches, augmentation, seed
        self.rows = min(rows, len(images))
        self.steps = len(images) // self.rows
        self._epoch: tuple[int, Array] = (-1, np.empty(0, np.int64))

    def batch(self, epoch: int, step: int) -> ImageBatch:
        if self._epoch[0] != epoch:
            self._epoch = (epoch, rng_for(self.seed, RngStream.IMAGE_ORDER, epoch).permutation(len(self.images)))
        indices = self._epoch[1][step * self.rows : (step + 1) * self.rows]
        augmentation, rng, B = (
            self.augmentation,
            rng_for(self.seed, RngStream.IMAGE_AUGMENTATION, epoch, step),
            len(indices),
        )
        pixels, targets = self.images.pixels, torch.from_numpy(self.images.targets)
        draws = dict[str, Tensor]()
        if augmentation.moves:
            draws["affine"] = torch.from_numpy(random_affines(augmentation, rng, B, pixels.shape[-1]))
        if augmentation.mixes:
            mixed = rng.integers(len(self.images), size=B)
            weight, box = _random_mixes(augmentation, rng, B)
            draws |= {"mix_pixels": pixels[mixed], "mix_targets": targets[mixed]}
            draws |= {"mix_weight": torch.from_numpy(weight), "mix_box": torch.from_numpy(box)}
        if augmentation.erase:
            box = _random_boxes(rng, rng.uniform(0.02, 0.25, B)) * (rng.random(B) < augmentation.erase)[:, None]
            draws["erase_box"] = torch.from_numpy(box.astype(np.float32))
        return ImageBatch(pixels[indices], targets[indices], n_patches=self.n_patches, **draws)  # type: ignore[arg-type]


def random_affines(augmentation: Augmentation, rng: np.random.Generator, B: int, size: int) -> Array:  # B 2 3
    """Affine maps from output to input coordinates, both from -1 to 1."""
    angle = np.radians(rng.uniform(-augmentation.rotation, augmentation.rotation, B))
    scale = np.exp(rng.uniform(-1, 1, B) * math.log1p(augmentation.zoom))
    mirror = np.where(rng.random(B) < 0.5 * augmentation.flip, -1.0, 1.0)
    pixels = np.round(rng.uniform(-augmentation.shift, augmentation.shift, (2, B)) * size)  # whole: no blur
    shift = pixels * 2 / size
    c, s = np.cos(angle) * scale, np.sin(angle) * scale
    affine = np.array([[c * mirror, -s, shift[0]], [s * mirror, c, shift[1]]])
    return affine.transpose(2, 0, 1).astype(np.float32)


def _random_boxes(rng: np.random.Generator, area: Array) -> Array:  # B -> B 4
    """Random boxes of these areas, with aspect ratios near 1."""
    ratio = np.exp(rng.uniform(-0.5, 0.5, len(area)))
    height, width = np.minimum(np.sqrt(area * ratio), 1), np.minimum(np.sqrt(area / ratio), 1)
    top, left = rng.random(len(area)) * (1 - height), rng.random(len(area)) * (1 - width)
    return np.stack([top, left, top + height, left + width], 1)


def _random_mixes(augmentation: Augmentation, rng: np.random.Generator, B: int) -> tuple[Array, Array]:
    """Weights of the first image outside the box, and boxes. With mixup and cutmix, each is drawn half of the time."""
    cutmix_probability = 0.5 if augmentation.mixup and augmentation.cutmix else float(bool(augmentation.cutmix))
    use_cutmix = rng.random(B) < cutmix_probability
    mixup, cutmix = (rng.beta(a or 1.0, a or 1.0, B) for a in (augmentation.mixup, augmentation.cutmix))
    boxes = _random_boxes(rng, 1 - cutmix) * use_cutmix[:, None]
    return np.where(use_cutmix, 1.0, mixup).astype(np.float32), boxes.astype(np.float32)
