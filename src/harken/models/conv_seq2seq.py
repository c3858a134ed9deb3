"""Convolutional encoder-decoder (Gehring 2017): filters over k neighboring tokens instead of a recurrence.

A layer is z = GLU(W [x_{i-k+1}; ...; x_i]), x = LN(h), h = h + z; GLU(a, b) = a * sigmoid(b). Decoder filters read
earlier tokens only, and z attends to the source: q = W_q z + g, keys H, values H + e, with the token embeddings g and
e. Each sum of two is scaled by sqrt(1/2). LayerNorm replaces the paper's weight normalization and <q, k> / sqrt(d) its
<q, k>: with them the same number of steps reaches a lower loss.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from harken.core import Layout, Learned, Positions, ScaledDot, Sinusoid

from . import DIALS, ModelSettings
from .decoder_state import CrossAttention, DecoderState, StatefulDecoder, gather_positions

HALF = math.sqrt(0.5)  # preserves the variance of a sum of two


class ConvSeq2SeqSettings(ModelSettings):
    """Settings of a convolutional encoder-decoder."""

    kind: Literal["conv"] = "conv"
    size: Literal["tiny", "small", "medium", "large"] = Field("small", description="dial: sets d and layers")
    d: int = Field(256, ge=2, le=65536, description="width of the model (embedding dimension)")
    layers: int = Field(4, ge=1, le=1000, description="number of gated convolutions of the decoder and of the encoder")
    encoder_layers: int | None = Field(None, ge=1, le=1000, description="those of the encoder; none: equal to layers")
    kernel_size: int = Field(3, ge=1, le=1000, description="number of tokens in a filter (k)")
    positions: Literal["learned", "sinusoid"] = Field("learned", description="positional encoding")
    context: int = Field(512, ge=1, le=1_000_000, description="maximum length of source and target in tokens")
    share_embeddings: bool = Field(
        True, description="source and target share their token embeddings; needs data.shared_vocab"
    )
    tie_embeddings: bool = Field(True, description="output layer shares the weights of the token embedding")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout probability")
    word_dropout: float = Field(0.0, ge=0, lt=1, description="probability of removing a token everywhere in a row")
    dials: ClassVar = DIALS["conv"]

    def build(self, vocab: tuple[int, int]) -> "ConvSeq2Seq":
        return ConvSeq2Seq(self, vocab)

    def positional_encoding(self) -> Positions:
        return Learned(self.context, self.d) if self.positions == "learned" else Sinusoid()


class GatedConv(nn.Module):
    """Gated convolution: one linear map of k neighboring tokens; half of its outputs are the gates."""

    def __init__(self, d: int, k: int, dropout: float) -> None:
        super().__init__()
        self.k, self.W, self.norm, self.dropout = k, nn.Linear(k * d, 2 * d), nn.LayerNorm(d), nn.Dropout(dropout)

    def filter_input(self, h: Tensor) -> Tensor:
        """Input of the filter: the normalized output of the previous layer."""
        return self.dropout(self.norm(h))

    def forward(self, x: Tensor) -> Tensor:  # B L+k-1 d -> B L d
        L = x.shape[1] - self.k + 1
        return F.glu(self.W(torch.cat([x[:, n : n + L] for n in range(self.k)], -1)), -1)


class ConvDecoderLayer(GatedConv):
    """Decoder layer: gated convolution of earlier tokens, then attention to the source."""

    def __init__(self, d: int, k: int, dropout: float) -> None:
        super().__init__(d, k, dropout)
        self.cross = CrossAttention(ScaledDot(d))
        self.W_q, self.W_o = nn.Linear(d, d), nn.Linear(d, d)

    def attend_source(self, z: Tensor, g: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """z plus its attention to the source; g: token embeddings."""
        q = (self.W_q(z) + g) * HALF
        self.cross.show(q, k, layout)
        return (z + self.W_o(self.cross(q, k, v, layout))) * HALF


class ConvSeq2Seq(StatefulDecoder):
    """Encoder and causal decoder of gated convolutions, with attention to the source in each decoder layer."""

    compiles = False  # batches of pairs have many shapes, and each would be compiled
    encoder: Sequence[GatedConv]
    layers: Sequence[ConvDecoderLayer]

    def __init__(self, settings: ConvSeq2SeqSettings, vocab: tuple[int, int]) -> None:
        super().__init__(vocab, settings.d, shared=settings.share_embeddings, word_dropout=settings.word_dropout)
        self.context, self.dropout, d = settings.context, nn.Dropout(settings.dropout), settings.d
        self.source_pos_encoding, self.pos_encoding = settings.positional_encoding(), settings.positional_encoding()
        sizes = d, settings.kernel_size, settings.dropout
        depth = settings.encoder_layers or settings.layers
        encoder = nn.ModuleList(GatedConv(*sizes) for _ in range(depth))
        decoder = nn.ModuleList(ConvDecoderLayer(*sizes) for _ in range(settings.layers))
        self.encoder, self.layers = encoder, decoder  # type: ignore[assignment]
        self.encoder_norm, self.norm = nn.LayerNorm(d), nn.LayerNorm(d)
        std = 0.5 / math.sqrt(d)
        self.embedding_scale = 1 / std if settings.positions == "sinusoid" else 1.0  # sinusoids have amplitude 1
        for module in self.modules():
            if isinstance(module, nn.Embedding) or module is self.head:
                nn.init.normal_(module.weight, std=std)  # small initial logits
        if settings.tie_embeddings:
            self.head.weight = self.embed.weight

    def encode(self, source: Tensor, real: Tensor | None) -> list[Tensor]:
        """Keys H and values H + e, once for all layers of the decoder."""
        pos = torch.arange(source.shape[1], device=source.device)
        x = self.embed_tokens(source, self.source_embed) * self.embedding_scale
        e = h = self.dropout(self.source_pos_encoding.add(x, pos))
        for layer in self.encoder:
            x = layer.filter_input(h)
            x = x if real is None else x * real[..., None]  # zeros after the end of a sentence
            h = (h + layer(F.pad(x, (0, 0, layer.k // 2, (layer.k - 1) // 2)))) * HALF
        H = self.encoder_norm(h)
        return [H, (H + e) * HALF]

    def encoder_states(self, source: Tensor, real: Tensor | None) -> Tensor:
        return self.encode(source, real)[0]

    def decode(
        self, tokens: Tensor, state: DecoderState, pos: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        k, v = state.source.encoded
        pos = torch.arange(tokens.shape[1], device=tokens.device) if pos is None else pos
        g = h = self.dropout(self.pos_encoding.add(self.embed_tokens(tokens) * self.embedding_scale, pos))
        layout = state.source.structure.layout(len(k), tokens.numel() // len(k), k.shape[1], k.device)
        ends = None if lengths is None else lengths[:, None] + torch.arange(self.layers[0].k - 1, device=k.device)
        after = []
        for layer, before in zip(self.layers, state.parts, strict=True):
            x = torch.cat([before, layer.filter_input(h)], 1)  # B k-1+L d
            h = (h + layer.attend_source(layer(x), g, k, v, layout)) * HALF
            after.append(x[:, tokens.shape[1] :] if ends is None else gather_positions(x, ends))
        return self.dropout(self.norm(h)), after

    def initial_state(self, B: int, source: Tensor | None, source_lengths: Tensor | None) -> DecoderState:
        """Encode the sources; the last k-1 filter inputs of each layer are zeros for B texts."""
        encoded_source = self.encode_source(source, source_lengths)
        H = encoded_source.encoded[0]
        return DecoderState([H.new_zeros(B, layer.k - 1, H.shape[-1]) for layer in self.layers], encoded_source)
