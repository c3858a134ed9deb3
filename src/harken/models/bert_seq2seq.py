"""BERT as the encoder of a sequence-to-sequence model: it reads the source, and a causal decoder writes the target.

H_enc = BERT([CLS] source [SEP]); H_dec = blocks with the causal mask and a cross-attention with keys and values from
H_enc. The encoder may come from another run; the decoder is new (Rothe et al. 2020, arXiv 1907.12461).
"""

import math
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.core import FixedMemory, Sinusoid, Stack, keep

from . import bert, init_weights, scale_residual_init
from .pointer import CopySettings, Pointer
from .seq2seq import DecoderOfEncoder


class BERTSeq2SeqSettings(CopySettings, bert.BERTSettings):
    """Settings of a BERT with a text decoder."""

    pooler: ClassVar[bool] = False  # type: ignore[misc]  # the decoder attends to the states of all tokens
    mlm_head: ClassVar[bool] = False  # type: ignore[misc]
    nsp_head: ClassVar[bool] = False  # type: ignore[misc]

    decoder_layers: int = Field(3, ge=1, le=1000, description="number of blocks of the decoder")
    share_embeddings: bool = Field(
        False, description="source and target share their token embeddings; needs one tokenizer for both"
    )
    word_dropout: float = Field(0.0, ge=0, lt=1, description="probability of removing a token everywhere in a target")

    @property
    def supports_packing(self) -> bool:
        return False

    def build(self, vocab: tuple[int, int]) -> "BERTSeq2Seq":  # type: ignore[override]
        return BERTSeq2Seq(self, vocab)


class BERTSeq2Seq(DecoderOfEncoder):
    """BERT encoder, causal decoder, cross-attention."""

    encoder: bert.BERT
    encodes_edge = False

    def __init__(self, settings: BERTSeq2SeqSettings, vocab: tuple[int, int]) -> None:
        super().__init__(vocab, settings.d, shared=settings.share_embeddings, word_dropout=settings.word_dropout)
        self.context, self.embedding_scale = settings.context, math.sqrt(settings.d)
        config = replace(settings.block_config(), norm="pre")  # a new post-norm decoder needs a long warm-up
        self.input_projection = nn.Identity()
        self.stack = Stack(settings.decoder_layers, replace(config, cross=True), Sinusoid())
        self.norm, self.dropout = config.build_norm(), nn.Dropout(settings.dropout)
        self.apply(init_weights)
        scale_residual_init(self.stack, 3 * settings.decoder_layers)
        embed, head = self.embed, self.head
        del self.embed, self.head, self.source_embed
        self.encoder = bert.BERT(settings, vocab[0])  # before `embed`: shared weights are stored under its name
        self.embed, self.head = self.encoder.embed if settings.share_embeddings else embed, head
        self.head.weight = self.embed.weight
        if settings.copy:
            self.pointer = Pointer(settings.d, vocab).apply(init_weights)

    def encode(self, source: Tensor, real: Tensor | None) -> list[FixedMemory]:  # B Ls
        return self.source_memory(self.encoder_states(source, real), source)

    def encoder_states(self, source: Tensor, real: Tensor | None) -> Tensor:
        assert real is not None
        return self.encoder(source, structure=keep(real))

    def source_mask(self, tokens: Tensor, lengths: Tensor | None) -> Tensor:
        """BERT does not know the edge token that ends a source, so it counts as padding."""
        pos = torch.arange(tokens.shape[1], device=tokens.device)
        real = (tokens != self.source_vocab - 1) | (pos == 0)  # an empty source keeps one token
        if lengths is not None:
            real = real & (pos < lengths[:, None])
        return real
