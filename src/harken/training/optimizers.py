"""The update: which rule, which parameters decay, and how the learning rate rises and falls."""

import math
import re
from typing import Any

import torch
from torch import Tensor, nn

from harken.errors import BadSetting

from .muon import Muon
from .settings import Train

BLOCK = re.compile(r"\bblocks\.(\d+)\.")


def optimizer(model: nn.Module, train: Train) -> torch.optim.Optimizer:
    """The rule that was asked for. Matrices decay; vectors (norms, biases) do not."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    inner = hidden(model) if train.optimizer == "muon" else []
    taken = {id(p) for p in inner}
    rest = [p for p in parameters if id(p) not in taken]
    depth = depths(model) if train.layer_decay < 1 else dict.fromkeys(map(id, parameters), 0)
    on_gpu, axis = parameters[0].is_cuda, getattr(model, "axis", 0)  # of models trained together, one more
    if train.layer_decay < 1 and train.optimizer not in ("adamw", "adam"):
        raise BadSetting(f"train.layer_decay: {train.optimizer} has one rate for all layers; take adamw")
    groups: list[dict[str, Any]] = [
        {"params": some, "weight_decay": decay, "share": train.layer_decay**below}
        for below in sorted(set(depth.values()))
        for decay, matrix in ((train.weight_decay, True), (0.0, False))
        if (some := [p for p in rest if (p.dim() - axis >= 2) is matrix and depth[id(p)] == below])
    ]
    match train.optimizer:
        case "sgd":
            how: Any = {"momentum": train.momentum, "nesterov": train.nesterov, "fused": on_gpu}
            sgd = torch.optim.SGD(rest, lr=train.lr, **how)
            return _decaying(sgd, train.weight_decay, axis)
        case "rmsprop":
            rmsprop = torch.optim.RMSprop(rest, lr=train.lr, alpha=train.betas[1], momentum=train.momentum)
            return _decaying(rmsprop, train.weight_decay, axis)
    adamw = torch.optim.AdamW(groups, lr=train.lr, betas=train.betas, fused=True, capturable=on_gpu)
    if train.optimizer != "muon":
        return adamw
    if not inner:
        raise BadSetting("train.optimizer=muon: this model has no linear maps between its layers; take adamw")
    return Muon(inner, adamw, lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay)


def _decaying(rule: torch.optim.Optimizer, decay: float, axis: int) -> torch.optim.Optimizer:
    """The rule with a decay of its matrices as AdamW has it. PyTorch's own would run through moments and momentum."""

    @torch.no_grad()
    def shrink(*_: Any) -> None:
        held = getattr(rule, "found_inf", 0.0)  # 1: nothing is updated
        for group in rule.param_groups:
            for p in group["params"]:
                if p.dim() - axis >= 2:
                    p.mul_(1 - group["lr"] * decay * (1 - held))

    rule.register_step_pre_hook(shrink)
    return rule


def depths(model: nn.Module) -> dict[int, int]:
    """How many layers lie above each parameter: 0 for a head, 1 for the last block, most for the words."""
    found: dict[int, int] = {}
    blocks = 1 + max((int(n[1]) for name, _ in model.named_parameters() if (n := BLOCK.search(name))), default=-1)
    for name, p in model.named_parameters():
        number = BLOCK.search(name)
        words = blocks + 1 if "embed" in name or "positions" in name or "segments" in name else 0
        found[id(p)] = blocks - int(number[1]) if number else words
    return found


def hidden(model: nn.Module) -> list[Tensor]:
    """The matrices between the layers: those of linear maps, without the word scores."""
    lines = [(name, m.weight) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    return [W for name, W in lines if W.requires_grad and name.rpartition(".")[2] != "head"]


def rising(steps: int, train: Train) -> int:
    """The steps in which the learning rate rises."""
    return round(train.warmup * steps) if train.warmup < 1 else round(train.warmup)


def rate(step: int, steps: int, train: Train) -> float:
    """The learning rate of a step: a straight rise, the schedule, and at the end a straight fall where one is asked."""
    warmup = rising(steps, train)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    left = 1.0  # share of the highest rate
    match train.schedule:
        case "cosine":
            left = train.min_lr_ratio + (1 - train.min_lr_ratio) * (1 + math.cos(math.pi * done)) / 2
        case "linear":
            left = train.min_lr_ratio + (1 - train.min_lr_ratio) * (1 - done)
        case "rsqrt":  # the paper of 2017: as 1 / sqrt(step) after the warm-up
            left = math.sqrt(max(1, warmup) / max(1, step + 1))
    fall = min(train.cooldown * steps, steps - warmup)
    if steps - step < fall:
        left = train.min_lr_ratio + (left - train.min_lr_ratio) * (steps - step) / fall
    return train.lr * left


def clip(model: nn.Module, longest: float) -> Tensor:
    """Shorten the gradient to this length; its length before. Nothing waits for the device here.

    Of models trained together, each one's own: the longest is told. One that is not finite is left out and counted.
    """
    longest = longest if longest > 0 else math.inf
    many: Any = model
    if not hasattr(many, "axis"):
        return torch.nn.utils.clip_grad_norm_(model.parameters(), longest)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)  # M
    sound = norms.isfinite()
    scale = torch.where(sound, (longest / (norms + 1e-6)).clamp_max(1.0), 0.0)
    for g in grads:
        each = scale.view(-1, *[1] * (g.dim() - 1))
        g.copy_(torch.where(each > 0, g * each, 0.0))
    many.sound.copy_(sound)
    many.odds += ~sound
    return torch.where(sound.any(), torch.where(sound, norms, 0.0).max(), torch.nan)
