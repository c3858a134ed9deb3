"""Lighter weights say nearly the same, and what they cost is measured."""

import operator
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import harken
from harken.data.batch import Batch
from harken.decode.sampling import Choice, Writer
from harken.errors import BadInput
from harken.inference.prepare import Int8, Line, lighten
from harken.models.gpt import Shape
from harken.tasks.next_word import nll


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


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_one_product_for_q_k_and_v_gives_what_three_give_and_takes_no_room(precision):
    torch.manual_seed(0)
    model = lighten(Shape(d=32, layers=1, heads=4, kv_heads=2, context=16).build(50).eval(), precision)
    look, x = model.stack.blocks[0].look, torch.randn(2, 5, 32).to(model.embed.weight.dtype)
    maps = look.W_q, look.W_k, look.W_v
    with torch.no_grad():
        torch.testing.assert_close(look.joint(x), torch.cat([f(x) for f in maps], -1), rtol=1e-2, atol=1e-3)
        one = look(x)
        look.joint = None
        torch.testing.assert_close(one, look(x), rtol=1e-2, atol=1e-3)
    held = [f.whole if precision == "int8" else f.weight for f in maps]
    assert len({t.untyped_storage().data_ptr() for t in held}) == 1


@pytest.mark.parametrize("then", [lambda m: m, lambda m: m.double(), deepcopy, lambda m: deepcopy(m).half().float()])
def test_a_model_made_ready_for_writing_has_the_same_weights_by_name_and_can_still_learn_even_when_moved(then):
    torch.manual_seed(0)
    model = Shape(d=32, layers=1, heads=2, context=16).build(50)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    model = then(lighten(model, "float32"))
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[name], after[name].float(), atol=1e-3) for name in before)
    tokens, look = torch.randint(50, (2, 8)), model.stack.blocks[0].look
    model.scores(tokens).sum().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= p.grad
        for f in (look.W_q, look.W_k, look.W_v):
            assert f.weight.untyped_storage().data_ptr() == look.joint.weight.untyped_storage().data_ptr()
        one, look.joint = model(tokens), None
        torch.testing.assert_close(one, model(tokens))


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_what_lighter_weights_cost_is_small_and_is_told_by_evaluate(folders, precision):
    plain, light = harken.load(folders["char"]), harken.load(folders["char"], precision=precision)
    losses = [run.evaluate("valid")[0].metrics["loss"] for run in (plain, light)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], abs=0.02)


def test_an_int8_model_is_judged_by_the_scores_it_writes_with():
    torch.manual_seed(0)
    model = lighten(Shape(d=32, layers=1, heads=2, context=16).build(50).eval(), "int8")
    tokens = torch.randint(50, (3, 9))
    with torch.no_grad():
        _, rows = nll(model, Batch(tokens[:, :-1], tokens[:, 1:]))
        written = F.cross_entropy(model.scores(tokens[:, :-1]).mT, tokens[:, 1:], reduction="none").sum(1)
    torch.testing.assert_close(rows, written, rtol=1e-6, atol=1e-6)


def test_a_precision_that_is_none_is_refused(folders):
    with pytest.raises(BadInput, match=r"^precision='int7': not a precision; accepted: .* Did you mean int8\?$"):
        harken.load(folders["char"], precision="int7")


@pytest.mark.parametrize("bias", [True, False])
def test_a_map_compiled_apart_from_its_bias_says_the_same(bias):
    plain = nn.Linear(6, 4, bias=bias)
    apart = lighten(nn.Sequential(deepcopy(plain)), "float32")
    assert type(apart[0]) is Line
    x, seen = torch.randn(3, 6), []

    def keep(graph, _):
        seen.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.testing.assert_close(torch.compile(apart, backend=keep)(x), plain(x))
    torch.testing.assert_close(apart(x), plain(x))
    assert (operator.add in seen) == bias
