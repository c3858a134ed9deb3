"""ViT: an image is divided into patches, and the patches attend to each other like the tokens of a sentence.

x = E patch + PE; H^{l+1} = Block(H^l), without a mask. An extra token (CLS) or the mean of all tokens represents the
image. A stem of convolutions instead of one linear map detects edges at once and needs fewer images and steps.
"""

import math
from itertools import pairwise
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from harken.core import Learned, Positions, Sinusoid, Stack
from harken.settings import ImageShape

from . import DIALS, INIT_STD, EncoderWithHead, Model, ModelSettings, init_weights


class ViTSettings(ModelSettings):
    """Settings of a ViT."""

    body_kind: ClassVar[str] = "vit"
    stack_seeds: ClassVar[bool] = True  # a small model leaves a GPU idle

    kind: Literal["vit"] = "vit"
    size: Literal["mini", "tiny", "small", "base", "large"] = Field(
        "mini", description="dial: sets d, layers and heads; base and large as in the paper"
    )
    d: int = Field(64, ge=2, le=65536, description="width of the model (embedding dimension)")
    layers: int = Field(4, ge=1, le=1000, description="number of blocks")
    heads: int = Field(4, ge=1, le=1024, description="number of attention heads")
    d_ff: int | None = Field(None, ge=1, description="width of the MLP; none: 4 d")
    patch: int | None = Field(
        None, ge=1, le=1024, description="patch size in pixels; none: 2 to 16 by image size, twice with stem=conv"
    )
    stem: Literal["patch", "conv"] = Field(
        "patch", description="patch embedding: one linear map, or 3 x 3 convolutions with stride 2"
    )
    pool: Literal["first", "mean"] = Field(
        "first", description="representation of an image: an extra token (CLS), or the mean of all tokens"
    )
    positions: Literal["learned", "sinusoid", "none"] = Field(
        "learned", description="positional encoding of a patch; sinusoid: of its row and of its column"
    )
    norm: Literal["pre", "post"] = Field("pre", description="normalization before or after each sublayer")
    activation: Literal["gelu", "gelu-tanh", "relu"] = Field("gelu", description="activation function of the MLP")
    eps: float = Field(1e-6, gt=0, description="term added to the variance in normalization")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout probability")
    head_dropout: float = Field(0.0, ge=0, lt=1, description="dropout probability before the head")
    dials: ClassVar = DIALS["vit"]

    def build(self, vocab: ImageShape) -> EncoderWithHead:
        return EncoderWithHead(ViT(self, vocab), self.d, vocab.n_outputs, dropout=self.head_dropout)

    def patch_size(self, image_size: int) -> int:
        """Patch size for images of this size."""
        default = 16 if image_size > 128 else 8 if image_size > 48 else 4 if image_size > 16 else 2
        return self.patch or (2 * default if self.stem == "conv" and image_size > 16 else default)

    def n_tokens(self, image_size: int) -> int:
        """Number of tokens of an image of this size."""
        return math.ceil(image_size / self.patch_size(image_size)) ** 2 + (self.pool == "first")


class Sinusoid2d(Positions):
    """Sinusoids of the row in one half of the features and of the column in the other. CLS has no position."""

    def __init__(self, columns: int, n_extra: int) -> None:
        super().__init__()
        self.columns, self.n_extra, self.axis = columns, n_extra, Sinusoid("halves")

    def add(self, x: Tensor, pos: Tensor) -> Tensor:  # B L d
        zeros = x.new_zeros(*pos.shape, x.shape[-1] // 2)
        patch = pos - self.n_extra
        halves = [self.axis.add(zeros, coordinate) for coordinate in (patch // self.columns, patch % self.columns)]
        return x + torch.cat(halves, -1) * (patch >= 0)[..., None]


def patch_embedding(settings: ViTSettings, channels: int, patch: int) -> nn.Module:  # B C S S -> B d S/p S/p
    """One linear map of each patch, or convolutions with stride 2 until a patch is one pixel."""
    if settings.stem == "patch":
        return nn.Conv2d(channels, settings.d, patch, patch)
    halvings = patch.bit_length() - 1
    if patch != 2**halvings or not halvings:
        raise ValueError(f"stem=conv halves the image repeatedly, so patch={patch} is not possible; use 2, 4 or 8")
    widths = [channels, *(max(8, settings.d >> n) for n in reversed(range(halvings)))]
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Conv2d(a, b, 3, 2, 1), nn.GELU())]
    return nn.Sequential(*layers, nn.Conv2d(widths[-1], settings.d, 1))


class ViT(Model):
    """The encoder: a state for each patch, and for CLS if there is one."""

    embed_cls: nn.Parameter | None

    def __init__(self, settings: ViTSettings, image_shape: ImageShape) -> None:
        super().__init__()
        self.d = settings.d
        d, config = settings.d, settings.block_config()
        patch, n_extra = settings.patch_size(image_shape.image_size), int(settings.pool == "first")
        columns = math.ceil(image_shape.image_size / patch)
        self.border = columns * patch - image_shape.image_size  # padding to a multiple of the patch size
        self.embed = patch_embedding(settings, image_shape.channels, patch)
        self.register_parameter("embed_cls", nn.Parameter(torch.zeros(d)) if n_extra else None)
        positions = Learned(columns**2 + n_extra, d) if settings.positions == "learned" else Positions()
        if settings.positions == "sinusoid":
            if d % 4:
                raise ValueError(f"positions=sinusoid needs d divisible by 4, but d={d}; use d={d // 4 * 4 + 4}")
            positions = Sinusoid2d(columns, n_extra)
        self.stack = Stack(settings.layers, config, positions)
        self.dropout = nn.Dropout(settings.dropout)
        self.norm = config.build_norm() if settings.norm == "pre" else nn.Identity()
        self.apply(init_weights)
        for linear in (module for module in self.modules() if isinstance(module, nn.Linear)):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)  # INIT_STD is too small for a narrow model
        for conv in self.embed.modules() if settings.stem == "conv" else ():
            if isinstance(conv, nn.Conv2d):
                nn.init.kaiming_normal_(conv.weight)
        if self.embed_cls is not None:
            nn.init.normal_(self.embed_cls, std=INIT_STD)

    def forward(self, images: Tensor) -> Tensor:  # B C S S -> B L d
        x = self.embed(F.pad(images, (0, self.border, 0, self.border))).flatten(2).transpose(1, 2)
        if self.embed_cls is not None:
            x = torch.cat([self.embed_cls.expand(len(x), 1, -1), x], 1)
        pos = torch.arange(x.shape[1], device=x.device)
        return self.norm(self.stack(self.dropout(self.stack.positions.add(x, pos)), pos=pos))

    def pooled(self, h: Tensor) -> Tensor:  # B L d -> B d
        return h.mean(1) if self.embed_cls is None else h[:, 0]
