"""The update: which rule, which parameters decay, and how the learning rate rises and falls."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .settings import Train


def optimizer(model: nn.Module, train: Train) -> torch.optim.Optimizer:
    """AdamW or SGD. Matrices decay; vectors (norms, biases) do not."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": train.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [g for g in groups if g["params"]]
    if train.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=train.lr, momentum=train.momentum)
    return torch.optim.AdamW(groups, lr=train.lr, betas=train.betas, fused=True)


def rate(step: int, steps: int, train: Train) -> float:
    """The learning rate of a step: a straight rise, then half a cosine down."""
    warmup = round(train.warmup * steps) if train.warmup < 1 else round(train.warmup)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    if train.schedule == "constant":
        return train.lr
    done = (step - warmup) / max(1, steps - warmup)
    return train.lr * (train.final + (1 - train.final) * (1 + math.cos(math.pi * done)) / 2)


def clip(parameters: Iterable[Tensor], longest: float) -> Tensor:
    """Shorten the gradient to this length; its length before. Nothing waits for the device here."""
    return torch.nn.utils.clip_grad_norm_(parameters, longest if longest > 0 else math.inf)
