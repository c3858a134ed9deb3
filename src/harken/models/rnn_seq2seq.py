"""Recurrent encoder-decoders: an RNN encodes the source, another one generates the target.

With one context vector, c = [h_last; h_first] of the encoder's two directions is the only input from the source. With
attention, each step attends to all encoder states H: c_t = attend(s_{t-1}, H), s_t = cell([y_{t-1}; c_t], s_{t-1}).
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.errors import BadSetting

from . import DIALS, ModelSettings
from .decoder_state import CrossAttention, DecoderState, StatefulDecoder, gather_positions
from .gpt import SIMILARITIES
from .pointer import CopySettings, Pointer
from .rnn import CELLS, run_cell

STEP_CELLS: dict[str, Any] = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}


class RecurrentSeq2SeqSettings(ModelSettings):
    """Settings of all recurrent encoder-decoders."""

    kind: str
    size: Literal["tiny", "small", "medium", "large"] = Field("small", description="dial: sets d and layers")
    cell: Literal["rnn", "gru", "lstm"] = Field("gru", description="recurrent cell")
    d: int = Field(256, ge=2, le=65536, description="width of the token embeddings and of the state")
    layers: int = Field(1, ge=1, le=100, description="number of recurrent layers of the encoder and of the decoder")
    bidirectional: bool = Field(True, description="bidirectional encoder, with width d / 2 per direction")
    share_embeddings: bool = Field(
        True, description="source and target share their token embeddings; needs data.shared_vocab"
    )
    tie_embeddings: bool = Field(True, description="output layer shares the weights of the token embedding")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout probability, not between time steps")
    word_dropout: float = Field(0.0, ge=0, lt=1, description="probability of removing a token everywhere in a row")
    dials: ClassVar = DIALS["rnn-seq2seq"]


class RNNSeq2SeqSettings(RecurrentSeq2SeqSettings):
    """Settings of two RNNs connected by one context vector."""

    kind: Literal["rnn"] = "rnn"
    context: Literal["start", "each"] = Field(
        "each", description="context vector as initial state (start, Sutskever 2014) or also at each step (each, Cho)"
    )

    def build(self, vocab: tuple[int, int]) -> "RNNSeq2Seq":
        return RNNSeq2Seq(self, vocab)


class GRUSeq2SeqSettings(RNNSeq2SeqSettings):
    """Settings of two GRUs connected by one context vector."""

    kind: Literal["gru"] = "gru"  # type: ignore[assignment]
    cell: Literal["gru"] = Field("gru", description="recurrent cell")


class LSTMSeq2SeqSettings(RNNSeq2SeqSettings):
    """Settings of two LSTMs connected by one context vector."""

    kind: Literal["lstm"] = "lstm"  # type: ignore[assignment]
    cell: Literal["lstm"] = Field("lstm", description="recurrent cell")


class RNNAttentionSettings(CopySettings, RecurrentSeq2SeqSettings):
    """Settings of two RNNs connected by attention (Bahdanau 2014)."""

    kind: Literal["rnn-attention"] = "rnn-attention"
    similarity: Literal["additive", "bilinear", "dot", "scaled-dot"] = Field(
        "additive", description="similarity function of decoder state and encoder state"
    )

    def build(self, vocab: tuple[int, int]) -> "RNNAttention":
        return RNNAttention(self, vocab)


class RecurrentEncoder(nn.Module):
    """Encoder: the states at all positions, and the context vector, which is the last state of each direction."""

    def __init__(self, settings: RecurrentSeq2SeqSettings) -> None:
        super().__init__()
        directions, d = 1 + settings.bidirectional, settings.d
        if d % directions:
            raise BadSetting(f"model.d={d} is not divisible by the two directions of the encoder; set an even model.d")
        n_cells, cell = directions * settings.layers, CELLS[settings.cell]
        self.cells = nn.ModuleList(cell(d, d // directions, batch_first=True) for _ in range(n_cells))
        self.directions, self.dropout = directions, nn.Dropout(settings.dropout)

    def forward(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:  # B L d -> B L d, B d
        B, L, _ = x.shape
        positions = torch.arange(L, device=x.device)
        lengths = torch.full((B,), L, device=x.device) if real is None else real.sum(1)
        backward = (lengths[:, None] - 1 - positions) % L  # B L: the tokens of each row in reverse, then padding
        for n in range(0, len(self.cells), self.directions):
            x = self.dropout(x)
            outputs = [self.cells[n](x)[0]]
            if self.directions == 2:  # the reversed row starts at its own end, not at padding
                reverse = self.cells[n + 1](gather_positions(x, backward))[0]
                outputs.append(gather_positions(reverse, backward))
            x = torch.cat(outputs, -1)
        last = gather_positions(outputs[0], lengths[:, None] - 1)[:, 0]
        return x, torch.cat([last, *(output[:, 0] for output in outputs[1:])], -1)


class RNNSeq2Seq(StatefulDecoder):
    """Encoder, one context vector, decoder."""

    compiles = False  # the recurrent kernels are single calls, so nothing can be fused

    def __init__(self, settings: RecurrentSeq2SeqSettings, vocab: tuple[int, int]) -> None:
        super().__init__(vocab, settings.d, shared=settings.share_embeddings, word_dropout=settings.word_dropout)
        d, self.layers, self.dropout = settings.d, settings.layers, nn.Dropout(settings.dropout)
        self.n_parts = 2 if settings.cell == "lstm" else 1
        self.encoder = RecurrentEncoder(settings)
        self.first_state = nn.Linear(d, self.n_parts * settings.layers * d)
        self.context_each_step = not isinstance(settings, RNNSeq2SeqSettings) or settings.context == "each"
        self.output_projection = nn.Linear(3 * d, d) if self.context_each_step else nn.Identity()
        self._build_decoder(settings)
        self.embedding_scale, bound = math.sqrt(d), 1 / math.sqrt(d)
        for name, weights in self.named_parameters():
            if "embed" in name:
                nn.init.normal_(weights, std=bound)  # small in the logits, and scaled to size 1 as input
            elif "similarity" not in name:  # the core initializes similarities
                nn.init.uniform_(weights, -bound, bound)
        if settings.tie_embeddings:
            self.head.weight = self.embed.weight

    def _build_decoder(self, settings: RecurrentSeq2SeqSettings) -> None:
        between_layers = settings.dropout if settings.layers > 1 else 0.0
        input_size, cell = settings.d * (1 + self.context_each_step), CELLS[settings.cell]
        self.decoder = cell(input_size, settings.d, settings.layers, batch_first=True, dropout=between_layers)

    def encode(self, source: Tensor, real: Tensor | None) -> list[Tensor]:
        return [self._run_encoder(source, real)[1]]

    def encoder_states(self, source: Tensor, real: Tensor | None) -> Tensor:
        return self._run_encoder(source, real)[0]

    def _run_encoder(self, source: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:  # B L -> B L d, B d
        states: tuple[Tensor, Tensor] = self.encoder(
            self.embed_tokens(source, self.source_embed) * self.embedding_scale, real
        )
        return states

    def initial_state(self, B: int, source: Tensor | None, source_lengths: Tensor | None) -> DecoderState:
        """Encode the sources and compute the initial states of B texts, B / len(source) for each source."""
        encoded_source = self.encode_source(source, source_lengths)
        c = encoded_source.encoded[0]
        state = torch.tanh(self.first_state(c)).unflatten(-1, (self.n_parts, self.layers, -1))
        return DecoderState(state.repeat_interleave(B // len(c), 0).unbind(1), encoded_source)

    def decode(
        self, tokens: Tensor, state: DecoderState, pos: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        y = self.dropout(self.embed_tokens(tokens) * self.embedding_scale)
        s, c, after = self.run_cells(y, state, lengths)
        h = torch.tanh(self.output_projection(torch.cat([s, c, y], -1))) if self.context_each_step else s
        return self.dropout(h), after

    def run_cells(self, y: Tensor, state: DecoderState, lengths: Tensor | None) -> tuple[Tensor, Tensor, list[Tensor]]:
        """States and contexts at each target token, B L d, and the parts of the last state."""
        c = state.source.encoded[0].repeat_interleave(len(y) // len(state.source.encoded[0]), 0)
        c = c[:, None].expand_as(y)
        s, after = _run(self.decoder, torch.cat([y, c], -1) if self.context_each_step else y, state.parts, lengths)
        return s, c, after


def _run(cell: nn.Module, x: Tensor, parts: Sequence[Tensor], lengths: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """Recurrent layers over a sequence; the parts of the initial and of the last state are B layers d each."""
    before = tuple(part.transpose(0, 1).contiguous() for part in parts)
    s, after = run_cell(cell, x, before if len(before) == 2 else before[0], lengths)
    return s, [part.transpose(0, 1) for part in after]


class RNNAttention(RNNSeq2Seq):
    """Encoder, attention to its states at each step, decoder. Upper layers run over the full sequence."""

    def __init__(self, settings: RNNAttentionSettings, vocab: tuple[int, int]) -> None:
        super().__init__(settings, vocab)
        if settings.copy:
            self.pointer = Pointer(settings.d, vocab)

    def _build_decoder(self, settings: RecurrentSeq2SeqSettings) -> None:
        assert isinstance(settings, RNNAttentionSettings)
        d, n_upper = settings.d, settings.layers - 1
        self.cross = CrossAttention(SIMILARITIES[settings.similarity](1, d))
        self.cell = STEP_CELLS[settings.cell](2 * d, d)
        between_layers, cell = settings.dropout if n_upper > 1 else 0.0, CELLS[settings.cell]
        self.upper = cell(d, d, n_upper, batch_first=True, dropout=between_layers) if n_upper else None

    def encode(self, source: Tensor, real: Tensor | None) -> list[Tensor]:
        H, c = self._run_encoder(source, real)
        H = self.dropout(H)
        pointed = None if self.pointer is None else self.pointer.memory(H, source)
        return [c, self.cross.keys(H), H, *(() if pointed is None else (pointed.k, pointed.v))]

    def run_cells(self, y: Tensor, state: DecoderState, lengths: Tensor | None) -> tuple[Tensor, Tensor, list[Tensor]]:
        _, k, v, *_ = state.source.encoded
        layout = state.source.structure.layout(len(k), len(y) // len(k), k.shape[1], y.device)
        parts: Any = tuple(part[:, 0] for part in state.parts)
        states, contexts = [], []
        for n, token in enumerate(y.unbind(1)):
            c = self.cross(parts[0], k, v, layout)
            new = self.cell(torch.cat([token, c], -1), parts if len(parts) == 2 else parts[0])
            new = new if isinstance(new, tuple) else (new,)
            if lengths is not None:
                new = tuple(torch.where(n < lengths[:, None], a, b) for a, b in zip(new, parts, strict=True))
            parts = new
            states.append(parts[0])
            contexts.append(c)
        s, after = torch.stack(states, 1), [part[:, None] for part in parts]
        if self.cross.watch is not None:
            n_queries = s.shape[0] * s.shape[1] // len(k)
            steps = state.source.structure.layout(len(k), n_queries, k.shape[1], y.device)
            self.cross.show(torch.cat([state.parts[0][:, :1], s[:, :-1]], 1), k, steps)
        if self.upper is not None:
            s, after_upper = _run(self.upper, self.dropout(s), [part[:, 1:] for part in state.parts], lengths)
            after = [torch.cat(layers, 1) for layers in zip(after, after_upper, strict=True)]
        return s, torch.stack(contexts, 1), after
