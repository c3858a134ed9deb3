"""The convolutional encoder-decoder (Gehring 2017): filters over k neighbouring words instead of a recurrence.

A layer is z = GLU(W [x_{i-k+1}; ...; x_i]), x = LN(h), h = h + z; GLU(a, b) = a * sigmoid(b). A decoder's filter sees
the past alone, and z looks at the source: q = W_q z + g, keys H, values H + e, with g and e the words' own vectors.
Each sum of two is scaled by sqrt(1/2). LayerNorm stands for the paper's weight normalisation and <q, k> / sqrt(d) for
its <q, k>: with them the same steps learned more.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from harken.core import Layout, Learned, Positions, ScaledDot, Sinusoid
from harken.settings import Part

from .decoder_state import Carried, Carrying, Look, at

HALF = math.sqrt(0.5)  # keeps the variance of a sum of two


class ConvShape(Part):
    """The settings of a convolutional encoder-decoder."""

    kind: Literal["conv"] = "conv"
    size: Literal["tiny", "small", "medium", "large"] = Field(
        "small", description="the one dial: sets d and layers; any of them may still be given"
    )
    d: int = Field(256, ge=2, le=65536, description="width of a word's vector")
    layers: int = Field(4, ge=1, le=1000, description="gated convolutions of the decoder, and of the encoder")
    encoder_layers: int | None = Field(None, ge=1, le=1000, description="those of the encoder; none: as many")
    kernel_size: int = Field(3, ge=1, le=1000, description="words that a filter sees at once (k)")
    positions: Literal["learned", "sinusoid"] = Field("learned", description="how a word's place enters")
    context: int = Field(512, ge=1, le=1_000_000, description="longest sentence, of either side")
    share_embeddings: bool = Field(
        True, description="source and target share their word vectors; needs a joint vocabulary"
    )
    tie_embeddings: bool = Field(True, description="the word scores use the embedding's own matrix")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of numbers dropped in training")
    word_dropout: float = Field(0.0, ge=0, lt=1, description="share of words hidden in training, all over a row")

    dials: ClassVar = {
        "size": {
            "tiny": {"d": 64, "layers": 2},
            "small": {"d": 256, "layers": 4},
            "medium": {"d": 512, "layers": 8},
            "large": {"d": 768, "layers": 15},
        }
    }

    def build(self, vocab: Any) -> "ConvSeq2Seq":
        return ConvSeq2Seq(self, vocab)

    def places(self) -> Positions:
        return Learned(self.context, self.d) if self.positions == "learned" else Sinusoid()


class Gated(nn.Module):
    """A gated convolution: one linear map of the k words around (or before) each place, half of it the gates."""

    def __init__(self, d: int, k: int, dropout: float) -> None:
        super().__init__()
        self.k, self.W, self.norm, self.dropout = k, nn.Linear(k * d, 2 * d), nn.LayerNorm(d), nn.Dropout(dropout)

    def near(self, h: Tensor) -> Tensor:
        """What the filter reads of a layer's input."""
        return self.dropout(self.norm(h))

    def forward(self, x: Tensor) -> Tensor:  # B L+k-1 d -> B L d
        L = x.shape[1] - self.k + 1
        return F.glu(self.W(torch.cat([x[:, n : n + L] for n in range(self.k)], -1)), -1)


class Layer(Gated):
    """A layer of the decoder: the words before, then the source."""

    def __init__(self, d: int, k: int, dropout: float) -> None:
        super().__init__(d, k, dropout)
        self.cross = Look(ScaledDot(d))
        self.W_q, self.W_o = nn.Linear(d, d), nn.Linear(d, d)

    def ask(self, z: Tensor, g: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """z with what the source says to it; g: the words' own vectors."""
        q = (self.W_q(z) + g) * HALF
        self.cross.show(q, k, layout)
        return (z + self.W_o(self.cross(q, k, v, layout))) * HALF


class ConvSeq2Seq(Carrying):
    """Encoder of gated convolutions, masked decoder of them, attention to the source in each of its layers."""

    compiles = False  # batches of pairs come in many shapes, and each would be compiled anew

    def __init__(self, shape: ConvShape, vocab: tuple[int, int]) -> None:
        super().__init__(vocab, shape.d, shared=shape.share_embeddings, word_dropout=shape.word_dropout)
        self.context, self.dropout, d = shape.context, nn.Dropout(shape.dropout), shape.d
        self.source_places, self.places = shape.places(), shape.places()
        like = d, shape.kernel_size, shape.dropout
        depth = shape.encoder_layers or shape.layers
        self.encoder: Sequence[Gated] = nn.ModuleList(Gated(*like) for _ in range(depth))  # type: ignore[assignment]
        self.layers: Sequence[Layer] = nn.ModuleList(Layer(*like) for _ in range(shape.layers))  # type: ignore[assignment]
        self.encoder_norm, self.norm = nn.LayerNorm(d), nn.LayerNorm(d)
        small = 0.5 / math.sqrt(d)
        self.embedding_scale = 1 / small if shape.positions == "sinusoid" else 1.0  # words beside waves of size 1
        for module in self.modules():
            if isinstance(module, nn.Embedding) or module is self.head:
                nn.init.normal_(module.weight, std=small)  # the scores begin small
        if shape.tie_embeddings:
            self.head.weight = self.embed.weight

    def read(self, source: Tensor, real: Tensor | None) -> list[Tensor]:
        """Keys H and values H + e, once for all layers of the decoder."""
        pos = torch.arange(source.shape[1], device=source.device)
        e = h = self.dropout(self.source_places.add(self.words(source, self.source_embed) * self.embedding_scale, pos))
        for layer in self.encoder:
            x = layer.near(h)
            x = x if real is None else x * real[..., None]  # a filter at the end of a sentence reads zeros behind it
            h = (h + layer(F.pad(x, (0, 0, layer.k // 2, (layer.k - 1) // 2)))) * HALF
        H = self.encoder_norm(h)
        return [H, (H + e) * HALF]

    def forward(
        self,
        tokens: Tensor,  # B L
        *,
        source: Tensor | None = None,  # B Ls
        source_lengths: Tensor | None = None,  # B
        pos: Tensor | None = None,
        memory: Carried | None = None,
        lengths: Tensor | None = None,  # B: how many tokens of each row are real; the memory keeps the last of these
    ) -> Tensor:  # B L d
        carried = memory or self.carried(len(tokens), source, source_lengths)
        k, v = carried.source.read
        pos = torch.arange(tokens.shape[1], device=tokens.device) if pos is None else pos
        g = h = self.dropout(self.places.add(self.words(tokens) * self.embedding_scale, pos))
        layout = carried.source.structure.lay(len(k), tokens.numel() // len(k), k.shape[1], k.device)
        ends = None if lengths is None else lengths[:, None] + torch.arange(self.layers[0].k - 1, device=k.device)
        for layer, before in zip(self.layers, carried.parts, strict=True):
            x = torch.cat([before, layer.near(h)], 1)  # B k-1+L d
            h = (h + layer.ask(layer(x), g, k, v, layout)) * HALF
            if memory is not None:
                before.copy_(x[:, tokens.shape[1] :] if ends is None else at(x, ends))
        return self.dropout(self.norm(h))

    def carried(self, B: int, source: Tensor | None, source_lengths: Tensor | None) -> Carried:
        """What each layer read last in B texts, as many for each source, which are read now; at first zeros."""
        told = self.source(source, source_lengths)
        zeros = told.read[0].new_zeros
        return Carried([zeros(B, layer.k - 1, told.read[0].shape[-1]) for layer in self.layers], told)
