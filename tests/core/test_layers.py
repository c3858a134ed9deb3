"""Multi-head attention and blocks: the formulas of the lectures, torch.nn.MultiheadAttention, and published blocks."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from harken.core import (
    CAUSAL,
    FULL,
    MLP,
    Attention,
    BlockConfig,
    LayerContext,
    Learned,
    Rotary,
    ScaledDot,
    Sinusoid,
    Stack,
    Sublayer,
    explicit,
    keep,
    watching,
)

B, L, d = 2, 7, 12


def random_states(*shape: int) -> Tensor:
    return torch.randn(*(shape or (B, L)), d)


def torch_attention(ours: Attention) -> nn.MultiheadAttention:
    """nn.MultiheadAttention with the same weights."""
    reference = nn.MultiheadAttention(d, 3, batch_first=True)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([ours.W_q.weight, ours.W_k.weight, ours.W_v.weight]))
        reference.in_proj_bias.copy_(torch.cat([ours.W_q.bias, ours.W_k.bias, ours.W_v.bias]))
        reference.out_proj.load_state_dict(ours.W_o.state_dict())
    return reference


def test_self_attention_equals_torch() -> None:
    ours, x = Attention(d, 3), random_states()
    torch.testing.assert_close(ours(x), torch_attention(ours)(x, x, x)[0])


def test_cross_attention_equals_torch() -> None:
    ours, x, source = Attention(d, 3), random_states(), random_states(B, 5)
    torch.testing.assert_close(ours(x, source), torch_attention(ours)(x, source, source)[0])


def test_key_padding_equals_torch() -> None:
    ours, x, real = Attention(d, 3), random_states(), torch.arange(L) < torch.tensor([[L], [3]])
    reference = torch_attention(ours)(x, x, x, key_padding_mask=~real)[0]
    torch.testing.assert_close(ours(x, context=LayerContext(keep(real))), reference)


def test_the_causal_mask_equals_torch() -> None:
    ours, x = Attention(d, 3), random_states()
    hidden = torch.ones(L, L).triu(1).bool()
    torch.testing.assert_close(
        ours(x, context=LayerContext(CAUSAL)), torch_attention(ours)(x, x, x, attn_mask=hidden)[0]
    )


@pytest.mark.parametrize(("kv_heads", "d_k", "d_v"), [(3, 4, 4), (3, 2, 5), (1, 7, 3)])
def test_heads_of_any_width_are_the_formula_of_the_lectures(kv_heads: int, d_k: int, d_v: int) -> None:
    """MHA = (||_h HA_h) W_o, HA_h = softmax(q_h K_h^T / sqrt(d_k)) V_h, as 003 and 004 print it."""
    attention, x = Attention(d, 3, kv_heads=kv_heads, d_k=d_k, d_v=d_v, bias=False), random_states()
    W_q, W_k, W_v = (W.weight.T for W in (attention.W_q, attention.W_k, attention.W_v))
    heads = []
    for h in range(3):
        g = h if kv_heads == 3 else 0
        Q = x @ W_q[:, h * d_k : (h + 1) * d_k]
        K, V = x @ W_k[:, g * d_k : (g + 1) * d_k], x @ W_v[:, g * d_v : (g + 1) * d_v]
        heads.append((Q @ K.mT / math.sqrt(d_k)).softmax(-1) @ V)
    torch.testing.assert_close(attention(x), torch.cat(heads, -1) @ attention.W_o.weight.T)


def test_an_indivisible_width_is_reported_with_a_divisible_one() -> None:
    with pytest.raises(ValueError, match="d=10 is not divisible by heads=3; use d=12"):
        Attention(10, 3)
    with pytest.raises(ValueError, match="heads=4 is not divisible by kv_heads=3; use a divisor of 4"):
        Attention(12, 4, kv_heads=3)


def test_explicit_head_widths_need_no_divisible_width() -> None:
    assert Attention(10, 3, d_k=4, d_v=5)(torch.randn(1, 2, 10)).shape == (1, 2, 10)


# ---- the block ----


def layer_norm(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a (q - mu) / sigma + b, as 004 prints it."""
    return a * (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True) + b


def norm() -> nn.LayerNorm:
    layer = BlockConfig(d, 3, eps=1e-12).build_norm()
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer


def test_layer_norm_is_the_formula_of_the_lecture() -> None:
    LN, x = norm(), random_states()
    torch.testing.assert_close(LN(x), layer_norm(x, LN.weight, LN.bias))


def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    LN, x = BlockConfig(d, 3, rms_norm=True, eps=1e-12).build_norm(), random_states()
    nn.init.normal_(LN.weight)
    torch.testing.assert_close(LN(x), LN.weight * x / x.square().mean(-1, keepdim=True).sqrt())


