"""Readers of labelled images: a folder, a table of paths, idx files or an .npz file."""

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from harken.data.detect.preview import idx_shape, read_head
from harken.data.tables.columns import ColumnRef, iter_columns
from harken.data.tables.read import SkippedRows
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.suggestions import similar_path

from .files import (
    SUFFIXES,
    Array,
    convert_channels,
    decode_image,
    read_idx,
    read_npz,
    resize_image,
    to_nchw,
    white_level,
)

TABLES = (".csv", ".tsv", ".jsonl")
DEFAULT_SIZE, MAX_COMMON_SIZE = 64, 224  # of images without a common size; largest common size that is used as is
N_PROBED = 50  # images decoded to find a common size
IMAGES_PER_BLOCK = 4096
MAX_SHOWN = 5  # unreadable images listed in a notice


@dataclass(frozen=True, eq=False)
class ImageCollection:
    """Images with labels and locations: files that are not decoded yet, or pixels (N C H W, uint8)."""

    locations: list[str]  # a path, or an element of an array: x.npz[17]
    labels: list[str]
    pixels: Tensor | None = None
    white_level: int = 0  # of arrays that are not uint8

    def __len__(self) -> int:
        return len(self.locations)

    def select(self, indices: Sequence[int]) -> "ImageCollection":
        pixels = None if self.pixels is None else self.pixels[list(indices)]
        locations, labels = [self.locations[n] for n in indices], [self.labels[n] for n in indices]
        return ImageCollection(locations, labels, pixels, self.white_level)

    def split_hashes(self) -> list[int]:
        """The 64-bit hash of each image that decides its split."""
        assert self.pixels is not None
        raw = (x.tobytes() for x in self.pixels.numpy())
        return [int.from_bytes(hashlib.blake2b(x, digest_size=8).digest(), "big") for x in raw]

    def common_size(self) -> int:
        """The size of the images, if a sample of them are squares of one size; else DEFAULT_SIZE."""
        if self.pixels is not None:
            shapes = {tuple(self.pixels.shape[2:])}
        else:
            shapes = set(_sizes(self.locations[:: math.ceil(len(self) / N_PROBED)]))
        height, width = next(iter(shapes), (0, 0))
        return height if len(shapes) == 1 and height == width <= MAX_COMMON_SIZE else DEFAULT_SIZE

    def has_color(self) -> bool:
        """Whether any pixel is not gray."""
        x = self.pixels
        return x is not None and x.shape[1] == 3 and any(bool((y != y[:, :1]).any()) for y in x.split(IMAGES_PER_BLOCK))

    def files(self) -> list[Path]:
        """The files of the images, including label files."""
        in_array = self.pixels is not None
        paths = dict.fromkeys(Path(name.rpartition("[")[0] if in_array else name) for name in self.locations)
        return [file for path in paths for file in (path, *_label_paths(path)) if file.is_file()]

    @classmethod
    def concat(cls, parts: Sequence["ImageCollection"]) -> "ImageCollection":
        locations = [location for part in parts for location in part.locations]
        labels = [label for part in parts for label in part.labels]
        pixels = [part.pixels for part in parts if part.pixels is not None]
        if pixels and (len(pixels) < len(parts) or len({x.shape[1:] for x in pixels}) > 1):
            problem = "files and arrays, or arrays of different sizes, cannot be mixed"
            raise BadInput(f"{locations[0]}: {problem}; put them in separate folders")
        white = max(part.white_level for part in parts)
        return cls(locations, labels, torch.cat(pixels) if pixels else None, white)


def _sizes(locations: Sequence[str]) -> Iterator[tuple[int, int]]:
    for location in locations:
        with suppress(BadInput):
            height, width, _ = decode_image(Path(location)).shape
            yield height, width


