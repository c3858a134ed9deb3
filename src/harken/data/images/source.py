"""Labelled images: a folder with one subfolder per label, a table of paths, idx files or an .npz file.

All images become squares of one size, N C S S, as uint8. Held-out splits are drawn by a hash of the pixels: adding
images moves no other image, and no image is in two splits.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.labelled.batch import evenly_spaced
from harken.data.split import (
    LABELS_FILE,
    MAX_HELD_OUT,
    SPLIT_FILE_NAMES,
    FileSource,
    LabelList,
    PositiveFloat,
    SplitData,
    check_fraction,
    files_sha256,
    has_name_part,
    load_labels_file,
    no_baselines,
    split_rank,
)
from harken.data.targets import unknown_label_error
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.settings import ImageShape

from .files import Array, convert_channels
from .image_readers import DEFAULT_SIZE, IMAGES_PER_BLOCK, ImageCollection, ImageReader, readable_paths, resize

SPLIT_NAMES = {**SPLIT_FILE_NAMES, "test": (*SPLIT_FILE_NAMES["test"], "t10k")}  # t10k: the test files of MNIST

ImageSize = Annotated[int, Field(ge=1, le=4096)]


@dataclass(frozen=True)
class ImageProcessor:
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

    def files(self) -> dict[str, bytes]:
        """File contents for the run folder, by name."""
        return {LABELS_FILE: json.dumps(vars(self), ensure_ascii=False).encode()}

    @classmethod
    def load(cls, folder: Path) -> "ImageProcessor":
        return load_labels_file(cls, folder, "how images are read")

    def normalize(self, pixels: Tensor) -> Tensor:  # B C S S: uint8, or floats in 0..1
        """Pixels minus the mean, divided by the standard deviation of each channel."""
        x = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
        channels = zip(x.unbind(-3), self.mean, self.std, strict=True)  # no tensors: a CUDA graph cannot copy them
        return torch.stack([(channel - mean) / std for channel, mean, std in channels], -3)

    def label_ids(self, images: "ImageCollection") -> Array:
        ids = {label: n for n, label in enumerate(self.labels)}
        for location, label in zip(images.locations, images.labels, strict=True):
            if label not in ids:
                raise unknown_label_error(label, self.labels, location)
        return np.array([ids[label] for label in images.labels], np.int64)


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """The images of a split."""

    pixels: Tensor  # N C S S, uint8
    targets: Array  # N
    locations: list[str]

    def __len__(self) -> int:
        return len(self.locations)

    def subset(self, count: int) -> "ImageSplit":
        """At most `count` images, evenly spaced: they may be sorted by label."""
        indices = evenly_spaced(len(self), count)
        return ImageSplit(self.pixels[indices], self.targets[indices], [self.locations[n] for n in indices])


class ImageSource(FileSource):
    """Settings of labelled images."""

    model: ClassVar[str] = "vit"
    task: ClassVar[str] = "image"
    model_group: ClassVar[str] = " of images"

    kind: Literal["images"] = "images"
    path: str | None = Field(
        None, description="folder with one subfolder per label, table of paths, idx files or .npz file"
    )
    test: str | float = Field(
        0.1, description=f"test images, or the fraction of the images for the test split, at most {MAX_HELD_OUT:,}"
    )
    image: int | str | None = Field(None, description="path column of a table; default: the first")
    label: int | str | None = Field(None, description="label column of a table; default: the second")
    class_names: list[str] | None = Field(None, description="names of integer labels 0, 1, ...; default: the numbers")
    image_size: int | None = Field(
        None,
        ge=2,
        le=1024,
        description=f"height and width in pixels; default: the size of the images if it is common, else {DEFAULT_SIZE}",
    )
    color: bool | None = Field(None, description="three channels or one; default: three if an image has color")
    examples: int | None = Field(None, ge=1, description="number of training images")

    def load_processor(self, folder: Path) -> ImageProcessor:
        """The processor saved in a run folder."""
        return ImageProcessor.load(folder)

    # --- loading ------------------------------------------------------------------------------------------------------

    def load_data(self, *, stateful: bool = False, tokenizer: Any = None, listen: Listener = silent) -> "ImageData":
        """Read, resize and split the images. A given processor is reused, with new labels if it lacks some."""
        known = tokenizer if isinstance(tokenizer, ImageProcessor) else None
        images = self._read(0, listen)
        if white := images["train"].white_level:
            images = self._read(white, listen)  # another file may have a lower maximum
        digest = files_sha256((path for part in images.values() for path in part.files()), self.sha256, self._home)
        size = known.image_size if known else self.image_size or images["train"].common_size()
        images = {split: resize(part, size, listen) for split, part in images.items()}
        if not any(images["train"].labels):
            raise BadInput(f"{self._home}: its images have no labels; put the images of each label in a subfolder")
        color = self.color if self.color is not None else any(part.has_color() for part in images.values())
        channels = len(known.mean) if known else 3 if color else 1
        images = {
            split: replace(part, pixels=convert_channels(part.pixels, channels))
            for split, part in images.items()
            if part.pixels is not None
        }
        images = self._draw_splits(images, listen)
        processor = self._build_processor(images["train"], known)
        splits = {split: _encode(part, processor) for split, part in images.items()}
        return ImageData(self, processor, splits.pop("train"), splits, digest)

    def load_split(
        self, path: str, split: str, *, tokenizer: ImageProcessor, stateful: bool = False, listen: Listener = silent
    ) -> "ImageData":
        """The same data with other images as one split; only this split if the training data is unavailable."""
        images = self._reader(tokenizer.white_level, listen).read(Path(path))
        part = _encode(resize(images, tokenizer.image_size, listen), tokenizer)
        try:
            data = self.model_copy(update={"sha256": None}).load_data(tokenizer=tokenizer)
        except BadInput as error:
            listen("notice", text=no_baselines(error))
            return ImageData(self, tokenizer, part, {split: part}, "", has_train=False)
        return replace(data, splits={**data.splits, split: part})

    def _reader(self, white: int, listen: Listener) -> ImageReader:
        return ImageReader(self.image, self.label, self.class_names or (), listen, white)

    def _read(self, white: int, listen: Listener) -> dict[str, ImageCollection]:
        """The splits that have files; always includes train."""
        reader = self._reader(white, listen)
        images = _splits_by_name(Path(self._home), reader) if self.train is None else {}
        images = images or {"train": reader.read(Path(self._home))}
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
            raise BadInput(
                f"{self._home}: the only label is {labels[0]!r}; classification needs at least two; add more"
            )
        assert train.pixels is not None
        return ImageProcessor(labels, train.pixels.shape[-1], *channel_stats(train.pixels), train.white_level)

    # --- splitting ----------------------------------------------------------------------------------------------------

    def _draw_splits(self, images: dict[str, ImageCollection], listen: Listener) -> dict[str, ImageCollection]:
        """The splits that have files, and fractions of the rest, drawn by hash."""
        train, hashes, held_out = images["train"], images["train"].split_hashes(), dict[str, list[int]]()
        in_files = {h for split in ("valid", "test") if split in images for h in images[split].split_hashes()}
        if n_dropped := sum(h in in_files for h in hashes):
            listen("notice", text=f"training images dropped because they are in a held-out split: {n_dropped:,}")
        order = sorted((n for n in range(len(hashes)) if hashes[n] not in in_files), key=hashes.__getitem__)
        outermost_first = sorted(order, key=lambda n: -abs(hashes[n] - 2**63))
        reserved = {*{train.labels[n]: hashes[n] for n in outermost_first}.values()}  # one per label stays in train
        candidates = [n for n in order if hashes[n] not in reserved]
        for split, ordered in (("test", candidates), ("valid", candidates[::-1])):
            if split in images:
                continue
            fraction = check_fraction(split, getattr(self, split), "images")
            count = sum(split_rank(split, hashes[n]) < fraction * 2**64 for n in ordered)
            held_out[split] = ordered[: min(count, MAX_HELD_OUT)]
            if fraction and not held_out[split]:
                listen("notice", text=f"data.{split}: too few images for a {split} split")
        excluded = {hashes[n] for indices in held_out.values() for n in indices}
        train_indices = [n for n in order if hashes[n] not in excluded][: self.examples]
        if not train_indices:
            raise BadInput(f"{self._home}: no training images; add images")
        drawn = {split: train.select(indices) for split, indices in held_out.items() if indices}
        return {**images, **drawn, "train": train.select(train_indices)}


class ImageData(SplitData):
    """Loaded images by split."""

    processor: ImageProcessor

    def facts(self) -> dict[str, Any]:
        """Data statistics for the report."""
        processor = self.processor
        color = "grayscale" if len(processor.mean) == 1 else "color"
        return {
            "images": {name: len(part) for name, part in self.parts.items()},
            "unit": "images",
            "summary": f"{processor.image_size} x {processor.image_size} {color}, {len(processor.labels)} labels",
            "labels": len(processor.labels),
            "sha256": self.sha256,
        }


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
    for block in pixels.split(IMAGES_PER_BLOCK):
        for channel, x in enumerate(block.unbind(1)):
            counts[channel] += torch.bincount(x.flatten(), minlength=256)
    p, level = counts.double() / counts.sum(1, keepdim=True), torch.arange(256, dtype=torch.float64) / 255
    mean = p @ level
    std = (p @ level.square() - mean.square()).clamp_min(0).sqrt()
    return mean.tolist(), [s if s > 1e-3 else 1.0 for s in std.tolist()]


def _splits_by_name(folder: Path, reader: ImageReader) -> dict[str, ImageCollection]:
    """The splits by the names of files or subfolders; empty unless there is train and another split."""
    paths = sorted(p for p in folder.iterdir() if not p.name.startswith(".")) if folder.is_dir() else []
    matches = {split: [p for p in paths if has_name_part(p, names)] for split, names in SPLIT_NAMES.items()}
    splits = {split: inside for split, inside in matches.items() if inside}
    if not {"train"} < splits.keys():
        return {}
    return {s: ImageCollection.concat([reader.read(p) for p in readable_paths(inside)]) for s, inside in splits.items()}
