"""ViT: a picture is cut into patches, and these look at each other like the words of a sentence.

x = E patch + PE; H^{l+1} = Block(H^l), without a mask. CLS, a token of its own, or the mean of all stands for the
picture. A stem of convolutions in place of one cut sees edges at once, and so needs fewer pictures and steps.
"""

import math
from itertools import pairwise
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from harken.core import Learned, Positions, Sinusoid, Stack, Wiring
from harken.settings import Part, Pixels

from . import START, start


class Shape(Part):
    """The settings of a ViT."""

    abreast: ClassVar[bool] = True  # the seeds of a comparison are trained together: a small one leaves a GPU idle

    kind: Literal["vit"] = "vit"
    size: Literal["mini", "tiny", "small", "base", "large"] = Field(
        "mini", description="the one dial: sets d, layers and heads; tiny to large are the papers'"
    )
    d: int = Field(64, ge=2, le=65536, description="width of a token's vector")
    layers: int = Field(4, ge=1, le=1000, description="number of blocks")
    heads: int = Field(4, ge=1, le=1024, description="number of attention heads")
    d_ff: int | None = Field(None, ge=1, description="width of the MLP; none: 4 d")
    patch: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="side of a patch in pixels; none: 2 to 16, by that of the pictures; conv: twice",
    )
    stem: Literal["patch", "conv"] = Field(
        "patch", description="how a patch becomes a vector: by one linear map, or by 3 x 3 convolutions that halve"
    )
    pool: Literal["first", "mean"] = Field(
        "first", description="what stands for a picture: a token of its own (CLS), or the mean of all"
    )
    positions: Literal["learned", "sinusoid", "none"] = Field(
        "learned", description="where a patch stands: a learned vector, or sin and cos of its row and of its column"
    )
    norm: Literal["pre", "post"] = Field("pre", description="normalise before or after each sublayer")
    activation: Literal["gelu", "gelu-tanh", "relu"] = Field("gelu", description="the MLP's activation")
    eps: float = Field(1e-6, gt=0, description="added to the variance when normalising")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of numbers dropped in training")
    head_dropout: float = Field(0.0, ge=0, lt=1, description="share of the state dropped before the head, in training")

    dials: ClassVar = {
        "size": {
            "mini": {"d": 64, "layers": 4, "heads": 4},
            "tiny": {"d": 192, "layers": 12, "heads": 3},
            "small": {"d": 384, "layers": 12, "heads": 6},
            "base": {"d": 768, "layers": 12, "heads": 12},
            "large": {"d": 1024, "layers": 24, "heads": 16},
        }
    }

    def build(self, vocab: Pixels) -> "HeadedViT":
        return HeadedViT(self, vocab)

    def wiring(self) -> Wiring:
        return Wiring(**self.model_dump(include={"d", "heads", "d_ff", "activation", "norm", "eps", "dropout"}))

    def cut(self, side: int) -> int:
        """The side of a patch of pictures with this side."""
        own = 16 if side > 128 else 8 if side > 48 else 4 if side > 16 else 2
        return self.patch or (2 * own if self.stem == "conv" and side > 16 else own)

    def places(self, side: int) -> int:
        """How many tokens a picture of this side has."""
        return math.ceil(side / self.cut(side)) ** 2 + (self.pool == "first")


class Grid(Positions):
    """Sinusoids of the row in one half of the features, of the column in the other. CLS, before them, has no place."""

    def __init__(self, wide: int, first: int) -> None:
        super().__init__()
        self.wide, self.first, self.line = wide, first, Sinusoid("halves")

    def add(self, x: Tensor, pos: Tensor) -> Tensor:  # B L d
        nothing = x.new_zeros(*pos.shape, x.shape[-1] // 2)
        at = pos - self.first
        sides = [self.line.add(nothing, place) for place in (at // self.wide, at % self.wide)]
        return x + torch.cat(sides, -1) * (at >= 0)[..., None]


def stem(shape: Shape, channels: int, patch: int) -> nn.Module:  # B C S S -> B d S/p S/p
    """What makes vectors of patches: one map of each, or convolutions that halve the picture until a patch is left."""
    if shape.stem == "patch":
        return nn.Conv2d(channels, shape.d, patch, patch)
    halvings = patch.bit_length() - 1
    if patch != 2**halvings or not halvings:
        raise ValueError(f"stem=conv halves a picture again and again, so patch={patch} does not fit; take 2, 4 or 8")
    wide = [channels, *(max(8, shape.d >> n) for n in reversed(range(halvings)))]
    parts = [(nn.Conv2d(a, b, 3, 2, 1), nn.GELU()) for a, b in pairwise(wide)]
    return nn.Sequential(*(layer for part in parts for layer in part), nn.Conv2d(wide[-1], shape.d, 1))


class ViT(nn.Module):
    """The encoder: a state for each patch, and for CLS where there is one."""

    embed_cls: nn.Parameter | None

    def __init__(self, shape: Shape, pixels: Pixels) -> None:
        super().__init__()
        patch, first = shape.cut(pixels.image_size), int(shape.pool == "first")
        wide = math.ceil(pixels.image_size / patch)
        self.border = wide * patch - pixels.image_size  # a picture that does not split is widened
        self.embed = stem(shape, pixels.channels, patch)
        self.register_parameter("embed_cls", nn.Parameter(torch.zeros(shape.d)) if first else None)
        if shape.positions == "sinusoid" and shape.d % 4:
            raise ValueError(f"positions=sinusoid needs d in quarters: d={shape.d}; try d={shape.d // 4 * 4 + 4}")
        match shape.positions:
            case "learned":
                positions: Positions = Learned(wide**2 + first, shape.d)
            case "sinusoid":
                positions = Grid(wide, first)
            case _:
                positions = Positions()
        self.stack = Stack(shape.layers, shape.wiring(), positions)
        self.dropout = nn.Dropout(shape.dropout)
        self.norm = shape.wiring().normalise() if shape.norm == "pre" else nn.Identity()
        self.apply(start)
        for line in (module for module in self.modules() if isinstance(module, nn.Linear)):
            nn.init.normal_(line.weight, std=line.in_features**-0.5)  # in a narrow model START would whisper
        for conv in self.embed.modules() if shape.stem == "conv" else ():
            if isinstance(conv, nn.Conv2d):
                nn.init.kaiming_normal_(conv.weight)
        if self.embed_cls is not None:
            nn.init.normal_(self.embed_cls, std=START)

    def forward(self, images: Tensor) -> Tensor:  # B C S S -> B L d
        x = self.embed(F.pad(images, (0, self.border, 0, self.border))).flatten(2).transpose(1, 2)
        if self.embed_cls is not None:
            x = torch.cat([self.embed_cls.expand(len(x), 1, -1), x], 1)
        pos = torch.arange(x.shape[1], device=x.device)
        return self.norm(self.stack(self.dropout(self.stack.positions.add(x, pos)), pos=pos))

    def pooled(self, h: Tensor) -> Tensor:  # B L d -> B d
        return h.mean(1) if self.embed_cls is None else h[:, 0]


class HeadedViT(nn.Module):
    """A ViT and its head: y = W h + b, a number for each label."""

    def __init__(self, shape: Shape, pixels: Pixels) -> None:
        super().__init__()
        self.body, self.dropout = ViT(shape, pixels), nn.Dropout(shape.head_dropout)
        self.W_y = nn.Linear(shape.d, pixels.outputs)
        self.W_y.apply(start)

    def forward(self, images: Tensor) -> Tensor:  # B C S S -> B outputs
        return self.W_y(self.dropout(self.body.pooled(self.body(images))))
