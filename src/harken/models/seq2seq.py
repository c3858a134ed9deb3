"""The Transformer of 2017: an encoder for the source, and a causal decoder with cross-attention to the source.

H_enc = blocks(E_s w + PE); H_dec = blocks with the causal mask and a cross-attention with keys and values from H_enc:
every target token attends to all source tokens.
"""

from dataclasses import replace
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.core import CAUSAL, BlockConfig, FixedMemory, Memory, Stack, Structure, per_document, same

from . import (
    DIALS,
    EncodedSource,
    EncoderDecoder,
    Model,
    PackedPairs,
    gpt,
    init_weights,
    is_frozen,
    scale_residual_init,
)
from .pointer import CopySettings, CopyStates, Pointer


class TransformerSettings(CopySettings, gpt.GPTSettings):
    """Settings of an encoder-decoder Transformer. Its decoder has the settings of a GPT."""

    body_kind: ClassVar[str] = ""

    kind: Literal["transformer"] = "transformer"  # type: ignore[assignment]
    size: Literal["tiny", "small", "base", "big"] = Field(  # type: ignore[assignment]
        "small", description="dial: sets d, layers, heads and d_ff; base and big as in the paper"
    )
    layers: int = Field(3, ge=1, le=1000, description="number of blocks of the decoder and of the encoder")
    encoder_layers: int | None = Field(None, ge=1, le=1000, description="those of the encoder; none: equal to layers")
    context: int = Field(512, ge=1, le=1_000_000, description="maximum length of source and target in tokens")
    encoder_norm: bool = Field(True, description="final normalization of the encoder, with norm=pre")
    embed_norm: bool = Field(False, description="normalization of embeddings and positions (BART)")
    head_bias: bool = Field(False, description="bias of the logits (Marian, BART)")
    share_embeddings: bool = Field(
        True, description="source and target share their token embeddings; needs data.shared_vocab"
    )
    dials: ClassVar = DIALS["gpt"] | DIALS["transformer"]

    def build(self, vocab: tuple[int, int]) -> "Seq2Seq":  # type: ignore[override]
        return Seq2Seq(self, vocab)


class DecoderMemory:
    """Memory of a Transformer decoder: keys and values of each layer, and the encoded source."""

    def __init__(self, layers: list[Memory], source: EncodedSource) -> None:
        self.layers, self.source = layers, source

    def reorder(self, rows: Tensor, length: int) -> None:
        for memory in self.layers:
            memory.reorder(rows, length)

    def prefix(self, n: int) -> "DecoderMemory":
        return DecoderMemory([memory.prefix(n) for memory in self.layers], self.source)

    def select(self, rows: Tensor) -> "DecoderMemory":
        texts_per_source = len(self.layers[0].k) // len(self.source.encoded[0].k)
        texts = (rows[:, None] * texts_per_source + torch.arange(texts_per_source, device=rows.device)).flatten()
        encoded = [FixedMemory(m.k[rows], m.v[rows]) for m in self.source.encoded]
        real = None if self.source.real is None else self.source.real[rows]
        layers = [Memory(m.k[texts], m.v[texts]) for m in self.layers]
        return DecoderMemory(layers, EncodedSource(encoded, real))


