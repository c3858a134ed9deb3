"""Log-probabilities and perplexity of a text."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TypedDict

import torch
from torch import Tensor

from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadInput
from harken.inference.loaded_model import LoadedModel
from harken.models import LanguageModel

from . import check_texts
from .text_vectors import length_batches

BATCH_TOKENS = 1 << 11  # tokens of the windows that are scored together: each has a logit per word of the vocabulary


class WordLogProb(TypedDict):
    """A word of a scored text; `logprob` is None for a first token without context."""

    word: str
    logprob: float | None


class TextScore(TypedDict):
    """Log-probabilities and perplexity of a text; `tokens` and `unknown` are counts."""

    words: list[WordLogProb]
    perplexity: float
    tokens: int
    unknown: int


@torch.inference_mode()
def score_texts(run: LoadedModel, texts: Sequence[str]) -> list[TextScore]:
    """For each text ln p of each word given all words before it, and the perplexity per token."""
    run.require("generate")
    check_texts(texts)
    tokenizer = run.tokenizer
    start = next(iter(tokenizer.prefix_ids), tokenizer.end_id)
    prefix = [] if start is None else [start]
    ids = [[*prefix, *(int(t) for t in tokenizer.encode(text))] for text in texts]
    if short := [text for text, row in zip(texts, ids, strict=True) if len(row) < 2]:
        raise BadInput(f"{short[0]!r}: too short to be scored; give a longer text")
    scores: list[TextScore] = []
    for text, row in zip(texts, token_losses(run.model, [torch.tensor(row) for row in ids]), strict=True):
        losses = row.tolist()
        log_probs = ([None] if start is None else []) + [-x for x in losses]  # the first token has no context
        score: TextScore = {
            "words": word_log_probs(text, log_probs, tokenizer),
            "perplexity": math.exp(min(sum(losses) / len(losses), 700)),
            "tokens": len(losses),
            "unknown": len(tokenizer.unknown_pieces(text)),
        }
        scores.append(score)
    return scores


def token_losses(model: LanguageModel, texts: Sequence[Tensor]) -> list[Tensor]:
    """For each text -ln p of every token but the first, in windows that overlap by half the context.

    The n-th windows of all texts share a batch, so the batches of a single text have one window each.
    """
    starts = [_window_starts(len(tokens), model.context) for tokens in texts]
    losses = [list[Tensor]() for _ in texts]
    for n in range(max(map(len, starts), default=0)):
        rows = [row for row in range(len(texts)) if n < len(starts[row])]
        ends = None if model.context is None else model.context + 1
        windows = [texts[row][starts[row][n] :][:ends] for row in rows]
        for batch in length_batches([len(window) for window in windows], BATCH_TOKENS):
            for i, window_losses in zip(batch, _window_losses(model, [windows[i] for i in batch]), strict=True):
                known = losses[rows[i]]
                known.append(window_losses[sum(map(len, known)) - starts[rows[i]][n] :])  # without earlier tokens
    return [torch.cat(parts) for parts in losses]


def _window_starts(n_tokens: int, context: int | None) -> list[int]:
    L = context or n_tokens
    half = max(1, L // 2)
    return [0, *range(half, n_tokens - 1 - L + half, half)] if n_tokens > L + 1 else [0]


def _window_losses(model: LanguageModel, windows: Sequence[Tensor]) -> list[Tensor]:
    """-ln p of the tokens of each window but the first. Windows are right-padded: a causal model ignores padding."""
    tokens = torch.nn.utils.rnn.pad_sequence(list(windows), batch_first=True).to(next(model.parameters()).device)
    logits = model.scores(tokens[:, :-1]).float()
    targets = tokens[:, 1:].flatten()
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, reduction="none").view(len(windows), -1)
    return [row[: len(window) - 1] for row, window in zip(losses, windows, strict=True)]


def word_log_probs(text: str, log_probs: list[float | None], tokenizer: Tokenizer) -> list[WordLogProb]:
    """Tokens joined to words, white space with the word after it. ln p of a word is the sum over its tokens."""
    pieces, ids = tokenizer.split(text), tokenizer.encode(text)
    begins_word = [tokenizer.kind == "word" or (b[:1].isspace() and not a.isspace()) for a, b in pairwise(pieces)]
    starts = [n for n, begins in enumerate([True, *begins_word][: len(pieces)]) if begins]
    words: list[WordLogProb] = []
    for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
        known = [log_prob for log_prob in log_probs[start:stop] if log_prob is not None]
        byte_level = tokenizer.unk_id is None  # a character may be split over several pieces
        word = tokenizer.decode(ids[start:stop]) if byte_level else "".join(pieces[start:stop])
        words.append({"word": word, "logprob": sum(known) if known else None})
    return words
