"""Handwritten digits, 8 x 8: those of scikit-learn; where it is not installed, drawn here with a shaky hand.

Both are arrays x and y in an .npz file; and so are the clothes, which a package has in JSON.
"""

import io
import json

import numpy as np
import torch
import torch.nn.functional as F

from harken.data.batch import dice
from harken.data.images.batch import Change, views
from harken.data.images.files import Numbers

DRAWN = 1797  # as many as scikit-learn has
# each in 7 lines of 4 pixels, a figure for each line
FORMS = ("6999996", "2622227", "691248f", "6912196", "26aaf22", "f88e196", "688e996", "f112444", "6996996", "6997196")
CLOTHES = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"]


def digits() -> bytes:
    """An .npz file of digits."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        return _packed(*_drawn())
    found = load_digits()
    return _packed(np.round(found.images * (255 / 16)).astype(np.uint8), found.target)


def _drawn() -> tuple[Numbers, Numbers]:
    """Digits of our own: a form for each, moved, turned and bent a little, more or less bright."""
    rng, labels = dice(0, 7), np.arange(DRAWN) % 10
    forms = np.zeros((10, 1, 16, 16), np.float32)
    for n, form in enumerate(FORMS):
        bits = np.array([[int(line, 16) >> k & 1 for k in (3, 2, 1, 0)] for line in form])
        forms[n, 0, 1:15, 4:12] = bits.repeat(2, 0).repeat(2, 1)
    view = torch.from_numpy(views(Change(shift=0.08, zoom=0.2, rotation=12), rng, DRAWN, 16))
    grid = F.affine_grid(view, [DRAWN, 1, 16, 16], align_corners=False)
    soft = F.avg_pool2d(F.grid_sample(torch.from_numpy(forms[labels]), grid, align_corners=False), 2)
    bright = soft[:, 0].numpy() * rng.uniform(0.6, 1.0, (DRAWN, 1, 1)) + rng.normal(0, 0.08, (DRAWN, 8, 8))
    return np.round(255 * bright.clip(0, 1)).astype(np.uint8), labels


def clothes(texts: list[str]) -> bytes:
    """An .npz file of the clothes of ten JSON files, one for each label: {"data": [[784 bytes], ...]}."""
    rows = [np.array([row for row in json.loads(text)["data"] if len(row) == 784], np.uint8) for text in texts]
    labels = np.repeat(CLOTHES, [len(some) for some in rows])
    return _packed(np.concatenate(rows).reshape(-1, 28, 28), labels)


def _packed(x: Numbers, y: Numbers) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, x=x, y=y)
    return file.getvalue()
