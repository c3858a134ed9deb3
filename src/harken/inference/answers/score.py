"""Log-probabilities and perplexity of a text."""

import math
from itertools import pairwise
from typing import TypedDict

import torch
from torch import Tensor

from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadInput
from harken.inference.loaded_model import LoadedModel
from harken.models import LanguageModel

from . import check_text


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
def score_text(run: LoadedModel, text: str) -> TextScore:
    """ln p of each word given all words before it, and the perplexity per token."""
    run.require("generate")
    check_text(text=text)
    tokenizer = run.tokenizer
    start = next(iter(tokenizer.prefix_ids), tokenizer.end_id)
    ids = [*([] if start is None else [start]), *(int(t) for t in tokenizer.encode(text))]
    if len(ids) < 2:
        raise BadInput(f"{text!r}: too short to be scored; give a longer text")
    losses = token_losses(run.model, torch.tensor(ids)).tolist()
    log_probs = ([None] if start is None else []) + [-x for x in losses]  # the first token has no context
    return {
        "words": word_log_probs(text, log_probs, tokenizer),
        "perplexity": math.exp(min(sum(losses) / len(losses), 700)),
        "tokens": len(losses),
        "unknown": len(tokenizer.unknown_pieces(text)),
    }


def token_losses(model: LanguageModel, tokens: Tensor) -> Tensor:
    """-ln p of every token but the first, in windows that overlap by half the context."""
    L, device = model.context or len(tokens), next(model.parameters()).device
    half = max(1, L // 2)
    starts = [0, *range(half, len(tokens) - 1 - L + half, half)] if len(tokens) > L + 1 else [0]
    losses: list[Tensor] = []
    for start in starts:
        window = tokens[start : start + L + 1].to(device)
        logits = model.scores(window[None, :-1])[0].float()
        window_losses = torch.nn.functional.cross_entropy(logits, window[1:], reduction="none")
        losses.append(window_losses[sum(map(len, losses)) - start :])  # the previous window covers the first ones
    return torch.cat(losses)


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
