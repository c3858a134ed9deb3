"""Lighter weights for writing: the step of one token is as slow as its weights are heavy, for each is read once.

int8 has a scale for each row of a matrix and rounds what it is multiplied with as it comes (on a CPU); bfloat16 keeps
the numbers' size and fewer of their digits. What that costs is measured: `harken eval RUN --precision int8`.
"""

import torch
from torch import Tensor, nn

from harken.errors import BadInput, did_you_mean
from harken.models import LanguageModel

PRECISIONS = ("float32", "bfloat16", "int8")
TINY = 1e-12  # a row of zeros has a scale too


class Int8(nn.Module):
    """y = W x + b in 8 bits: each row of W has a scale, and each x gets one as it comes. Sums are exact, in 32 bits."""

    def __init__(self, linear: nn.Linear) -> None:
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

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        own = (rows.abs().amax(-1, keepdim=True) / 127).clamp_min(TINY)
        y = torch._int_mm((rows / own).round().to(torch.int8), self.whole.mT) * own * self.scale
        return (y if self.bias is None else y + self.bias).view(*x.shape[:-1], -1)


def lighten(model: LanguageModel, precision: str) -> LanguageModel:
    """The same model with lighter weights, in place."""
    if precision not in PRECISIONS:
        hint = did_you_mean(precision, PRECISIONS)
        raise BadInput(f"precision={precision!r}: not a precision; accepted: {', '.join(PRECISIONS)}.{hint}")
    if precision == "bfloat16":
        return model.to(torch.bfloat16)
    if precision == "int8":
        if next(model.parameters()).is_cuda:
            raise BadInput("precision='int8': it is for a CPU; take bfloat16, or load the run with device='cpu'")
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.Linear):
                    setattr(module, name, Int8(child))
    return model
