"""Captions: a ViT looks at a picture, and a masked decoder writes what it shows, looking at the patches.

H_enc = ViT(picture); H_dec = blocks with the causal mask, and in each a cross-attention whose keys and values are
H_enc. For whoever searches an answer, a picture is a source like any other: the row of its bytes.
"""

import math
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.core import CAUSAL, Fixed, Sinusoid, Stack
from harken.settings import Pictured

from . import EncoderDecoder, calm, start, vit
from .seq2seq import Remembered

BYTES = 256


class Shape(vit.Shape):
    """The settings of a ViT with a decoder of words."""

    pool: ClassVar[Literal["mean"]] = "mean"  # type: ignore[misc]  # all patches are told
    head_dropout: ClassVar[float] = 0.0  # type: ignore[misc]

    kind: Literal["caption"] = "caption"  # type: ignore[assignment]
    size: Literal["tiny", "mini", "small", "base"] = Field("mini", description="the one dial: sets d, layers and heads")
    decoder_layers: int = Field(2, ge=1, le=1000, description="blocks of the decoder")
    word_dropout: float = Field(0.0, ge=0, lt=1, description="share of words hidden in training, all over a caption")

    dials: ClassVar = {
        "size": {
            "tiny": {"d": 32, "layers": 1, "heads": 2, "decoder_layers": 1},
            "mini": {"d": 128, "layers": 3, "heads": 4, "decoder_layers": 2},
            "small": {"d": 256, "layers": 6, "heads": 8, "decoder_layers": 4},
            "base": {"d": 512, "layers": 12, "heads": 8, "decoder_layers": 6},
        }
    }

    def build(self, vocab: Pictured) -> "Captioner":  # type: ignore[override]
        return Captioner(self, vocab)


class Captioner(EncoderDecoder):
    """Pictures, masked decoder, cross-attention."""

    mean: Tensor
    spread: Tensor

    def __init__(self, shape: Shape, seen: Pictured) -> None:
        super().__init__((seen.words, seen.words), shape.d, shared=True, word_dropout=shape.word_dropout)
        del self.source_embed  # a picture has no words
        self.source_vocab, self.pixels, self.embedding_scale = BYTES + 1, seen.pixels, math.sqrt(shape.d)
        wiring = shape.wiring()
        self.stack = Stack(shape.decoder_layers, replace(wiring, cross=True), Sinusoid())
        self.norm = wiring.normalise() if shape.norm == "pre" else nn.Identity()
        self.dropout = nn.Dropout(shape.dropout)
        self.apply(start)
        calm(self.stack, 3 * shape.decoder_layers)
        self.head.weight = self.embed.weight
        self.encoder = vit.ViT(shape, seen.pixels)  # its first weights are its own
        for name, values in (("mean", seen.mean), ("spread", seen.spread)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def read(self, source: Tensor, real: Tensor | None) -> list[Fixed]:  # B C S S in bytes, or B bytes
        """The ViT's pass, and the keys and values of each decoder layer's cross-attention."""
        if source.dim() == 2:
            wide = self.pixels.channels * self.pixels.image_size**2
            rows = source if real is None else source.masked_fill(~real, 0)  # what is behind the end is black
            rows = nn.functional.pad(rows, (0, max(0, wide - rows.shape[1])))[:, :wide]
            source = rows.unflatten(1, (self.pixels.channels, self.pixels.image_size, self.pixels.image_size))
        x = source.to(self.mean.dtype) / (BYTES - 1)
        return self.stack.read(self.encoder((x - self.mean) / self.spread))

    def forward(
        self,
        tokens: Tensor,  # B L
        *,
        source: Tensor | None = None,
        source_lengths: Tensor | None = None,  # B
        pos: Tensor | None = None,
        memory: Remembered | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:  # B L d
        told = self.source(source, source_lengths) if memory is None else memory.source
        pos = torch.arange(tokens.shape[1], device=tokens.device) if pos is None else pos
        x = self.dropout(self.stack.positions.add(self.words(tokens) * self.embedding_scale, pos))
        own = memory and memory.own
        return self.norm(self.stack(x, structure=CAUSAL, pos=pos, memory=own, source=told.read))

    def memory(self, B: int, capacity: int, source: Tensor, source_lengths: Tensor | None = None) -> Remembered:
        """An empty memory for B captions, as many for each picture, which are looked at now."""
        told = self.source(source, source_lengths)
        return Remembered(self.stack.memory(B, capacity), replace(told, real=None))  # all patches are there
