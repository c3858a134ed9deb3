"""Batches of pictures, each time a little different: a pure function of (seed, epoch, step).

What is drawn (how far a picture is moved, which box is erased) stands in the batch as numbers; what is made of it is
computed where the model is, in torch, row by row: parts of a batch are therefore the same as the whole.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.data.batch import Batch, dice

from .files import Numbers
from .source import Lens, Pictures


@dataclass(frozen=True)
class Change:
    """How much a picture may be changed in training."""

    shift: float = 0.0  # of the side, in each direction
    zoom: float = 0.0  # smaller or larger, as a share
    rotation: float = 0.0  # degrees, to either side
    flip: bool = False  # left and right
    erase: float = 0.0  # share of the pictures of which a box is erased
    mixup: float = 0.0  # a of Beta(a, a): two pictures in one
    cutmix: float = 0.0  # the same: a box out of another picture

    @property
    def moves(self) -> bool:
        return bool(self.shift or self.zoom or self.rotation or self.flip)

    @property
    def mixes(self) -> bool:
        return bool(self.mixup or self.cutmix)


@dataclass(frozen=True, kw_only=True)
class ImageBatch(Batch):
    """Pictures in bytes (`tokens`, B C S S) and their labels (`targets`, B), with what was drawn for each."""

    places: int  # tokens that a model makes of a picture
    view: Tensor | None = None  # B 2 3: where each pixel is taken from
    erased: Tensor | None = None  # B 4: the box that is erased, as shares: top, left, bottom, right
    other: Tensor | None = None  # B C S S: the picture that is mixed in
    other_targets: Tensor | None = None  # B
    blend: Tensor | None = None  # B: share of the first picture outside the box
    box: Tensor | None = None  # B 4: inside it stands the other one

    @property
    def count(self) -> int:
        return len(self.tokens)

    @property
    def size(self) -> int:
        return len(self.tokens) * self.places

    def seen(self, lens: Lens) -> Tensor:  # B C S S
        """The pictures as a model is given them, with all that was drawn."""
        x = self._moved(self.tokens, lens)
        if self.other is not None and self.blend is not None and self.box is not None:
            y, share = self._moved(self.other, lens), self.blend[:, None, None, None]
            x = torch.where(_inside(self.box, x.shape[-1]), y, share * x + (1 - share) * y)
        return x if self.erased is None else x.masked_fill(_inside(self.erased, x.shape[-1]), 0.0)

    def _moved(self, pixels: Tensor, lens: Lens) -> Tensor:
        if self.view is None:
            return lens.numbers(pixels)
        at = (2 * torch.arange(pixels.shape[-1], device=pixels.device) + 1) / pixels.shape[-1] - 1
        place = torch.cartesian_prod(at, at).flip(-1).unflatten(0, (len(at), len(at)))  # S S 2: x, y
        grid = torch.einsum("hwj,bij->bhwi", place, self.view[..., :2]) + self.view[:, None, None, :, 2]
        return lens.numbers(F.grid_sample(pixels.float() / 255, grid, align_corners=False))

    def share(self) -> Tensor | None:  # B
        """How much of each picture is the first one; None where nothing is mixed."""
        if self.blend is None or self.box is None:
            return None
        side = self.tokens.shape[-1]
        inside = _inside(self.box, side).flatten(1).sum(1) / side**2
        return self.blend * (1 - inside)


def _inside(box: Tensor, side: int) -> Tensor:  # B 4 -> B 1 S S
    """Which pixels lie in a box."""
    at = (torch.arange(side, device=box.device) + 0.5) / side
    top, left, bottom, right = (edge[:, None] for edge in box.unbind(1))
    rows, columns = (at >= top) & (at < bottom), (at >= left) & (at < right)
    return (rows[:, :, None] & columns[:, None, :])[:, None]


class Shuffled:
    """The training batches: every epoch in another order, every picture changed anew. All have the same shape."""

    def __init__(self, pictures: Pictures, rows: int, *, places: int, change: Change, seed: int) -> None:
        self.pictures, self.places, self.change, self.seed = pictures, places, change, seed
        self.rows = min(rows, len(pictures))
        self.steps = len(pictures) // self.rows
        self._epoch: tuple[int, Numbers] = (-1, np.empty(0, np.int64))

    def batch(self, epoch: int, step: int) -> ImageBatch:
        if self._epoch[0] != epoch:
            self._epoch = (epoch, dice(self.seed, 5, epoch).permutation(len(self.pictures)))
        picks = self._epoch[1][step * self.rows : (step + 1) * self.rows]
        change, rng, B = self.change, dice(self.seed, 6, epoch, step), len(picks)
        pixels, targets = self.pictures.pixels, torch.from_numpy(self.pictures.targets)
        drawn = dict[str, Tensor]()
        if change.moves:
            drawn["view"] = torch.from_numpy(views(change, rng, B, pixels.shape[-1]))
        if change.mixes:
            others = rng.integers(len(self.pictures), size=B)
            blend, box = _mixed(change, rng, B)
            drawn |= {"other": pixels[others], "other_targets": targets[others]}
            drawn |= {"blend": torch.from_numpy(blend), "box": torch.from_numpy(box)}
        if change.erase:
            box = _boxes(rng, rng.uniform(0.02, 0.25, B)) * (rng.random(B) < change.erase)[:, None]
            drawn["erased"] = torch.from_numpy(box.astype(np.float32))
        return ImageBatch(pixels[picks], targets[picks], places=self.places, **drawn)  # type: ignore[arg-type]


def views(change: Change, rng: np.random.Generator, B: int, side: int) -> Numbers:  # B 2 3
    """For each picture the map from where a pixel stands to where it is taken from: both run from -1 to 1."""
    angle = np.radians(rng.uniform(-change.rotation, change.rotation, B))
    scale = np.exp(rng.uniform(-1, 1, B) * math.log1p(change.zoom))
    mirror = np.where(rng.random(B) < 0.5 * change.flip, -1.0, 1.0)
    shift = np.round(rng.uniform(-change.shift, change.shift, (2, B)) * side) * 2 / side  # whole pixels blur nothing
    c, s = np.cos(angle) * scale, np.sin(angle) * scale
    view = np.array([[c * mirror, -s, shift[0]], [s * mirror, c, shift[1]]])
    return view.transpose(2, 0, 1).astype(np.float32)


def _boxes(rng: np.random.Generator, area: Numbers) -> Numbers:  # B -> B 4
    """Boxes of these areas, about as high as wide, wherever they fit."""
    ratio = np.exp(rng.uniform(-0.5, 0.5, len(area)))
    high, wide = np.minimum(np.sqrt(area * ratio), 1), np.minimum(np.sqrt(area / ratio), 1)
    top, left = rng.random(len(area)) * (1 - high), rng.random(len(area)) * (1 - wide)
    return np.stack([top, left, top + high, left + wide], 1)


def _mixed(change: Change, rng: np.random.Generator, B: int) -> tuple[Numbers, Numbers]:
    """For each picture its share outside the box, and the box of the other one. Of both ways each gets half."""
    cut = rng.random(B) < (0.5 if change.mixup and change.cutmix else float(bool(change.cutmix)))
    soft, hard = (rng.beta(a or 1.0, a or 1.0, B) for a in (change.mixup, change.cutmix))
    boxes = _boxes(rng, 1 - hard) * cut[:, None]
    return np.where(cut, 1.0, soft).astype(np.float32), boxes.astype(np.float32)
