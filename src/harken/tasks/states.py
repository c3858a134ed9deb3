"""The states of a body that does not learn: computed once for every text, and kept for the next training."""

import hashlib
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from harken.data.cache import cache_folder
from harken.data.label_batch import Texts, scoring

AT_ONCE = 8192  # tokens read at a time


def frozen(model: Any) -> bool:
    """Whether nothing but the head learns."""
    return not any(p.requires_grad for p in model.body.parameters())


def states(model: Any, texts: Texts) -> Tensor:  # N + 1, d
    """What stands for each of these texts, and zeros for none: from the cache, or read now."""
    device = next(model.parameters()).device
    path = cache_folder("states") / f"{_key(model, texts)}.safetensors"
    if not path.exists():
        partial = path.with_suffix(f".{id(texts)}.tmp")
        save_file({"states": _read(model, texts, device)}, partial)
        partial.replace(path)
    return load_file(path)["states"].to(device)


@torch.no_grad()
def _read(model: Any, texts: Texts, device: torch.device) -> Tensor:
    was = model.training
    model.eval()
    found = torch.zeros(len(texts) + 1, model.W_y.in_features)
    for picks, batch in scoring(texts, AT_ONCE):
        here: Any = batch.to(device)
        found[torch.from_numpy(picks)] = model.texts(model(here.tokens, **here.told()), *here.texts()).float().cpu()
    model.train(was)
    return found


def _key(model: Any, texts: Texts) -> str:
    """Tells apart bodies, how their texts are summed up, and texts."""
    digest = hashlib.sha256(repr((model.pool, len(texts))).encode())
    for name, weight in model.body.named_parameters():
        digest.update(name.encode())
        digest.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
    for array in (texts.side.ids, texts.side.starts, texts.second):
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]
