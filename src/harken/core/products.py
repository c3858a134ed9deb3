"""Products with weight matrices in training on a CPU: with oneDNN where PyTorch's default library (MKL) is slower.

On CPUs of other makers MKL multiplies float32 matrices without AVX-512: oneDNN is twice as fast there. A training
switches it on for such a machine (`machine.prefers_onednn`); both compute in float32.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

enabled = False  # set by a training
MIN_WORK = 2**20  # multiplications of a product; below, the call costs more than it saves


def linear(f: nn.Linear, x: Tensor) -> Tensor:
    """f(x), with gradients by oneDNN where it is faster.

    >>> linear(nn.Linear(2, 3), torch.ones(4, 2)).shape
    torch.Size([4, 3])
    """
    if torch.is_grad_enabled() and not f._forward_hooks and is_faster(x, f.weight):
        return affine(x, f.weight, f.bias)
    y: Tensor = f(x)
    return y


def affine(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:  # ... d, D d, D -> ... D
    """x W' + b.

    >>> affine(torch.ones(1, 2), torch.ones(3, 2), torch.ones(3))
    tensor([[3., 3., 3.]])
    """
    if not is_faster(x, W):
        return F.linear(x, W, b)
    y: Tensor = _Affine.apply(x, W, b)  # type: ignore[no-untyped-call]
    return y


def is_faster(x: Tensor, W: Tensor) -> bool:
    """Whether the product x W' is faster with oneDNN."""
    large = x.numel() * len(W) >= MIN_WORK
    return enabled and large and is_eager_float32(x) and W.dtype == torch.float32 and type(W) in (Tensor, nn.Parameter)


def is_eager_float32(x: Tensor) -> bool:
    """Whether x is computed with on a CPU in float32, without a compiler, a transform or a recorder of operations."""
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
    )


def times_transposed(x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:  # ... d, D d, D -> ... D
    """x W' + b of float32 tensors on a CPU, without gradients: with oneDNN if it is enabled.

    >>> times_transposed(torch.ones(1, 2), torch.ones(3, 2))
    tensor([[2., 2., 2.]])
    """
    if not enabled:
        return F.linear(x, W, b)
    y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, W, b, "none", [], "")
    return y


def transposed_times(g: Tensor, x: Tensor) -> Tensor:  # N D, N d -> D d
    """g' x, likewise. The narrower matrix is copied in the other order.

    >>> transposed_times(torch.ones(2, 1), torch.ones(2, 3))
    tensor([[2., 2., 2.]])
    """
    if not enabled:
        return g.mT @ x
    if x.shape[1] <= g.shape[1]:
        return times_transposed(x.mT.contiguous(), g.mT).mT
    return times_transposed(g.mT.contiguous(), x.mT)


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, W)
        return times_transposed(x, W, b)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (x, W), (needs_x, needs_W, needs_b) = ctx.saved_tensors, ctx.needs_input_grad
        rows, inputs = g.flatten(0, -2), x.flatten(0, -2)
        if torch.is_grad_enabled():  # create_graph: the gradients are differentiated again
            return g @ W, rows.mT @ inputs, rows.sum(0) if needs_b else None
        dx = times_transposed(g, W.mT) if needs_x else None
        return dx, transposed_times(rows, inputs) if needs_W else None, rows.sum(0) if needs_b else None
