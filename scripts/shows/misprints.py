"""Misprints of the lectures and their effect."""

import math

import torch
from torch import nn

from harken.core import (
    CAUSAL,
    FULL,
    Attention,
    Block,
    BlockConfig,
    Dot,
    LayerContext,
    Memory,
    ScaledDot,
    Sinusoid,
    Stack,
    attend,
)

from . import EXACT, Measurement, gap, show
from .blocks import multiplications


@show()
def literal_mask() -> Measurement:
    """Scores times {1, -inf}: a negative score times -inf is +inf, and its softmax is NaN."""
    scores = torch.randn(200, 5, 5)
    mask = torch.ones(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
    nan_fraction = float((scores * mask).softmax(-1).isnan().any(-1)[:, :4].float().mean())
    q = torch.randn(200, 1, 5, 8)
    ours = attend(q, q, q, ScaledDot(8), CAUSAL)
    return Measurement(
        100 * nan_fraction,
        "% of the rows with future words contain NaN as printed; none with `attend`",
        ours.isfinite().all() and nan_fraction > 0.5,
    )


@show()
def printed_frequency() -> Measurement:
    """f_i = 10000^(d / floor(2i)) / 2 pi: divides by 0 at i = 0 and overflows at i = 1."""
    n_above = 1  # i = 0: division by 0
    for i in range(1, 512):
        n_above += math.log(10_000) * 512 / math.floor(2 * i) > 0  # ln(2 pi f_i), because 10000^256 overflows
    n_above_correct = sum(10_000 ** (-2 * (i // 2) / 512) > 1 for i in range(512))
    words = f"of 512 frequencies exceed 1 radian per word as printed; {n_above_correct} in the correct formula"
    return Measurement(n_above, words, n_above == 512)


@show()
def masked_cross() -> Measurement:
    """With a causal mask on cross-attention, the first target word attends to one source word only."""
    stack, x, source = (
        Stack(1, BlockConfig(16, 2, cross=True), Sinusoid()),
        torch.randn(1, 6, 16),
        torch.randn(1, 6, 16),
    )
    n_visible = []
    for structure in (CAUSAL, FULL):
        source_input = source.clone().requires_grad_()
        stack(x, structure=CAUSAL, source=stack.source_memory(source_input), source_structure=structure)[
            0, 0
        ].square().sum().backward()
        n_visible.append(int((source_input.grad[0].abs().sum(-1) > 0).sum()))
    words = f"of 6 source words is visible to the first target word as printed; {n_visible[1]} in harken"
    return Measurement(n_visible[0], words, n_visible == [1, 6])


@show()
def mask_after_training() -> Measurement:
    """A prompt of 8 words needs the mask; one query at the end of its keys does not."""
    stack, x = Stack(2, BlockConfig(16, 2), Sinusoid()), torch.randn(1, 8, 16)
    with torch.no_grad():
        prompt = gap(stack(x)[:, :-1], stack(x, structure=CAUSAL)[:, :-1])
        q, k, v = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 8, 8), torch.randn(1, 1, 8, 8)
        one = gap(attend(q, k, v, ScaledDot(8)), attend(q, k, v, ScaledDot(8), CAUSAL))
        store = Memory(k.new_zeros(1, 1, 16, 8), k.new_zeros(1, 1, 16, 8))
        keys, values = store.write(k, v, torch.arange(8))
        slots = gap(attend(q, keys, values, ScaledDot(8)), attend(q, k, v, ScaledDot(8)))
    words = f"change of the output for a prompt without mask; {slots:.2g} for one query with empty cache slots, "
    words += f"{one:.0g} without empty slots"
    return Measurement(prompt, words, prompt > 0.1 and slots > 0.01 and one < EXACT)


@show()
def parameters_and_length() -> Measurement:
    """The weights do not depend on L: attention has 4 d^2, a recurrence 2 d^2. Only the operations depend on L."""
    attention = sum(p.numel() for p in Attention(1000, 1, bias=False).parameters())
    recurrence = sum(p.numel() for p in nn.RNN(1000, 1000, bias=False).parameters())
    return Measurement(
        attention / recurrence,
        f"times the weights of a recurrence ({attention:,} and {recurrence:,}), for any L",
        attention == 2 * recurrence,
    )


@show()
def work_of_a_block() -> Measurement:
    """L^2 d counts only the scores; the projections and the MLP of a block add 12 L d^2 (L = 100, d = 1000)."""
    L, d = 100, 1000
    block, x = Block(BlockConfig(d, 1)), torch.zeros(1, L, d)
    with torch.no_grad():
        n_products = multiplications(block, x, LayerContext())
    words = f"multiplications of a complete block; printed 1e+07, and 1e+08 for a recurrence (L = {L}, d = {d})"
    return Measurement(float(n_products), words, abs(n_products - 12 * L * d**2) <= 2 * L**2 * d)


@show()
def widths() -> Measurement:
    """Q and K are L x d_k, V is L x d_v; the two widths are independent."""
    layer, x = Attention(32, 4, d_k=5, d_v=7), torch.randn(1, 6, 32)
    k, v = (W(x).unflatten(-1, (4, -1)) for W in (layer.W_k, layer.W_v))
    fits = layer(x).shape == x.shape and k.shape[-1] == 5
    return Measurement(
        v.shape[-1], f"columns of V and {k.shape[-1]} of Q and K in one layer", fits and v.shape[-1] == 7
    )


@show()
def one_index() -> Measurement:
    """q_i . k_i compares each word only with itself: one score with weight 1, so the output is the word's own value."""
    q, k, v = torch.randn(3, 1, 1, 6, 8)
    literal = ((q * k).sum(-1, keepdim=True)).softmax(-1) * v
    moved = gap(literal, attend(q, k, v, Dot()))
    return Measurement(
        gap(literal, v),
        f"difference from the values without attention, as printed; {moved:.2g} from attention with q_i . k_j",
        moved > 0.1 and gap(literal, v) == 0,
    )


@show()
def sparse_softmax() -> Measurement:
    """Softmax gives every allowed word a positive weight; few words have most of the weight."""
    q, k = 2 * torch.randn(1, 1, 200, 16), 2 * torch.randn(1, 1, 200, 16)
    A = attend(q, k, torch.eye(200)[None, None], ScaledDot(16))[0, 0]
    n_words = int(((A.sort(-1, descending=True).values.cumsum(-1) < 0.9).sum(-1) + 1).float().median())
    fraction = float((A > 0).float().mean())
    words = f"% of the weights are above 0; {n_words} of 200 words have 90 % of the weight of a row"
    return Measurement(100 * fraction, words, fraction == 1 and n_words < 60)


@show()
def dropped() -> Measurement:
    """The argument of dropout is the fraction that is dropped: with 0.95, one value in twenty remains."""
    remaining = float((nn.Dropout(0.95)(torch.ones(100_000)) > 0).float().mean())
    return Measurement(100 * remaining, "% of the values remain with dropout 0.95", abs(remaining - 0.05) < 0.005)
