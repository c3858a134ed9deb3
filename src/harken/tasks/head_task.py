"""Tasks with a head on a text model: packed or padded batches, the outputs of tokens, the features of a frozen body."""

import hashlib
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from harken.data.cache import cache_folder
from harken.data.labelled.batch import EncodedTexts, LabelBatch, PackedTexts, PaddedTexts, eval_batches
from harken.data.labelled.examples import ExampleData
from harken.errors import BadSetting
from harken.files import atomic_file
from harken.models import ModelSettings
from harken.models.heads import ModelWithHead

from . import SettingsT, Task, evaluating

EVAL_BATCH_TOKENS = 8192
N_PROBES = 4  # texts with which bodies of equal weights but different settings are distinguished


class HeadTask(Task[SettingsT, ExampleData, ModelWithHead, LabelBatch]):
    """A task on examples with targets per text or per token."""

    def __init__(self, settings: SettingsT, data: ExampleData, model: ModelSettings, batch: int, seed: int) -> None:
        context, longest = model.max_context, data.max_length
        if context is not None and longest > context and not model.stateful:
            fix = f"set model.context={longest} or data.max_length={context}"
            raise BadSetting(f"model.context={context}: a text has {longest} tokens; {fix}")
        self.fixed_shapes = model.supports_packing
        batches = (PackedTexts if self.fixed_shapes else PaddedTexts)(data.train.texts, batch, seed=seed)
        self.set_up(settings, data, batches, batches.tokens)


def token_outputs(model: ModelWithHead, texts: EncodedTexts) -> Iterator[tuple[int, LabelBatch, Tensor]]:
    """Of each text its index, a batch with this text alone, and the outputs of its tokens with a target."""
    device = next(model.parameters()).device
    with evaluating(model):
        for indices, batch in eval_batches(texts, EVAL_BATCH_TOKENS):
            on_device = batch.to(device)
            y = model.predict(model(on_device.tokens, **on_device.model_inputs())).float().cpu()  # B L outputs
            for row, n in enumerate(indices.tolist()):
                yield n, batch.slice_rows(row, row + 1), y[row][batch.target_mask[row]]


def frozen_features(model: ModelWithHead, texts: EncodedTexts) -> Tensor:  # N + 1, d
    """The pooled state of each text, from the cache or computed; the last row is zero."""
    device = next(model.parameters()).device
    path = cache_folder("states") / f"{_cache_key(model, texts, device)}.safetensors"
    with suppress(Exception):  # missing or damaged; safetensors raises its own exception type
        return load_file(path)["states"].to(device)
    features = _compute(model, texts, device)
    with atomic_file(path) as temporary:
        save_file({"states": features}, temporary)
    return features.to(device)


def _compute(model: ModelWithHead, texts: EncodedTexts, device: torch.device) -> Tensor:
    features = torch.zeros(len(texts) + 1, model.W_y.in_features)
    with evaluating(model), torch.autocast(device.type, enabled=False):  # independent of the training precision
        for indices, cpu_batch in eval_batches(texts, EVAL_BATCH_TOKENS):
            batch = cpu_batch.to(device)
            h = model.pool_texts(model(batch.tokens, **batch.model_inputs()), *batch.text_ids())
            features[torch.from_numpy(indices)] = h.float().cpu()
    return features


def _cache_key(model: ModelWithHead, texts: EncodedTexts, device: torch.device) -> str:
    """Hash of the body (weights, and outputs for a few texts), the pooling, the texts and the machine."""
    digest = hashlib.sha256(repr((model.pool, len(texts), device.type, torch.get_num_threads())).encode())
    probes = texts.select(np.arange(min(N_PROBES, len(texts))))
    digest.update(_compute(model, probes, device).numpy().tobytes())
    for name, weight in model.body.named_parameters():
        digest.update(name.encode())
        digest.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
    for array in (texts.tokens.ids, texts.tokens.starts, texts.segment_starts):
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]
