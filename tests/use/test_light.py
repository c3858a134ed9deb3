"""Lighter weights say nearly the same, and what they cost is measured."""

import pytest
import torch
from torch import nn

import harken
from harken.errors import BadInput
from harken.models.gpt import Shape
from harken.use.light import Int8, lighten
from harken.use.sample import Choice, Writer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(16,), (5, 16), (2, 3, 16), (1, 1, 16)])
def test_int8_is_the_product_of_rounded_numbers_computed_exactly(shape, bias):
    torch.manual_seed(0)
    linear, x = nn.Linear(16, 40, bias=bias), torch.randn(shape)
    light = Int8(linear)
    own = x.abs().amax(-1, keepdim=True) / 127
    exact = nn.functional.linear(((x / own).round() * own).double(), light.weight.double())
    exact = exact + linear.bias.double() if bias else exact
    torch.testing.assert_close(light(x).double(), exact, rtol=1e-5, atol=1e-6)


def test_no_weight_moves_by_more_than_half_a_step_of_its_row():
    linear = nn.Linear(64, 32)
    moved = (Int8(linear).weight - linear.weight).abs()
    assert (moved <= linear.weight.abs().amax(1, keepdim=True) / 254 * 1.001).all()


def test_a_row_of_zeros_stays_zero():
    linear = nn.Linear(8, 4)
    nn.init.zeros_(linear.weight)
    assert torch.equal(Int8(linear)(torch.randn(3, 8)), linear.bias.expand(3, 4))
    assert torch.isfinite(Int8(nn.Linear(8, 4))(torch.zeros(1, 8))).all()


def test_an_int8_model_holds_no_other_linear_map_and_writes_with_memory_what_it_writes_without():
    torch.manual_seed(0)
    model = lighten(Shape(d=32, layers=2, heads=2, context=32, positions="rotary").build(50).eval(), "int8")
    assert not any(isinstance(m, nn.Linear) for m in model.modules())
    text = [3, 1, 4]
    for token in Writer(model).write([text], 12, Choice(temperature=0), seed=0):
        with torch.no_grad():
            assert int(model.logits(model(torch.tensor([text])))[0, -1].argmax()) == int(token)
        text.append(int(token))


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_what_lighter_weights_cost_is_small_and_is_told_by_evaluate(folders, precision):
    plain, light = harken.load(folders["char"]), harken.load(folders["char"], precision=precision)
    losses = [run.evaluate("valid")[0].metrics["loss"] for run in (plain, light)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], abs=0.02)


def test_a_precision_that_is_none_is_refused(folders):
    with pytest.raises(BadInput, match=r"^precision='int7': not a precision; accepted: .* Did you mean int8\?$"):
        harken.load(folders["char"], precision="int7")
