"""The Transformer of 2017: an encoder reads the source, a masked decoder writes the target and looks at the source.

H_enc = blocks(E_s w + PE); H_dec = blocks with the causal mask, and in each a cross-attention whose keys and values are
H_enc: the whole source lies open to every target word.
"""

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.core import Fixed, Memory, Stack, Structure, Wiring, same

from . import EncoderDecoder, Packed, Source, calm, gpt, start
from .bigbird import within


class TransformerShape(gpt.Shape):
    """The settings of an encoder-decoder Transformer. What a GPT may be, its decoder may be."""

    kind: Literal["transformer"] = "transformer"  # type: ignore[assignment]
    size: Literal["tiny", "small", "base", "big"] = Field(  # type: ignore[assignment]
        "small", description="the one dial: sets d, layers, heads and hidden; base and big are the paper's"
    )
    layers: int = Field(3, ge=1, le=1000, description="blocks of the decoder, and of the encoder")
    encoder_layers: int | None = Field(None, ge=1, le=1000, description="blocks of the encoder; none: as many")
    context: int = Field(512, ge=1, le=1_000_000, description="longest sentence, of either side")
    encoder_norm: bool = Field(True, description="normalise what the encoder says (the lecture's choice with pre)")
    embed_norm: bool = Field(False, description="normalise embedding + positions, on either side (BART)")
    head_bias: bool = Field(False, description="a bias for each word's score (Marian, BART)")
    share_embeddings: bool = Field(
        True, description="source and target share their word vectors; needs a joint vocabulary"
    )

    dials: ClassVar = {
        "style": gpt.Shape.dials["style"],
        "size": {
            "tiny": {"d": 64, "layers": 2, "heads": 4, "d_ff": 256},
            "small": {"d": 256, "layers": 3, "heads": 4, "d_ff": 1024},
            "base": {"d": 512, "layers": 6, "heads": 8, "d_ff": 2048},
            "big": {"d": 1024, "layers": 6, "heads": 16, "d_ff": 4096},
        },
    }

    def build(self, vocab: Any) -> "Seq2Seq":  # type: ignore[override]
        return Seq2Seq(self, vocab)


class Seq2Seq(EncoderDecoder):
    """Encoder, masked decoder, cross-attention."""

    def __init__(self, shape: TransformerShape, vocab: tuple[int, int]) -> None:
        super().__init__(vocab, shape.d, shared=shape.share_embeddings, word_dropout=shape.word_dropout)
        self.context = shape.context
        self.embedding_scale = shape.loudness()
        self.dropout = nn.Dropout(shape.dropout)
        wiring, depth = shape.wiring(), shape.encoder_layers or shape.layers
        self.source_lift, self.input_projection = (_lift(shape, wiring) for _ in range(2))
        if shape.head_bias:
            self.head_bias = nn.Parameter(torch.zeros(vocab[1]))
        self.encoder = Stack(depth, wiring, shape.places())
        self.stack = Stack(shape.layers, replace(wiring, cross=True), shape.places())
        self.encoder_norm = wiring.normalise() if shape.encoder_norm and shape.norm == "pre" else nn.Identity()
        self.norm = wiring.normalise() if shape.norm == "pre" else nn.Identity()
        self.structure, self.source_structure = shape.looks(), shape.reach()
        self.apply(start)
        for stack, sums in ((self.encoder, 2 * depth), (self.stack, 3 * shape.layers)):
            calm(stack, sums)
        if shape.tie_embeddings:
            self.head.weight = self.embed.weight

    def read(
        self, source: Tensor, real: Tensor | None, pos: Tensor | None = None, seen: Structure | None = None
    ) -> list[Fixed]:
        """The encoder's pass, and the keys and values of each decoder layer's cross-attention."""
        pos = torch.arange(source.shape[1], device=source.device) if pos is None else pos
        x = self.source_lift(
            self.encoder.positions.add(self.words(source, self.source_embed) * self.embedding_scale, pos)
        )
        structure = within(self.source_structure, pos) & Source(None, real, seen).structure
        h = self.encoder(self.dropout(x), structure=structure, pos=pos)
        return self.stack.read(self.encoder_norm(h))

    def forward(
        self,
        tokens: Tensor,  # B L
        *,
        source: Tensor | None = None,  # B Ls
        source_lengths: Tensor | None = None,  # B
        pos: Tensor | None = None,
        packed: Packed | None = None,
        memory: "Remembered | None" = None,
        lengths: Tensor | None = None,
    ) -> Tensor:  # B L d
        structure = self.structure
        if packed is not None and source is not None:
            pos, doc, source_pos, source_doc = packed
            read = self.read(source, None, source_pos, same(source_doc))
            slots = torch.arange(tokens.shape[1], device=tokens.device)
            told = Source(read, packed=same(doc, source_doc).at(slots))
            structure = within(structure, pos) & same(doc)
        else:
            told = self.source(source, source_lengths) if memory is None else memory.source
        pos = torch.arange(tokens.shape[1], device=tokens.device) if pos is None else pos
        x = self.input_projection(self.stack.positions.add(self.words(tokens) * self.embedding_scale, pos))
        h = self.stack(
            self.dropout(x),
            structure=structure,
            pos=pos,
            memory=memory and memory.own,
            source=told.read,
            source_structure=told.structure,
        )
        return self.norm(h)

    def memory(self, B: int, capacity: int, source: Tensor, source_lengths: Tensor | None = None) -> "Remembered":
        """An empty memory for B texts, as many for each source, which are read now."""
        return Remembered(self.stack.memory(B, capacity), self.source(source, source_lengths))


def _lift(shape: TransformerShape, wiring: Wiring) -> nn.Module:
    """What is done to embedding + positions: a linear layer, a norm, both or nothing."""
    linear = nn.Linear(shape.d, shape.d) if shape.input_projection else nn.Identity()
    return nn.Sequential(linear, wiring.normalise()) if shape.embed_norm else linear


class Remembered:
    """What a Transformer's decoder remembers: its own pairs, layer by layer, and those of the source."""

    def __init__(self, own: list[Memory], source: Source) -> None:
        self.own, self.source = own, source

    def reorder(self, rows: Tensor, upto: int) -> None:
        for memory in self.own:
            memory.reorder(rows, upto)

    def upto(self, n: int) -> "Remembered":
        """The same memory without the room behind n: a step need not look at what is not yet written."""
        return Remembered([Memory(m.k[:, :, :n], m.v[:, :, :n]) for m in self.own], self.source)

    def select(self, rows: Tensor) -> "Remembered":
        """Of these sources alone, with all texts of each."""
        each = len(self.own[0].k) // len(self.source.read[0].k)
        texts = (rows[:, None] * each + torch.arange(each, device=rows.device)).flatten()
        read = [Fixed(m.k[rows], m.v[rows]) for m in self.source.read]
        real = None if self.source.real is None else self.source.real[rows]
        return Remembered([Memory(m.k[texts], m.v[texts]) for m in self.own], Source(read, real))
