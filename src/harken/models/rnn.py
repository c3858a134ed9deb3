"""Recurrent language models: one state h_t, updated token by token, represents all earlier tokens."""

import math
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.core import FULL, Structure
from harken.errors import BadSetting

from . import DIALS, LanguageModel, ModelSettings


class RNNSettings(ModelSettings):
    """Settings of a vanilla RNN: h_t = tanh(W x_t + U h_{t-1} + b)."""

    stateful: ClassVar[bool] = True
    body_kind: ClassVar[str] = "rnn"

    kind: Literal["rnn"] = "rnn"
    size: Literal["tiny", "small", "medium", "large"] = Field("small", description="dial: sets d, layers and context")
    d: int = Field(200, ge=1, le=65536, description="width of the token embeddings and of the state")
    layers: int = Field(1, ge=1, le=100, description="number of recurrent layers")
    context: int = Field(35, ge=1, le=100_000, description="steps of backpropagation through time")
    tie_embeddings: bool = Field(True, description="output layer shares the weights of the token embedding")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout probability, not between time steps")
    word_dropout: float = Field(0.0, ge=0, lt=1, description="probability of removing a token everywhere in a row")
    dials: ClassVar = DIALS["rnn"]

    def build(self, vocab: int) -> "RNN":
        return RNN(self, vocab)


class GRUSettings(RNNSettings):
    """Settings of a GRU."""

    body_kind: ClassVar[str] = "gru"

    kind: Literal["gru"] = "gru"  # type: ignore[assignment]


class LSTMSettings(RNNSettings):
    """Settings of an LSTM."""

    body_kind: ClassVar[str] = "lstm"

    kind: Literal["lstm"] = "lstm"  # type: ignore[assignment]


CELLS: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class RecurrentState:
    """Memory of a recurrent model: h (and c of an LSTM) of each layer. Written in place."""

    def __init__(self, *parts: Tensor) -> None:
        self.parts = parts  # layers B d each

    def rows(self, start: int, stop: int) -> "RecurrentState":
        """View of a range of batch rows."""
        return RecurrentState(*(part[:, start:stop] for part in self.parts))

    def reorder(self, rows: Tensor) -> None:
        for part in self.parts:
            part.copy_(part[:, rows])


def run_cell(
    cell: nn.Module, x: Tensor, state: Tensor | tuple[Tensor, ...] | None, lengths: Tensor | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Recurrent layers over rows of these lengths, B L d: their states, and the parts of the last state."""
    if lengths is None:
        h, after = cell(x, state)
    else:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        h, after = cell(packed, state)
        h, _ = nn.utils.rnn.pad_packed_sequence(h, batch_first=True, total_length=x.shape[1])
    return h, after if isinstance(after, tuple) else (after,)


class RNN(LanguageModel):
    """Token embeddings, recurrent layers, logits."""

    compiles = False  # the recurrent kernels are single calls, so nothing can be fused

    def __init__(self, settings: RNNSettings, vocab: int) -> None:
        super().__init__(vocab, settings.d, word_dropout=settings.word_dropout)
        between_layers = settings.dropout if settings.layers > 1 else 0.0
        sizes = settings.d, settings.d, settings.layers
        self.cell = CELLS[settings.kind](*sizes, batch_first=True, dropout=between_layers)
        self.dropout = nn.Dropout(settings.dropout)
        for weights in self.parameters():
            nn.init.uniform_(weights, -1 / math.sqrt(settings.d), 1 / math.sqrt(settings.d))
        if settings.tie_embeddings:
            self.head.weight = self.embed.weight

    def forward(
        self,
        tokens: Tensor,  # B L
        *,
        pos: Tensor | None = None,
        structure: Structure = FULL,
        memory: RecurrentState | None = None,
        lengths: Tensor | None = None,  # B: number of tokens of each row; the state ends there
    ) -> Tensor:  # B L d
        if structure is not FULL:
            kind, fix = type(self.cell).__name__.lower(), "set data.batching=stream or model.kind=gpt"
            raise BadSetting(f"data.batching: model.kind={kind} cannot separate documents in a row; {fix}")
        h, after = run_cell(self.cell, self.dropout(self.embed_tokens(tokens)), self._initial_state(memory), lengths)
        if memory is not None:
            for part, new in zip(memory.parts, after, strict=True):
                part.copy_(new.detach())
        return self.dropout(h)

    def _initial_state(self, memory: RecurrentState | None) -> Any:
        if memory is None:
            return None
        # a copy: the gradient needs the values from before the memory is overwritten
        parts = tuple(part.clone(memory_format=torch.contiguous_format) for part in memory.parts)
        return parts if len(parts) == 2 else parts[0]

    def memory(self, B: int, capacity: int) -> RecurrentState:
        weight, n_parts = self.embed.weight, 2 if isinstance(self.cell, nn.LSTM) else 1
        shape = (self.cell.num_layers, B, self.cell.hidden_size)
        return RecurrentState(*(torch.zeros(shape, device=weight.device, dtype=weight.dtype) for _ in range(n_parts)))
