"""GPT: predict the next word from all words before it. The lecture's LM Transformer, GPT-2 and Llama are its styles."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken import core
from harken.core import CAUSAL, FULL, Memory, Positions, Similarity, Stack, Structure, Wiring

from . import START, LanguageModel, calm, start
from .bigbird import Reach, within
from .rope_scaling import Slower, llama3, stretched

SIMILARITIES: dict[str, Callable[[int, int], Similarity]] = {
    "scaled-dot": lambda heads, D: core.ScaledDot(D),
    "dot": lambda heads, D: core.Dot(),
    "bilinear": core.Bilinear,
    "mahalanobis": core.Mahalanobis,
    "gaussian": lambda heads, D: core.Gaussian(D**0.25),
    "additive": core.Additive,
    "latent": core.Latent,
}


class Shape(Reach):
    """The settings of a GPT."""

    kind: Literal["gpt"] = "gpt"
    style: Literal["lecture", "gpt2", "llama"] = Field("lecture", description="whose choices the other fields follow")
    size: Literal["tiny", "small", "medium", "124m", "355m", "774m", "1.5b"] = Field(
        "small", description="the one dial: sets d, layers, heads and context; any of them may still be given"
    )
    d: int = Field(128, ge=2, le=65536, description="width of a token's vector")
    layers: int = Field(4, ge=1, le=1000, description="number of blocks")
    heads: int = Field(4, ge=1, le=1024, description="number of attention heads")
    kv_heads: int | None = Field(
        None, ge=1, description="key/value heads, shared by groups of query heads; none: one each"
    )
    d_k: int | None = Field(None, ge=1, description="width of a head's keys; none: d / heads")
    d_v: int | None = Field(None, ge=1, description="width of a head's values; none: d / heads")
    d_ff: int | None = Field(None, ge=1, description="width of the MLP; none: 4 d, or 8/3 d with glu")
    context: int = Field(128, ge=1, le=1_000_000, description="longest sequence seen at once (L)")
    positions: Literal["sinusoid", "sinusoid-halves", "learned", "rotary", "rotary-interleaved", "alibi", "none"] = (
        Field("sinusoid", description="how a token's place enters")
    )
    rope_base: float = Field(10_000.0, gt=1, description="base of the rotary frequencies")
    rope_scaling: Slower | None = Field(
        None, description="slower turns, for long texts: {factor = 4}, or Llama 3's four"
    )
    window: int | None = Field(None, ge=1, description="look back at most this many tokens; none: at all before")
    similarity: Literal["scaled-dot", "dot", "bilinear", "mahalanobis", "gaussian", "additive", "latent"] = Field(
        "scaled-dot", description="how alike a query and a key are"
    )
    norm: Literal["pre", "post", "none"] = Field("pre", description="before (2019) or after (2017) each sublayer")
    rms_norm: bool = Field(False, description="RMSNorm instead of LayerNorm")
    eps: float = Field(1e-5, gt=0, description="added to the variance when normalising")
    activation: Literal["gelu", "gelu-tanh", "relu", "silu", "swiglu", "geglu"] = Field(
        "gelu", description="of the MLP"
    )
    residual: bool = Field(True, description="add each sublayer's input to its output")
    bias: bool | Literal["qkv"] = Field(True, description="bias vectors in maps and norms; qkv: in these maps alone")
    embedding_scale: float | None = Field(
        None, gt=0, description="words are multiplied by it; none: 50 beside sinusoids, else 1"
    )
    input_projection: bool = Field(False, description="the lecture's linear layer after embedding + positions (LL)")
    tie_embeddings: bool = Field(True, description="the word scores use the embedding's own matrix")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of numbers dropped in training")
    word_dropout: float = Field(0.0, ge=0, lt=1, description="share of words hidden in training, all over a row")

    dials: ClassVar = {
        "style": {
            "lecture": {},
            "gpt2": {"positions": "learned", "activation": "gelu-tanh"},
            "llama": {
                "positions": "rotary",
                "activation": "swiglu",
                "rms_norm": True,
                "eps": 1e-6,
                "bias": False,
                "tie_embeddings": False,
            },
        },
        "size": {
            "tiny": {"d": 64, "layers": 2, "heads": 2, "context": 64},
            "small": {"d": 128, "layers": 4, "heads": 4, "context": 128},
            "medium": {"d": 384, "layers": 6, "heads": 6, "context": 256},
            "124m": {"d": 768, "layers": 12, "heads": 12, "context": 1024},
            "355m": {"d": 1024, "layers": 24, "heads": 16, "context": 1024},
            "774m": {"d": 1280, "layers": 36, "heads": 20, "context": 1024},
            "1.5b": {"d": 1600, "layers": 48, "heads": 25, "context": 1024},
        },
    }

    def build(self, vocab: int) -> "GPT":
        return GPT(self, vocab)

    def wiring(self) -> Wiring:
        hidden = self.d_ff or (8 * self.d // 3 if self.activation.endswith("glu") else 4 * self.d)
        same = {
            "d",
            "heads",
            "kv_heads",
            "d_k",
            "d_v",
            "activation",
            "norm",
            "rms_norm",
            "eps",
            "residual",
            "dropout",
            "bias",
        }
        chosen: dict[str, Any] = self.model_dump(include=same)
        return Wiring(**chosen, d_ff=hidden, similarity=SIMILARITIES[self.similarity])

    def loudness(self) -> float:
        # sin and cos have size 1, and words that start at 0.02 would drown in them (the paper multiplies too)
        return self.embedding_scale or (1 / START if self.positions.startswith("sinusoid") else 1.0)

    def looks(self) -> Structure:
        return (CAUSAL if self.window is None else CAUSAL & core.window(self.window)) & self.reach(CAUSAL)

    def places(self) -> Positions:
        with torch.device("meta"):
            D = self.wiring().attention().d_k  # a d that does not split over the heads is refused here, by its name
        how: dict[Any, Any] = {"factor": 1.0, **(self.rope_scaling or {})}
        slower = stretched(**how) if len(how) == 1 else llama3(**how)
        turned = partial(core.Rotary, D, base=self.rope_base, scaling=slower)
        kinds: dict[str, Callable[[], Positions]] = {
            "sinusoid": core.Sinusoid,
            "sinusoid-halves": lambda: core.Sinusoid("halves"),
            "learned": lambda: core.Learned(self.context, self.d),
            "rotary": turned,
            "rotary-interleaved": partial(turned, layout="interleaved"),
            "alibi": lambda: core.Alibi(self.heads),
            "none": Positions,
        }
        return kinds[self.positions]()


class GPT(LanguageModel):
    """H^0 = LL(E w + PE), blocks with the causal mask, then a score for each word."""

    def __init__(self, shape: Shape, vocab: int) -> None:
        super().__init__(vocab, shape.d, word_dropout=shape.word_dropout)
        self.context, self.embedding_scale = shape.context, shape.loudness()
        self.input_projection = nn.Linear(shape.d, shape.d) if shape.input_projection else nn.Identity()
        self.dropout = nn.Dropout(shape.dropout)
        self.stack = Stack(shape.layers, shape.wiring(), shape.places())
        self.norm = shape.wiring().normalise() if shape.norm == "pre" else nn.Identity()
        self.structure = shape.looks()
        self.apply(start)
        calm(self.stack, 2 * shape.layers)
        if shape.tie_embeddings:
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
        x = self.input_projection(self.stack.positions.add(self.words(tokens) * self.embedding_scale, pos))
        structure = within(self.structure, pos, memory) & structure
        h = self.stack(self.dropout(x), structure=structure, pos=pos, memory=memory)
        return self.norm(h)

    def memory(self, B: int, capacity: int) -> list[Memory]:
        return self.stack.memory(B, capacity)
