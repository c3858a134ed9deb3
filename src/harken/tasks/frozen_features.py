"""The states of a body that does not learn: computed once for every text, and kept for the next training."""

import hashlib
import os
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from harken.data.cache import cache_folder
from harken.data.labelled.batch import Texts, scoring

from .head_task import AT_ONCE

PROBED = 4  # texts by which bodies of the same weights are told apart


def frozen(model: Any) -> bool:
    """Whether nothing but the head learns."""
    return not any(p.requires_grad for p in model.body.parameters())


def states(model: Any, texts: Texts) -> Tensor:  # N + 1, d
    """What stands for each of these texts, and zeros for none: from the cache, or read now."""
    device = next(model.parameters()).device
    path = cache_folder("states") / f"{_key(model, texts, device)}.safetensors"
    with suppress(Exception):  # not there, or damaged: safetensors has an error of its own
        return load_file(path)["states"].to(device)
    found, partial = _read(model, texts, device), path.with_suffix(f".{os.getpid()}.tmp")
    save_file({"states": found}, partial)
    partial.replace(path)
    return found.to(device)


@torch.no_grad()
def _read(model: Any, texts: Texts, device: torch.device) -> Tensor:
    was = model.training
    model.eval()
    found = torch.zeros(len(texts) + 1, model.W_y.in_features)
    with torch.autocast(device.type, enabled=False):  # whatever the precision in which the head learns
        for picks, batch in scoring(texts, AT_ONCE):
            here: Any = batch.to(device)
            h = model.texts(model(here.tokens, **here.told()), *here.texts())
            found[torch.from_numpy(picks)] = h.float().cpu()
    model.train(was)
    return found


def _key(model: Any, texts: Texts, device: torch.device) -> str:
    """Tells apart bodies (their wiring by what they say of a few texts), what they sum up, texts and machines."""
    digest = hashlib.sha256(repr((model.pool, len(texts), device.type, torch.get_num_threads())).encode())
    digest.update(_read(model, texts.some(np.arange(min(PROBED, len(texts)))), device).numpy().tobytes())
    for name, weight in model.body.named_parameters():
        digest.update(name.encode())
        digest.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
    for array in (texts.side.ids, texts.side.starts, texts.second):
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]
