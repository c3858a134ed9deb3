"""One file per family of the lectures. Each begins with its Shape (the settings) and ends with its module."""

import math
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


class LanguageModel(nn.Module):
    """A score for each word that may come next.

    A family brings `forward(tokens, *, pos, structure, memory, lengths) -> h` (B L -> B L d) and `memory(B, capacity)`,
    which makes what it remembers while it decodes.
    """

    context: int | None = None  # the longest sequence it sees at once; None: any
    memory: Callable[[int, int], Any]

    def __init__(self, vocab: int, d: int, *, word_dropout: float = 0.0) -> None:
        super().__init__()
        self.vocab, self.word_dropout = vocab, word_dropout
        padded = math.ceil(vocab / 64) * 64  # kernels like round numbers; the scores of the extra rows are cut off
        self.embed = nn.Embedding(padded, d)
        self.head = nn.Linear(d, padded, bias=False)

    def words(self, tokens: Tensor) -> Tensor:  # B L -> B L d
        """The words' vectors. In training some words are missing, everywhere in a row at once (Gal 2016)."""
        x: Tensor = self.embed(tokens)
        if not self.training or not self.word_dropout:
            return x
        kept = F.dropout(x.new_ones(len(tokens), self.embed.num_embeddings), self.word_dropout)  # B V
        return x * kept.gather(1, tokens)[..., None]

    def logits(self, h: Tensor) -> Tensor:  # ... d -> ... vocab
        return self.head(h)[..., : self.vocab]

    def scores(self, tokens: Tensor, **how: Any) -> Tensor:  # B L -> B L vocab
        """What may come after each token."""
        return self.logits(self(tokens, **how))
