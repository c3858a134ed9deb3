"""Recurrent encoder-decoders: an RNN reads the source, another writes the target. What came before the Transformer.

With one context vector, c = [h_last; h_first] of the encoder's two directions is all that the decoder is told. With
attention, each step asks all encoder states H: c_t = attend(s_{t-1}, H), s_t = cell([y_{t-1}; c_t], s_{t-1}).
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.errors import BadSetting
from harken.settings import Part

from .decoder_state import Carried, Carrying, Look, at
from .gpt import SIMILARITIES
from .rnn import CELLS

STEPS: dict[str, Any] = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}


class RecurrentShape(Part):
    """The settings both kinds have."""

    kind: str
    size: Literal["tiny", "small", "medium", "large"] = Field(
        "small", description="the one dial: sets d and layers; any of them may still be given"
    )
    cell: Literal["rnn", "gru", "lstm"] = Field("gru", description="what carries the state from word to word")
    d: int = Field(256, ge=2, le=65536, description="width of a word's vector and of a state")
    layers: int = Field(1, ge=1, le=100, description="recurrent layers of the encoder, and of the decoder")
    bidirectional: bool = Field(True, description="the encoder reads in both directions, with d / 2 for each")
    share_embeddings: bool = Field(
        True, description="source and target share their word vectors; needs a joint vocabulary"
    )
    tie_embeddings: bool = Field(True, description="the word scores use the embedding's own matrix")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of numbers dropped in training, not across time")
    word_dropout: float = Field(0.0, ge=0, lt=1, description="share of words hidden in training, all over a row")

    dials: ClassVar = {
        "size": {
            "tiny": {"d": 64, "layers": 1},
            "small": {"d": 256, "layers": 1},
            "medium": {"d": 512, "layers": 1},
            "large": {"d": 1024, "layers": 2},
        }
    }


class RNNSeq2SeqShape(RecurrentShape):
    """The settings of two RNNs that are linked by one context vector."""

    kind: Literal["rnn"] = "rnn"
    context: Literal["start", "each"] = Field(
        "each", description="the context vector starts the decoder (Sutskever 2014), or is also told at each step (Cho)"
    )

    def build(self, vocab: Any) -> "RNNSeq2Seq":
        return RNNSeq2Seq(self, vocab)


class GRUSeq2SeqShape(RNNSeq2SeqShape):
    """The settings of two GRUs that are linked by one context vector."""

    kind: Literal["gru"] = "gru"  # type: ignore[assignment]
    cell: Literal["gru"] = Field("gru", description="what carries the state from word to word")


class LSTMSeq2SeqShape(RNNSeq2SeqShape):
    """The settings of two LSTMs that are linked by one context vector."""

    kind: Literal["lstm"] = "lstm"  # type: ignore[assignment]
    cell: Literal["lstm"] = Field("lstm", description="what carries the state from word to word")


class RNNAttentionShape(RecurrentShape):
    """The settings of two RNNs that are linked by attention (Bahdanau 2014)."""

    kind: Literal["rnn-attention"] = "rnn-attention"
    similarity: Literal["additive", "bilinear", "dot", "scaled-dot"] = Field(
        "additive", description="how alike the decoder's state and an encoder state are"
    )

    def build(self, vocab: Any) -> "RNNAttention":
        return RNNAttention(self, vocab)


class Reader(nn.Module):
    """The encoder: the states at all places, and the context vector, which is the last of each direction."""

    def __init__(self, shape: RecurrentShape) -> None:
        super().__init__()
        ways = 1 + shape.bidirectional
        if shape.d % ways:
            raise BadSetting(f"model.d={shape.d} does not split over two directions; take an even d")
        cells = (CELLS[shape.cell](shape.d, shape.d // ways, batch_first=True) for _ in range(ways * shape.layers))
        self.cells, self.ways, self.dropout = nn.ModuleList(cells), ways, nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:  # B L d -> B L d, B d
        B, L, _ = x.shape
        places = torch.arange(L, device=x.device)
        lengths = torch.full((B,), L, device=x.device) if real is None else real.sum(1)
        back = (lengths[:, None] - 1 - places) % L  # B L: each row's own words, the last of them first
        for n in range(0, len(self.cells), self.ways):
            x = self.dropout(x)
            ways = [self.cells[n](x)[0]]
            if self.ways == 2:  # a row read backwards alone begins at its own end: nothing is read before padding
                ways.append(at(self.cells[n + 1](at(x, back))[0], back))
            x = torch.cat(ways, -1)
        last = at(ways[0], lengths[:, None] - 1)[:, 0]
        return x, torch.cat([last, *(way[:, 0] for way in ways[1:])], -1)


class RNNSeq2Seq(Carrying):
    """Encoder, one context vector, decoder."""

    compiles = False  # the recurrent kernels are already one call; a compiler has nothing to fuse

    def __init__(self, shape: RecurrentShape, vocab: tuple[int, int]) -> None:
        super().__init__(vocab, shape.d, shared=shape.share_embeddings, word_dropout=shape.word_dropout)
        d, self.layers, self.dropout = shape.d, shape.layers, nn.Dropout(shape.dropout)
        self.many = 2 if shape.cell == "lstm" else 1
        self.encoder = Reader(shape)
        self.first = nn.Linear(d, self.many * shape.layers * d)
        self.each = not isinstance(shape, RNNSeq2SeqShape) or shape.context == "each"
        self.say = nn.Linear(3 * d, d) if self.each else nn.Identity()
        self._decoder(shape)
        self.embedding_scale, bound = math.sqrt(d), 1 / math.sqrt(d)
        for name, weights in self.named_parameters():
            if "embed" in name:
                nn.init.normal_(weights, std=bound)  # small in the scores, and of size 1 where they are read
            elif "similarity" not in name:  # those begin as the core says
                nn.init.uniform_(weights, -bound, bound)
        if shape.tie_embeddings:
            self.head.weight = self.embed.weight

    def _decoder(self, shape: RecurrentShape) -> None:
        between = shape.dropout if shape.layers > 1 else 0.0
        wide = shape.d * (1 + self.each)
        self.decoder = CELLS[shape.cell](wide, shape.d, shape.layers, batch_first=True, dropout=between)

    def read(self, source: Tensor, real: Tensor | None) -> list[Tensor]:
        return [self.encoder(self.words(source, self.source_embed) * self.embedding_scale, real)[1]]

    def carried(self, B: int, source: Tensor | None, source_lengths: Tensor | None) -> Carried:
        """The first states of B texts, as many for each source, which are read now."""
        told = self.source(source, source_lengths)
        c = told.read[-1]
        state = torch.tanh(self.first(c)).unflatten(-1, (self.many, self.layers, -1))
        return Carried(state.repeat_interleave(B // len(c), 0).unbind(1), told)

    def forward(
        self,
        tokens: Tensor,  # B L
        *,
        source: Tensor | None = None,  # B Ls
        source_lengths: Tensor | None = None,  # B
        pos: Tensor | None = None,
        memory: Carried | None = None,
        lengths: Tensor | None = None,  # B: how many tokens of each row are real; the state stops there
    ) -> Tensor:  # B L d
        carried = memory or self.carried(len(tokens), source, source_lengths)
        y = self.dropout(self.words(tokens) * self.embedding_scale)
        s, c, after = self.decode(y, carried, lengths)
        if memory is not None:
            memory.write(after)
        h = torch.tanh(self.say(torch.cat([s, c, y], -1))) if self.each else s
        return self.dropout(h)

    def decode(self, y: Tensor, carried: Carried, lengths: Tensor | None) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Read the target's words: the states and contexts at each, B L d, and the parts of the last state."""
        c = carried.source.read[0].repeat_interleave(len(y) // len(carried.source.read[0]), 0)
        c = c[:, None].expand_as(y)
        s, after = _run(self.decoder, torch.cat([y, c], -1) if self.each else y, carried.parts, lengths)
        return s, c, after


def _run(cell: nn.Module, x: Any, parts: Sequence[Tensor], lengths: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """Recurrent layers over a whole sequence, from a state whose parts are B layers d each, and to another."""
    before = tuple(part.transpose(0, 1).contiguous() for part in parts)
    L = x.shape[1]
    if lengths is not None:
        x = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    s, after = cell(x, before if len(before) == 2 else before[0])
    if lengths is not None:
        s, _ = nn.utils.rnn.pad_packed_sequence(s, batch_first=True, total_length=L)
    return s, [part.transpose(0, 1) for part in (after if isinstance(after, tuple) else (after,))]


class RNNAttention(RNNSeq2Seq):
    """Encoder, attention to its states at each step, decoder. The layers above the first are read as a whole."""

    def _decoder(self, shape: RecurrentShape) -> None:
        assert isinstance(shape, RNNAttentionShape)
        d, above = shape.d, shape.layers - 1
        self.cross = Look(SIMILARITIES[shape.similarity](1, d))
        self.cell = STEPS[shape.cell](2 * d, d)
        between = shape.dropout if above > 1 else 0.0
        self.above = CELLS[shape.cell](d, d, above, batch_first=True, dropout=between) if above else None

    def read(self, source: Tensor, real: Tensor | None) -> list[Tensor]:
        H, c = self.encoder(self.words(source, self.source_embed) * self.embedding_scale, real)
        H = self.dropout(H)
        return [self.cross.keys(H), H, c]

    def decode(self, y: Tensor, carried: Carried, lengths: Tensor | None) -> tuple[Tensor, Tensor, list[Tensor]]:
        k, v, _ = carried.source.read
        layout = carried.source.structure.lay(len(k), len(y) // len(k), k.shape[1], y.device)
        state: Any = tuple(part[:, 0] for part in carried.parts)
        states, contexts = [], []
        for n, word in enumerate(y.unbind(1)):
            c = self.cross(state[0], k, v, layout)
            new = self.cell(torch.cat([word, c], -1), state if len(state) == 2 else state[0])
            new = new if isinstance(new, tuple) else (new,)
            if lengths is not None:
                new = tuple(torch.where(n < lengths[:, None], *both) for both in zip(new, state, strict=True))
            state = new
            states.append(state[0])
            contexts.append(c)
        s, after = torch.stack(states, 1), [part[:, None] for part in state]
        if self.cross.watch is not None:
            steps = carried.source.structure.lay(len(k), s.shape[0] * s.shape[1] // len(k), k.shape[1], y.device)
            self.cross.show(torch.cat([carried.parts[0][:, :1], s[:, :-1]], 1), k, steps)
        if self.above is not None:
            s, higher = _run(self.above, self.dropout(s), [part[:, 1:] for part in carried.parts], lengths)
            after = [torch.cat(both, 1) for both in zip(after, higher, strict=True)]
        return s, torch.stack(contexts, 1), after
