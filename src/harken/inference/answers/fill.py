"""Fill in masked words, with a run trained on masked language modeling."""

from typing import TypedDict

import torch

from harken.errors import BadInput
from harken.events import Listener
from harken.inference.loaded_model import LoadedModel

from . import check_count, check_text
from .text_vectors import boundary_tokens


class WordProbability(TypedDict):
    """A candidate for a masked word."""

    word: str
    probability: float


@torch.inference_mode()
def fill_masks(run: LoadedModel, text: str, k: int, listen: Listener) -> list[list[WordProbability]]:
    """For each mask token of a text the k most probable words, best first."""
    run.require("fill")
    check_text(text=text)
    check_count(1, k=k)
    model, tokenizer = run.model, run.text_tokenizer
    if tokenizer.mask_id is None:
        raise BadInput("this run's tokenizer has no mask token; fill needs one, such as BERT's [MASK]")
    prefix, suffix = boundary_tokens(tokenizer)
    ids = torch.tensor([*prefix, *tokenizer.encode(text).tolist(), *suffix])
    positions = (ids == tokenizer.mask_id).nonzero()[:, 0]
    if not len(positions):
        mask = tokenizer.token_texts([tokenizer.mask_id])[0]
        raise BadInput(f"{text!r}: has no {mask}; put one in place of each masked word")
    if model.context is not None and len(ids) > model.context:
        raise BadInput(f"text: has {len(ids)} tokens; this run reads at most {model.context}; give a shorter text")
    if missing := tokenizer.unknown_pieces(text):
        unknown = ", ".join(map(repr, dict.fromkeys(missing)))
        listen("notice", text=f"unknown to this run and read as [UNK]: {unknown}")
    logits = model.logits(model(ids[None].to(model.embed.weight.device))[0, positions])
    logits[:, tokenizer.special_ids] = -torch.inf  # special tokens are not words
    best = logits.float().softmax(-1).topk(min(k, tokenizer.vocab - len(tokenizer.special_ids)))
    words = map(tokenizer.token_texts, best.indices.tolist())
    rows = (zip(row, p, strict=True) for row, p in zip(words, best.values.tolist(), strict=True))
    return [[{"word": word, "probability": p} for word, p in row] for row in rows]
