"""The peer of a bench: transformers' GPT-2 of the same shape, if it is installed. Its names live here alone."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from harken import machine
from harken.data.batch import Batch
from harken.models.gpt import GPT, Shape
from harken.training.settings import Train

NAME = "transformers"


def there() -> bool:
    return find_spec(NAME) is not None


def build(shape: Shape, vocab: int) -> Any:
    """A GPT2LMHeadModel with first weights; nobody stops early, nothing is dropped."""
    hub = import_module(NAME)
    hub.logging.set_verbosity_error()
    sizes = {"n_positions": shape.context, "n_embd": shape.d, "n_layer": shape.layers, "n_head": shape.heads}
    config = hub.GPT2Config(vocab_size=vocab, **sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    config.bos_token_id = config.eos_token_id = None
    return hub.GPT2LMHeadModel(config).eval()


@torch.no_grad()
def give(theirs: Any, ours: GPT) -> None:
    """Copy the peer's weights into a GPT of the same shape."""
    body, stack = theirs.transformer, ours.stack
    ours.embed.weight[: ours.vocab] = body.wte.weight
    stack.positions.get_parameter("table.weight").copy_(body.wpe.weight)
    for mine, block in zip(stack.blocks, body.h, strict=True):
        look, mlp, c = mine.look, mine.mlp, block.attn.c_attn
        maps = list(zip((look.W_q, look.W_k, look.W_v), c.weight.chunk(3, 1), c.bias.chunk(3), strict=True))
        others = ((look.W_o, block.attn.c_proj), (mlp.W_1, block.mlp.c_fc), (mlp.W_2, block.mlp.c_proj))
        maps += [(linear, conv.weight, conv.bias) for linear, conv in others]
        for linear, W, b in maps:
            linear.weight.copy_(W.T)
            linear.bias.copy_(b)
        mine.look_sub.norm.load_state_dict(block.ln_1.state_dict())
        mine.mlp_sub.norm.load_state_dict(block.ln_2.state_dict())
    ours.norm.load_state_dict(body.ln_f.state_dict())


def learning(model: Any, batch: Callable[[int, int], Batch], train: Train) -> Callable[[], None]:
    """One update after the other, by AdamW with these settings, at the highest rate."""
    device, dtype = torch.device(train.device), machine.PRECISIONS[train.precision]
    model.to(device).train()
    call = torch.compile(model) if train.compile == "yes" else model
    how: dict[str, Any] = {"lr": train.lr, "betas": train.betas, "weight_decay": train.weight_decay}
    rule = torch.optim.AdamW(model.parameters(), **how, fused=True)
    numbers = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
    turn = count()

    def step() -> None:
        here = batch(0, next(turn)).to(device)
        with numbers:
            logits = call(input_ids=here.tokens, use_cache=False).logits
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), here.targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), train.grad_clip)
        rule.step()
        rule.zero_grad()

    return step


def writing(model: Any, prompt: Tensor, tokens: int) -> Callable[[], Tensor]:
    """Greedy texts of so many tokens."""
    here = prompt.to(model.device)
    asked = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    return lambda: model.generate(here, attention_mask=torch.ones_like(here), **asked)[:, prompt.shape[1] :].cpu()
