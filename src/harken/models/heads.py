"""A head on a body: labels of whole texts, of pairs of texts, or of every token, read from what a language model says.

y = W h + b, where h is the state of the token that stands for the text: CLS of a BERT, the last token of a GPT or an
RNN, or the mean of all. The body may come from another run; then only the head begins anew.
"""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.settings import Outputs, Part

from . import LanguageModel, bert, gpt, rnn, start

Pool = Literal["first", "last", "mean"]


class Headed(nn.Module):
    """A body and its head."""

    def __init__(self, body: LanguageModel, asked: Outputs, *, pool: Pool, dropout: float) -> None:
        super().__init__()
        self.body, self.asked, self.pool, self.context = body, asked, pool, body.context
        self.dropout = nn.Dropout(dropout)
        self.W_y = nn.Linear(body.embed.embedding_dim, asked.outputs)
        self.W_y.apply(start)

    def forward(self, tokens: Tensor, **told: Any) -> Tensor:  # B L -> B L d
        """The body's states; a body without segments is not told of them."""
        if getattr(self.body, "segments", None) is None:
            told.pop("segments", None)
        h: Tensor = self.body(tokens, **told)
        return h

    def train(self, mode: bool = True) -> "Headed":
        """A body that does not learn drops nothing either: it says of a text what it always says."""
        super().train(mode)
        if not any(p.requires_grad for p in self.body.parameters()):
            self.body.eval()
        return self

    def texts(self, h: Tensor, text: Tensor, many: int) -> Tensor:  # B L d, B L -> many d
        """The state that stands for each of the texts. `text` says which one a token is of; `many`: of none."""
        flat, of = h.flatten(0, 1), text.flatten()
        if self.pool == "mean":
            sums = flat.new_zeros(many + 1, flat.shape[-1]).index_add(0, of, flat)
            counts = flat.new_zeros(many + 1).index_add(0, of, flat.new_ones(len(of)))
            return (sums / counts.clamp_min(1)[:, None])[:many]
        place, how = torch.arange(len(of), device=of.device), "amin" if self.pool == "first" else "amax"
        at = place.new_zeros(many + 1).scatter_reduce(0, of, place, how, include_self=False)[:many]
        pooled = getattr(self.body, "pooled", None)
        return flat[at] if pooled is None or self.pool != "first" else pooled(flat[at])

    def answers(self, h: Tensor) -> Tensor:  # ... d -> ... outputs
        y: Tensor = self.W_y(self.dropout(h))
        return y


class _Head(Part):
    pool: Pool = Field(
        "last", description="what stands for a text: its first token (CLS), its last, or the mean of all"
    )
    head_dropout: float = Field(0.1, ge=0, lt=1, description="share of the state dropped before the head, in training")

    def build(self, vocab: Any) -> Any:  # a Headed; the shapes below build their bodies
        body = super().build(vocab.vocab)  # type: ignore[misc]
        return Headed(body, vocab, pool=self.pool, dropout=self.head_dropout)


class BERTShape(_Head, bert.Shape):
    """A BERT with a head."""

    pool: Pool = Field("first", description="what stands for a text: its first token (CLS), its last, or the mean")


class GPTShape(_Head, gpt.Shape):
    """A GPT with a head on the last token."""


class RNNShape(_Head, rnn.RNNShape):
    """An RNN with a head on its last state."""


class GRUShape(_Head, rnn.GRUShape):
    """A GRU with a head on its last state."""


class LSTMShape(_Head, rnn.LSTMShape):
    """An LSTM with a head on its last state."""
