"""Images of 8 x 8 digits from scikit-learn or generated; and Fashion-MNIST from JSON.

All are .npz files with the arrays x and y.
"""

import io
import json

import numpy as np
import torch
import torch.nn.functional as F

from harken.data.images.files import Array
from harken.data.images.source import Augmentation, random_affines
from harken.data.rng import RngStream, rng_for
from harken.errors import HarkenError

N_DIGITS = 1797  # as in scikit-learn
# 7 rows of 4 pixels per digit, one hexadecimal figure per row
BITMAPS = (
    "6999996", "2622227", "691248f", "6912196", "26aaf22", "f88e196", "688e996", "f112444", "6996996", "6997196",
)  # fmt: skip
CLOTHES = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"]


def digits() -> bytes:
    """An .npz file of the digits of scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise HarkenError("scikit-learn is not installed") from None
    dataset = load_digits()
    return _to_npz(np.round(dataset.images * (255 / 16)).astype(np.uint8), dataset.target)


def drawn_digits() -> bytes:
    """An .npz file of generated digits: bitmaps with random affine transforms, brightness and noise."""
    rng, labels = rng_for(0, RngStream.SYNTHETIC_DIGITS), np.arange(N_DIGITS) % 10
    glyphs = np.zeros((10, 1, 16, 16), np.float32)
    for n, bitmap in enumerate(BITMAPS):
        bits = np.array([[int(row, 16) >> k & 1 for k in (3, 2, 1, 0)] for row in bitmap])
        glyphs[n, 0, 1:15, 4:12] = bits.repeat(2, 0).repeat(2, 1)
    affines = torch.from_numpy(random_affines(Augmentation(shift=0.08, zoom=0.2, rotation=12), rng, N_DIGITS, 16))
    grid = F.affine_grid(affines, [N_DIGITS, 1, 16, 16], align_corners=False)
    images = F.avg_pool2d(F.grid_sample(torch.from_numpy(glyphs[labels]), grid, align_corners=False), 2)
    noisy = images[:, 0].numpy() * rng.uniform(0.6, 1.0, (N_DIGITS, 1, 1)) + rng.normal(0, 0.08, (N_DIGITS, 8, 8))
    return _to_npz(np.round(255 * noisy.clip(0, 1)).astype(np.uint8), labels)


def clothes(texts: list[str]) -> bytes:
    """An .npz file of clothes from ten JSON texts, one per label: {"data": [[784 bytes], ...]}."""
    images = [np.array([row for row in json.loads(text)["data"] if len(row) == 784], np.uint8) for text in texts]
    labels = np.repeat(CLOTHES, [len(rows) for rows in images])
    return _to_npz(np.concatenate(images).reshape(-1, 28, 28), labels)


def _to_npz(x: Array, y: Array) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, x=x, y=y)
    return file.getvalue()