class TransformerDecoder(EncoderDecoder):
    """Causal decoder with cross-attention to an encoded source. A subclass creates its modules."""

    structure: Structure = CAUSAL
    embedding_scale: float
    input_projection: nn.Module
    stack: Stack
    norm: nn.Module
    dropout: nn.Dropout

    def forward(
        self,
        tokens: Tensor,  # B L
        *,
        source: Tensor | None = None,  # B Ls
        source_lengths: Tensor | None = None,  # B
        pos: Tensor | None = None,
        memory: DecoderMemory | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor | CopyStates:  # B L d
        encoded = self.encode_source(source, source_lengths) if memory is None else memory.source
        return self.decode(tokens, encoded, self.structure, pos, memory)

    def decode(
        self,
        tokens: Tensor,  # B L
        source: EncodedSource,
        structure: Structure,
        pos: Tensor | None = None,
        memory: DecoderMemory | None = None,
    ) -> Tensor | CopyStates:  # B L d
        """The hidden states of the target tokens after the encoded source."""
        pos = torch.arange(tokens.shape[1], device=tokens.device) if pos is None else pos
        x = self.stack.positions.add(self.embed_tokens(tokens) * self.embedding_scale, pos)
        x, layers = self.dropout(self.input_projection(x)), memory and memory.layers
        cross = {"source": source.encoded, "source_structure": source.structure}
        h: Tensor = self.norm(self.stack(x, structure=structure, pos=pos, memory=layers, **cross))
        return h if self.pointer is None else self.pointer(h, source.encoded[-1], source.structure)

    def source_memory(self, H: Tensor, words: Tensor) -> list[FixedMemory]:  # B Ls d, B Ls
        """Keys and values of an encoded source for the cross-attention of each layer, then for the pointer."""
        layers = self.stack.source_memory(H)
        return layers if self.pointer is None else [*layers, self.pointer.memory(H, words)]

    def memory(
        self, B: int, capacity: int, source: Tensor | None = None, source_lengths: Tensor | None = None
    ) -> DecoderMemory:
        return DecoderMemory(self.stack.memory(B, capacity), self.encode_source(source, source_lengths))


class DecoderOfEncoder(TransformerDecoder):
    """A decoder of an encoder that is a model of its own: other tasks can reuse the encoder."""

    encoder: Model

    @property
    def reusable_part(self) -> Model:
        return self.encoder

    def train(self, mode: bool = True) -> Self:
        """Set the training mode. A frozen encoder stays in evaluation mode, without dropout."""
        super().train(mode)
        self.encoder.train(mode and not is_frozen(self.encoder))
        return self


class Seq2Seq(TransformerDecoder):
    """Encoder, causal decoder, cross-attention."""

    def __init__(self, settings: TransformerSettings, vocab: tuple[int, int]) -> None:
        super().__init__(vocab, settings.d, shared=settings.share_embeddings, word_dropout=settings.word_dropout)
        self.context = settings.context
        self.embedding_scale = settings.resolved_embedding_scale()
        self.dropout = nn.Dropout(settings.dropout)
        config, depth = settings.block_config(), settings.encoder_layers or settings.layers
        self.source_projection, self.input_projection = (_input_projection(settings, config) for _ in range(2))
        if settings.head_bias:
            self.head_bias = nn.Parameter(torch.zeros(vocab[1]))
        self.encoder = Stack(depth, config, settings.positional_encoding())
        self.stack = Stack(settings.layers, replace(config, cross=True), settings.positional_encoding())
        pre_norm = settings.norm == "pre"
        self.encoder_norm = config.build_norm() if settings.encoder_norm and pre_norm else nn.Identity()
        self.norm = config.build_norm() if pre_norm else nn.Identity()
        self.structure, self.source_structure = settings.attention_structure(), settings.block_structure()
        self.apply(init_weights)
        for stack, sublayers in ((self.encoder, 2 * depth), (self.stack, 3 * settings.layers)):
            scale_residual_init(stack, sublayers)
        if settings.tie_embeddings:
            self.head.weight = self.embed.weight
        if settings.copy:
            self.pointer = Pointer(settings.d, vocab).apply(init_weights)

    def encode(
        self, source: Tensor, real: Tensor | None, pos: Tensor | None = None, packed: Structure | None = None
    ) -> list[FixedMemory]:
        """Keys and values of the encoded source for the cross-attention of each decoder layer."""
        return self.source_memory(self.encoder_states(source, real, pos, packed), source)

    def encoder_states(
        self, source: Tensor, real: Tensor | None, pos: Tensor | None = None, packed: Structure | None = None
    ) -> Tensor:
        pos = torch.arange(source.shape[1], device=source.device) if pos is None else pos
        x = self.embed_tokens(source, self.source_embed) * self.embedding_scale
        x = self.source_projection(self.encoder.positions.add(x, pos))
        structure = per_document(self.source_structure, pos) & EncodedSource(None, real, packed).structure
        h: Tensor = self.encoder_norm(self.encoder(self.dropout(x), structure=structure, pos=pos))
        return h

    def forward(
        self,
        tokens: Tensor,  # B L
        *,
        source: Tensor | None = None,  # B Ls
        source_lengths: Tensor | None = None,  # B
        pos: Tensor | None = None,
        packed: PackedPairs | None = None,
        memory: DecoderMemory | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor | CopyStates:  # B L d
        if packed is None or source is None:
            return super().forward(tokens, source=source, source_lengths=source_lengths, pos=pos, memory=memory)
        pos, doc, source_pos, source_doc = packed
        encoded = self.encode(source, None, source_pos, same(source_doc))
        slots = torch.arange(tokens.shape[1], device=tokens.device)
        encoded_source = EncodedSource(encoded, packed=same(doc, source_doc).at_slots(slots))
        return self.decode(tokens, encoded_source, per_document(self.structure, pos) & same(doc), pos)


def _input_projection(settings: TransformerSettings, config: BlockConfig) -> nn.Module:
    """Optional linear layer and norm after embeddings and positions."""
    linear = nn.Linear(settings.d, settings.d) if settings.input_projection else nn.Identity()
    return nn.Sequential(linear, config.build_norm()) if settings.embed_norm else linear
