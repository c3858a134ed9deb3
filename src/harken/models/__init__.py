"""One file per family of the lectures. Each begins with its Shape (the settings) and ends with its module."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harken.core import FULL, Structure, keep

START = 0.02  # spread of the first weights (GPT-2)


def start(module: nn.Module) -> None:
    """The first weights of linear maps and word vectors."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=START)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def calm(stack: nn.Module, sums: int) -> None:
    """Each of so many sublayers adds to one sum, so each starts smaller (GPT-2)."""
    for name, module in stack.named_modules():
        if name.endswith(("W_o", "W_2")):
            nn.init.normal_(module.weight, std=START / math.sqrt(sums))


class LanguageModel(nn.Module):
    """A score for each word that may come next.

    A family brings `forward(tokens, *, pos, structure, memory, lengths) -> h` (B L -> B L d) and `memory(B, capacity)`,
    which makes what it remembers while it decodes.
    """

    causal: bool = True  # no word looks at later ones; else it fills in words, and does not write
    context: int | None = None  # the longest sequence it sees at once; None: any
    memory: Callable[..., Any]
    head_bias: nn.Parameter | None

    def __init__(self, vocab: int, d: int, *, word_dropout: float = 0.0) -> None:
        super().__init__()
        self.vocab, self.word_dropout = vocab, word_dropout
        padded = math.ceil(vocab / 64) * 64  # kernels like round numbers; the scores of the extra rows are cut off
        self.embed = nn.Embedding(padded, d)
        self.head = nn.Linear(d, padded, bias=False)
        self.register_parameter("head_bias", None)  # vocab: of each word's score, where a family has one

    def words(self, tokens: Tensor, table: nn.Embedding | None = None) -> Tensor:  # B L -> B L d
        """The words' vectors. In training some words are missing, everywhere in a row at once (Gal 2016)."""
        table = table or self.embed
        x: Tensor = table(tokens)
        if not self.training or not self.word_dropout:
            return x
        kept = F.dropout(x.new_ones(len(tokens), table.num_embeddings), self.word_dropout)  # B V
        return x * kept.gather(1, tokens)[..., None]

    def logits(self, h: Tensor) -> Tensor:  # ... d -> ... vocab
        scores: Tensor = self.head(h)[..., : self.vocab]
        return scores if self.head_bias is None else scores + self.head_bias

    def scores(self, tokens: Tensor, **how: Any) -> Tensor:  # B L -> B L vocab
        """What may come after each token."""
        return self.logits(self(tokens, **how))


Packed = tuple[Tensor, Tensor, Tensor, Tensor]  # pos, doc and source's pos, doc of rows of several pairs: B L each


@dataclass(frozen=True)
class Source:
    """A source sentence that was read: what a family's decoder asks of it, and which of its places hold a word."""

    read: Any  # a family's own; its tensors have the rows first
    real: Tensor | None = None  # B Ls; None: all of them
    packed: Structure | None = None  # which target looks at which source, where several stand in a row

    @property
    def structure(self) -> Structure:
        return self.packed or (FULL if self.real is None else keep(self.real))


class EncoderDecoder(LanguageModel):
    """A language model of the target that is told a source. The edge mark begins and ends a target, and ends a source.

    A family brings `read(source, real) -> Any`, `forward(tokens, *, source, source_lengths, pos, memory, lengths) -> h`
    (a memory keeps nothing of what stands behind a row's `lengths`) and `memory(B, capacity, source, source_lengths)`,
    whose result has `reorder(rows, upto)` (in place, among the texts of one source), `upto(n)` (its first n places) and
    `select(rows)` (some sources alone). Attention to the source is an attribute `cross`: a trace finds it by this name.
    """

    read: Callable[[Tensor, Tensor | None], Any]

    def __init__(self, vocab: tuple[int, int], d: int, *, shared: bool, word_dropout: float = 0.0) -> None:
        super().__init__(vocab[1], d, word_dropout=word_dropout)
        self.source_vocab = vocab[0]
        self.edge = vocab[1] - 1
        if shared and vocab[0] != vocab[1]:
            raise ValueError(
                "shared embeddings need one vocabulary; set data.shared_vocab=true, or model.share_embeddings=false"
            )
        self.source_embed = self.embed if shared else nn.Embedding(math.ceil(vocab[0] / 64) * 64, d)

    def source(self, tokens: Tensor | None, lengths: Tensor | None) -> Source:  # B Ls, B
        """Read source sentences, whose places behind their lengths are padding."""
        if tokens is None:
            raise ValueError("an encoder-decoder is told a source, or a memory that has read one")
        real = None
        if lengths is not None:
            real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
            real = None if not real.is_cuda and bool(real.all()) else real  # a GPU would have to be waited for
        return Source(self.read(tokens, real), real)
