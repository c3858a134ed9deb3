"""Positional encodings: the printed formulas of the lectures, and the positions of published models."""

import math

import pytest
import torch
from torch import Tensor

from harken.core import (
    CAUSAL,
    Alibi,
    Learned,
    Positions,
    Rotary,
    ScaledDot,
    Sinusoid,
    attend,
    linear_scaling,
    llama3_scaling,
    ntk_scaling,
)

POS = torch.arange(50)


def encoding(layout: str, d: int, pos: Tensor = POS) -> Tensor:
    return Sinusoid(layout).add(torch.zeros(len(pos), d), pos)


def test_the_halves_layout_is_the_formula_of_lecture_002() -> None:
    d_m = 8  # half the width of the embedding
    PE = torch.empty(50, 2 * d_m)
    for p in range(50):
        for i in range(d_m):
            PE[p, i] = math.sin(p / 10000 ** (i / d_m))
            PE[p, d_m + i] = math.cos(p / 10000 ** ((d_m + i - d_m) / d_m))
    torch.testing.assert_close(encoding("halves", 16), PE, rtol=1e-5, atol=1e-5)


def test_the_interleaved_layout_is_the_corrected_formula_of_lecture_004() -> None:
    d, PE = 16, torch.empty(50, 16)
    for t in range(50):
        for i in range(d):
            f = 10000 ** (-2 * (i // 2) / d) / (2 * math.pi)
            PE[t, i] = math.sin(2 * math.pi * f * t) if i % 2 == 0 else math.cos(2 * math.pi * f * t)
    torch.testing.assert_close(encoding("interleaved", 16), PE, rtol=1e-5, atol=1e-5)


def test_the_two_layouts_are_permutations_of_each_other() -> None:
    order = [*range(0, 16, 2), *range(1, 16, 2)]
    assert torch.equal(encoding("halves", 16), encoding("interleaved", 16)[:, order])


def test_the_frequency_printed_in_lecture_004_overflows() -> None:
    def printed(i: int, d: int) -> float:
        return 10000.0 ** (d / math.floor(2 * i)) / (2 * math.pi)

    with pytest.raises(ZeroDivisionError):
        printed(0, 512)
    with pytest.raises(OverflowError):
        printed(1, 512)
    assert 2 * math.pi * printed(511, 512) > 100  # the slowest wave has 16 periods between two tokens


def test_the_angle_between_two_positions_is_at_most_one_radian() -> None:
    angle = Sinusoid("halves").add(torch.zeros(2, 64), torch.arange(2))[1, :32].asin()
    assert angle.max() <= 1 + 1e-6
    assert angle.min() > 0


def test_an_odd_width_ends_with_a_sine_feature() -> None:
    t = torch.arange(50)
    torch.testing.assert_close(encoding("interleaved", 7)[:, 6], (t * 10000 ** (-6 / 8)).sin(), rtol=1e-5, atol=1e-5)


def test_positions_in_a_row_may_restart_at_zero() -> None:
    pos = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]])
    PE = Sinusoid().add(torch.zeros(2, 5, 8), pos)
    assert torch.equal(PE[0, 3:], PE[1, :2])


def test_the_base_class_adds_rotates_and_biases_nothing() -> None:
    x = torch.randn(2, 3, 4)
    none = Positions()
    assert none.add(x, POS[:3]) is x
    assert none.rotation(POS[:3])(x) is x
    assert none.bias(POS, POS) is None


def test_a_learned_position_beyond_the_context_raises_an_error() -> None:
    learned = Learned(4, 8)
    assert torch.equal(learned.add(torch.zeros(3, 8), torch.tensor([3, 0, 3]))[0], learned.table.weight[3])
    with pytest.raises(IndexError):
        learned.add(torch.zeros(1, 8), torch.tensor([4]))


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_rotary_scores_depend_on_distance_only(layout: str) -> None:
    rotary, q, k = Rotary(8, layout=layout), torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)

    def score(i: int, j: int) -> float:
        return (
            rotary.rotation(torch.tensor([i]))(q[None, None, None])
            .flatten()
            .dot(rotary.rotation(torch.tensor([j]))(k[None, None, None]).flatten())
        )

    torch.testing.assert_close(score(9, 4), score(105, 100), rtol=1e-5, atol=1e-6)
    assert abs(score(9, 4) - score(9, 5)) > 1e-3


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_rotary_preserves_norms(layout: str) -> None:
    x = torch.randn(2, 3, 50, 8, dtype=torch.float64)
    torch.testing.assert_close(Rotary(8, layout=layout).rotation(POS)(x).norm(dim=-1), x.norm(dim=-1))


def test_rotary_uses_the_positions_of_each_batch_row() -> None:
    x, pos = torch.randn(2, 3, 4, 8), torch.tensor([[0, 1, 2, 3], [5, 6, 0, 1]])
    rotary = Rotary(8)
    batch = rotary.rotation(pos)(x)
    for b in range(2):
        torch.testing.assert_close(batch[b : b + 1], rotary.rotation(pos[b])(x[b : b + 1]))


def test_rotary_requires_an_even_width() -> None:
    with pytest.raises(ValueError, match="D=7 is odd; use an even width per head"):
        Rotary(7)


