"""A set: its rows look at each other, and nobody knows in which order they stand.

x = E row, without places; H^{l+1} = Block(H^l), without a mask. The mean of all, a row of its own that looks at all
(CLS), or a learned query that looks at them once at the end (a seed) stands for the set.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.core import FULL, Place, Stack, Structure, Wiring, keep
from harken.settings import Outputs, Part

from . import START, start


class Shape(Part):
    """The settings of a Transformer of sets."""

    kind: Literal["set"] = "set"
    size: Literal["tiny", "small", "medium", "large"] = Field(
        "small", description="the one dial: sets d, layers and heads"
    )
    d: int = Field(64, ge=2, le=65536, description="width of a row's vector")
    layers: int = Field(2, ge=1, le=1000, description="number of blocks")
    heads: int = Field(4, ge=1, le=1024, description="number of attention heads")
    d_ff: int | None = Field(None, ge=1, description="width of the MLP; none: 4 d")
    pool: Literal["mean", "first", "seed"] = Field(
        "mean", description="what stands for a set: the mean, a row of its own (CLS), or a query that looks at all"
    )
    norm: Literal["pre", "post"] = Field("pre", description="normalise before or after each sublayer")
    activation: Literal["gelu", "gelu-tanh", "relu"] = Field("gelu", description="the MLP's activation")
    eps: float = Field(1e-5, gt=0, description="added to the variance when normalising")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of numbers dropped in training")
    head_dropout: float = Field(0.0, ge=0, lt=1, description="share of the state dropped before the head, in training")

    dials: ClassVar = {
        "size": {
            "tiny": {"d": 16, "layers": 1, "heads": 2},
            "small": {"d": 64, "layers": 2, "heads": 4},
            "medium": {"d": 128, "layers": 4, "heads": 8},
            "large": {"d": 256, "layers": 6, "heads": 8},
        }
    }

    def build(self, vocab: Outputs) -> "HeadedSet":
        return HeadedSet(self, vocab)

    def wiring(self) -> Wiring:
        return Wiring(**self.model_dump(include={"d", "heads", "d_ff", "activation", "norm", "eps", "dropout"}))


class SetEncoder(nn.Module):
    """A vector for each set."""

    first: nn.Parameter | None

    def __init__(self, shape: Shape, columns: int) -> None:
        super().__init__()
        self.embed, self.dropout = nn.Linear(columns, shape.d), nn.Dropout(shape.dropout)
        self.stack = Stack(shape.layers, shape.wiring())
        self.norm = shape.wiring().normalise() if shape.norm == "pre" else nn.Identity()
        self.seed = shape.wiring().attention() if shape.pool == "seed" else None
        self.register_parameter("first", None if shape.pool == "mean" else nn.Parameter(torch.zeros(shape.d)))
        self.apply(start)
        for line in (module for module in self.modules() if isinstance(module, nn.Linear)):
            nn.init.normal_(line.weight, std=line.in_features**-0.5)  # in a narrow model START would whisper
        if self.first is not None:
            nn.init.normal_(self.first, std=START)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:  # B L F, B -> B d
        h, own = self.embed(x), None if self.first is None else self.first.expand(len(x), 1, -1)
        if own is not None and self.seed is None:
            h = torch.cat([own, h], 1)
        behind = torch.arange(h.shape[1], device=x.device) - h.shape[1] + x.shape[1]  # CLS stands before the first
        real = None if lengths is None else behind < lengths[:, None]  # B L
        there = FULL if real is None else keep(real)
        h = self.norm(self.stack(self.dropout(h), structure=there))
        return self._pooled(h, own, real, there)

    def _pooled(self, h: Tensor, own: Tensor | None, real: Tensor | None, there: Structure) -> Tensor:  # B L d -> B d
        if self.seed is not None and own is not None:
            return self.seed(own, h, place=Place(there.lay(len(h), 1, h.shape[1], h.device)))[:, 0]
        if own is not None:
            return h[:, 0]
        if real is None:
            return h.mean(1)
        return (h * real[..., None]).sum(1) / real.sum(1, keepdim=True)


class HeadedSet(nn.Module):
    """An encoder and its head: y = W h + b, a number for each label."""

    def __init__(self, shape: Shape, asked: Outputs) -> None:
        super().__init__()
        self.body, self.dropout = SetEncoder(shape, asked.vocab), nn.Dropout(shape.head_dropout)
        self.W_y = nn.Linear(shape.d, asked.outputs)
        self.W_y.apply(start)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:  # B L F, B -> B outputs
        return self.W_y(self.dropout(self.body(x, lengths)))
