"""Image files: PNG, JPEG and others one by one, and arrays of many images as idx or .npz.

Sizes are checked before decoding, and an unreadable file is reported in one line with its path.
"""

import gzip
import warnings
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from harken.data.tables.untrusted import read_array_data, read_arrays
from harken.errors import BadInput

MAX_PIXELS = 50_000_000  # larger images are refused before they are decoded
SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "PPM", "TIFF")  # none that runs another program
IDX = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}  # dtypes by type code
WHITE_LEVELS = (1, 15, 16, 255)  # values of white in arrays that are not uint8
Array = np.ndarray[Any, np.dtype[Any]]


def decode_image(source: Path | BytesIO) -> Array:  # H W C
    """The pixels of an image as uint8: one channel if it is grayscale, else three; transparency is dropped."""
    name = source if isinstance(source, Path) else "image"
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(source, formats=FORMATS) as image:
            return _to_array(image)
    except FileNotFoundError:
        raise BadInput(f"{name}: there is no such image; check the path") from None
    except UnidentifiedImageError:
        raise BadInput(
            f"{name}: is not an image, damaged, or of an unknown format; accepted: {', '.join(FORMATS)}"
        ) from None
    except Image.DecompressionBombError:
        raise BadInput(f"{name}: has more than {MAX_PIXELS:,} pixels; resize it") from None
    except Exception as error:  # a damaged file can raise anything
        raise BadInput(f"{name}: cannot be read as an image ({' '.join(str(error).split())[:120]})") from None


def _to_array(image: Image.Image) -> Array:
    width, height = image.size
    if not 0 < width * height <= MAX_PIXELS:
        raise ValueError(f"it has {width:,} x {height:,} pixels; at most {MAX_PIXELS:,} are accepted")
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):  # 16-bit grayscale
        return (np.asarray(image) >> 8).astype(np.uint8)[..., None]
    grayscale = image.mode in ("1", "L", "LA", "I", "F")
    pixels = np.asarray(ImageOps.exif_transpose(image).convert("L" if grayscale else "RGB"))
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


# --- arrays of images -------------------------------------------------------------------------------------------------


def read_idx(path: Path) -> Array:
    """The array of an idx file, optionally gzipped; its length must agree with its header."""
    with path.open("rb") as file:
        gzipped = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if gzipped else path.open("rb") as file:
            head = file.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in IDX or not 1 <= head[3] <= 4:
                raise BadInput(f"{path}: is not an idx file: its header is invalid; download it again")
            shape = tuple(int.from_bytes(file.read(4), "big") for _ in range(head[3]))
            return read_array_data(file, shape, IDX[head[2]], str(path))
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