def test_linear_scaling_divides_positions_by_the_factor() -> None:
    x = torch.randn(1, 1, 50, 8)
    torch.testing.assert_close(Rotary(8, scaling=linear_scaling(2)).rotation(2 * POS)(x), Rotary(8).rotation(POS)(x))


def test_ntk_scaling_keeps_the_highest_frequency_and_divides_the_lowest() -> None:
    f = 10000 ** -(torch.arange(4) / 4)
    scaled = ntk_scaling(8.0)(f)
    assert scaled[0] == f[0]
    torch.testing.assert_close(scaled[-1], f[-1] / 8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_positions_of_a_half_precision_model_are_computed_in_float32(dtype: torch.dtype) -> None:
    x, pos = torch.randn(1, 1, 1, 8).to(dtype), torch.tensor([1001])  # bf16 cannot represent 1001
    exact = Rotary(8).rotation(pos)(x.double())
    cast = Rotary(8).to(dtype).rotation(pos)(x)
    assert cast.dtype is dtype
    assert (cast.double() - exact).abs().max() < 0.02
    assert torch.equal(Alibi(12).to(dtype).bias(pos, POS), Alibi(12).bias(pos, POS))


def test_alibi_gives_near_tokens_more_weight() -> None:
    q, v, bias = torch.zeros(1, 2, 5, 4), torch.eye(5).expand(1, 2, 5, 5), Alibi(2).bias(POS[:5], POS[:5])
    A = attend(q, q, v, ScaledDot(4), CAUSAL, bias=bias)
    assert (A[0, :, 4].diff() > 0).all()


def test_alibi_uses_the_positions_of_each_batch_row() -> None:
    pos = torch.tensor([[0, 1, 2], [0, 0, 1]])
    bias = Alibi(4).bias(pos, pos)
    for b in range(2):
        torch.testing.assert_close(bias[b], Alibi(4).bias(pos[b], pos[b]))


@pytest.mark.oracle
@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 25])
def test_alibi_has_the_slopes_of_bloom(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    expected = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    ours = -Alibi(heads).bias(torch.tensor([1]), torch.tensor([0]))[:, 0, 0]
    torch.testing.assert_close(ours, expected)


@pytest.mark.oracle
def test_alibi_gives_the_causal_weights_of_bloom() -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    q, k = torch.randn(1, 6, 7, 4), torch.randn(1, 6, 7, 4)
    expected = q @ k.mT / 2 + build_alibi_tensor(torch.ones(1, 7), 6, torch.float32).view(1, 6, 1, 7)
    expected = expected.masked_fill(torch.ones(7, 7).triu(1).bool(), -math.inf).softmax(-1)
    v = torch.eye(7).expand(1, 6, 7, 7)
    ours = attend(q, k, v, ScaledDot(4), CAUSAL, bias=Alibi(6).bias(POS[:7], POS[:7]))
    torch.testing.assert_close(ours, expected)


def config(**rope: object) -> object:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": 5e5, **rope},
    )


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("rope", "scaling"),
    [
        ({"rope_type": "default"}, lambda f: f),
        ({"rope_type": "linear", "factor": 4.0}, linear_scaling(4.0)),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
            llama3_scaling(8.0),
        ),
    ],
    ids=["plain", "linear", "llama3"],
)
def test_rotary_in_halves_is_the_rotary_of_llama(rope: dict[str, object], scaling) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    q, k, pos = torch.randn(1, 2, 9, 32), torch.randn(1, 2, 9, 32), torch.arange(0, 9000, 1000)
    cos, sin = LlamaRotaryEmbedding(config(**rope))(q, pos[None])
    expected = apply_rotary_pos_emb(q, k, cos, sin)
    rotary = Rotary(32, base=5e5, scaling=scaling)
    for ours, reference in zip((rotary.rotation(pos)(q), rotary.rotation(pos)(k)), expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-5)


@pytest.mark.oracle
def test_rotary_in_halves_is_the_rotary_of_gpt_neox() -> None:
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding, apply_rotary_pos_emb

    q, pos = torch.randn(1, 2, 9, 32), torch.arange(9)
    parameters = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    neox_config = GPTNeoXConfig(hidden_size=64, num_attention_heads=2, rope_parameters=parameters)
    cos, sin = GPTNeoXRotaryEmbedding(neox_config)(q, pos[None])
    torch.testing.assert_close(
        Rotary(32).rotation(pos)(q), apply_rotary_pos_emb(q, q, cos, sin)[0], rtol=1e-5, atol=1e-5
    )


@pytest.mark.oracle
def test_interleaved_rotary_is_the_rotary_of_gpt_j() -> None:
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions

    q, pos = torch.randn(1, 2, 9, 32), torch.arange(9)
    sin, cos = create_sinusoidal_positions(9, 32)[None].chunk(2, -1)
    expected = apply_rotary_pos_emb(q.transpose(1, 2), sin, cos).transpose(1, 2)  # B L H D
    torch.testing.assert_close(Rotary(32, layout="interleaved").rotation(pos)(q), expected, rtol=1e-5, atol=1e-5)
