"""Features from a frozen body: computed once per text and cached for later trainings."""

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from harken.data.cache import cache_folder
from harken.data.labelled.batch import EncodedTexts, LabelBatch, eval_batches
from harken.files import atomic_file

from . import evaluating
from .head_task import EVAL_BATCH_TOKENS

if TYPE_CHECKING:
    from harken.models.heads import ModelWithHead

N_PROBES = 4  # texts with which bodies of equal weights but different settings are distinguished


def is_frozen(model: "ModelWithHead") -> bool:
    """Whether only the head is trained."""
    return not any(p.requires_grad for p in model.body.parameters())


def frozen_features(model: "ModelWithHead", texts: EncodedTexts) -> Tensor:  # N + 1, d
    """The pooled state of each text, from the cache or computed; the last row is zero."""
    device = next(model.parameters()).device
    path = cache_folder("states") / f"{_cache_key(model, texts, device)}.safetensors"
    with suppress(Exception):  # missing or damaged; safetensors raises its own exception type
        return load_file(path)["states"].to(device)
    features = _compute(model, texts, device)
    with atomic_file(path) as temporary:
        save_file({"states": features}, temporary)
    return features.to(device)


@torch.no_grad()
def _compute(model: "ModelWithHead", texts: EncodedTexts, device: torch.device) -> Tensor:
    features = torch.zeros(len(texts) + 1, model.W_y.in_features)
    with evaluating(model), torch.autocast(device.type, enabled=False):  # independent of the training precision
        for indices, cpu_batch in eval_batches(texts, EVAL_BATCH_TOKENS):
            batch = cast(LabelBatch, cpu_batch.to(device))
            h = model.pool_texts(model(batch.tokens, **batch.model_inputs()), *batch.text_ids())
            features[torch.from_numpy(indices)] = h.float().cpu()
    return features


def _cache_key(model: "ModelWithHead", texts: EncodedTexts, device: torch.device) -> str:
    """Hash of the body (weights, and outputs for a few texts), the pooling, the texts and the machine."""
    digest = hashlib.sha256(repr((model.pool, len(texts), device.type, torch.get_num_threads())).encode())
    probes = texts.select(np.arange(min(N_PROBES, len(texts))))
    digest.update(_compute(model, probes, device).numpy().tobytes())
    for name, weight in model.body.named_parameters():
        digest.update(name.encode())
        digest.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
    for array in (texts.tokens.ids, texts.tokens.starts, texts.second_start):
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]
