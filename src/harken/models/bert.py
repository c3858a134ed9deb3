"""BERT: every word looks at all words, left and right; learned by filling in words that were hidden.

x = LN(E w + PE + E_seg s): word, place and which of two sentences. The first token, CLS, stands for the whole text.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.core import FULL, Learned, Stack, Structure, Wiring, keep
from harken.core.layers import ACTS
from harken.errors import BadInput, BadSetting

from . import LanguageModel, start
from .bigbird import Reach, within


class Shape(Reach):
    """The settings of a BERT."""

    task: ClassVar[str] = "masked-words"

    kind: Literal["bert"] = "bert"
    size: Literal["tiny", "mini", "small", "base", "large"] = Field(
        "mini", description="the one dial: sets d, layers and heads; base and large are the paper's"
    )
    d: int = Field(256, ge=2, le=65536, description="width of a token's vector")
    layers: int = Field(4, ge=1, le=1000, description="number of blocks")
    heads: int = Field(4, ge=1, le=1024, description="number of attention heads")
    d_ff: int | None = Field(None, ge=1, description="width of the MLP; none: 4 d")
    context: int = Field(512, ge=1, le=1_000_000, description="longest sequence seen at once (L)")
    segments: int = Field(2, ge=0, le=16, description="sentences told apart in one sequence; 0: none are")
    pooler: bool = Field(True, description="a layer of its own for CLS: tanh(W h + b)")
    mlm_head: bool = Field(True, description="scores for hidden words; false: none, as in a model of sentences")
    nsp_head: bool = Field(True, description="two scores from CLS: the second text follows the first, or does not")
    norm: Literal["pre", "post"] = Field("post", description="normalise before or after (BERT) each sublayer")
    activation: Literal["gelu", "gelu-tanh", "relu"] = Field("gelu", description="the MLP's activation")
    eps: float = Field(1e-12, gt=0, description="added to the variance when normalising")
    dropout: float = Field(0.1, ge=0, lt=1, description="share of numbers dropped in training")

    dials: ClassVar = {
        "size": {
            "tiny": {"d": 128, "layers": 2, "heads": 2},
            "mini": {"d": 256, "layers": 4, "heads": 4},
            "small": {"d": 512, "layers": 4, "heads": 8},
            "base": {"d": 768, "layers": 12, "heads": 12},
            "large": {"d": 1024, "layers": 24, "heads": 16},
        }
    }

    def build(self, vocab: int) -> "BERT":
        return BERT(self, vocab)

    def wiring(self) -> Wiring:
        return Wiring(**self.model_dump(include={"d", "heads", "d_ff", "activation", "norm", "eps", "dropout"}))


class BERT(LanguageModel):
    """Word + place + segment, blocks that look both ways, and a score for each word that may have been hidden."""

    causal = False

    def __init__(self, shape: Shape, vocab: int) -> None:
        super().__init__(vocab, shape.d)
        self.context, self.structure, wiring = shape.context, shape.reach(), shape.wiring()
        self.segments = nn.Embedding(shape.segments, shape.d) if shape.segments else None
        self.dropout = nn.Dropout(shape.dropout)
        self.embed_norm = wiring.normalise()
        self.stack = Stack(shape.layers, wiring, Learned(shape.context, shape.d))
        self.norm = wiring.normalise() if shape.norm == "pre" else nn.Identity()
        self.pooler = nn.Linear(shape.d, shape.d) if shape.pooler else None
        self.W_follows = nn.Linear(shape.d, 2) if shape.nsp_head else None
        self.activation = ACTS[shape.activation]
        self.transform = nn.Linear(shape.d, shape.d) if shape.mlm_head else None
        self.transform_norm = wiring.normalise() if shape.mlm_head else None
        if shape.mlm_head:
            self.head_bias = nn.Parameter(torch.zeros(vocab))
        self.apply(start)
        self.head.weight = self.embed.weight

    def forward(
        self,
        tokens: Tensor,  # B L
        *,
        segments: Tensor | None = None,  # B L; None: all of the first
        pos: Tensor | None = None,
        structure: Structure = FULL,
        lengths: Tensor | None = None,  # B: what stands behind is padding
    ) -> Tensor:  # B L d
        pos = torch.arange(tokens.shape[1], device=tokens.device) if pos is None else pos
        if lengths is not None:
            structure = structure & keep(torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None])
        x = self.stack.positions.add(self.words(tokens), pos)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(tokens) if segments is None else segments)
        structure = within(self.structure, pos) & structure
        return self.norm(self.stack(self.dropout(self.embed_norm(x)), structure=structure, pos=pos))

    def pooled(self, h: Tensor) -> Tensor:  # ... d, of CLS
        return h if self.pooler is None else torch.tanh(self.pooler(h))

    def next_sentence_scores(self, h: Tensor) -> Tensor:  # ... d, of CLS -> ... 2
        if self.W_follows is None:
            raise BadSetting("model.nsp_head=false: this BERT has no scores for what follows; set model.nsp_head=true")
        scores: Tensor = self.W_follows(self.pooled(h))
        return scores

    def logits(self, h: Tensor) -> Tensor:  # ... d -> ... vocab
        if self.transform is None or self.transform_norm is None:
            raise BadInput(
                "this model has no scores for hidden words (model.mlm_head = false); it gives vectors of texts"
            )
        return super().logits(self.transform_norm(self.activation(self.transform(h))))
