"""Set Transformer: the rows of a set attend to each other, without positions, so their order does not matter.

x = E row; H^{l+1} = Block(H^l), without a mask. The mean of all rows, an extra row (CLS) or a learned query that
attends to all rows at the end (seed) represents the set.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.core import FULL, LayerContext, Stack, keep
from harken.settings import LabelOutputs

from . import DIALS, INIT_STD, EncoderWithHead, Model, ModelSettings, init_weights


class SetTransformerSettings(ModelSettings):
    """Settings of a Set Transformer."""

    kind: Literal["set"] = "set"
    size: Literal["tiny", "small", "medium", "large"] = Field("small", description="dial: sets d, layers and heads")
    d: int = Field(64, ge=2, le=65536, description="width of the model (embedding dimension)")
    layers: int = Field(2, ge=1, le=1000, description="number of blocks")
    heads: int = Field(4, ge=1, le=1024, description="number of attention heads")
    d_ff: int | None = Field(None, ge=1, description="width of the MLP; none: 4 d")
    pool: Literal["mean", "first", "seed"] = Field(
        "mean", description="representation of a set: mean, an extra row (CLS), or a learned query (seed)"
    )
    norm: Literal["pre", "post"] = Field("pre", description="normalization before or after each sublayer")
    activation: Literal["gelu", "gelu-tanh", "relu"] = Field("gelu", description="activation function of the MLP")
    eps: float = Field(1e-5, gt=0, description="term added to the variance in normalization")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout probability")
    head_dropout: float = Field(0.0, ge=0, lt=1, description="dropout probability before the head")
    dials: ClassVar = DIALS["set"]

    def build(self, vocab: LabelOutputs) -> EncoderWithHead:
        return EncoderWithHead(SetEncoder(self, vocab.vocab_size), self.d, vocab.n_outputs, dropout=self.head_dropout)


class SetEncoder(Model):
    """A vector for each set."""

    first: nn.Parameter | None

    def __init__(self, settings: SetTransformerSettings, columns: int) -> None:
        super().__init__()
        config = settings.block_config()
        self.embed, self.dropout = nn.Linear(columns, settings.d), nn.Dropout(settings.dropout)
        self.stack = Stack(settings.layers, config)
        self.norm = config.build_norm() if settings.norm == "pre" else nn.Identity()
        self.seed = config.build_attention() if settings.pool == "seed" else None
        self.register_parameter("first", None if settings.pool == "mean" else nn.Parameter(torch.zeros(settings.d)))
        self.apply(init_weights)
        for linear in (module for module in self.modules() if isinstance(module, nn.Linear)):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)  # INIT_STD is too small for a narrow model
        if self.first is not None:
            nn.init.normal_(self.first, std=INIT_STD)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:  # B L F, B -> B d
        h, extra_row = self.embed(x), None if self.first is None else self.first.expand(len(x), 1, -1)
        if extra_row is not None and self.seed is None:
            h = torch.cat([extra_row, h], 1)
        row = torch.arange(h.shape[1], device=x.device) - h.shape[1] + x.shape[1]  # CLS is row -1
        real = None if lengths is None else row < lengths[:, None]  # B L
        structure = FULL if real is None else keep(real)
        h = self.norm(self.stack(self.dropout(h), structure=structure))
        if self.seed is not None and extra_row is not None:
            context = LayerContext(structure.layout(len(h), 1, h.shape[1], h.device))
            return self.seed(extra_row, h, context=context)[:, 0]
        if extra_row is not None:
            return h[:, 0]
        return h.mean(1) if real is None else (h * real[..., None]).sum(1) / real.sum(1, keepdim=True)
