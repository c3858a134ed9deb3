"""Multi-head attention and blocks: the lectures' formulas, torch's own layer, and two published blocks."""

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
    Learned,
    Place,
    Rotary,
    ScaledDot,
    Sinusoid,
    Stack,
    Sublayer,
    Wiring,
    explicit,
    keep,
    watching,
)

B, L, d = 2, 7, 12


def words(*shape: int) -> Tensor:
    return torch.randn(*(shape or (B, L)), d)


def torchs_own(ours: Attention) -> nn.MultiheadAttention:
    """nn.MultiheadAttention with the same weights."""
    theirs = nn.MultiheadAttention(d, 3, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.W_q.weight, ours.W_k.weight, ours.W_v.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.W_q.bias, ours.W_k.bias, ours.W_v.bias]))
        theirs.out_proj.load_state_dict(ours.W_o.state_dict())
    return theirs


def test_self_attention_equals_torchs_own() -> None:
    ours, x = Attention(d, 3), words()
    torch.testing.assert_close(ours(x), torchs_own(ours)(x, x, x)[0])


def test_cross_attention_equals_torchs_own() -> None:
    ours, x, source = Attention(d, 3), words(), words(B, 5)
    torch.testing.assert_close(ours(x, source), torchs_own(ours)(x, source, source)[0])


def test_key_padding_equals_torchs_own() -> None:
    ours, x, real = Attention(d, 3), words(), torch.arange(L) < torch.tensor([[L], [3]])
    theirs = torchs_own(ours)(x, x, x, key_padding_mask=~real)[0]
    torch.testing.assert_close(ours(x, place=Place(keep(real))), theirs)


def test_the_causal_mask_equals_torchs_own() -> None:
    ours, x = Attention(d, 3), words()
    hidden = torch.ones(L, L).triu(1).bool()
    torch.testing.assert_close(ours(x, place=Place(CAUSAL)), torchs_own(ours)(x, x, x, attn_mask=hidden)[0])


@pytest.mark.parametrize(("kv_heads", "d_k", "d_v"), [(3, 4, 4), (3, 2, 5), (1, 7, 3)])
def test_heads_are_the_lectures_heads_of_any_width(kv_heads: int, d_k: int, d_v: int) -> None:
    """MHA = (||_h HA_h) W_o, HA_h = softmax(q_h K_h^T / sqrt(d_k)) V_h, as 003 and 004 print it."""
    look, x = Attention(d, 3, kv_heads=kv_heads, d_k=d_k, d_v=d_v, bias=False), words()
    W_q, W_k, W_v = (W.weight.T for W in (look.W_q, look.W_k, look.W_v))
    heads = []
    for h in range(3):
        g = h if kv_heads == 3 else 0
        Q = x @ W_q[:, h * d_k : (h + 1) * d_k]
        K, V = x @ W_k[:, g * d_k : (g + 1) * d_k], x @ W_v[:, g * d_v : (g + 1) * d_v]
        heads.append((Q @ K.mT / math.sqrt(d_k)).softmax(-1) @ V)
    torch.testing.assert_close(look(x), torch.cat(heads, -1) @ look.W_o.weight.T)


def test_heads_that_do_not_split_are_told_with_a_width_that_does() -> None:
    with pytest.raises(ValueError, match="d=10 does not split over 3 heads; try d=12"):
        Attention(10, 3)
    with pytest.raises(ValueError, match="4 query heads do not split over 3 key heads; take a divisor of 4"):
        Attention(12, 4, kv_heads=3)


def test_widths_of_their_own_need_no_split() -> None:
    assert Attention(10, 3, d_k=4, d_v=5)(torch.randn(1, 2, 10)).shape == (1, 2, 10)


# ---- the block ----


