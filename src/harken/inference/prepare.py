"""Weights made ready for writing: the step of one token is as slow as its weights are heavy, for each is read once.

q, k and v come from one product. int8 has a scale for each row of a matrix and rounds what it is multiplied with as it
comes (on a CPU); bfloat16 keeps the numbers' size and fewer of their digits. What that costs is measured: `harken eval
RUN --precision int8`.
"""

from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harken import machine
from harken.core import Attention
from harken.errors import BadInput, did_you_mean
from harken.models import LanguageModel

ACCEPTED = (*machine.PRECISIONS, "int8")
TINY = 1e-12  # a row of zeros has a scale too


class Joint(nn.Module):
    """Maps of one x as one product. They are views of it, so that it takes no room and learns what they learn."""

    def __init__(self, *maps: nn.Linear) -> None:
        super().__init__()
        self.maps = maps
        self.register_buffer("weight", torch.cat([f.weight.detach() for f in maps]), persistent=False)
        b = None if maps[0].bias is None else torch.cat([f.bias.detach() for f in maps])
        self.register_buffer("bias", b, persistent=False)
        self._share()

    weight: Tensor
    bias: Tensor | None

    def _share(self) -> None:
        rows = [f.out_features for f in self.maps]
        for name, whole in self.named_buffers():
            for f, own in zip(self.maps, whole.split(rows), strict=True):
                getattr(f, name).data = own  # the same parameter: whoever learns it holds it

    def _apply(self, *how: Any, **options: Any) -> Self:  # another device or dtype
        super()._apply(*how, **options)  # type: ignore[no-untyped-call]
        self._share()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:  # a copy
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._share()

    def forward(self, x: Tensor) -> Tensor:
        return line(x, self.weight, self.bias)


class Line(nn.Linear):
    """A linear map whose product is compiled apart from its bias."""

    def forward(self, x: Tensor) -> Tensor:
        return line(x, self.weight, self.bias)


def line(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W x + b. Compiled, the product of one row without b becomes a sum that melts into its neighbours."""
    if bias is None or not torch.compiler.is_compiling():
        return F.linear(x, weight, bias)
    return F.linear(x, weight) + bias


class Int8(nn.Module):
    """y = W x + b in 8 bits: each row of W has a scale, and each x gets one as it comes. Sums are exact, in 32 bits."""

    def __init__(self, linear: nn.Linear | Joint) -> None:
        super().__init__()
        W, self.bias = linear.weight.detach(), linear.bias
        scale = (W.abs().amax(1, keepdim=True) / 127).clamp_min(TINY)
        self.register_buffer("scale", scale.mT)
        self.register_buffer("whole", (W / scale).round().to(torch.int8))

    scale: Tensor  # 1 out
    whole: Tensor  # out in

    @property
    def weight(self) -> Tensor:
        """The matrix as it is after rounding."""
        return self.whole * self.scale.mT

    @property
    def out_features(self) -> int:
        return len(self.whole)

    def forward(self, x: Tensor) -> Tensor:
        q, own = self._round(x.reshape(-1, x.shape[-1]))
        y, scale = torch._int_mm(q, self.whole.mT), own * self.scale
        return (y * scale if self.bias is None else torch.addcmul(self.bias, y, scale)).view(*x.shape[:-1], -1)

    def rounded(self, x: Tensor) -> Tensor:
        """x as this map takes it: W times it is what comes out."""
        q, own = self._round(x)
        return q * own

    def _round(self, x: Tensor) -> tuple[Tensor, Tensor]:
        own = (x.abs().amax(-1, keepdim=True) / 127).clamp_min(TINY)
        return (x / own).round().to(torch.int8), own


def lighten(model: LanguageModel, precision: str) -> LanguageModel:
    """The same model ready for writing, with lighter weights, in place."""
    if precision not in ACCEPTED:
        hint = did_you_mean(precision, ACCEPTED)
        raise BadInput(f"precision={precision!r}: not a precision; accepted: {', '.join(ACCEPTED)}.{hint}")
    if precision == "int8" and next(model.parameters()).is_cuda:
        raise BadInput("precision='int8': it is for a CPU; take bfloat16, or load the run with device='cpu'")
    if precision == "bfloat16":
        model.to(torch.bfloat16)
    for part in list(model.modules()):
        if isinstance(part, Attention):
            part.joint = Joint(part.W_q, part.W_k, part.W_v)
        if type(part) is nn.Linear:
            part.__class__ = Line
    if precision == "int8":
        for part in list(model.modules()):
            for name, child in part.named_children():
                if isinstance(child, nn.Linear | Joint):
                    setattr(part, name, Int8(child))
            if isinstance(part, Attention):
                _share(cast(Int8, part.joint), *cast(list[Int8], [part.W_q, part.W_k, part.W_v]))
    return model


def _share(joint: Int8, *maps: Int8) -> None:
    """The maps become views of their joint product."""
    rows = [f.out_features for f in maps]
    for f, whole, scale in zip(maps, joint.whole.split(rows), joint.scale.split(rows, 1), strict=True):
        f.whole, f.scale = whole, scale
