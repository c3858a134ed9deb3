"""Fill in masked words, with a run trained on masked language modeling."""

import torch

from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadInput
from harken.events import Listener
from harken.models import LanguageModel

from . import WordProbability
from .embed import boundary_tokens


@torch.inference_mode()
def fill_masks(
    model: LanguageModel, tokenizer: Tokenizer, text: str, k: int, listen: Listener
) -> list[list[WordProbability]]:
    """For each mask token of a text the k most probable words, best first."""
    if k < 1:
        raise BadInput(f"k={k}: must be at least 1")
    if tokenizer.mask_id is None:
        raise BadInput("this run's tokenizer has no mask token; fill needs one, such as BERT's [MASK]")
    prefix, suffix = boundary_tokens(tokenizer)
    ids = torch.tensor([*prefix, *tokenizer.encode(text).tolist(), *suffix])
    positions = (ids == tokenizer.mask_id).nonzero()[:, 0]
    if not len(positions):
        raise BadInput(
            f"{text!r}: has no {tokenizer.token_texts([tokenizer.mask_id])[0]}; put one in place of each masked word"
        )
    if model.context is not None and len(ids) > model.context:
        raise BadInput(f"text: has {len(ids)} tokens; this run reads at most {model.context}; give a shorter text")
    if missing := tokenizer.unknown_pieces(text):
        unknown = ", ".join(map(repr, dict.fromkeys(missing)))
        listen("notice", text=f"unknown to this run and read as [UNK]: {unknown}")
    logits = model.logits(model(ids[None].to(model.embed.weight.device))[0, positions])
    logits[:, tokenizer.special_ids] = -torch.inf  # special tokens are not words
    best = logits.float().softmax(-1).topk(min(k, tokenizer.vocab - len(tokenizer.special_ids)))
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        [
            {"word": word, "probability": p}
            for word, p in zip(tokenizer.token_texts(word_ids), probabilities, strict=True)
        ]
        for word_ids, probabilities in rows
    ]
