"""Products with oneDNN, next to PyTorch's own in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from harken.core import CAUSAL, Attention, LayerContext, Rotary, products
from harken.core.products import affine, is_faster, linear
from harken.tasks.linear_cross_entropy import linear_cross_entropy
from harken.training.cost import flops_per_token

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN")


@pytest.fixture(autouse=True)
def enabled(monkeypatch):
    monkeypatch.setattr(products, "enabled", True)
    monkeypatch.setattr(products, "MIN_WORK", 0)


def gradients(f, *inputs):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    y = f(*inputs)
    weight = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y)
    return y, torch.autograd.grad((y.double() * weight).sum(), inputs)


@pytest.mark.parametrize(("d", "D"), [(24, 40), (40, 24), (32, 32)])
@pytest.mark.parametrize("shape", [(7,), (3, 5)])
def test_values_and_gradients_equal_those_in_float64(d, D, shape):
    x, W, b = torch.randn(*shape, d), torch.randn(D, d), torch.randn(D)
    assert is_faster(x, W)
    y, grads = gradients(affine, x, W, b)
    expected, expected_grads = gradients(F.linear, x.double(), W.double(), b.double())
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    for grad, exact in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad.double(), exact, rtol=1e-5, atol=1e-4)


def test_second_derivatives_equal_those_of_pytorch():
    x, W, direction = torch.randn(6, 8), torch.randn(5, 8), torch.randn(6, 8)

    def curvature(f, x, W):
        x, W = x.clone().requires_grad_(), W.clone().requires_grad_()
        (dx,) = torch.autograd.grad(f(x, W, None).square().sum(), x, create_graph=True)
        return torch.autograd.grad((dx * direction.to(dx.dtype)).sum(), W)[0].double()

    torch.testing.assert_close(
        curvature(affine, x, W), curvature(F.linear, x.double(), W.double()), rtol=1e-5, atol=1e-4
    )


def test_only_the_gradients_that_are_needed_are_computed():
    layer, x = nn.Linear(8, 5), torch.randn(4, 8, requires_grad=True)
    layer.requires_grad_(False)
    linear(layer, x).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(4, -1))


def test_the_gradients_of_the_loss_equal_those_in_float64():
    h, W, targets = torch.randn(50, 16), torch.randn(64, 16), torch.randint(60, (50,))

    def loss(h, W):
        return linear_cross_entropy(h, W, targets, 60, smoothing=0.1)[0]

    (y, grads), (expected, exact) = gradients(loss, h, W), gradients(loss, h.double(), W.double())
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    for grad, reference in zip(grads, exact, strict=True):
        torch.testing.assert_close(grad.double(), reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", ["halves", "interleaved"])
@pytest.mark.parametrize(("kv_heads", "d_v"), [(1, 8), (2, 6), (4, 8), (1, 3)])
def test_attention_with_rotary_positions_equals_that_in_float64(order, kv_heads, d_v):
    options = {"heads": 4, "kv_heads": kv_heads, "d_k": 8, "d_v": d_v}
    attention, x = Attention(32, **options), torch.randn(2, 9, 32)
    exact = Attention(32, **options).double()  # float64 rotates q and k one after the other
    exact.load_state_dict(attention.state_dict())
    context = LayerContext(CAUSAL, Rotary(8, layout=order).rotation(torch.arange(9)))
    y, expected = attention(x, context=context), exact(x.double(), context=context)
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-5)
    y.square().sum().backward()
    expected.square().sum().backward()
    for p, q in zip(attention.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(p.grad.double(), q.grad, rtol=1e-4, atol=1e-4)


def test_rows_of_a_batch_can_have_their_own_positions():
    attention, x = Attention(16, heads=2), torch.randn(2, 5, 16)
    pos = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]])
    rotation = Rotary(8).rotation
    together = attention(x, context=LayerContext(CAUSAL, rotation(pos)))
    rows = [attention(x[n : n + 1], context=LayerContext(CAUSAL, rotation(pos[n]))) for n in range(2)]
    torch.testing.assert_close(together, torch.cat(rows))


def test_other_modes_use_the_operations_of_pytorch():
    x, layer = torch.randn(8, 16), nn.Linear(16, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(layer, x).dtype == torch.bfloat16
    mapped = torch.func.vmap(lambda row: affine(row[None], layer.weight, layer.bias)[0])(x)
    torch.testing.assert_close(mapped, layer(x))
    assert not is_faster(x.double(), layer.weight.double())
    assert flops_per_token(layer, lambda: linear(layer, x).sum(), 8) == pytest.approx(2 * 16 * 4)