@pytest.mark.parametrize(
    ("placement", "residual", "formula"),
    [
        ("pre", True, lambda x, f, LN: x + f(LN(x))),  # 2019
        ("post", True, lambda x, f, LN: LN(x + f(x))),  # 2017
        ("none", True, lambda x, f, LN: x + f(x)),
        ("pre", False, lambda x, f, LN: f(LN(x))),
        ("post", False, lambda x, f, LN: LN(f(x))),
        ("none", False, lambda x, f, LN: f(x)),
    ],
)
def test_a_sublayer_is_the_formula_of_its_norm_placement(placement: str, residual: bool, formula) -> None:
    LN, x, f = norm(), random_states(), nn.Linear(d, d)
    expected = formula(x, f, lambda h: layer_norm(h, LN.weight, LN.bias))
    torch.testing.assert_close(Sublayer(LN, placement, dropout=0.0, residual=residual)(x, f), expected)


def test_a_sublayer_without_norm_has_no_parameters() -> None:
    assert not list(Sublayer(norm(), "none", dropout=0.0, residual=True).parameters())


def test_the_jacobian_of_a_residual_is_the_identity_plus_that_of_f() -> None:
    x, f = torch.randn(d), nn.Sequential(nn.Linear(d, d), nn.Tanh())
    add = Sublayer(nn.Identity(), "none", dropout=0.0, residual=True)
    jacobian = torch.autograd.functional.jacobian
    torch.testing.assert_close(jacobian(lambda x: add(x, f), x), torch.eye(d) + jacobian(f, x))


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("gelu", lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
        ("gelu-tanh", lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("relu", lambda x: x * (x > 0)),
    ],
)
def test_the_mlp_is_two_linear_layers_around_its_activation(activation: str, formula) -> None:
    mlp, x = MLP(d, 20, activation), random_states()
    torch.testing.assert_close(mlp(x), mlp.W_2(formula(mlp.W_1(x))), rtol=1e-5, atol=1e-6)


def test_swiglu_multiplies_a_gate_and_a_linear_layer() -> None:
    mlp, x = MLP(d, 20, "swiglu", bias=False), random_states()
    gate = x @ mlp.W_1.weight.T
    expected = (gate * torch.sigmoid(gate) * (x @ mlp.W_3.weight.T)) @ mlp.W_2.weight.T
    torch.testing.assert_close(mlp(x), expected)


def test_dropout_is_active_in_training_only() -> None:
    stack, x = Stack(1, BlockConfig(d, 3, dropout=0.5)), random_states()
    assert not torch.equal(stack(x), stack(x))
    stack.eval()
    assert torch.equal(stack(x), stack(x))


# ---- the stack ----


@torch.no_grad()
def test_without_positions_permuting_the_input_permutes_the_output() -> None:
    stack, x, order = Stack(3, BlockConfig(d, 3)).double(), random_states().double(), torch.randperm(L)
    torch.testing.assert_close(stack(x[:, order]), stack(x)[:, order])


@pytest.mark.parametrize("positions", [Sinusoid(), Learned(L, d), Rotary(4)], ids=lambda p: type(p).__name__)
@torch.no_grad()
def test_with_positions_the_order_matters(positions) -> None:
    stack, x, pos = Stack(3, BlockConfig(d, 3), positions), random_states(), torch.arange(L)
    reversed_output = stack(positions.add(x.flip(1), pos)).flip(1)
    assert (reversed_output - stack(positions.add(x, pos))).abs().max() > 0.01


@torch.no_grad()
def test_a_later_token_has_no_effect_on_earlier_ones() -> None:
    stack, x = Stack(3, BlockConfig(d, 3)), random_states()
    changed = x.clone()
    changed[:, 4] += 1
    difference = (stack(changed, structure=CAUSAL) - stack(x, structure=CAUSAL)).abs().amax((0, 2))
    assert (difference[:4] == 0).all()
    assert (difference[4:] > 0).all()


def test_every_parameter_gets_a_gradient() -> None:
    stack = Stack(2, BlockConfig(d, 4, kv_heads=2, cross=True, activation="swiglu", rms_norm=True))
    stack(random_states(), source=stack.source_memory(random_states(B, 5)), structure=CAUSAL).square().sum().backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for n, p in stack.named_parameters() if "W_k.bias" not in n
    )


# ---- statements of the lectures ----


@torch.no_grad()
def test_a_causal_cross_attention_would_hide_the_source_from_the_first_target_token() -> None:
    """004 prints Mask-MHA for the cross-attention: with j <= i the first token attends to one source token."""
    source, changed = random_states(1, L), random_states(1, L)
    changed[:, 0] = source[:, 0]
    x, cross = random_states(1, L), Attention(d, 3)
    printed = LayerContext(CAUSAL)
    assert torch.equal(cross(x, source, context=printed)[:, 0], cross(x, changed, context=printed)[:, 0])
    assert (cross(x, source)[:, 0] - cross(x, changed)[:, 0]).abs().max() > 0.01


def test_a_causal_mask_is_ambiguous_for_source_and_target_of_different_length() -> None:
    from_the_start = torch.ones(3, 5).tril().bool()
    to_the_end = torch.ones(3, 5).tril(5 - 3).bool()
    assert not torch.equal(from_the_start, to_the_end)
    assert not torch.ones(5, 3).tril(3 - 5).bool().any(-1).all()  # with fewer source tokens some queries have no key


