"""Image captioning: a ViT encodes the image, and a causal decoder with cross-attention to the patches writes the text.

H_enc = ViT(image); H_dec = blocks with the causal mask and a cross-attention with keys and values from H_enc. The
encoder may come from another run; the decoder is new. For the search, an image is a source sequence: the row of its
bytes.
"""

import math
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.core import FixedMemory, Sinusoid, Stack
from harken.settings import CaptionInputs

from . import DIALS, EncodedSource, init_weights, scale_residual_init, vit
from .seq2seq import DecoderOfEncoder

BYTES = 256


class CaptionerSettings(vit.ViTSettings):
    """Settings of a ViT with a text decoder."""

    head_dropout: ClassVar[float] = 0.0  # type: ignore[misc]

    kind: Literal["caption"] = "caption"  # type: ignore[assignment]
    size: Literal["tiny", "mini", "small", "base"] = Field("mini", description="dial: sets d, layers and heads")
    pool: Literal["first", "mean"] = Field("mean", description="first: the encoder has an extra token (CLS)")
    decoder_layers: int = Field(2, ge=1, le=1000, description="number of blocks of the decoder")
    word_dropout: float = Field(0.0, ge=0, lt=1, description="probability of removing a token everywhere in a caption")
    dials: ClassVar = DIALS["caption"]

    def build(self, vocab: CaptionInputs) -> "Captioner":  # type: ignore[override]
        return Captioner(self, vocab)


class Captioner(DecoderOfEncoder):
    """ViT encoder, causal decoder, cross-attention."""

    encoder: vit.ViT
    mean: Tensor
    std: Tensor

    def __init__(self, settings: CaptionerSettings, inputs: CaptionInputs) -> None:
        vocab_size, image_shape = inputs.vocab_size, inputs.image_shape
        super().__init__((vocab_size, vocab_size), settings.d, shared=True, word_dropout=settings.word_dropout)
        del self.source_embed  # an image has no tokens
        self.source_vocab, self.image_shape, self.embedding_scale = BYTES + 1, image_shape, math.sqrt(settings.d)
        config = settings.block_config()
        self.input_projection = nn.Identity()
        self.stack = Stack(settings.decoder_layers, replace(config, cross=True), Sinusoid())
        self.norm = config.build_norm() if settings.norm == "pre" else nn.Identity()
        self.dropout = nn.Dropout(settings.dropout)
        self.apply(init_weights)
        scale_residual_init(self.stack, 3 * settings.decoder_layers)
        self.head.weight = self.embed.weight
        self.encoder = vit.ViT(settings, image_shape)  # initializes itself
        for name, values in (("mean", inputs.mean), ("std", inputs.std)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def encode(self, source: Tensor, real: Tensor | None) -> list[FixedMemory]:  # B C S S in bytes, or B bytes
        if source.dim() == 2:
            channels, side = self.image_shape.channels, self.image_shape.image_size
            n_bytes = channels * side**2
            rows = source if real is None else source.masked_fill(~real, 0)  # missing pixels are black
            rows = nn.functional.pad(rows, (0, max(0, n_bytes - rows.shape[1])))[:, :n_bytes]
            source = rows.unflatten(1, (channels, side, side))
        return self.stack.source_memory(self.encoder(self.normalize(source)))

    def normalize(self, pixels: Tensor) -> Tensor:  # B C S S in bytes
        """The input of the encoder."""
        return (pixels.to(self.mean.dtype) / (BYTES - 1) - self.mean) / self.std

    def encode_source(self, tokens: Tensor | None, lengths: Tensor | None) -> EncodedSource:
        return replace(super().encode_source(tokens, lengths), real=None)  # no padded patches
