"""Language models with a head: labels of texts, of pairs of texts or of tokens.

y = W h + b, where h is the state that represents the text: CLS of a BERT, the last token of a GPT, or the mean of all
tokens (RNN). The body may come from another run; then only the head is initialized.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from harken.settings import LabelOutputs

from . import HeadModel, LanguageModel, ModelSettings, bert, gpt, is_frozen, rnn

Pool = Literal["first", "last", "mean"]


class ModelWithHead(HeadModel):
    """A language model with a head."""

    reads_text = True
    body: LanguageModel

    def __init__(self, body: LanguageModel, outputs: LabelOutputs, *, pool: Pool, dropout: float) -> None:
        super().__init__(body, body.embed.embedding_dim, outputs.n_outputs, dropout=dropout)
        self.outputs, self.pool, self.context = outputs, pool, body.context

    @property
    def frozen(self) -> bool:
        """Whether only the head is trained."""
        return is_frozen(self.body)

    def forward(self, tokens: Tensor, **inputs: object) -> Tensor:  # B L -> B L d
        """States of the body. Its last segment embedding serves all further segments; without any they are dropped."""
        segments = inputs.pop("segments", None)
        if isinstance(segments, Tensor) and self.body.n_segments:
            inputs["segments"] = segments.clamp_max(self.body.n_segments - 1)
        return self.body(tokens, **inputs)

    def train(self, mode: bool = True) -> "ModelWithHead":
        """Set the training mode. A frozen body stays in evaluation mode, without dropout."""
        super().train(mode)
        if self.frozen:
            self.body.eval()
        return self

    def pool_texts(self, h: Tensor, text: Tensor, n_texts: int) -> Tensor:  # B L d, B L -> n_texts d
        """State that represents each text. `text` is the index of each token's text; n_texts: padding."""
        states, index = h.flatten(0, 1), text.flatten()
        if self.pool == "mean":
            sums = states.new_zeros(n_texts + 1, states.shape[-1]).index_add(0, index, states)
            counts = states.new_zeros(n_texts + 1).index_add(0, index, states.new_ones(len(index)))
            return (sums / counts.clamp_min(1)[:, None])[:n_texts]
        slot, reduction = torch.arange(len(index), device=index.device), "amin" if self.pool == "first" else "amax"
        chosen = slot.new_zeros(n_texts + 1).scatter_reduce(0, index, slot, reduction, include_self=False)[:n_texts]
        return self.body.pooled(states[chosen]) if self.pool == "first" else states[chosen]

    def predict(self, h: Tensor) -> Tensor:  # ... d -> ... outputs
        return self.W_y(self.dropout(h))


class HeadSettings(ModelSettings):
    """Settings of a head; combined with the settings of a body."""

    pool: Pool = Field("last", description="state that represents a text: first token (CLS), last token, or mean")
    head_dropout: float = Field(0.1, ge=0, lt=1, description="dropout probability before the head")

    def build(self, vocab: LabelOutputs) -> ModelWithHead:
        body = super().build(vocab.vocab_size)  # type: ignore[misc]
        return ModelWithHead(body, vocab, pool=self.pool, dropout=self.head_dropout)


class BERTHeadSettings(HeadSettings, bert.BERTSettings):  # type: ignore[misc]
    """A BERT with a head."""

    pool: Pool = Field("first", description="state that represents a text: first token (CLS), last token, or mean")


class GPTHeadSettings(HeadSettings, gpt.GPTSettings):  # type: ignore[misc]
    """A GPT with a head on the last token."""


class RecurrentHeadSettings(HeadSettings):
    """Settings of a head on the mean of all states: the last state alone learns far more slowly (docs/log.md)."""

    pool: Pool = Field("mean", description="state that represents a text: first token (CLS), last token, or mean")


class RNNHeadSettings(RecurrentHeadSettings, rnn.RNNSettings):  # type: ignore[misc]
    """An RNN with a head on the mean of its states."""


class GRUHeadSettings(RecurrentHeadSettings, rnn.GRUSettings):  # type: ignore[misc]
    """A GRU with a head on the mean of its states."""


class LSTMHeadSettings(RecurrentHeadSettings, rnn.LSTMSettings):  # type: ignore[misc]
    """An LSTM with a head on the mean of its states."""
