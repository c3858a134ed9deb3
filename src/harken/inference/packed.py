"""Linear maps for inference. On an x86 CPU their weights are packed into the layout of oneDNN.

A decoding step multiplies a few rows with every weight, so it is bound by reading them. A packed weight is read in the
order of the vector registers, and bias and activation function are applied before the product is stored.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harken import machine
from harken.core.layers import GELU_TANH, MLP, Map

POST_OPS: dict[Map | None, tuple[str, str]] = {  # activation function -> its name and its algorithm in oneDNN
    None: ("none", ""),
    F.gelu: ("gelu", "none"),
    GELU_TANH: ("gelu", "tanh"),
    F.relu: ("relu", ""),
    F.silu: ("swish", ""),
}
MIN_PRODUCTS = 2**19  # multiplications of a product; with fewer the call of oneDNN costs more than it saves
MEMORY_FRACTION = 0.5  # of the available memory, for the packed copies


def can_pack(weights: Iterable[Tensor]) -> bool:
    """Whether oneDNN multiplies these weights fast on this machine, with enough memory for a second copy of them."""
    distinct = list({w.data_ptr(): w for w in weights}.values())
    if not machine.has_onednn() or any(w.device.type != "cpu" or w.is_inference() for w in distinct):
        return False
    dtypes = {torch.float32, torch.bfloat16} if machine.cpu_has(*machine.BFLOAT16_INSTRUCTIONS) else {torch.float32}
    size = sum(w.nbytes for w in distinct)
    return {w.dtype for w in distinct} <= dtypes and size <= MEMORY_FRACTION * machine.available_memory()


class PackedWeight:
    """A weight in the layout of oneDNN: packed by the first product, and again by the first one after a change.

    >>> W, packed = nn.Parameter(torch.eye(2)), PackedWeight(torch.float32)
    >>> packed.product(torch.ones(1, 2), W, None, (W,), None)
    tensor([[1., 1.]])
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.key: tuple[int, ...] | None = None
        self.packed: Tensor | None = None

    def __reduce__(self) -> tuple[type["PackedWeight"], tuple[torch.dtype]]:
        return PackedWeight, (self.dtype,)  # a copy packs its own weight

    def product(
        self, x: Tensor, W: Tensor, b: Tensor | None, parameters: Sequence[Tensor], activation: Map | None
    ) -> Tensor:
        """act(W x + b). An update of a parameter of W increments its version."""
        key = (W.data_ptr(), *[p._version for p in parameters])
        if self.key != key:
            self.key, self.packed = key, torch.ops.mkldnn._reorder_linear_weight(W.detach())
        name, algorithm = POST_OPS[activation]
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.packed, b, name, [], algorithm)
        return y


class InferenceLinear(nn.Linear):
    """A linear map with an optional activation function. nn.Linear becomes one, so its parameters stay the same."""

    activation: Map | None = None
    packed: PackedWeight | None = None  # None: this weight is not packed

    def forward(self, x: Tensor) -> Tensor:
        W = self.weight
        return product(x, W, self.bias, (W,), self.packed, self.activation)


class FusedLinear(nn.Module):
    """Linear maps of one x as one product. Their parameters are views of the fused weight, so they can be trained."""

    activation: Map | None = None
    packed: PackedWeight | None = None

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
        return product(x, self.weight, self.bias, [f.weight for f in self.maps], self.packed, None)


def product(
    x: Tensor,
    W: Tensor,
    b: Tensor | None,
    parameters: Sequence[Tensor],
    packed: PackedWeight | None,
    activation: Map | None,
) -> Tensor:
    """act(W x + b) with the fastest product. When compiled, W x of one row becomes a sum that fuses with b and act."""
    compiling = torch.compiler.is_compiling()
    if packed is not None and not compiling and x.dtype == W.dtype == packed.dtype and _is_packed(x, W):
        return packed.product(x, W, b, parameters, activation)
    y = F.linear(x, W, b) if b is None or not compiling else F.linear(x, W) + b
    return y if activation is None else activation(y)


def _is_packed(x: Tensor, W: Tensor) -> bool:
    """Whether a product is large enough, on a CPU, without gradients, and not counted or transformed by torch."""
    if torch.is_grad_enabled() or W.device.type != "cpu":
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return False
    return x.numel() * len(W) >= MIN_PRODUCTS


def fuse_activation(mlp: MLP) -> None:
    """Make the activation function of an MLP a part of its first product."""
    if isinstance(mlp.W_1, InferenceLinear) and mlp.activation in POST_OPS:
        mlp.W_1.activation, mlp.activation = mlp.activation, nn.Identity()
