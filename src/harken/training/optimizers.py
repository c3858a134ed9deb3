"""Optimizers: which optimizer, which parameters decay, and gradient clipping."""

import math
import re
from typing import Any

import torch
from torch import Tensor, nn

from harken.errors import BadSetting
from harken.models import Model

from .muon import Muon
from .settings import Train

BLOCK = re.compile(r"\bblocks\.(\d+)\.")


class StackedModule(nn.Module):
    """Several models as one module: every weight has leading dimensions for the models."""

    stack_dims = 1
    finite: Tensor  # M: whether the last gradient was finite
    n_skipped: Tensor  # M: number of skipped updates


def build_optimizer(model: nn.Module, train: Train) -> torch.optim.Optimizer:
    """The optimizer of the settings. Matrices decay; vectors (norms, biases) do not."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    matrices = hidden_matrices(model) if train.optimizer == "muon" else []
    matrix_ids = {id(p) for p in matrices}
    rest = [p for p in parameters if id(p) not in matrix_ids]
    scales = learning_rate_scales(model, train)
    on_gpu, stack_dims = parameters[0].is_cuda, model.stack_dims if isinstance(model, StackedModule) else 0
    for name in ("layer_decay", "body_lr_ratio"):
        if getattr(train, name) < 1 and train.optimizer != "adamw":
            raise BadSetting(f"train.{name}: {train.optimizer} has one learning rate for all layers; use adamw")
    groups: list[dict[str, Any]] = [
        {"params": params, "weight_decay": decay, "lr_scale": scale}
        for scale in sorted(set(scales.values()), reverse=True)
        for decay, is_matrix in ((train.weight_decay, True), (0.0, False))
        if (params := [p for p in rest if (p.dim() - stack_dims >= 2) is is_matrix and scales[id(p)] == scale])
    ]
    match train.optimizer:
        case "sgd":
            options: Any = {"momentum": train.momentum, "nesterov": train.nesterov, "fused": on_gpu}
            sgd = torch.optim.SGD(rest, lr=train.lr, **options)
            return _with_weight_decay(sgd, train.weight_decay, stack_dims)
        case "rmsprop":
            rmsprop = torch.optim.RMSprop(rest, lr=train.lr, alpha=train.betas[1], momentum=train.momentum)
            return _with_weight_decay(rmsprop, train.weight_decay, stack_dims)
    adamw = torch.optim.AdamW(groups, lr=train.lr, betas=train.betas, fused=True, capturable=on_gpu)
    if train.optimizer != "muon":
        return adamw
    if not matrices:
        raise BadSetting("train.optimizer=muon: this model has no hidden linear layers; use adamw")
    return Muon(matrices, adamw, lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay)


def _with_weight_decay(optimizer: torch.optim.Optimizer, decay: float, stack_dims: int) -> torch.optim.Optimizer:
    """Decoupled weight decay of the matrices, as in AdamW; PyTorch's SGD and RMSprop add the decay to the gradient."""

    @torch.no_grad()
    def shrink(*_: Any) -> None:
        skip = vars(optimizer).get("found_inf", 0.0)  # 1: no update
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.dim() - stack_dims >= 2:
                    p.mul_(1 - group["lr"] * decay * (1 - skip))

    optimizer.register_step_pre_hook(shrink)
    return optimizer


def learning_rate_scales(model: nn.Module, train: Train) -> dict[int, float]:
    """The learning rate of each parameter, relative to that of the head or the decoder."""
    if train.layer_decay == train.body_lr_ratio == 1:
        return dict.fromkeys(map(id, model.parameters()), 1.0)
    body = model.reusable_part if isinstance(model, Model) else model
    in_body = {id(p) for p in body.parameters()} if body is not model else set()
    depth = depth_from_output(model)
    return {n: train.layer_decay ** depth[n] * (train.body_lr_ratio if n in in_body else 1) for n in depth}


def depth_from_output(model: nn.Module) -> dict[int, int]:
    """Number of layers above each parameter: 0 for a head, 1 for the last block, most for the embeddings.

    All weights of a decoder are those of a head: layer decay is for the pretrained encoder below it.
    """
    body = model.reusable_part if isinstance(model, Model) else model
    depth = {id(p): 0 for p in model.parameters()}
    n_blocks = 1 + max((int(n[1]) for name, _ in body.named_parameters() if (n := BLOCK.search(name))), default=-1)
    for name, p in body.named_parameters():
        block = BLOCK.search(name)
        outside = n_blocks + 1 if "embed" in name or "positions" in name or "segments" in name else 0
        depth[id(p)] = n_blocks - int(block[1]) if block else outside
    return depth


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """Weight matrices of all linear layers but the output layer."""
    linear = [(name, m.weight) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    return [W for name, W in linear if W.requires_grad and name.rpartition(".")[2] != "head"]


def clip_gradients(model: nn.Module, max_norm: float) -> Tensor:
    """Clip the gradient norm; return the norm before clipping, on the device. Stacked models are clipped one by one,
    with non-finite gradients set to zero and counted; the largest norm is returned."""
    max_norm = max_norm if max_norm > 0 else math.inf
    if not isinstance(model, StackedModule):
        return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)  # M
    finite = norms.isfinite()
    scales = torch.where(finite, (max_norm / (norms + 1e-6)).clamp_max(1.0), 0.0)
    for g in grads:
        scale = scales.view(-1, *[1] * (g.dim() - 1))
        g.copy_(torch.where(scale > 0, g * scale, 0.0))
    model.finite.copy_(finite)
    model.n_skipped += ~finite
    return torch.where(finite.any(), torch.where(finite, norms, 0.0).max(), torch.nan)
