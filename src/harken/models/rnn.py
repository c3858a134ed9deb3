"""Recurrent language models: the whole past in one state h_t, updated word by word. What came before attention."""

import math
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.core import FULL, Structure
from harken.errors import BadSetting
from harken.settings import Part

from . import LanguageModel


class RNNShape(Part):
    """The settings of a vanilla RNN: h_t = tanh(W x_t + U h_{t-1} + b)."""

    stateful: ClassVar[bool] = True  # reads on where it stopped, so its batches are streams

    kind: Literal["rnn"] = "rnn"
    size: Literal["tiny", "small", "medium", "large"] = Field(
        "small", description="the one dial: sets d, layers and context; any of them may still be given"
    )
    d: int = Field(200, ge=1, le=65536, description="width of a word's vector and of the state")
    layers: int = Field(1, ge=1, le=100, description="recurrent layers, one above the other")
    context: int = Field(35, ge=1, le=100_000, description="steps the gradient flows back (the state itself goes on)")
    tie_embeddings: bool = Field(True, description="the word scores use the embedding's own matrix")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of numbers dropped in training, not across time")
    word_dropout: float = Field(0.0, ge=0, lt=1, description="share of words hidden in training, all over a row")

    dials: ClassVar = {
        "size": {
            "tiny": {"d": 64, "layers": 1, "context": 32},
            "small": {"d": 200, "layers": 1, "context": 35},
            "medium": {"d": 400, "layers": 2, "context": 70},
            "large": {"d": 1000, "layers": 2, "context": 70},
        }
    }

    def build(self, vocab: int) -> "RNN":
        return RNN(self, vocab)


class GRUShape(RNNShape):
    """The settings of a GRU: two gates decide what is kept and what is new."""

    kind: Literal["gru"] = "gru"  # type: ignore[assignment]


class LSTMShape(RNNShape):
    """The settings of an LSTM: three gates around a memory cell."""

    kind: Literal["lstm"] = "lstm"  # type: ignore[assignment]


CELLS: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class State:
    """What a recurrent model remembers: h (and c, for an LSTM) of each layer. Written in place."""

    def __init__(self, *parts: Tensor) -> None:
        self.parts = parts  # layers B d each

    def rows(self, start: int, stop: int) -> "State":
        """The same memory, of some rows."""
        return State(*(part[:, start:stop] for part in self.parts))

    def reorder(self, rows: Tensor) -> None:
        for part in self.parts:
            part.copy_(part[:, rows])


class RNN(LanguageModel):
    """Word vectors, recurrent layers, a score for each word."""

    compiles = False  # the recurrent kernels are already one call; a compiler has nothing to fuse

    def __init__(self, shape: RNNShape, vocab: int) -> None:
        super().__init__(vocab, shape.d, word_dropout=shape.word_dropout)
        between = shape.dropout if shape.layers > 1 else 0.0
        self.cell = CELLS[shape.kind](shape.d, shape.d, shape.layers, batch_first=True, dropout=between)
        self.dropout = nn.Dropout(shape.dropout)
        for weights in self.parameters():
            nn.init.uniform_(weights, -1 / math.sqrt(shape.d), 1 / math.sqrt(shape.d))
        if shape.tie_embeddings:
            self.head.weight = self.embed.weight

    def forward(
        self,
        tokens: Tensor,  # B L
        *,
        pos: Tensor | None = None,
        structure: Structure = FULL,
        memory: State | None = None,
        lengths: Tensor | None = None,  # B: how many tokens of each row are real; the state stops there
    ) -> Tensor:  # B L d
        if structure is not FULL:
            kind = type(self.cell).__name__.lower()
            raise BadSetting(
                f"data.batching: a {kind} reads on across documents; use data.batching=stream, or model.kind=gpt"
            )
        x: Any = self.dropout(self.words(tokens))
        if lengths is not None:
            x = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        h, after = self.cell(x, self._before(memory))
        if lengths is not None:
            h, _ = nn.utils.rnn.pad_packed_sequence(h, batch_first=True, total_length=tokens.shape[1])
        if memory is not None:
            for part, new in zip(memory.parts, after if isinstance(after, tuple) else (after,), strict=True):
                part.copy_(new.detach())
        return self.dropout(h)

    def _before(self, memory: State | None) -> Any:
        if memory is None:
            return None
        # the gradient needs what stood here before it is overwritten
        parts = tuple(part.clone(memory_format=torch.contiguous_format) for part in memory.parts)
        return parts if len(parts) == 2 else parts[0]

    def memory(self, B: int, capacity: int) -> State:
        like = self.embed.weight
        shape = (self.cell.num_layers, B, self.cell.hidden_size)
        many = 2 if isinstance(self.cell, nn.LSTM) else 1
        return State(*(torch.zeros(shape, device=like.device, dtype=like.dtype) for _ in range(many)))
