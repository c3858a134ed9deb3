"""GPT: predicts the next token from all earlier ones. The LM Transformer of the lecture, GPT-2 and Llama are styles."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from harken import core
from harken.core import CAUSAL, FULL, BlockConfig, Memory, Positions, Similarity, Stack, Structure, per_document

from . import DIALS, INIT_STD, LanguageModel, SparseAttentionSettings, init_weights, scale_residual_init

SIMILARITIES: dict[str, Callable[[int, int], Similarity]] = {
    "scaled-dot": lambda heads, D: core.ScaledDot(D),
    "dot": lambda heads, D: core.Dot(),
    "bilinear": core.Bilinear,
    "mahalanobis": core.Mahalanobis,
    "gaussian": lambda heads, D: core.Gaussian(D**0.25),
    "additive": core.Additive,
    "latent": core.Latent,
}
RopeScaling = dict[Literal["factor", "low", "high", "context"], PositiveFloat]


class GPTSettings(SparseAttentionSettings):
    """Settings of a GPT."""

    body_kind: ClassVar[str] = "gpt"

    kind: Literal["gpt"] = "gpt"
    style: Literal["lecture", "gpt2", "llama"] = Field("lecture", description="dial: architecture variant")
    size: Literal["tiny", "small", "medium", "124m", "355m", "774m", "1.5b"] = Field(
        "small", description="dial: sets d, layers, heads and context"
    )
    d: int = Field(128, ge=2, le=65536, description="width of the model (embedding dimension)")
    layers: int = Field(4, ge=1, le=1000, description="number of blocks")
    heads: int = Field(4, ge=1, le=1024, description="number of attention heads")
    kv_heads: int | None = Field(
        None, ge=1, description="number of key/value heads, shared by groups of query heads; none: equal to heads"
    )
    d_k: int | None = Field(None, ge=1, description="width of the keys of a head; none: d / heads")
    d_v: int | None = Field(None, ge=1, description="width of the values of a head; none: d / heads")
    d_ff: int | None = Field(None, ge=1, description="width of the MLP; none: 4 d, or 8/3 d with swiglu and geglu")
    context: int = Field(128, ge=1, le=1_000_000, description="maximum sequence length in tokens (L)")
    positions: Literal["sinusoid", "sinusoid-halves", "learned", "rotary", "rotary-interleaved", "alibi", "none"] = (
        Field("sinusoid", description="positional encoding")
    )
    rope_base: float = Field(10_000.0, gt=1, description="base of the rotary frequencies")
    rope_scaling: RopeScaling | None = Field(
        None, description="scaling of the rotary frequencies for long texts: {factor = 4}, or the four of Llama 3"
    )
    window: int | None = Field(None, ge=1, description="sliding window: number of earlier tokens; none: all")
    similarity: Literal["scaled-dot", "dot", "bilinear", "mahalanobis", "gaussian", "additive", "latent"] = Field(
        "scaled-dot", description="similarity function of queries and keys"
    )
    norm: Literal["pre", "post", "none"] = Field("pre", description="normalization before or after each sublayer")
    rms_norm: bool = Field(False, description="RMSNorm instead of LayerNorm")
    eps: float = Field(1e-5, gt=0, description="term added to the variance in normalization")
    activation: Literal["gelu", "gelu-tanh", "relu", "silu", "swiglu", "geglu"] = Field(
        "gelu", description="activation function of the MLP"
    )
    residual: bool = Field(True, description="residual connections")
    bias: bool | Literal["qkv"] = Field(True, description="bias terms in linear layers and norms; qkv: only of q, k, v")
    embedding_scale: float | None = Field(
        None, gt=0, description="scale applied to the token embeddings; none: 50 with sinusoids, else 1"
    )
    input_projection: bool = Field(False, description="linear layer after embeddings and positions (LL of the lecture)")
    tie_embeddings: bool = Field(True, description="output layer shares the weights of the token embedding")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout probability")
    word_dropout: float = Field(0.0, ge=0, lt=1, description="probability of removing a token everywhere in a row")
    dials: ClassVar = DIALS["gpt"]

    def build(self, vocab: int) -> "GPT":
        return GPT(self, vocab)

    def block_config(self) -> BlockConfig:
        d_ff = self.d_ff or (8 * self.d // 3 if self.activation.endswith("glu") else 4 * self.d)
        return replace(super().block_config(), d_ff=d_ff, similarity=SIMILARITIES[self.similarity])

    def resolved_embedding_scale(self) -> float:
        # sin and cos have amplitude 1 and the initial embeddings 0.02 (the paper scales them too)
        return self.embedding_scale or (1 / INIT_STD if self.positions.startswith("sinusoid") else 1.0)

    def attention_structure(self) -> Structure:
        return (CAUSAL if self.window is None else CAUSAL & core.window(self.window)) & self.block_structure(CAUSAL)

    def positional_encoding(self) -> Positions:
        with torch.device("meta"):
            D = self.block_config().build_attention().d_k  # raises an error if d is not divisible by heads
        options: dict[Any, Any] = {"factor": 1.0, **(self.rope_scaling or {})}
        scaling = core.linear_scaling(**options) if len(options) == 1 else core.llama3_scaling(**options)
        rotary = partial(core.Rotary, D, base=self.rope_base, scaling=scaling)
        encodings: dict[str, Callable[[], Positions]] = {
            "sinusoid": core.Sinusoid,
            "sinusoid-halves": lambda: core.Sinusoid("halves"),
            "learned": lambda: core.Learned(self.context, self.d),
            "rotary": rotary,
            "rotary-interleaved": partial(rotary, layout="interleaved"),
            "alibi": lambda: core.Alibi(self.heads),
            "none": Positions,
        }
        return encodings[self.positions]()


class GPT(LanguageModel):
    """H^0 = LL(E w + PE), blocks with the causal mask, then the logits."""

    def __init__(self, settings: GPTSettings, vocab: int) -> None:
        super().__init__(vocab, settings.d, word_dropout=settings.word_dropout)
        self.context, self.embedding_scale = settings.context, settings.resolved_embedding_scale()
        self.input_projection = nn.Linear(settings.d, settings.d) if settings.input_projection else nn.Identity()
        self.dropout = nn.Dropout(settings.dropout)
        config = settings.block_config()
        self.stack = Stack(settings.layers, config, settings.positional_encoding())
        self.norm = config.build_norm() if settings.norm == "pre" else nn.Identity()
        self.structure = settings.attention_structure()
        self.apply(init_weights)
        scale_residual_init(self.stack, 2 * settings.layers)
        if settings.tie_embeddings:
            self.head.weight = self.embed.weight

    def forward(
        self,
        tokens: Tensor,  # B L
        *,
        pos: Tensor | None = None,
        structure: Structure = FULL,
        memory: list[Memory] | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:  # B L d
        pos = torch.arange(tokens.shape[1], device=tokens.device) if pos is None else pos
        x = self.stack.positions.add(self.embed_tokens(tokens) * self.embedding_scale, pos)
        structure = per_document(self.structure, pos, memory) & structure
        h = self.stack(self.dropout(self.input_projection(x)), structure=structure, pos=pos, memory=memory)
        return self.norm(h)

    def memory(self, B: int, capacity: int) -> list[Memory]:
        return self.stack.memory(B, capacity)
