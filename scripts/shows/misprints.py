"""What is not to be taken as printed, and what happens if it is."""

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

from . import EXACT, Seen, gap, show
from .blocks import multiplications


@show()
def literal_mask() -> Seen:
    """Scores times {1, -inf}: a negative score times -inf is +inf, and softmax of it is no number."""
    scores = torch.randn(200, 5, 5)
    mask = torch.ones(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
    broken = float((scores * mask).softmax(-1).isnan().any(-1)[:, :4].float().mean())
    q = torch.randn(200, 1, 5, 8)
    ours = attend(q, q, q, ScaledDot(8), CAUSAL)
    return Seen(
        100 * broken,
        "% of the rows with a future are no numbers as printed; none by `attend`",
        ours.isfinite().all() and broken > 0.5,
    )


@show()
def printed_frequency() -> Seen:
    """f_i = 10000^(d / floor(2i)) / 2 pi: divides by 0 at i = 0, overflows at i = 1; what is meant falls from 1."""
    fast = 1  # i = 0: division by 0
    for i in range(1, 512):
        fast += math.log(10_000) * 512 / math.floor(2 * i) > 0  # ln(2 pi f_i), as 10000^256 is no number here
    meant = sum(10_000 ** (-2 * (i // 2) / 512) > 1 for i in range(512))
    return Seen(fast, f"of 512 waves turn by more than 1 from word to word as printed; {meant} as meant", fast == 512)


@show()
def masked_cross() -> Seen:
    """With the causal mask on cross-attention the first target word would see one word of the source."""
    stack, x, source = (
        Stack(1, BlockConfig(16, 2, cross=True), Sinusoid()),
        torch.randn(1, 6, 16),
        torch.randn(1, 6, 16),
    )
    seen = []
    for structure in (CAUSAL, FULL):
        source_input = source.clone().requires_grad_()
        stack(x, structure=CAUSAL, source=stack.source_memory(source_input), source_structure=structure)[
            0, 0
        ].square().sum().backward()
        seen.append(int((source_input.grad[0].abs().sum(-1) > 0).sum()))
    return Seen(
        seen[0], f"of 6 source words seen by the first target word as printed; {seen[1]} by harken", seen == [1, 6]
    )


@show()
def mask_after_training() -> Seen:
    """Without the mask a prompt of 8 words is read otherwise than it was learned; one query at the end needs none."""
    stack, x = Stack(2, BlockConfig(16, 2), Sinusoid()), torch.randn(1, 8, 16)
    with torch.no_grad():
        prompt = gap(stack(x)[:, :-1], stack(x, structure=CAUSAL)[:, :-1])
        q, k, v = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 8, 8), torch.randn(1, 1, 8, 8)
        one = gap(attend(q, k, v, ScaledDot(8)), attend(q, k, v, ScaledDot(8), CAUSAL))
        store = Memory(k.new_zeros(1, 1, 16, 8), k.new_zeros(1, 1, 16, 8))
        keys, values = store.write(k, v, torch.arange(8))
        slots = gap(attend(q, keys, values, ScaledDot(8)), attend(q, k, v, ScaledDot(8)))
    words = f"change of a prompt read without mask; {slots:.2g} of one query beside unwritten slots; {one:.0g} without"
    return Seen(prompt, words, prompt > 0.1 and slots > 0.01 and one < EXACT)


@show()
def parameters_and_length() -> Seen:
    """Weights do not depend on L: one attention has 4 d^2, a recurrence 2 d^2. What falls below at L < d is work."""
    attention = sum(p.numel() for p in Attention(1000, 1, bias=False).parameters())
    recurrence = sum(p.numel() for p in nn.RNN(1000, 1000, bias=False).parameters())
    return Seen(
        attention / recurrence,
        f"times the weights of a recurrence ({attention:,} and {recurrence:,}), for any L",
        attention == 2 * recurrence,
    )


@show()
def work_of_a_block() -> Seen:
    """L^2 d counts the scores only: with its projections and MLP, a block at L = 100, d = 1000 does 12 L d^2 more."""
    L, d = 100, 1000
    block, x = Block(BlockConfig(d, 1)), torch.zeros(1, L, d)
    with torch.no_grad():
        n_products = multiplications(block, x, LayerContext())
    words = f"multiplications of a whole block; printed 1e+07, and 1e+08 for a recurrence (L = {L}, d = {d})"
    return Seen(float(n_products), words, abs(n_products - 12 * L * d**2) <= 2 * L**2 * d)


@show()
def widths() -> Seen:
    """Q and K are L x d_k, V is L x d_v: they need not be alike, and no W has d_v columns but W_v."""
    layer, x = Attention(32, 4, d_k=5, d_v=7), torch.randn(1, 6, 32)
    k, v = (W(x).unflatten(-1, (4, -1)) for W in (layer.W_k, layer.W_v))
    fits = layer(x).shape == x.shape and k.shape[-1] == 5
    return Seen(
        v.shape[-1], f"columns of V beside {k.shape[-1]} of Q and K, in one layer that works", fits and v.shape[-1] == 7
    )


@show()
def one_index() -> Seen:
    """q_i . k_i compares a word with itself only: one score, weight 1, and every word answers with its own value."""
    q, k, v = torch.randn(3, 1, 1, 6, 8)
    literal = ((q * k).sum(-1, keepdim=True)).softmax(-1) * v
    moved = gap(literal, attend(q, k, v, Dot()))
    return Seen(
        gap(literal, v),
        f"difference from no attention at all, as printed; {moved:.2g} from q_i . k_j",
        moved > 0.1 and gap(literal, v) == 0,
    )


@show()
def sparse_softmax() -> Seen:
    """Softmax gives every allowed word a weight above 0: a context is what is large, not what is not zero."""
    q, k = 2 * torch.randn(1, 1, 200, 16), 2 * torch.randn(1, 1, 200, 16)
    A = attend(q, k, torch.eye(200)[None, None], ScaledDot(16))[0, 0]
    held = int(((A.sort(-1, descending=True).values.cumsum(-1) < 0.9).sum(-1) + 1).float().median())
    share = float((A > 0).float().mean())
    return Seen(
        100 * share, f"% of the weights are above 0; {held} of 200 words hold 90 % of a row", share == 1 and held < 60
    )


@show()
def dropped() -> Seen:
    """Dropout takes the share that is dropped: 0.95 leaves one number in twenty."""
    left = float((nn.Dropout(0.95)(torch.ones(100_000)) > 0).float().mean())
    return Seen(100 * left, "% of the numbers are left by dropout 0.95", abs(left - 0.05) < 0.005)
