"""Labelled images from files: PNG, JPEG and others in a folder or a table, and arrays of many images as idx or .npz.

Sizes are checked before decoding, and an unreadable file is reported in one line with its path.
"""

import gzip
import hashlib
import math
import re
import warnings
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any
from unicodedata import normalize

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageColor, ImageOps, UnidentifiedImageError
from pydantic import AfterValidator
from torch import Tensor

from harken.data.detect.preview import idx_header, read_head
from harken.data.duplicates import Identity
from harken.data.tables.columns import ColumnRef, iter_columns
from harken.data.tables.read import SkippedRows
from harken.data.tables.untrusted import read_array, read_arrays
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.suggestions import similar_path

MAX_PIXELS = 50_000_000  # larger images are refused before they are decoded
SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "PPM", "TIFF")  # none that runs another program
ACCEPTED = ", ".join(FORMATS)
WHITE_LEVELS = (1, 15, 16, 255)  # values of white in arrays that are not uint8
TABLES = (".csv", ".tsv", ".jsonl")
DEFAULT_SIZE, MAX_COMMON_SIZE = 64, 224  # of images without a common size; largest common size that is used as is
WHITE = "white"  # default background of transparent images
N_PROBED = 50  # images decoded to find a common size
IMAGES_PER_BLOCK = 4096
MAX_SHOWN = 5  # unreadable images listed in a notice
Array = np.ndarray[Any, np.dtype[Any]]


def _check_color(name: str) -> str:
    ImageColor.getrgb(name)  # ValueError for an unknown name
    return name


Background = Annotated[str, AfterValidator(_check_color)]  # a color name or #rrggbb


def decode_image(source: Path | BytesIO, background: str = WHITE) -> Array:  # H W C
    """The pixels of an image as uint8: one channel if it is grayscale, else three.

    A transparent image is composited over `background`: its invisible pixels have no meaningful color.
    """
    name = source if isinstance(source, Path) else "image"
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(source, formats=FORMATS) as image:
            return _to_array(image, background)
    except FileNotFoundError:
        raise BadInput(f"{name}: no such image; check the path") from None
    except UnidentifiedImageError:
        raise BadInput(f"{name}: not an image, damaged, or of an unknown format; accepted: {ACCEPTED}") from None
    except Image.DecompressionBombError:
        raise BadInput(f"{name}: has more than {MAX_PIXELS:,} pixels; resize it") from None
    except Exception as error:  # a damaged file can raise anything
        raise BadInput(f"{name}: cannot be read as an image ({' '.join(str(error).split())[:120]})") from None


def _to_array(image: Image.Image, background: str) -> Array:
    width, height = image.size
    if not 0 < width * height <= MAX_PIXELS:
        raise ValueError(f"it has {width:,} x {height:,} pixels; at most {MAX_PIXELS:,} are accepted")
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):  # 16-bit grayscale
        return (np.asarray(image) >> 8).astype(np.uint8)[..., None]
    grayscale = image.mode in ("1", "L", "LA", "I", "F")
    image = ImageOps.exif_transpose(image)
    if image.has_transparency_data:
        canvas = Image.new("RGBA", image.size, background)
        grayscale = grayscale and len({*ImageColor.getrgb(background)[:3]}) == 1
        image = Image.alpha_composite(canvas, image.convert("RGBA"))
    pixels = np.asarray(image.convert("L" if grayscale else "RGB"))
    return pixels.reshape(*pixels.shape[:2], -1)


def encode_png(pixels: Array) -> bytes:  # H W, or H W C with 1 or 3 channels
    """A PNG file of these uint8 pixels."""
    file, pixels = BytesIO(), np.asarray(pixels, np.uint8)
    Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels).save(file, "PNG")
    return file.getvalue()


def resize_image(pixels: Array, size: int) -> Tensor:  # H W C -> C size size
    """The image as a square of this size; the aspect ratio is not kept."""
    x = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)
    if x.shape[1:] == (size, size):
        return x
    resized = F.interpolate(x[None].float(), (size, size), mode="bilinear", antialias=True)
    return resized[0].round().clamp(0, 255).byte()


def convert_channels(x: Tensor, channels: int) -> Tensor:  # ... C S S
    """Grayscale to RGB, or RGB to its luminance."""
    if x.shape[-3] == channels:
        return x
    if channels == 3:
        return x.expand(*x.shape[:-3], 3, *x.shape[-2:])
    weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    return (x * weights).sum(-3, keepdim=True).round().byte()


def read_idx(path: Path) -> Array:
    """The array of an idx file, optionally gzipped; its length must agree with its header."""
    start = read_head(path)
    if not (header := idx_header(start)):
        raise BadInput(f"{path}: not an idx file: its header is invalid; download it again")
    shape, dtype = header
    try:
        with gzip.open(path) if start.head.startswith(b"\x1f\x8b") else path.open("rb") as file:
            file.read(4 + 4 * len(shape))
            return read_array(file, shape, dtype, str(path))
    except (OSError, EOFError, zlib.error, MemoryError) as error:
        raise BadInput(f"{path}: cannot be read ({error}); download it again") from None


def read_npz(path: Path) -> tuple[Array, Array]:
    """The arrays x and y of an .npz file; no code in it is executed."""
    arrays = read_arrays(path, "x", "y")
    if len(arrays) < 2:
        raise BadInput(f"{path}: needs arrays x (images) and y (labels); rename its arrays")
    return arrays["x"], arrays["y"]


def white_level(x: Array) -> int:
    """The value of white in an array of images: the next of WHITE_LEVELS; 0 for uint8, which needs no scaling."""
    if x.dtype == np.uint8 or x.dtype.kind not in "uif" or not x.size:
        return 0
    return next((level for level in WHITE_LEVELS if x.max() < level + 1), WHITE_LEVELS[-1])