@dataclass(frozen=True)
class ImageReader:
    """Reads image collections. `image` and `label` are columns of a table, `names` the names of integer labels."""

    image: ColumnRef = None
    label: ColumnRef = None
    names: Sequence[str] = ()
    listen: Listener = silent
    white_level: int = 0  # if it is known already

    def read(self, path: Path) -> ImageCollection:
        """The images of a folder or a file."""
        if path.is_dir():
            return self._read_folder(path)
        if not path.is_file():
            raise BadInput(f"{path}: there is no such file or folder; check the name{similar_path(path)}")
        if idx_shape(head := read_head(path)):
            return self._from_arrays(path, read_idx(path), read_idx(_find_label_file(path)))
        if path.suffix.lower() == ".npz" or head.head.startswith(b"PK\3\4"):
            return self._from_arrays(path, *read_npz(path))
        return self._read_table(path)

    def _read_folder(self, folder: Path) -> ImageCollection:
        paths = sorted(p for p in folder.rglob("*") if not re.search(r"/\.", str(p.relative_to(folder.parent))))
        images = [p for p in paths if p.suffix.lower() in SUFFIXES and p.is_file()]
        if images:
            labels = ["" if p.parent == folder else p.parent.name for p in images]
            return ImageCollection([str(p) for p in images], labels)
        arrays = readable_paths([p for p in paths if p.is_file()])
        if not arrays:
            raise BadInput(f"{folder}: no images ({', '.join(SUFFIXES)}) and no arrays of images; check the folder")
        return ImageCollection.concat([self.read(p) for p in arrays])

    def _from_arrays(self, path: Path, x: Array, y: Array) -> ImageCollection:
        pixels, white = to_nchw(x, str(path), self.white_level), white_level(x)
        if y.shape != (len(pixels),) or y.dtype.kind not in "iuUS":
            accepted = f"one integer or string for each of the {len(pixels):,} images is accepted"
            raise BadInput(f"{path}: its labels are {y.dtype} of shape {y.shape}; {accepted}")
        names = dict(enumerate(self.names))
        labels = [str(names.get(label, label)) for label in y.astype(str if y.dtype.kind == "S" else y.dtype).tolist()]
        return ImageCollection([f"{path}[{n}]" for n in range(len(pixels))], labels, pixels, white)

    def _read_table(self, path: Path) -> ImageCollection:
        """A table of labels and paths relative to its folder."""
        skipped, rows = SkippedRows("no path with a label"), list[tuple[str, str]]()
        columns = [("data.image", self.image), ("data.label", self.label)]
        for line, (image, label) in iter_columns(path, columns, skipped):
            if image.strip() and label.strip():
                rows.append((str(path.parent / image.strip()), label.strip()))
            else:
                skipped(path, line, "the path or the label is empty")
        if skipped.count > len(rows) or not rows:
            raise BadInput(f"{path}: {skipped}; check data.image and data.label, or fix the file")
        if skipped.count:
            self.listen("notice", text=str(skipped))
        return ImageCollection([location for location, _ in rows], [label for _, label in rows])


def resize(images: ImageCollection, size: int, listen: Listener = silent) -> ImageCollection:
    """The images as squares of this size; unreadable files are dropped and reported."""
    if images.pixels is not None:
        if images.pixels.shape[2:] == (size, size):
            return images
        resized = [resize_image(x.permute(1, 2, 0).numpy(), size) for x in images.pixels]
        return replace(images, pixels=torch.stack(resized))
    readable, errors, resized = list[int](), list[str](), list[Tensor]()
    for n, location in enumerate(images.locations):
        try:
            resized.append(resize_image(decode_image(Path(location)), size))
            readable.append(n)
        except BadInput as error:
            errors.append(str(error))
        if n % 100 == 0:
            listen("encode", done=n, total=len(images), unit="images")
    listen("encode", done=len(images), total=len(images), unit="images")
    if len(errors) > len(readable):
        raise BadInput(f"{errors[0]}; {len(errors):,} of {len(images):,} images cannot be read; fix or replace them")
    if errors:
        first = "; ".join(errors[:MAX_SHOWN]) + "; ..." * (len(errors) > MAX_SHOWN)
        listen("notice", text=f"images dropped because they cannot be read: {len(errors):,} ({first})")
    channels = max(len(x) for x in resized)
    return replace(images.select(readable), pixels=torch.stack([convert_channels(x, channels) for x in resized]))


def _label_paths(path: Path) -> list[Path]:
    """Possible label files of an idx file: train-labels-idx1-ubyte.gz for train-images-idx3-ubyte.gz."""
    name = path.name.replace("images", "labels").replace("idx3", "idx1")
    stem = name.removesuffix(".gz")
    return [path.with_name(n) for n in (name, stem, f"{stem}.gz")] if name != path.name else []


def _find_label_file(path: Path) -> Path:
    for label_path in _label_paths(path):
        if label_path.is_file():
            return label_path
    hint = "name the files as train-images-idx3-ubyte and train-labels-idx1-ubyte in one folder"
    raise BadInput(f"{path}: its label file is missing; {hint}")


def readable_paths(paths: Sequence[Path]) -> list[Path]:
    """The paths that ImageReader can read, without label files, which are read with their images."""
    arrays = (p for p in paths if p.is_dir() or p.suffix in (".npz", *TABLES) or idx_shape(read_head(p)))
    return [p for p in arrays if p.is_dir() or "labels" not in p.name]
