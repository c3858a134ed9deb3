"""Prepare a model for inference: fuse, pack, cast and quantize its weights. Decoding is bound by reading the weights.

q, k and v come from one fused product, and an activation function is a part of the product before it.
`harken eval RUN --precision int8` measures the loss of quality.
"""

from typing import TypeVar

import torch
from torch import nn

from harken import machine
from harken.core import MLP, Attention, Block
from harken.errors import BadInput
from harken.suggestions import did_you_mean

from .int8 import MIN_WEIGHTS, Int8Linear, Int8Rows
from .packed import FusedLinear, InferenceLinear, PackedWeight, can_pack, fuse_activation

PRECISIONS = (*machine.PRECISIONS, "int8")
ModelT = TypeVar("ModelT", bound=nn.Module)


def prepare_inference(model: ModelT, precision: str) -> ModelT:
    """Fuse q, k and v and convert the weights to this precision, in place."""
    if precision not in PRECISIONS:
        hint = did_you_mean(precision, PRECISIONS)
        raise BadInput(f"precision={precision!r}: not a precision; accepted: {', '.join(PRECISIONS)}.{hint}")
    if precision == "int8" and next(model.parameters()).is_cuda:
        raise BadInput("precision='int8': runs on a CPU only; use bfloat16, or load the run with device='cpu'")
    if precision == "bfloat16":
        model.to(torch.bfloat16)
    for module in list(model.modules()):
        if type(module) is nn.Linear:
            module.__class__ = InferenceLinear
        if isinstance(module, Attention):
            module.joint = FusedLinear(module.W_q, module.W_k, module.W_v)
    for module in model.modules():
        if isinstance(module, MLP):
            fuse_activation(module)
    if precision == "int8":
        quantize_model(model)
    maps = [module for module in model.modules() if isinstance(module, InferenceLinear | FusedLinear)]
    if can_pack(f.weight for f in maps):
        for f in maps:
            f.packed = PackedWeight(f.weight.dtype)
    return model


def quantize_model(model: nn.Module) -> None:
    """Replace the large linear maps by maps in int8."""
    for block in [module for module in model.modules() if isinstance(module, Block)]:
        _quantize_attention(block.attention)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, InferenceLinear) and child.weight.numel() >= MIN_WEIGHTS:
                setattr(module, name, Int8Linear(child))
        if isinstance(module, Attention) and isinstance(module.W_q, Int8Linear):
            module.joint = None  # attention to another sequence


def _quantize_attention(attention: Attention) -> None:
    """Self-attention: W_q, W_k and W_v become views of the fused map."""
    joint = attention.joint
    if not isinstance(joint, FusedLinear) or joint.weight.numel() < MIN_WEIGHTS:
        return
    attention.joint, start = (fused := Int8Linear(joint)), 0
    for name, f in zip(("W_q", "W_k", "W_v"), joint.maps, strict=True):
        setattr(attention, name, Int8Rows(fused, slice(start, start + f.out_features)))
        start += f.out_features
