"""Fused, cast and quantized weights: outputs are close, and evaluation measures the difference."""

import operator
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import harken
from harken.core import MLP
from harken.data.batch import Batch
from harken.decode.sampling import SamplingSettings, TextGenerator
from harken.errors import BadInput
from harken.inference import packed
from harken.inference.int8 import Int8Rows
from harken.inference.packed import InferenceLinear
from harken.inference.prepare import prepare_inference
from harken.models.gpt import GPTSettings
from harken.tasks.next_word import nll


@pytest.fixture(autouse=True)
def all_sizes(monkeypatch):
    """Small products are packed and small weights are quantized, too."""
    monkeypatch.setattr(packed, "MIN_PRODUCTS", 0)
    monkeypatch.setattr("harken.inference.prepare.MIN_WEIGHTS", 0)


@pytest.fixture(params=["bytes of this CPU", "any CPU"])
def any_cpu(request, monkeypatch):
    """With and without the instructions that oneDNN needs."""
    if request.param == "any CPU":
        monkeypatch.setattr("harken.machine.cpu_has", lambda *instructions: False)


def prepared(linear: nn.Linear, precision: str = "int8") -> nn.Module:
    return prepare_inference(nn.Sequential(deepcopy(linear)), precision)[0]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(16,), (5, 16), (2, 3, 16), (1, 1, 16), (0, 16)])
@pytest.mark.usefixtures("any_cpu")
def test_int8_is_the_product_of_rounded_numbers_computed_exactly(shape, bias):
    torch.manual_seed(0)
    linear, x = nn.Linear(16, 40, bias=bias), torch.randn(shape)
    quantized = prepared(linear)
    scale = x.abs().amax(-1, keepdim=True) / 127 / 254 if len(x) else x
    rounded = (x / scale).round() * scale
    exact = F.linear(rounded.double(), quantized.weight.double())
    exact = exact + linear.bias.double() if bias else exact
    with torch.no_grad():
        torch.testing.assert_close(quantized(x).double(), exact, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(quantized.rounded(x), rounded, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("any_cpu")
def test_a_channel_that_is_a_thousand_times_larger_leaves_the_others_more_than_seven_bits():
    torch.manual_seed(0)
    linear, x = nn.Linear(256, 32, bias=False), torch.randn(20, 256)
    nn.init.zeros_(linear.weight[:, :1])
    x[:, 0] = 1000  # it has no effect on the product, but it sets the scale
    with torch.no_grad():
        error = (prepared(linear)(x) - linear(x)).square().mean().sqrt() / linear(x).std()
    assert error < 0.02  # of 127 steps, the others would be rounded to 0


def test_the_quantization_error_is_at_most_half_a_step_of_the_row():
    linear = nn.Linear(64, 32)
    difference = (prepared(linear).weight - linear.weight).abs()
    assert (difference <= linear.weight.abs().amax(1, keepdim=True) / 254 * 1.001).all()


def test_a_row_of_zeros_stays_zero():
    linear = nn.Linear(8, 4)
    nn.init.zeros_(linear.weight)
    assert torch.equal(prepared(linear)(torch.randn(3, 8)), linear.bias.expand(3, 4))
    assert torch.isfinite(prepared(nn.Linear(8, 4))(torch.zeros(1, 8))).all()


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
    if precision == "int8":
        assert all(isinstance(f, Int8Rows) for f in maps)
    else:
        assert len({f.weight.untyped_storage().data_ptr() for f in maps}) == 1


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("style", ["lecture", "gpt2", "llama"])
@pytest.mark.usefixtures("any_cpu")
def test_a_prepared_model_computes_the_scores_of_the_plain_one(style, precision):
    torch.manual_seed(0)
    plain = GPTSettings(style=style, d=64, layers=2, heads=4, context=32).build(90).eval()
    model, tokens = prepare_inference(deepcopy(plain), precision), torch.randint(90, (3, 17))
    with torch.no_grad():
        expected, scores = plain.scores(tokens), model.scores(tokens)
        alone = torch.cat([model.scores(row[None]) for row in tokens])
    tolerance = 1e-5 if precision == "float32" else 0.05
    torch.testing.assert_close(scores, expected, rtol=0, atol=tolerance * float(expected.abs().max()))
    torch.testing.assert_close(scores, alone, rtol=0, atol=2e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("activation", ["gelu", "gelu-tanh", "relu", "silu", "swiglu", "geglu"])
@pytest.mark.usefixtures("any_cpu")
def test_an_activation_function_inside_a_product_equals_one_after_it(activation):
    torch.manual_seed(0)
    mlp, x = MLP(48, 96, activation), torch.randn(9, 48)
    fused = prepare_inference(nn.Sequential(deepcopy(mlp)), "float32")
    assert torch.equal(fused(x), mlp(x))  # with gradients
    with torch.no_grad():
        torch.testing.assert_close(fused(x), mlp(x), rtol=0, atol=2e-6)


@pytest.mark.parametrize("shape", [(33, 50), (64, 192), (300, 7)])
@pytest.mark.parametrize("rows", [1, 2, 8, 33])
@pytest.mark.usefixtures("any_cpu")
def test_a_packed_product_is_as_exact_as_the_plain_one(shape, rows):
    torch.manual_seed(0)
    plain, x = nn.Linear(*shape), torch.randn(rows, shape[0])
    exact = F.linear(x.double(), plain.weight.double(), plain.bias.double())
    with torch.no_grad():
        error, packed_error = ((y.double() - exact).abs().max() for y in (plain(x), prepared(plain, "float32")(x)))
    assert packed_error <= 2 * error + 1e-6


@pytest.mark.usefixtures("any_cpu")
def test_a_packed_model_generates_the_same_text_alone_in_a_batch_and_with_prompt_lookup():
    torch.manual_seed(0)
    model = prepare_inference(
        GPTSettings(d=64, layers=2, heads=4, context=64, style="gpt2").build(90).eval(), "float32"
    )
    prompts, greedy = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3], [5, 8, 5, 8, 5], [7] * 6], SamplingSettings(temperature=0)

    def texts(rows, **options):
        steps = TextGenerator(model, **options).generate(rows, 24, greedy, seed=0)
        return torch.stack(list(steps), 1).tolist()

    for prompt, in_batch in zip(prompts, texts(prompts), strict=True):
        for other in (texts([prompt], lookup=False)[0], texts([prompt])[0]):
            n = next((n for n, (a, b) in enumerate(zip(in_batch, other, strict=True)) if a != b), None)
            if n is not None:  # only a tie may break differently
                with torch.no_grad():
                    best = model.scores(torch.tensor([[*prompt, *in_batch[:n]]]))[0, -1].topk(2).values
                assert best[0] - best[1] < 1e-4


def test_a_packed_weight_follows_its_parameter():
    torch.manual_seed(0)
    linear, x = prepared(nn.Linear(8, 4), "float32"), torch.randn(3, 8)
    with torch.no_grad():
        before = linear(x)
        linear.weight.mul_(2)
        linear.bias.mul_(2)
        torch.testing.assert_close(linear(x), 2 * before)


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
    linear = prepared(plain, "float32")
    assert type(linear) is InferenceLinear
    x, targets = torch.randn(3, 6), []

    def compile_graph(graph, _):
        targets.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.testing.assert_close(torch.compile(linear, backend=compile_graph)(x), plain(x))
    torch.testing.assert_close(linear(x), plain(x))
    assert (operator.add in targets) == bias
