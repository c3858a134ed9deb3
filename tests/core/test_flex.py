"""FlexAttention on a device that has it: the same numbers as the written-out equation. Run: pytest -m gpu tests/core"""

from importlib import import_module

import pytest
import torch

from harken.core import CAUSAL, ScaledDot, attend, bigbird, explicit, hubs, keep, same, window

pytestmark = pytest.mark.gpu
L, D = 1024, 64


def structures(device: torch.device) -> dict:
    doc = torch.arange(L, device=device).div(300, rounding_mode="floor").expand(2, L)
    real = torch.ones(2, L, dtype=torch.bool, device=device)
    real[0, 700:] = False
    real[1] = False  # nobody may look at anything
    return {
        "window": window(50),
        "causal window": CAUSAL & window(200),
        "bigbird": bigbird(L, 32, 16, 8),
        "causal documents": CAUSAL & same(doc),
        "padding": keep(real),
        "hubs": (window(10) | hubs(4)) & keep(real),
    }


@pytest.fixture
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.fail("these tests need a CUDA device")
    return torch.device("cuda")


@pytest.mark.parametrize("name", ["window", "causal window", "bigbird", "causal documents", "padding", "hubs"])
@pytest.mark.parametrize("heads", [4, 2])
def test_flex_gives_the_numbers_and_gradients_of_the_equation(name, heads, device, monkeypatch):
    structure = structures(device)[name]
    made = lambda H: torch.randn(2, H, L, D, device=device, requires_grad=True)  # noqa: E731
    q, k, v = made(4), made(heads), made(heads)
    route = import_module("harken.core.attend")
    monkeypatch.setattr(route, "fused", None)  # if another route is taken, this test fails
    monkeypatch.setattr(route, "sparse", None)
    o = attend(q, k, v, ScaledDot(D), structure)
    want = explicit(q, k, v, ScaledDot(D), structure.lay(2, L, L, device))
    toward = torch.randn_like(o)
    torch.testing.assert_close(o, want, atol=2e-3, rtol=2e-3)
    got = torch.autograd.grad((o * toward).sum(), (q, k, v))
    for a, b in zip(got, torch.autograd.grad((want * toward).sum(), (q, k, v)), strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, atol=1e-2, rtol=1e-2)


def test_bigbird_on_the_device_builds_nothing_of_size_l_squared(device):
    torch._dynamo.reset()  # the masks of the tests above fill the compiler's memory, and it would give up
    long = 32_768
    structure = bigbird(long, 64, 16, 8)
    q, k, v = (torch.randn(1, 1, long, D, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    attend(q, k, v, ScaledDot(D), structure).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attend(q, k, v, ScaledDot(D), structure).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < long * long / 4  # a mask of two bits a pair would be more
