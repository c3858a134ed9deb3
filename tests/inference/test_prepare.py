"""Fused, cast and quantized weights: outputs are close, and evaluation measures the difference."""

import operator
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import harken
from harken.data.batch import Batch
from harken.decode.sampling import SamplingSettings, TextGenerator
from harken.errors import BadInput
from harken.inference.prepare import Int8Linear, SplitBiasLinear, prepare_inference
from harken.models.gpt import GPTSettings
from harken.tasks.next_word import nll


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(16,), (5, 16), (2, 3, 16), (1, 1, 16)])
def test_int8_is_the_product_of_rounded_numbers_computed_exactly(shape, bias):
    torch.manual_seed(0)
    linear, x = nn.Linear(16, 40, bias=bias), torch.randn(shape)
    quantized = Int8Linear(linear)
    scale = x.abs().amax(-1, keepdim=True) / 127
    exact = nn.functional.linear(((x / scale).round() * scale).double(), quantized.weight.double())
    exact = exact + linear.bias.double() if bias else exact
    torch.testing.assert_close(quantized(x).double(), exact, rtol=1e-5, atol=1e-6)


def test_the_quantization_error_is_at_most_half_a_step_of_the_row():
    linear = nn.Linear(64, 32)
    difference = (Int8Linear(linear).weight - linear.weight).abs()
    assert (difference <= linear.weight.abs().amax(1, keepdim=True) / 254 * 1.001).all()


def test_a_row_of_zeros_stays_zero():
    linear = nn.Linear(8, 4)
    nn.init.zeros_(linear.weight)
    assert torch.equal(Int8Linear(linear)(torch.randn(3, 8)), linear.bias.expand(3, 4))
    assert torch.isfinite(Int8Linear(nn.Linear(8, 4))(torch.zeros(1, 8))).all()


def test_an_int8_model_has_no_float_linear_and_decodes_the_same_with_memory():
    torch.manual_seed(0)
    model = prepare_inference(
        GPTSettings(d=32, layers=2, heads=2, context=32, positions="rotary").build(50).eval(), "int8"
    )
    assert not any(isinstance(m, nn.Linear) for m in model.modules())
    text = [3, 1, 4]
    for token in TextGenerator(model).generate([text], 12, SamplingSettings(temperature=0), seed=0):
        with torch.no_grad():
            assert int(model.logits(model(torch.tensor([text])))[0, -1].argmax()) == int(token)
        text.append(int(token))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_the_fused_qkv_product_equals_three_and_shares_their_storage(precision):
    torch.manual_seed(0)
    model = prepare_inference(GPTSettings(d=32, layers=1, heads=4, kv_heads=2, context=16).build(50).eval(), precision)
    attention, x = model.stack.blocks[0].attention, torch.randn(2, 5, 32).to(model.embed.weight.dtype)
    maps = attention.W_q, attention.W_k, attention.W_v
    with torch.no_grad():
        torch.testing.assert_close(attention.joint(x), torch.cat([f(x) for f in maps], -1), rtol=1e-2, atol=1e-3)
        fused = attention(x)
        attention.joint = None
        torch.testing.assert_close(fused, attention(x), rtol=1e-2, atol=1e-3)
    stored = [f.weight_int8 if precision == "int8" else f.weight for f in maps]
    assert len({t.untyped_storage().data_ptr() for t in stored}) == 1


@pytest.mark.parametrize("convert", [lambda m: m, lambda m: m.double(), deepcopy, lambda m: deepcopy(m).half().float()])
def test_a_prepared_model_keeps_its_state_dict_and_can_be_trained_after_a_move(convert):
    torch.manual_seed(0)
    model = GPTSettings(d=32, layers=1, heads=2, context=16).build(50)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    model = convert(prepare_inference(model, "float32"))
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[name], after[name].float(), atol=1e-3) for name in before)
    tokens, attention = torch.randint(50, (2, 8)), model.stack.blocks[0].attention
    model.scores(tokens).sum().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= p.grad
        for f in (attention.W_q, attention.W_k, attention.W_v):
            assert f.weight.untyped_storage().data_ptr() == attention.joint.weight.untyped_storage().data_ptr()
        fused, attention.joint = model(tokens), None
        torch.testing.assert_close(fused, model(tokens))


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_evaluate_measures_the_small_loss_of_lower_precision(folders, precision):
    plain, quantized = harken.load(folders["char"]), harken.load(folders["char"], precision=precision)
    losses = [run.evaluate("valid")[0].metrics["loss"] for run in (plain, quantized)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], abs=0.02)


def test_an_int8_model_is_evaluated_with_its_quantized_scores():
    torch.manual_seed(0)
    model = prepare_inference(GPTSettings(d=32, layers=1, heads=2, context=16).build(50).eval(), "int8")
    tokens = torch.randint(50, (3, 9))
    with torch.no_grad():
        _, rows = nll(model, Batch(tokens[:, :-1], tokens[:, 1:]))
        expected = F.cross_entropy(model.scores(tokens[:, :-1]).mT, tokens[:, 1:], reduction="none").sum(1)
    torch.testing.assert_close(rows, expected, rtol=1e-6, atol=1e-6)


def test_an_unknown_precision_is_refused(folders):
    with pytest.raises(BadInput, match=r"^precision='int7': not a precision; accepted: .* Did you mean int8\?$"):
        harken.load(folders["char"], precision="int7")


@pytest.mark.parametrize("bias", [True, False])
def test_a_compiled_linear_adds_its_bias_separately_with_equal_outputs(bias):
    plain = nn.Linear(6, 4, bias=bias)
    prepared = prepare_inference(nn.Sequential(deepcopy(plain)), "float32")
    assert type(prepared[0]) is SplitBiasLinear
    x, targets = torch.randn(3, 6), []

    def compile_graph(graph, _):
        targets.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.testing.assert_close(torch.compile(prepared, backend=compile_graph)(x), plain(x))
    torch.testing.assert_close(prepared(x), plain(x))
    assert (operator.add in targets) == bias
