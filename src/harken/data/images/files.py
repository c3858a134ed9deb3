"""Pictures out of files: PNG, JPEG and others one by one, and arrays of many, as idx or .npz.

What comes from elsewhere is measured before it is decoded, and what is refused is told in one line with its path.
"""

import gzip
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.data.tables.untrusted import filled, read_arrays
from harken.errors import BadInput, MissingExtra

from . import png

MOST = 50_000_000  # pixels of one picture: a larger one is refused before it is decoded
SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "PPM", "TIFF")  # none that runs another program
IDX = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}  # numbers by the code of their type
LEVELS = (1, 15, 16, 255)  # what stands for white in arrays that hold no bytes
Numbers = png.Numbers


def decoded(path: Path) -> Numbers:  # H W C
    """A picture as numbers of 0 to 255, one channel if it is grey, else three."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        return _plain(path)
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=FORMATS) as picture:
            return _shown(picture)
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such picture") from None
    except UnidentifiedImageError:
        raise BadInput(f"{path}: is no picture, or of an unknown kind ({', '.join(FORMATS)} are read)") from None
    except Image.DecompressionBombError:
        raise BadInput(f"{path}: has more than {MOST:,} pixels") from None
    except Exception as error:  # a broken file breaks its reader in any way
        raise _odd(path, error) from None


def _shown(picture: Any) -> Numbers:
    """What Pillow has opened, upright, as grey or as three colours."""
    from PIL import ImageOps

    _refuse_large(*picture.size)
    if picture.mode.startswith("I;16"):
        return (np.asarray(picture) >> 8).astype(np.uint8)[..., None]
    grey = picture.mode in ("1", "L", "LA", "I", "F")
    pixels = np.asarray(ImageOps.exif_transpose(picture).convert("L" if grey else "RGB"))
    return pixels.reshape(*pixels.shape[:2], -1)


def _plain(path: Path) -> Numbers:
    """A PNG without any other package."""
    try:
        with path.open("rb") as file:
            raw = file.read(64)
            if not raw.startswith(png.MARK):
                raise MissingExtra(f"{path}: a picture that is no PNG", "vision")
            _refuse_large(*png.size(raw))
            return png.read(raw + file.read())
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such picture") from None
    except Exception as error:
        raise error if isinstance(error, MissingExtra) else _odd(path, error) from None


def _refuse_large(width: int, height: int) -> None:
    if not 0 < width * height <= MOST:
        raise ValueError(f"it has {width:,} x {height:,} pixels; {MOST:,} at most are read")


def _odd(path: Path, error: Exception) -> BadInput:
    return BadInput(f"{path}: cannot be read as a picture ({' '.join(str(error).split())[:120]})")


def fitted(pixels: Numbers, side: int) -> Tensor:  # H W C -> C side side
    """A picture, squeezed to a square of this side where it is none."""
    x = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)
    if x.shape[1:] == (side, side):
        return x
    made = F.interpolate(x[None].float(), (side, side), mode="bilinear", antialias=True)
    return made[0].round().clamp(0, 255).byte()


def coloured(x: Tensor, channels: int) -> Tensor:  # ... C S S
    """Grey as three equal colours, or colours as the grey that is as bright."""
    if x.shape[-3] == channels:
        return x
    if channels == 3:
        return x.expand(*x.shape[:-3], 3, *x.shape[-2:])
    weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    return (x * weights).sum(-3, keepdim=True).round().byte()


# --- many in one file -------------------------------------------------------------------------------------------------


def read_idx(path: Path) -> Numbers:
    """The array of an idx file, also inside gzip; it must be as long as its first bytes say."""
    with path.open("rb") as opened:
        packed = opened.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            head = file.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in IDX or not 1 <= head[3] <= 4:
                raise BadInput(f"{path}: is no idx file; its first bytes say something else")
            shape = tuple(int.from_bytes(file.read(4), "big") for _ in range(head[3]))
            return filled(file, shape, IDX[head[2]], str(path))
    except (OSError, EOFError, zlib.error, MemoryError) as error:
        raise BadInput(f"{path}: cannot be read ({error}); fetch it again") from None


def read_npz(path: Path) -> tuple[Numbers, Numbers]:
    """The arrays x and y of an .npz file; nothing in it is executed."""
    arrays = read_arrays(path, "x", "y")
    if len(arrays) < 2:
        raise BadInput(f"{path}: has no arrays x and y; rename them")
    return arrays["x"], arrays["y"]


def white_of(x: Numbers) -> int:
    """The number that stands for white in an array of pictures: the next of LEVELS; of bytes 0, for they need none."""
    if x.dtype == np.uint8 or x.dtype.kind not in "uif" or not x.size:
        return 0
    return next((level for level in LEVELS if x.max() < level + 1), LEVELS[-1])


def stacked(x: Numbers, place: str, white: int = 0) -> Tensor:  # N H W, N H W C or N C H W -> N C H W of 0 to 255
    """An array of pictures. Numbers that are no bytes are shares of `white`, or of their own if it is brighter."""
    if x.ndim not in (3, 4) or (x.ndim == 4 and not {1, 3} & {x.shape[1], x.shape[3]}):
        raise BadInput(f"{place}: its shape is {x.shape}; N H W, N H W 3 or N 3 H W are accepted")
    if x.dtype.kind not in "uif" or not x.size:
        raise BadInput(f"{place}: holds {x.dtype} of shape {x.shape}; numbers are accepted")
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        x = np.moveaxis(x, 3, 1)
    if x.dtype != np.uint8:
        if not np.isfinite(x).all() or x.min() < 0:
            raise BadInput(f"{place}: a number in it is below 0 or not finite; 0 to 1, or 0 to 255, are accepted")
        x = np.round(x * (255 / max(white, white_of(x)))).clip(0, 255).astype(np.uint8)
    return torch.from_numpy(np.require(x, requirements=["C", "W"]))
