"""The backend `linear` next to attention with all weights, and the size of its tensors."""

from typing import Any

import pytest
import torch
from torch import Tensor

from harken.core import FULL, CosineKernel, Latent, attend, linear

KERNELS = {"cosine": CosineKernel, "latent": lambda: Latent(2, 8, 5).double()}
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def tensors(n: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    sizes = (1, 4, n, 8), (1, 2, n, 8), (1, 2, n, 6)  # grouped heads
    return [torch.randn(size, dtype=torch.float64).to(dtype).requires_grad_() for size in sizes]


@every_kernel
def test_no_tensor_grows_with_the_square_of_the_length(kernel: str, largest: Any) -> None:
    similarity, sizes = KERNELS[kernel](), []
    for n, dropout in ((256, 0.0), (512, 0.0), (256, 0.1)):
        largest.numel = 0
        with largest:
            attend(*tensors(n), similarity, FULL, dropout=dropout).sum().backward()
        sizes.append(largest.numel)
    assert sizes[1] == 2 * sizes[0] < 512**2
    assert sizes[2] == 4 * 256**2  # with dropout of the weights: the explicit backend


@every_kernel
def test_half_precision_is_close_to_float64(kernel: str) -> None:
    q, k, v = tensors(2000)
    similarity = KERNELS[kernel]()
    expected = attend(q, k, v, similarity)
    o = attend(*(x.bfloat16() for x in (q, k, v)), similarity.to(torch.bfloat16))
    assert o.dtype is torch.bfloat16
    torch.testing.assert_close(o.double(), expected, rtol=0.02, atol=0.01)


def test_dropout_of_the_weights_is_refused() -> None:
    q, k, v = tensors(3)
    with pytest.raises(ValueError, match=r"no single weights to drop; dropout=0\.5; use the backend explicit"):
        linear(q, k, v, CosineKernel(), FULL.layout(1, 3, 3, q.device), dropout=0.5)
