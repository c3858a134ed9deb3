"""Linear maps in int8, with one scale per row of the weight and one per row of x, and sums in int32.

One byte is too coarse for an activation: in a Transformer a few channels are a hundred times larger than the others
and set the scale of the row. So a row of x becomes two rows of bytes, high and low. The product reads the weight
once for both, and a decoding step is bound by reading the weights.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from harken import machine

from .packed import FusedLinear, InferenceLinear

MIN_WEIGHTS = 2**17  # of a matrix; the product of a smaller one takes less time in float32 than quantizing x
MIN_SCALE = 1e-12  # for rows of zeros
FEW_ROWS = 16  # up to this number all rows are split: their product is bound by reading the weight
MAX_PEAK = 8  # times the root mean square of a row: with a larger peak, one byte is too coarse for it
BLOCK_SIZE, MIN_BLOCK_ROWS = 2**17, 64
LOW_STEPS = 254  # steps of the low byte in one step of the high byte
ZERO_POINT = 128  # the byte that stands for 0 where bytes are unsigned
INSTRUCTIONS = "avx512_vnni", "avx_vnni", "amx_int8"  # without one of them the kernels of oneDNN saturate


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:  # rows d -> rows d, rows 1
    """Each row in int8, and its scale."""
    steps, scale = _steps(x)
    return steps.round().to(torch.int8), scale


def _steps(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp_min_(MIN_SCALE)
    return x / scale, scale


class SplitRows:
    """Rows of x in bytes: the high bytes of all rows, then the low bytes of those that need them, and the scales.

    >>> x = SplitRows(torch.tensor([[127.0, 1.25]]))
    >>> x.bytes, x.scale, x.join(x.bytes)
    (tensor([[127.,   1.],
            [  0.,  64.]]), tensor([[1.]]), tensor([[127.0000,   1.2520]]))
    """

    def __init__(self, x: Tensor) -> None:  # rows d
        steps, self.scale = _steps(x)
        self.split: Tensor | None = None  # the rows with low bytes; None: all
        self.bytes = high = steps.round()
        if len(x) > FEW_ROWS:
            peaks = torch.linalg.vector_norm(steps, dim=-1) < 127 / MAX_PEAK * math.sqrt(x.shape[-1])
            self.split = peaks.nonzero()[:, 0]
        if self.split is None or len(self.split):
            low = steps - high if self.split is None else steps[self.split] - high[self.split]
            self.bytes = torch.cat([high, low.mul_(LOW_STEPS).round_()])

    def join(self, y: Tensor) -> Tensor:  # the product of the bytes -> rows n
        """Add what the low bytes contribute, in place."""
        high, low = y[: len(self.scale)], y[len(self.scale) :]
        if self.split is None:
            return high.add_(low, alpha=1 / LOW_STEPS)
        return high.index_add_(0, self.split, low, alpha=1 / LOW_STEPS) if len(self.split) else high


class Int8Weight:
    """A matrix of bytes, in the layout of oneDNN if the CPU has instructions for products of bytes."""

    def __init__(self, W: Tensor) -> None:  # out in
        self.shape = W.shape
        self.packs = machine.has_onednn() and machine.cpu_has(*INSTRUCTIONS)
        self.stored: Tensor = torch.ops.onednn.qlinear_prepack(W, None) if self.packs else W

    def __reduce__(self) -> tuple[type["Int8Weight"], tuple[Tensor]]:
        return Int8Weight, (self.dense(),)  # packed bytes cannot be copied

    def dense(self) -> Tensor:  # out in
        """The matrix in its usual layout."""
        return self.stored.to_dense().mT.contiguous() if self.packs else self.stored

    def product(self, steps: Tensor, scale: Tensor, zero_points: Tensor) -> Tensor:  # rows in, out, out -> rows out
        """W x times the scale of each row of W, for x of integers from -127 to 127, which are overwritten."""
        if not self.packs:
            return torch._int_mm(steps.to(torch.int8), self.stored.mT) * scale
        x = steps.add_(ZERO_POINT).to(torch.uint8)
        y: Tensor = torch.ops.onednn.qlinear_pointwise.default(
            x, 1.0, ZERO_POINT, self.stored, scale, zero_points, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return y


class Int8Linear(nn.Module):
    """y = act(W x + b) with W in int8."""

    def __init__(self, source: InferenceLinear | FusedLinear) -> None:
        super().__init__()
        self.activation = source.activation
        self.register_buffer("bias", None if source.bias is None else source.bias.detach())
        W, scale = quantize(source.weight.detach().float())
        self.out_features, self.weight_int8 = len(W), Int8Weight(W)
        self.register_buffer("scale", scale[:, 0])
        self.register_buffer("zero_points", torch.zeros(len(W), dtype=torch.int32))

    bias: Tensor | None  # out
    scale: Tensor  # out
    zero_points: Tensor  # out: 0

    @property
    def weight(self) -> Tensor:
        """The dequantized matrix."""
        return self.weight_int8.dense() * self.scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        y = [self._product(rows) for rows in _row_blocks(x)]
        return (y[0] if len(y) == 1 else torch.cat(y)).view(*x.shape[:-1], self.out_features)

    def _product(self, x: Tensor) -> Tensor:  # rows in -> rows out
        rows = SplitRows(x)
        y = rows.join(self.weight_int8.product(rows.bytes, self.scale, self.zero_points))
        y = y.mul_(rows.scale) if self.bias is None else torch.addcmul(self.bias, y, rows.scale, out=y)
        return y if self.activation is None else self.activation(y)

    def rounded(self, x: Tensor) -> Tensor:
        """x after quantization and dequantization: W x is `weight` times this."""
        split = [SplitRows(rows) for rows in _row_blocks(x)]
        return torch.cat([rows.join(rows.bytes).mul_(rows.scale) for rows in split]).view_as(x)


def _row_blocks(x: Tensor) -> Sequence[Tensor]:
    """The rows of x in blocks that fit into a cache while they are quantized."""
    d = x.shape[-1]
    return x.reshape(-1, d).split(max(MIN_BLOCK_ROWS, BLOCK_SIZE // d))


class Int8Rows(nn.Module):
    """Some outputs of a fused map: the queries, the keys or the values."""

    def __init__(self, fused: Int8Linear, rows: slice) -> None:
        super().__init__()
        self.fused, self.rows, self.out_features = fused, rows, rows.stop - rows.start

    @property
    def weight(self) -> Tensor:
        """The dequantized rows."""
        return self.fused.weight[self.rows]

    @property
    def bias(self) -> Tensor | None:
        b = self.fused.bias
        return None if b is None else b[self.rows]

    def forward(self, x: Tensor) -> Tensor:
        return self.fused(x)[..., self.rows]
