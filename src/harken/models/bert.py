"""BERT: a bidirectional encoder, trained to fill masked tokens.

x = LN(E w + PE + E_seg s): token, position and segment. The state of the first token, CLS, represents the text.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.core import FULL, Learned, Stack, Structure, keep, per_document
from harken.core.layers import ACTIVATIONS
from harken.errors import BadInput, BadSetting

from . import DIALS, LanguageModel, SparseAttentionSettings, init_weights


class BERTSettings(SparseAttentionSettings):
    """Settings of a BERT."""

    task: ClassVar[str] = "masked-words"
    body_kind: ClassVar[str] = "bert"

    kind: Literal["bert"] = "bert"
    size: Literal["tiny", "mini", "small", "base", "large"] = Field(
        "mini", description="dial: sets d, layers and heads; base and large as in the paper"
    )
    d: int = Field(256, ge=2, le=65536, description="width of the model (embedding dimension)")
    layers: int = Field(4, ge=1, le=1000, description="number of blocks")
    heads: int = Field(4, ge=1, le=1024, description="number of attention heads")
    d_ff: int | None = Field(None, ge=1, description="width of the MLP; none: 4 d")
    context: int = Field(512, ge=1, le=1_000_000, description="maximum sequence length in tokens (L)")
    segments: int = Field(2, ge=0, le=16, description="number of segment embeddings; 0: no segments")
    pooler: bool = Field(True, description="pooling layer for CLS: tanh(W h + b)")
    mlm_head: bool = Field(True, description="head for masked tokens; false: none, as in a sentence encoder")
    nsp_head: bool = Field(True, description="head for next-sentence prediction, on CLS")
    norm: Literal["pre", "post"] = Field("post", description="normalization before or after (BERT) each sublayer")
    activation: Literal["gelu", "gelu-tanh", "relu"] = Field("gelu", description="activation function of the MLP")
    eps: float = Field(1e-12, gt=0, description="term added to the variance in normalization")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout probability")
    dials: ClassVar = DIALS["bert"]

    def build(self, vocab: int) -> "BERT":
        return BERT(self, vocab)


class BERT(LanguageModel):
    """Token, position and segment embeddings, bidirectional blocks, and the logits of masked tokens."""

    causal = False

    def __init__(self, settings: BERTSettings, vocab: int) -> None:
        super().__init__(vocab, settings.d)
        d, config = settings.d, settings.block_config()
        self.context, self.structure = settings.context, settings.block_structure()
        self.segments = nn.Embedding(settings.segments, d) if settings.segments else None
        self.dropout = nn.Dropout(settings.dropout)
        self.embed_norm = config.build_norm()
        self.stack = Stack(settings.layers, config, Learned(settings.context, d))
        self.norm = config.build_norm() if settings.norm == "pre" else nn.Identity()
        self.pooler = nn.Linear(d, d) if settings.pooler else None
        self.nsp_head = nn.Linear(d, 2) if settings.nsp_head else None
        self.activation = ACTIVATIONS[settings.activation]
        self.only_embeds = not settings.mlm_head
        self.transform = nn.Linear(d, d) if settings.mlm_head else None
        self.transform_norm = config.build_norm() if settings.mlm_head else None
        if settings.mlm_head:
            self.head_bias = nn.Parameter(torch.zeros(vocab))
        self.apply(init_weights)
        self.head.weight = self.embed.weight

    @property
    def n_segments(self) -> int:
        return 0 if self.segments is None else self.segments.num_embeddings

    def forward(
        self,
        tokens: Tensor,  # B L
        *,
        segments: Tensor | None = None,  # B L; None: all 0
        pos: Tensor | None = None,
        structure: Structure = FULL,
        lengths: Tensor | None = None,  # B: positions from these on are padding
    ) -> Tensor:  # B L d
        pos = torch.arange(tokens.shape[1], device=tokens.device) if pos is None else pos
        if lengths is not None:
            structure = structure & keep(torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None])
        x = self.stack.positions.add(self.embed_tokens(tokens), pos)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(tokens) if segments is None else segments)
        structure = per_document(self.structure, pos) & structure
        return self.norm(self.stack(self.dropout(self.embed_norm(x)), structure=structure, pos=pos))

    def pooled(self, h: Tensor) -> Tensor:  # ... d, of CLS
        return h if self.pooler is None else torch.tanh(self.pooler(h))

    def next_sentence_scores(self, h: Tensor) -> Tensor:  # ... d, of CLS -> ... 2
        if self.nsp_head is None:
            raise BadSetting("model.nsp_head=false: no head for the next sentence; set model.nsp_head=true")
        return self.nsp_head(self.pooled(h))

    def logits(self, h: Tensor) -> Tensor:  # ... d -> ... vocab
        if self.transform is None or self.transform_norm is None:
            raise BadInput("model.mlm_head=false: this model has no scores for masked tokens; it only embeds texts")
        return super().logits(self.transform_norm(self.activation(self.transform(h))))
