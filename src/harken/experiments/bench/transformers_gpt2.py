"""transformers' GPT-2 of the same size, if it is installed: the reference implementation of a bench."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from harken import machine
from harken.bridge.weight_mapping import table_mappings
from harken.data.batch import Batch
from harken.models.gpt import GPT, GPTSettings
from harken.training.settings import Train

NAME = "transformers"


def is_installed() -> bool:
    return find_spec(NAME) is not None


def build(settings: GPTSettings, vocab: int) -> nn.Module:
    """A GPT2LMHeadModel with initial weights, without dropout and without an end token."""
    transformers = import_module(NAME)
    transformers.logging.set_verbosity_error()
    sizes = {"n_positions": settings.context, "n_embd": settings.d}
    sizes |= {"n_layer": settings.layers, "n_head": settings.heads}
    config = transformers.GPT2Config(vocab_size=vocab, **sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    config.bos_token_id = config.eos_token_id = None
    return transformers.GPT2LMHeadModel(config).eval()


@torch.no_grad()
def copy_weights(reference: nn.Module, model: GPT) -> None:
    """Copy the weights of a GPT2LMHeadModel into a GPT of the same size."""
    tensors = reference.state_dict()
    for name, mapping in table_mappings("gpt2", "transformer.", len(model.stack.blocks)):
        weight = mapping.import_tensor(tensors[mapping.name])
        model.get_parameter(name)[: len(weight)] = weight  # our vocabulary is rounded up


def train_step(model: nn.Module, batch: Callable[[int, int], Batch], train: Train) -> Callable[[], None]:
    """A function that does the next update with AdamW and these settings, at the maximal learning rate."""
    device, dtype = torch.device(train.device), machine.PRECISIONS[train.precision]
    model.to(device).train()
    call = torch.compile(model) if train.compile == "yes" else model
    options: dict[str, Any] = {"lr": train.lr, "betas": train.betas, "weight_decay": train.weight_decay}
    optimizer = torch.optim.AdamW(model.parameters(), **options, fused=True)
    autocast = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
    steps = count()

    def step() -> None:
        examples = batch(0, next(steps)).to(device)
        with autocast:
            logits = call(input_ids=examples.tokens, use_cache=False).logits
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), examples.targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), train.grad_clip)
        optimizer.step()
        optimizer.zero_grad()

    return step


def generation(model: nn.Module, prompt: Tensor, tokens: int) -> Callable[[], Tensor]:
    """A function that greedily generates this many tokens."""
    gpt2: Any = model
    ids = prompt.to(gpt2.device)
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    return lambda: gpt2.generate(ids, attention_mask=torch.ones_like(ids), **options)[:, prompt.shape[1] :].cpu()
