"""GPT-2 and its training loop in plain PyTorch, as a short script would write them."""

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harken import machine
from harken.data.batch import Batch
from harken.training.settings import Train

from .plan import BenchPlan


class PlainBlock(nn.Module):
    """Attention and MLP, each after a LayerNorm."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(d) for _ in range(2))
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU("tanh"), nn.Linear(4 * d, d))

    def forward(self, x: Tensor) -> Tensor:  # B L d
        B, L, d = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(B, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(o.transpose(1, 2).reshape(B, L, d))
        return x + self.mlp(self.norms[1](x))


class PlainGPT2(nn.Module):
    """Learned positions, pre-norm blocks, tied embeddings."""

    def __init__(self, vocab: int, d: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocab, d), nn.Embedding(context, d)
        self.blocks, self.norm = nn.Sequential(*(PlainBlock(d, heads) for _ in range(layers))), nn.LayerNorm(d)
        for table in (self.embed, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:  # B L -> B L vocab
        x = self.embed(tokens) + self.positions.weight[: tokens.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.embed.weight)


def train_step(plan: BenchPlan, batch: Callable[[int, int], Batch], train: Train) -> Callable[[], None]:
    """A function that does the next update of a plain GPT-2."""
    s = plan.settings
    model = PlainGPT2(plan.vocab, s.d, s.layers, s.heads, s.context)
    return adamw_step(model, lambda call, tokens: call(tokens), batch, train)


def adamw_step(
    model: nn.Module, logits: Callable[[nn.Module, Tensor], Tensor], batch: Callable[[int, int], Batch], train: Train
) -> Callable[[], None]:
    """A function that does the next update with AdamW and these settings, at the maximal learning rate.

    `logits` computes the scores of the tokens with the model, which may be compiled.
    """
    device, dtype = torch.device(train.device), machine.PRECISIONS[train.precision]
    model.to(device).train()
    call: Any = torch.compile(model) if train.compile == "yes" else model
    options: dict[str, Any] = {"lr": train.lr, "betas": train.betas, "weight_decay": train.weight_decay}
    optimizer = torch.optim.AdamW(model.parameters(), **options, fused=True)
    autocast = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
    steps = count()

    def step() -> None:
        examples = batch(0, next(steps)).to(device)
        with autocast:
            scores = logits(call, examples.tokens)
            loss = F.cross_entropy(scores.flatten(0, 1), examples.targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), train.grad_clip)
        optimizer.step()
        optimizer.zero_grad()

    return step