def layer_norm(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a (q - mu) / sigma + b, as 004 prints it."""
    return a * (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True) + b


def norm() -> nn.LayerNorm:
    made = Wiring(d, 3, eps=1e-12).normalise()
    nn.init.normal_(made.weight)
    nn.init.normal_(made.bias)
    return made


def test_layer_norm_is_the_lectures() -> None:
    LN, x = norm(), words()
    torch.testing.assert_close(LN(x), layer_norm(x, LN.weight, LN.bias))


def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    LN, x = Wiring(d, 3, rms_norm=True, eps=1e-12).normalise(), words()
    nn.init.normal_(LN.weight)
    torch.testing.assert_close(LN(x), LN.weight * x / x.square().mean(-1, keepdim=True).sqrt())


@pytest.mark.parametrize(
    ("where", "residual", "formula"),
    [
        ("pre", True, lambda x, f, LN: x + f(LN(x))),  # 2019
        ("post", True, lambda x, f, LN: LN(x + f(x))),  # 2017
        ("none", True, lambda x, f, LN: x + f(x)),
        ("pre", False, lambda x, f, LN: f(LN(x))),
        ("post", False, lambda x, f, LN: LN(f(x))),
        ("none", False, lambda x, f, LN: f(x)),
    ],
)
def test_a_sublayer_is_the_formula_of_its_year(where: str, residual: bool, formula) -> None:
    LN, x, f = norm(), words(), nn.Linear(d, d)
    expected = formula(x, f, lambda h: layer_norm(h, LN.weight, LN.bias))
    torch.testing.assert_close(Sublayer(LN, where, dropout=0.0, residual=residual)(x, f), expected)


def test_without_a_norm_there_are_no_weights_of_a_norm() -> None:
    assert not list(Sublayer(norm(), "none", dropout=0.0, residual=True).parameters())


def test_the_gradient_of_a_residual_is_the_identity_plus_that_of_f() -> None:
    x, f = torch.randn(d), nn.Sequential(nn.Linear(d, d), nn.Tanh())
    add = Sublayer(nn.Identity(), "none", dropout=0.0, residual=True)
    jacobian = torch.autograd.functional.jacobian
    torch.testing.assert_close(jacobian(lambda x: add(x, f), x), torch.eye(d) + jacobian(f, x))


@pytest.mark.parametrize(
    ("act", "formula"),
    [
        ("gelu", lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
        ("gelu-tanh", lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("relu", lambda x: x * (x > 0)),
    ],
)
def test_the_mlp_is_two_layers_around_its_activation(act: str, formula) -> None:
    mlp, x = MLP(d, 20, act), words()
    torch.testing.assert_close(mlp(x), mlp.W_2(formula(mlp.W_1(x))), rtol=1e-5, atol=1e-6)


def test_swiglu_gates_one_layer_by_another() -> None:
    mlp, x = MLP(d, 20, "swiglu", bias=False), words()
    gate = x @ mlp.W_1.weight.T
    expected = (gate * torch.sigmoid(gate) * (x @ mlp.W_3.weight.T)) @ mlp.W_2.weight.T
    torch.testing.assert_close(mlp(x), expected)


def test_dropout_is_for_training_only() -> None:
    stack, x = Stack(1, Wiring(d, 3, dropout=0.5)), words()
    assert not torch.equal(stack(x), stack(x))
    stack.eval()
    assert torch.equal(stack(x), stack(x))


# ---- the stack ----


@torch.no_grad()
def test_without_positions_permuting_the_input_permutes_the_output() -> None:
    stack, x, order = Stack(3, Wiring(d, 3)).double(), words().double(), torch.randperm(L)
    torch.testing.assert_close(stack(x[:, order]), stack(x)[:, order])


@pytest.mark.parametrize("positions", [Sinusoid(), Learned(L, d), Rotary(4)], ids=lambda p: type(p).__name__)
@torch.no_grad()
def test_with_positions_the_order_matters(positions) -> None:
    stack, x, pos = Stack(3, Wiring(d, 3), positions), words(), torch.arange(L)
    backwards = stack(positions.add(x.flip(1), pos)).flip(1)
    assert (backwards - stack(positions.add(x, pos))).abs().max() > 0.01


@torch.no_grad()
def test_a_later_word_changes_nothing_before_it() -> None:
    stack, x = Stack(3, Wiring(d, 3)), words()
    changed = x.clone()
    changed[:, 4] += 1
    difference = (stack(changed, structure=CAUSAL) - stack(x, structure=CAUSAL)).abs().amax((0, 2))
    assert (difference[:4] == 0).all()
    assert (difference[4:] > 0).all()


def test_every_weight_gets_a_gradient() -> None:
    stack = Stack(2, Wiring(d, 4, kv_heads=2, cross=True, activation="swiglu", rms_norm=True))
    stack(words(), source=stack.read(words(B, 5)), structure=CAUSAL).square().sum().backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for n, p in stack.named_parameters() if "W_k.bias" not in n
    )


# ---- what the lectures say ----


@torch.no_grad()
def test_the_causal_mask_on_cross_attention_would_blind_the_first_target_word() -> None:
    """004 writes Mask-MHA for the cross-attention: with j <= i the first word sees one source word only."""
    source, changed = words(1, L), words(1, L)
    changed[:, 0] = source[:, 0]
    x, cross = words(1, L), Attention(d, 3)
    literal = Place(CAUSAL)
    assert torch.equal(cross(x, source, place=literal)[:, 0], cross(x, changed, place=literal)[:, 0])
    assert (cross(x, source)[:, 0] - cross(x, changed)[:, 0]).abs().max() > 0.01


def test_the_causal_mask_is_not_even_one_thing_when_source_and_target_differ_in_length() -> None:
    from_the_start = torch.ones(3, 5).tril().bool()
    to_the_end = torch.ones(3, 5).tril(5 - 3).bool()
    assert not torch.equal(from_the_start, to_the_end)
    assert not torch.ones(5, 3).tril(3 - 5).bool().any(-1).all()  # and with fewer source words some words see nothing


@torch.no_grad()
def test_every_target_word_sees_all_of_the_source() -> None:
    stack, x, source = Stack(1, Wiring(d, 3, cross=True)), words(1, 4), words(1, 6)
    with watching(stack, "blocks.0.cross") as views:
        stack(x, structure=CAUSAL, source=stack.read(source))
    assert (views["blocks.0.cross"].whole() > 0).all()


def test_parameters_do_not_depend_on_the_length_whatever_the_lecture_says() -> None:
    """ "Attention networks have actually less parameters to learn as long as L <= d" (004): it means operations."""
    attention, rnn = Attention(100, 1, bias=False), nn.RNN(100, 100, bias=False)
    assert sum(p.numel() for p in attention.parameters()) == 4 * 100**2  # for 10 words and for 1000
    assert sum(p.numel() for p in rnn.parameters()) == 2 * 100**2  # and the recurrence has fewer


def operations(L: int, d: int) -> tuple[int, int]:
    """Multiply-adds of the attention between L words, and of L steps of a recurrence h W."""
    q, W = torch.zeros(1, 1, L, d), torch.zeros(d, d)
    with FlopCounterMode(display=False) as attention:
        explicit(q, q, q, ScaledDot(d), FULL.lay(1, L, L, q.device))
    with FlopCounterMode(display=False) as recurrence:
        for t in range(L):
            q[0, 0, t : t + 1] @ W
    return attention.get_total_flops() // 2, recurrence.get_total_flops() // 2


@pytest.mark.parametrize(("L", "d"), [(10, 100), (100, 100), (200, 100)])
def test_operations_are_what_grows_with_the_length(L: int, d: int) -> None:
    attention, recurrence = operations(L, d)
    assert attention == 2 * L**2 * d  # O(L^2 d): q k^T, and A v
    assert recurrence == L * d**2
    assert attention / recurrence == 2 * L / d  # so it is the cheaper one for short texts in wide vectors


# ---- published blocks ----


@pytest.mark.oracle
@torch.no_grad()
def test_the_block_of_gpt_2_is_a_wiring() -> None:
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    config = GPT2Config(n_embd=d, n_head=3, attn_implementation="eager", attn_pdrop=0, resid_pdrop=0)
    theirs = GPT2Block(config, layer_idx=0).eval()
    stack = Stack(1, Wiring(d, 3, activation="gelu-tanh")).eval()
    ours = stack.blocks[0]
    for p in theirs.parameters():
        p.normal_(std=0.3)
    for W, w, b in zip(
        (ours.look.W_q, ours.look.W_k, ours.look.W_v),
        theirs.attn.c_attn.weight.T.chunk(3),
        theirs.attn.c_attn.bias.chunk(3),
        strict=True,
    ):
        W.weight.copy_(w)
        W.bias.copy_(b)
    pairs = [(ours.look.W_o, theirs.attn.c_proj), (ours.mlp.W_1, theirs.mlp.c_fc), (ours.mlp.W_2, theirs.mlp.c_proj)]
    for W, conv in pairs:
        W.weight.copy_(conv.weight.T)
        W.bias.copy_(conv.bias)
    ours.look_sub.norm.load_state_dict(theirs.ln_1.state_dict())
    ours.mlp_sub.norm.load_state_dict(theirs.ln_2.state_dict())
    x, hidden = words(), torch.full((1, 1, L, L), torch.finfo(torch.float32).min).triu(1)
    expected = theirs(x, attention_mask=hidden)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(stack(x, structure=CAUSAL), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.oracle
@torch.no_grad()
def test_the_block_of_llama_is_a_wiring() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
        attn_implementation="eager",
    )  # fmt: skip
    theirs = LlamaDecoderLayer(config, layer_idx=0).eval()
    wiring = Wiring(16, 4, kv_heads=2, d_ff=24, activation="swiglu", rms_norm=True, bias=False)
    stack = Stack(1, wiring, Rotary(4)).eval()
    ours = stack.blocks[0]
    for p in theirs.parameters():
        p.normal_(std=0.5)
    for mine, their in [
        (ours.look.W_q, theirs.self_attn.q_proj), (ours.look.W_k, theirs.self_attn.k_proj),
        (ours.look.W_v, theirs.self_attn.v_proj), (ours.look.W_o, theirs.self_attn.o_proj),
        (ours.mlp.W_1, theirs.mlp.gate_proj), (ours.mlp.W_3, theirs.mlp.up_proj), (ours.mlp.W_2, theirs.mlp.down_proj),
        (ours.look_sub.norm, theirs.input_layernorm), (ours.mlp_sub.norm, theirs.post_attention_layernorm),
    ]:  # fmt: skip
        mine.load_state_dict(their.state_dict())
    x, hidden = torch.randn(B, L, 16), torch.full((1, 1, L, L), torch.finfo(torch.float32).min).triu(1)
    places = LlamaRotaryEmbedding(config)(x, torch.arange(L)[None])
    expected = theirs(x, attention_mask=hidden, position_embeddings=places)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(stack(x, structure=CAUSAL), expected, rtol=1e-4, atol=1e-4)
