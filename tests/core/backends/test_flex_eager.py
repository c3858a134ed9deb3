"""FlexAttention without its compiler, on a CPU: the same values as the explicit backend. test_flex.py uses a GPU."""

from importlib import import_module

import pytest
import torch

from harken.core import CAUSAL, ScaledDot, bigbird, explicit, same, window
from harken.core.backends.blocks import blockwise

flex = import_module("harken.core.backends.flex")  # the package exports the function
L, D = 256, 16
DOC = torch.arange(L).div(100, rounding_mode="floor").expand(2, L)
STRUCTURES = {
    "causal window": CAUSAL & window(40),
    "causal documents": CAUSAL & same(DOC),
    "bigbird": blockwise(bigbird(L // 32, 1, 1, 1), 32),
}
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch):
    monkeypatch.setattr(flex, "compiled", lambda function: function)


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("heads", [4, 2])
def test_flex_has_the_values_of_explicit(name, heads):
    q, k, v = (torch.randn(2, H, L, D) for H in (4, heads, heads))
    layout = STRUCTURES[name].layout(2, L, L, torch.device("cpu"))
    expected = explicit(q, k, v, ScaledDot(D), STRUCTURES[name].layout(2, L, L, torch.device("cpu")))
    torch.testing.assert_close(flex.flex(q, k, v, ScaledDot(D), layout), expected, atol=1e-5, rtol=1e-5)
    assert layout.flex_mask is flex.block_mask(layout)  # built once


def test_flex_refuses_dropout():
    q = torch.randn(1, 1, L, D)
    layout = CAUSAL.layout(1, L, L, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"FlexAttention has no dropout; dropout=0.1"):
        flex.flex(q, q, q, ScaledDot(D), layout, dropout=0.1)