def to_nchw(x: Array, name: str, white: int = 0) -> Tensor:  # N H W, N H W C or N C H W -> N C H W
    """An array of images as uint8. Other types are scaled by `white`, or by their own white level if it is higher."""
    if x.ndim not in (3, 4) or (x.ndim == 4 and not {1, 3} & {x.shape[1], x.shape[3]}):
        raise BadInput(f"{name}: its shape is {x.shape}; N H W, N H W 3 and N 3 H W are accepted; transpose it")
    if x.dtype.kind not in "uif" or not x.size:
        raise BadInput(f"{name}: is an array of {x.dtype} of shape {x.shape}; non-empty numeric arrays are accepted")
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        x = np.moveaxis(x, 3, 1)
    if x.dtype != np.uint8:
        if not np.isfinite(x).all() or x.min() < 0:
            raise BadInput(f"{name}: has negative or non-finite values; values in 0..1 or 0..255 are accepted; rescale")
        x = np.round(x * (255 / max(white, white_level(x)))).clip(0, 255).astype(np.uint8)
    return torch.from_numpy(np.require(x, requirements=["C", "W"]))


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

    def identities(self) -> list[Identity]:
        """The hash and the location of each image, to search for duplicates."""
        return [Identity(str(h), location=x) for h, x in zip(self.split_hashes(), self.locations, strict=True)]

    def common_size(self) -> int:
        """The size of the images, if a sample of them are squares of one size; else DEFAULT_SIZE."""
        shapes = set() if self.pixels is None else {tuple(self.pixels.shape[2:])}
        for location in self.locations[:: math.ceil(len(self) / N_PROBED)] if self.pixels is None else ():
            with suppress(BadInput):
                shapes.add(decode_image(Path(location)).shape[:2])
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


def label_conflicts(parts: Iterable[ImageCollection]) -> list[str]:
    """For each image that occurs with several labels, one location per label."""
    locations: dict[int, dict[str, str]] = {}
    for part in parts:
        for pixel_hash, label, location in zip(part.split_hashes(), part.labels, part.locations, strict=True):
            locations.setdefault(pixel_hash, {}).setdefault(label, location)
    conflicts = [by_label for by_label in locations.values() if len(by_label) > 1]
    return [", ".join(f"{location} is {label}" for label, location in by_label.items()) for by_label in conflicts]


@dataclass(frozen=True)
class ImageReader:
    """Reads image collections. `image` and `label` are columns of a table, `names` the names of integer labels."""

    image: ColumnRef = None
    label: ColumnRef = None
    names: Sequence[str] = ()
    listen: Listener = silent
    white_level: int = 0  # if it is known already
    encoding: str | None = None  # of a table

    def read(self, path: Path) -> ImageCollection:
        """The images of a folder or a file."""
        if path.is_dir():
            return self._read_folder(path)
        if not path.is_file():
            raise BadInput(f"{path}: no such file or folder; check the name{similar_path(path)}")
        if idx_header(head := read_head(path)):
            if not (label_path := next((p for p in _label_paths(path) if p.is_file()), None)):
                hint = "name the files as train-images-idx3-ubyte and train-labels-idx1-ubyte in one folder"
                raise BadInput(f"{path}: its label file is missing; {hint}")
            return self._from_arrays(path, read_idx(path), read_idx(label_path))
        if path.suffix.lower() == ".npz" or head.head.startswith(b"PK\3\4"):
            return self._from_arrays(path, *read_npz(path))
        return self._read_table(path)

    def _read_folder(self, folder: Path) -> ImageCollection:
        paths = sorted(p for p in folder.rglob("*") if not re.search(r"/\.", str(p.relative_to(folder.parent))))
        images = [p for p in paths if p.suffix.lower() in SUFFIXES and p.is_file()]
        if images:
            return ImageCollection(
                [*map(str, images)], ["" if p.parent == folder else normalize("NFC", p.parent.name) for p in images]
            )
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
        skipped, images, labels = SkippedRows("no path with a label"), list[str](), list[str]()
        columns = [("data.image", self.image), ("data.label", self.label)]
        for line, (image, label) in iter_columns(path, columns, skipped, self.encoding):
            if image.strip() and label.strip():
                images.append(str(path.parent / image.strip()))
                labels.append(normalize("NFC", label.strip()))
            else:
                skipped(path, line, "the path or the label is empty")
        if skipped.count > len(images) or not images:
            raise BadInput(f"{path}: {skipped}; check data.image and data.label, or fix the file")
        skipped.report(self.listen)
        return ImageCollection(images, labels)


def resize(images: ImageCollection, size: int, listen: Listener = silent, background: str = WHITE) -> ImageCollection:
    """The images as squares of this size; unreadable files are dropped and reported."""
    if images.pixels is not None:
        if images.pixels.shape[2:] == (size, size):
            return images
        resized = [resize_image(x.permute(1, 2, 0).numpy(), size) for x in images.pixels]
        return replace(images, pixels=torch.stack(resized))
    readable, errors, resized = list[int](), list[str](), list[Tensor]()
    for n, location in enumerate(images.locations):
        try:
            resized.append(resize_image(decode_image(Path(location), background), size))
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


def readable_paths(paths: Sequence[Path]) -> list[Path]:
    """The paths that ImageReader can read, without label files, which are read with their images."""
    arrays = (p for p in paths if p.is_dir() or p.suffix in (".npz", *TABLES) or idx_header(read_head(p)))
    return [p for p in arrays if p.is_dir() or "labels" not in p.name]
