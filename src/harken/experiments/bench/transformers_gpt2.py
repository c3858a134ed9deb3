"""transformers' GPT-2 of the same size and with the same weights."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from harken import machine
from harken.bridge.weight_mapping import table_mappings
from harken.data.batch import Batch
from harken.models.gpt import GPT
from harken.training.settings import Train

from .plain_gpt2 import adamw_step
from .plan import BenchPlan

NAME = "transformers"


def decode_precisions(plan: BenchPlan) -> Sequence[str]:
    """The first precision that is not int8, which transformers does not have."""
    return [next((p for p in plan.precisions if p != "int8"), "float32")]


def build(plan: BenchPlan) -> nn.Module:
    """A GPT2LMHeadModel with initial weights, without dropout and without an end token."""
    transformers, settings = import_module(NAME), plan.settings
    transformers.logging.set_verbosity_error()
    sizes = {"n_positions": settings.context, "n_embd": settings.d}
    sizes |= {"n_layer": settings.layers, "n_head": settings.heads, "tie_word_embeddings": settings.tie_embeddings}
    config = transformers.GPT2Config(vocab_size=plan.vocab, **sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    config.bos_token_id = config.eos_token_id = None
    return transformers.GPT2LMHeadModel(config).eval()


@torch.no_grad()
def copy_weights(model: GPT, reference: nn.Module) -> None:
    """Copy the weights of a GPT into a GPT2LMHeadModel of the same size."""
    tensors = reference.state_dict()
    for name, mapping in table_mappings("gpt2", "transformer.", len(model.stack.blocks)):
        view = mapping.import_tensor(tensors[mapping.name])
        view.copy_(model.get_parameter(name)[: len(view)])  # our vocabulary is rounded up
    head = tensors["lm_head.weight"]
    head.copy_(model.head.weight[: len(head)])


def train_step(plan: BenchPlan, batch: Callable[[int, int], Batch], train: Train) -> Callable[[], None]:
    """A function that does the next update with AdamW in a plain PyTorch loop."""
    return adamw_step(build(plan), lambda call, ids: call(input_ids=ids, use_cache=False).logits, batch, train)


def generation(model: GPT, plan: BenchPlan, precision: str, prompt: Tensor) -> Callable[[], Tensor]:
    """A function that greedily generates the tokens of a turn."""
    reference = build(plan)
    copy_weights(model, reference)
    return greedy(reference.to(plan.device, machine.PRECISIONS[precision]), prompt, plan.tokens)


def greedy(reference: nn.Module, prompt: Tensor, tokens: int) -> Callable[[], Tensor]:
    """A function that greedily generates this many tokens with a language model of transformers."""
    model: Any = reference
    ids = prompt.to(model.device)
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    return lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **options)[:, prompt.shape[1] :].cpu()