@torch.no_grad()
def test_every_target_token_attends_to_all_source_tokens() -> None:
    stack, x, source = Stack(1, BlockConfig(d, 3, cross=True)), random_states(1, 4), random_states(1, 6)
    with watching(stack, "blocks.0.cross") as views:
        stack(x, structure=CAUSAL, source=stack.source_memory(source))
    assert (views["blocks.0.cross"].full() > 0).all()


def test_the_number_of_parameters_does_not_depend_on_the_length() -> None:
    """ "Attention networks have actually less parameters to learn as long as L <= d" (004): it holds for operations."""
    attention, rnn = Attention(100, 1, bias=False), nn.RNN(100, 100, bias=False)
    assert sum(p.numel() for p in attention.parameters()) == 4 * 100**2  # for 10 tokens and for 1000
    assert sum(p.numel() for p in rnn.parameters()) == 2 * 100**2  # the recurrence has fewer


def operations(L: int, d: int) -> tuple[int, int]:
    """Multiply-adds of the attention between L tokens, and of L steps of a recurrence h W."""
    q, W = torch.zeros(1, 1, L, d), torch.zeros(d, d)
    with FlopCounterMode(display=False) as attention:
        explicit(q, q, q, ScaledDot(d), FULL.layout(1, L, L, q.device))
    with FlopCounterMode(display=False) as recurrence:
        for t in range(L):
            q[0, 0, t : t + 1] @ W
    return attention.get_total_flops() // 2, recurrence.get_total_flops() // 2


@pytest.mark.parametrize(("L", "d"), [(10, 100), (100, 100), (200, 100)])
def test_the_number_of_operations_grows_with_the_length(L: int, d: int) -> None:
    attention, recurrence = operations(L, d)
    assert attention == 2 * L**2 * d  # O(L^2 d): q k^T, and A v
    assert recurrence == L * d**2
    assert attention / recurrence == 2 * L / d  # attention is cheaper for short texts with wide vectors


# ---- published blocks ----


@pytest.mark.oracle
@torch.no_grad()
def test_a_block_config_equals_the_block_of_gpt_2() -> None:
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    config = GPT2Config(n_embd=d, n_head=3, attn_implementation="eager", attn_pdrop=0, resid_pdrop=0)
    reference = GPT2Block(config, layer_idx=0).eval()
    stack = Stack(1, BlockConfig(d, 3, activation="gelu-tanh")).eval()
    ours = stack.blocks[0]
    for p in reference.parameters():
        p.normal_(std=0.3)
    for W, w, b in zip(
        (ours.attention.W_q, ours.attention.W_k, ours.attention.W_v),
        reference.attn.c_attn.weight.T.chunk(3),
        reference.attn.c_attn.bias.chunk(3),
        strict=True,
    ):
        W.weight.copy_(w)
        W.bias.copy_(b)
    pairs = [(ours.attention.W_o, reference.attn.c_proj), (ours.mlp.W_1, reference.mlp.c_fc)]
    pairs += [(ours.mlp.W_2, reference.mlp.c_proj)]
    for W, conv in pairs:
        W.weight.copy_(conv.weight.T)
        W.bias.copy_(conv.bias)
    ours.attention_sublayer.norm.load_state_dict(reference.ln_1.state_dict())
    ours.mlp_sublayer.norm.load_state_dict(reference.ln_2.state_dict())
    x, hidden = random_states(), torch.full((1, 1, L, L), torch.finfo(torch.float32).min).triu(1)
    expected = reference(x, attention_mask=hidden)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(stack(x, structure=CAUSAL), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.oracle
@torch.no_grad()
def test_a_block_config_equals_the_block_of_llama() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
        attn_implementation="eager",
    )  # fmt: skip
    reference = LlamaDecoderLayer(config, layer_idx=0).eval()
    block_config = BlockConfig(16, 4, kv_heads=2, d_ff=24, activation="swiglu", rms_norm=True, bias=False)
    stack = Stack(1, block_config, Rotary(4)).eval()
    ours = stack.blocks[0]
    for p in reference.parameters():
        p.normal_(std=0.5)
    for our_module, reference_module in [
        (ours.attention.W_q, reference.self_attn.q_proj), (ours.attention.W_k, reference.self_attn.k_proj),
        (ours.attention.W_v, reference.self_attn.v_proj), (ours.attention.W_o, reference.self_attn.o_proj),
        (ours.mlp.W_1, reference.mlp.gate_proj), (ours.mlp.W_3, reference.mlp.up_proj),
        (ours.mlp.W_2, reference.mlp.down_proj),
        (ours.attention_sublayer.norm, reference.input_layernorm),
        (ours.mlp_sublayer.norm, reference.post_attention_layernorm),
    ]:  # fmt: skip
        our_module.load_state_dict(reference_module.state_dict())
    x, hidden = torch.randn(B, L, 16), torch.full((1, 1, L, L), torch.finfo(torch.float32).min).triu(1)
    rotary = LlamaRotaryEmbedding(config)(x, torch.arange(L)[None])
    expected = reference(x, attention_mask=hidden, position_embeddings=rotary)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(stack(x, structure=CAUSAL), expected, rtol=1e-4, atol=1e-4)
