"""Labelled images: a folder with one subfolder per label, a table of paths, idx files or an .npz file; their batches.

All images become squares of one size, N C S S, as uint8. Held-out splits are drawn by a hash of the pixels: adding
images moves no other image, and no image is in two splits. A batch is a pure function of (seed, epoch, step): it holds
the random draws (shift, erased box, ...) as numbers; the augmentation itself runs on the device of the model, row by
row, so parts of a batch equal the batch.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat
from torch import Tensor

from harken.data import split as splitting
from harken.data.batch import Batch
from harken.data.duplicates import duplicate_notices, report_trained_on
from harken.data.label_warnings import label_warnings
from harken.data.labelled.batch import evenly_spaced
from harken.data.partition import MAX_HELD_OUT, SPLIT_FILE_NAMES, Member, check_fraction, split_rank
from harken.data.processor import LabelList, SavedProcessor
from harken.data.rng import RngStream, once_per_epoch, rng_for
from harken.data.source import Processor
from harken.data.split import FileSource, SplitData
from harken.data.targets import unknown_labels_error
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.settings import ImageShape

from .files import (
    DEFAULT_SIZE,
    MAX_SHOWN,
    WHITE,
    Array,
    Background,
    ImageCollection,
    ImageReader,
    convert_channels,
    label_conflicts,
    readable_paths,
    resize,
)

SPLIT_NAMES = SPLIT_FILE_NAMES | {"test": ("test", "t10k")}  # t10k: the test files of MNIST
ImageSize = Annotated[int, Field(ge=1, le=4096)]
BACKGROUND = "color behind transparent pixels: a name such as white, or #rrggbb"


@dataclass(frozen=True)
class ImageProcessor(SavedProcessor):
    """Image size, channel statistics and labels: what a run needs to read other images."""

    labels: LabelList
    image_size: ImageSize
    mean: list[float]  # of each channel, for pixels in 0..1
    std: list[PositiveFloat]
    white_level: Annotated[int, Field(ge=0, le=255)] = 0  # of arrays that are not uint8; 0: from each array

    def __post_init__(self) -> None:
        check_channels(self.mean, self.std)

    @property
    def vocab(self) -> ImageShape:
        return ImageShape(self.image_size, len(self.mean), len(self.labels))

    def normalize(self, pixels: Tensor) -> Tensor:  # B C S S: uint8, or floats in 0..1
        """Pixels minus the mean, divided by the standard deviation of each channel."""
        x = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
        channels = zip(x.unbind(-3), self.mean, self.std, strict=True)  # no tensors: a CUDA graph cannot copy them
        return torch.stack([(channel - mean) / std for channel, mean, std in channels], -3)

    def label_ids(self, images: "ImageCollection") -> Array:
        ids = {label: n for n, label in enumerate(self.labels)}
        places = zip(images.labels, images.locations, strict=True)
        if unknown := [(label, location) for label, location in places if label not in ids]:
            raise unknown_labels_error(unknown, self.labels, "images")
        return np.array([ids[label] for label in images.labels], np.int64)


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """The images of a split."""

    pixels: Tensor  # N C S S, uint8
    targets: Array  # N
    locations: list[str]

    def __len__(self) -> int:
        return len(self.locations)

    def facts(self) -> dict[str, int]:
        return {"images": len(self)}

    def pixel_keys(self) -> list[str]:
        """A key of each image, equal for equal pixels."""
        return [hashlib.blake2b(x.tobytes(), digest_size=16).hexdigest() for x in self.pixels.numpy()]

    def subset(self, count: int) -> "ImageSplit":
        """At most `count` images, evenly spaced: they may be sorted by label."""
        indices = evenly_spaced(len(self), count)
        return ImageSplit(self.pixels[indices], self.targets[indices], [self.locations[n] for n in indices])


class ImageData(SplitData[ImageProcessor, ImageSplit]):
    """Loaded images by split."""

    def _facts(self) -> dict[str, object]:
        size, n_labels = self.processor.image_size, len(self.processor.labels)
        color = "grayscale" if len(self.processor.mean) == 1 else "color"
        return {"summary": f"{size} x {size} {color}, {n_labels} labels", "labels": n_labels}


class ImageSource(FileSource[ImageProcessor, ImageSplit]):
    """Settings of labelled images."""

    task: ClassVar[str] = "image"
    processor_class: ClassVar[type[ImageProcessor]] = ImageProcessor
    dataset_class: ClassVar[type[ImageData]] = ImageData
    drawn_by: ClassVar[str] = "fractions by a hash of the pixels"

    kind: Literal["images"] = "images"
    path: str | None = Field(None, description="folder with a subfolder per label, table of paths, idx or .npz file")
    test: str | float = Field(0.1, description=f"test images or fraction, at most {MAX_HELD_OUT:,} images")
    image: int | str | None = Field(None, description="path column of a table; default: the first")
    label: int | str | None = Field(None, description="label column of a table; default: the second")
    class_names: list[str] | None = Field(None, description="names of integer labels 0, 1, ...; default: the numbers")
    image_size: int | None = Field(
        None,
        ge=2,
        le=1024,
        description=f"height and width in pixels; default: that of the images if all agree, else {DEFAULT_SIZE}",
    )
    color: bool | None = Field(None, description="three channels or one; default: three if an image has color")
    background: Background = Field(WHITE, description=BACKGROUND)
    examples: int | None = Field(None, ge=1, description="number of training images")

    def load_data(
        self, *, stateful: bool = False, tokenizer: Processor | None = None, listen: Listener = silent
    ) -> ImageData:
        """Read, resize and split the images. A given processor is reused, with new labels if it lacks some."""
        known = tokenizer if isinstance(tokenizer, ImageProcessor) else None
        images = self._read(0, listen)
        if white := images["train"].white_level:
            images = self._read(white, listen)  # another file may have a lower maximum
        paths = (path for part in images.values() for path in part.files())
        digest = splitting.files_sha256(paths, self.sha256, self.train_path)
        size = known.image_size if known else self.image_size or images["train"].common_size()
        images = {split: resize(part, size, listen, self.background) for split, part in images.items()}
        if not any(images["train"].labels):
            raise BadInput(f"{self.train_path}: its images have no labels; put the images of each label in a subfolder")
        color = self.color if self.color is not None else any(part.has_color() for part in images.values())
        channels = len(known.mean) if known else 3 if color else 1
        images = {
            split: replace(part, pixels=convert_channels(part.pixels, channels))
            for split, part in images.items()
            if part.pixels is not None
        }
        if conflicts := label_conflicts(images.values()):
            shown = "; ".join(conflicts[:MAX_SHOWN]) + "; ..." * (len(conflicts) > MAX_SHOWN)
            listen("notice", text=f"identical images with different labels: {len(conflicts):,} ({shown})")
        for text in label_warnings((label for part in images.values() for label in part.labels), "images"):
            listen("notice", text=text)
        split_by = self.describe_split(images.keys() - {"train"})
        images = self._draw_splits(images, listen)
        processor = self._build_processor(images["train"], known)
        splits = {split: _encode(part, processor) for split, part in images.items()}
        return ImageData(self, processor, splits.pop("train"), splits, digest, split_by=split_by)

    def load_split(
        self, path: str, split: str, *, tokenizer: ImageProcessor, stateful: bool = False, listen: Listener = silent
    ) -> ImageData:
        reader = ImageReader(
            self.image, self.label, self.class_names or (), listen, tokenizer.white_level, self.encoding
        )
        images = reader.read(Path(path))
        part = _encode(resize(images, tokenizer.image_size, listen, self.background), tokenizer)
        data: ImageData = self._with_split(split, part, images.files(), tokenizer, listen)
        if data.has_train:
            report_trained_on(listen, path, data.splits[split].pixel_keys(), data.train.pixel_keys())
        return data

    def _read(self, white: int, listen: Listener) -> dict[str, ImageCollection]:
        """The splits that have files; always includes train."""
        reader = ImageReader(self.image, self.label, self.class_names or (), listen, white, self.encoding)
        images = _splits_by_name(Path(self.train_path), reader) if self.train is None else {}
        images = images or {"train": reader.read(Path(self.train_path))}
        paths = {split: path for split in ("valid", "test") if isinstance(path := getattr(self, split), str)}
        return images | {split: reader.read(Path(path)) for split, path in paths.items()}

    def _build_processor(self, train: ImageCollection, known: ImageProcessor | None) -> ImageProcessor:
        labels = sorted({*train.labels}, key=lambda label: (int(label) if label.isdecimal() else math.inf, label))
        if self.class_names and {*labels} <= {*self.class_names}:
            labels = self.class_names
        if known:
            labels = known.labels if {*labels} <= {*known.labels} else labels
            return replace(known, labels=labels, white_level=train.white_level)
        if len(labels) < 2:
            problem = f"the only label is {labels[0]!r}"
            raise BadInput(f"{self.train_path}: {problem}; classification needs at least two; add more")
        assert train.pixels is not None
        return ImageProcessor(labels, train.pixels.shape[-1], *channel_stats(train.pixels), train.white_level)

    def _draw_splits(self, images: dict[str, ImageCollection], listen: Listener) -> dict[str, ImageCollection]:
        """The splits that have files, and fractions of the rest, drawn by hash."""
        train, hashes, held_out = images["train"], images["train"].split_hashes(), dict[str, list[int]]()
        in_files = {h for split in ("valid", "test") if split in images for h in images[split].split_hashes()}
        identities = {split: part.identities() for split, part in images.items()}
        dropped = [identity for identity, h in zip(identities.pop("train"), hashes, strict=True) if h in in_files]
        for text in duplicate_notices([], identities, dropped):
            listen("notice", text=text)
        order = sorted((n for n in range(len(hashes)) if hashes[n] not in in_files), key=hashes.__getitem__)
        outermost_first = sorted(order, key=lambda n: -abs(hashes[n] - 2**63))
        reserved = {*{train.labels[n]: hashes[n] for n in outermost_first}.values()}  # one per label stays in train
        candidates = [n for n in order if hashes[n] not in reserved]
        if self.fold is not None:
            members = [Member((str(hashes[n]),), hashes[n], (train.labels[n],)) for n in order]
            drawn_units = self.draw_held_out(members, images, "images")
            held_out = {s: [order[n] for unit in units for n in unit.members] for s, units in drawn_units.items()}
        for split, ordered in (("test", candidates), ("valid", candidates[::-1])):
            if split in images or split in held_out:
                continue
            fraction = check_fraction(split, getattr(self, split), "images")
            count = sum(split_rank(split, hashes[n]) < fraction * 2**64 for n in ordered)
            held_out[split] = ordered[: min(count, MAX_HELD_OUT)]
            if fraction and not held_out[split]:
                listen("notice", text=f"data.{split}: too few images for a {split} split")
        excluded = {hashes[n] for indices in held_out.values() for n in indices}
        train_indices = [n for n in order if hashes[n] not in excluded][: self.examples]
        if not train_indices:
            raise BadInput(f"{self.train_path}: no training images; add images")
        drawn = {split: train.select(indices) for split, indices in held_out.items() if indices}
        return {**images, **drawn, "train": train.select(train_indices)}


def _encode(images: ImageCollection, processor: ImageProcessor) -> ImageSplit:
    assert images.pixels is not None
    pixels = convert_channels(images.pixels, len(processor.mean))
    return ImageSplit(pixels, processor.label_ids(images), images.locations)


def check_channels(mean: list[float], std: list[float]) -> None:
    """Raises ValueError unless there are one or three channels, with a mean and a standard deviation each."""
    if not len(mean) == len(std) in (1, 3):
        raise ValueError(f"{len(mean)} means and {len(std)} standard deviations; images have one or three of each")


def channel_stats(pixels: Tensor) -> tuple[list[float], list[float]]:
    """Exact mean and standard deviation of each channel for pixels in 0..1, from the histogram."""
    counts = torch.zeros(pixels.shape[1], 256, dtype=torch.int64)
    for block in pixels.split(4096):  # bounds the memory
        for channel, x in enumerate(block.unbind(1)):
            counts[channel] += torch.bincount(x.flatten(), minlength=256)
    p, level = counts.double() / counts.sum(1, keepdim=True), torch.arange(256, dtype=torch.float64) / 255
    mean = p @ level
    std = (p @ level.square() - mean.square()).clamp_min(0).sqrt()
    return mean.tolist(), [s if s > 1e-3 else 1.0 for s in std.tolist()]


def _splits_by_name(folder: Path, reader: ImageReader) -> dict[str, ImageCollection]:
    """The splits by the names of files or subfolders; empty unless there is train and another split."""
    paths = sorted(p for p in folder.iterdir() if not p.name.startswith(".")) if folder.is_dir() else []
    matches = {split: [p for p in paths if splitting.has_name_part(p, names)] for split, names in SPLIT_NAMES.items()}
    splits = {split: inside for split, inside in matches.items() if inside}
    if not {"train"} < splits.keys():
        return {}
    return {s: ImageCollection.concat([reader.read(p) for p in readable_paths(inside)]) for s, inside in splits.items()}


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

    @once_per_epoch
    def epoch_order(self, epoch: int) -> Array:
        return rng_for(self.seed, RngStream.IMAGE_ORDER, epoch).permutation(len(self.images))

    def batch(self, epoch: int, step: int) -> ImageBatch:
        order = self.epoch_order(epoch)
        indices = order[step * self.rows : (step + 1) * self.rows]
        rng, B = rng_for(self.seed, RngStream.IMAGE_AUGMENTATION, epoch, step), len(indices)
        augmentation, pixels, targets = self.augmentation, self.images.pixels, torch.from_numpy(self.images.targets)
        draws = dict[str, Tensor]()
        if augmentation.shift or augmentation.zoom or augmentation.rotation or augmentation.flip:
            draws["affine"] = torch.from_numpy(random_affines(augmentation, rng, B, pixels.shape[-1]))
        if augmentation.mixup or augmentation.cutmix:
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
