"""Hidden words, filled in by a run that has learned masked words."""

from typing import Any

import torch

from harken.errors import BadInput
from harken.events import Listener
from harken.models import LanguageModel

from .embed import around


@torch.inference_mode()
def filled(model: LanguageModel, tokenizer: Any, text: str, k: int, listen: Listener) -> list[list[dict[str, Any]]]:
    """For each mask of a text the k likeliest words, best first."""
    if k < 1:
        raise BadInput(f"k={k}: ask for at least 1 word")
    if tokenizer.mask is None:
        raise BadInput(
            "this run's tokens have none that stands for a hidden word; fill asks for one, such as BERT's [MASK]"
        )
    before, behind = around(tokenizer)
    ids = torch.tensor([*before, *tokenizer.encode(text).tolist(), *behind])
    places = (ids == tokenizer.mask).nonzero()[:, 0]
    if not len(places):
        raise BadInput(
            f"{text!r}: there is no {tokenizer.words([tokenizer.mask])[0]} in it; put one where a word is hidden"
        )
    if model.context is not None and len(ids) > model.context:
        raise BadInput(
            f"the text has {len(ids)} tokens, and this run reads {model.context} at once; give a shorter one"
        )
    if missing := tokenizer.missing(text):
        named = ", ".join(map(repr, dict.fromkeys(missing)))
        listen("notice", text=f"unknown to this run, and read as [UNK]: {named}")
    scores = model.logits(model(ids[None].to(model.embed.weight.device))[0, places])
    scores[:, tokenizer.marks] = -torch.inf  # a mark is no word
    best = scores.float().softmax(-1).topk(min(k, tokenizer.vocab - len(tokenizer.marks)))
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        [{"word": word, "probability": p} for word, p in zip(tokenizer.words(words), found, strict=True)]
        for words, found in rows
    ]
