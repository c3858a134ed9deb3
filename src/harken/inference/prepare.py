"""Prepare a model for inference: fuse, cast and quantize its weights. Decoding speed is bound by reading the weights.

q, k and v come from one fused product. int8 (CPU) has one scale per weight row and quantizes activations dynamically.
`harken eval RUN --precision int8` measures the loss of quality.
"""

from typing import Any, Self, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harken import machine
from harken.core import Attention
from harken.errors import BadInput
from harken.models import Model
from harken.suggestions import did_you_mean

PRECISIONS = (*machine.PRECISIONS, "int8")
MIN_SCALE = 1e-12  # for rows of zeros
ModelT = TypeVar("ModelT", bound=Model)


class FusedLinear(nn.Module):
    """Linear maps of one x as one product. Their parameters are views of the fused weight, so they can be trained."""

    def __init__(self, *maps: nn.Linear) -> None:
        super().__init__()
        self.maps = maps
        self.register_buffer("weight", torch.cat([f.weight.detach() for f in maps]), persistent=False)
        b = None if maps[0].bias is None else torch.cat([f.bias.detach() for f in maps])
        self.register_buffer("bias", b, persistent=False)
        self._share_storage()

    weight: Tensor
    bias: Tensor | None

    def _share_storage(self) -> None:
        rows = [f.out_features for f in self.maps]
        for name, fused in self.named_buffers():
            for f, view in zip(self.maps, fused.split(rows), strict=True):
                getattr(f, name).data = view  # the Parameter object stays, so optimizers keep their reference

    def _apply(self, *args: Any, **options: Any) -> Self:  # a new device or dtype
        super()._apply(*args, **options)  # type: ignore[no-untyped-call]
        self._share_storage()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:  # a copy
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._share_storage()

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class SplitBiasLinear(nn.Linear):
    """A linear map that adds its bias separately when compiled."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W x + b. When compiled, a one-row product without b becomes a reduction that fuses with its neighbors."""
    if bias is None or not torch.compiler.is_compiling():
        return F.linear(x, weight, bias)
    return F.linear(x, weight) + bias


class Int8Linear(nn.Module):
    """y = W x + b in int8, with one scale per row of W and one per row of x. Sums are exact, in int32."""

    def __init__(self, source: nn.Linear | FusedLinear) -> None:
        super().__init__()
        self.bias = source.bias
        W, scale = quantize(source.weight.detach())
        self.register_buffer("scale", scale.mT)
        self.register_buffer("weight_int8", W)

    scale: Tensor  # 1 out
    weight_int8: Tensor  # out in

    @property
    def weight(self) -> Tensor:
        """The dequantized matrix."""
        return self.weight_int8 * self.scale.mT

    @property
    def out_features(self) -> int:
        return len(self.weight_int8)

    def forward(self, x: Tensor) -> Tensor:
        q, x_scale = quantize(x.reshape(-1, x.shape[-1]))
        y, scale = torch._int_mm(q, self.weight_int8.mT), x_scale * self.scale
        return (y * scale if self.bias is None else torch.addcmul(self.bias, y, scale)).view(*x.shape[:-1], -1)

    def rounded(self, x: Tensor) -> Tensor:
        """x after quantization and dequantization: forward(x) is `weight` times this, plus b."""
        q, x_scale = quantize(x)
        return q * x_scale


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:  # rows d -> rows d, rows 1
    """Each row in int8, and its scale."""
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp_min(MIN_SCALE)
    return (x / scale).round().to(torch.int8), scale


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
        if isinstance(module, Attention):
            module.joint = FusedLinear(module.W_q, module.W_k, module.W_v)
        if type(module) is nn.Linear:
            module.__class__ = SplitBiasLinear
    if precision == "int8":
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.Linear | FusedLinear):
                    setattr(module, name, Int8Linear(child))
            if isinstance(module, Attention):
                maps = cast(list[Int8Linear], [module.W_q, module.W_k, module.W_v])
                fused, rows = cast(Int8Linear, module.joint), [f.out_features for f in maps]
                weights, scales = fused.weight_int8.split(rows), fused.scale.split(rows, 1)
                for f, weight, scale in zip(maps, weights, scales, strict=True):
                    f.weight_int8, f.scale = weight, scale  # views of the fused product
    return model
