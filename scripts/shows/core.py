"""Attention: the equation, similarities, heads, masks."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from harken.core import (
    CAUSAL,
    FULL,
    Additive,
    Attention,
    Bilinear,
    BlockConfig,
    Concat,
    Dot,
    Gaussian,
    Kernel,
    Latent,
    Mahalanobis,
    ScaledDot,
    Similarity,
    Sinusoid,
    Stack,
    Structure,
    attend,
    bigbird,
    polynomial,
    watching,
    window,
)
from harken.models.bert import BERTSettings

from . import EXACT, Measurement, gap, show


def attention_weights(q: Tensor, k: Tensor, similarity: Similarity, structure: Structure = FULL) -> Tensor:
    """Return the attention weights A: with the identity matrix as values, the outputs are the weights."""
    return attend(q, k, torch.eye(k.shape[-2]).expand(*k.shape[:2], -1, -1), similarity, structure)


# --- the equation ---------------------------------------------------------------------------------------------------


@show()
def memory() -> Measurement:
    """b_i = sim(q, k_i) normalized, o = sum b_i v_i: a loop over the stored pairs equals `attend`."""
    q, k, v = torch.randn(3, 6, 8)
    looped = torch.zeros(6, 8)
    for i in range(6):
        b = torch.stack([(q[i] @ k_j / math.sqrt(8)).exp() for k_j in k])
        looped[i] = sum((b_j * v_j for b_j, v_j in zip(b / b.sum(), v, strict=True)), torch.zeros(8))
    x = gap(attend(q[None, None], k[None, None], v[None, None], ScaledDot(8))[0, 0], looped)
    return Measurement(x, "largest difference between a loop over the pairs and `attend`", x < EXACT)


@show()
def dictionary() -> Measurement:
    """A scaled copy of a key, used as query, returns the value of the key; the gradient reaches the stored value."""
    keys, values = torch.eye(8), torch.randn(8, 5, requires_grad=True)
    value = attend(30 * keys[None, None, 3:4], keys[None, None], values[None, None], Dot())[0, 0, 0]
    value.sum().backward()
    x, slope = gap(value, values[3]), float(values.grad[3].mean())
    return Measurement(
        x, f"difference from the stored value; gradient of the entry: {slope:.2f}", x < EXACT and slope > 0.99
    )


@show()
def queries() -> Measurement:
    """All queries in one call equal single queries."""
    q, k, v = torch.randn(3, 1, 2, 50, 8)
    single = torch.cat([attend(q[:, :, i : i + 1], k, v, ScaledDot(8)) for i in range(50)], 2)
    x = gap(attend(q, k, v, ScaledDot(8)), single)
    return Measurement(x, "largest difference between 50 queries in one call and 50 single queries", x < EXACT)


@show()
def qkv() -> Measurement:
    """q = W_q x, k = W_k x, v = W_v x of the same words, a_ij = q_i . k_j, o_i = sum_j softmax(a_ij) v_j."""
    x, layer = torch.randn(1, 7, 16), Attention(16, 1, similarity=Dot(), bias=False)
    q, k, v = (x[0] @ W.weight.T for W in (layer.W_q, layer.W_k, layer.W_v))
    by_hand = (q @ k.T).softmax(-1) @ v
    diff = gap(layer(x)[0], by_hand @ layer.W_o.weight.T)
    return Measurement(diff, "largest difference between the formula and `Attention(similarity=Dot())`", diff < EXACT)


@show()
def rows() -> Measurement:
    """Every row of the attention matrix is a probability distribution, under any mask and any similarity."""
    q, k = torch.randn(2, 1, 2, 40, 8)
    A = torch.stack(
        [attention_weights(q, k, s(), t) for s in (Dot, Gaussian) for t in (FULL, CAUSAL, CAUSAL & window(3))]
    )
    x = gap(A.sum(-1), torch.ones(()))
    return Measurement(
        x, "largest deviation of a row sum from 1; no weight is negative", x < EXACT and bool((A >= 0).all())
    )


@show()
def likeness() -> Measurement:
    """Of an equal, an orthogonal and an opposite key, the equal key gets the largest weight."""
    q = torch.randn(8)
    orthogonal = torch.randn(8)
    orthogonal -= (orthogonal @ q) / (q @ q) * q
    k = torch.stack([q, orthogonal * q.norm() / orthogonal.norm(), -q])
    A = attention_weights(q[None, None, None], k[None, None], ScaledDot(8))[0, 0, 0]
    words = f"weight of an equal key; {A[1]:.2g} of an orthogonal key, {A[2]:.2g} of the opposite key"
    return Measurement(float(A[0]), words, A[0] > A[1] > A[2])


# --- similarities -----------------------------------------------------------------------------------------------------


@show()
def similarities() -> Measurement:
    """Any suitable kernel: nine similarities, each normalized to a distribution."""
    q, k = torch.randn(2, 1, 2, 12, 8)
    functions = [Dot(), ScaledDot(8), Bilinear(2, 8), Mahalanobis(2, 8), Gaussian(), Kernel(polynomial())]
    functions += [Latent(2, 8), Additive(2, 8), Concat(2, 8)]
    A = [attention_weights(q, k, s).detach() for s in functions]
    off = max(gap(a.sum(-1), torch.ones(())) for a in A)
    return Measurement(len(A), f"similarities; every row sums to 1 within {off:.0e}", len(A) == 9 and off < EXACT)


@show()
def mahalanobis() -> Measurement:
    """-||W q - W k||^2 is a dot product with one additional feature, so no pairwise differences are stored."""
    q, k = torch.randn(2, 1, 1, 12, 8)
    s = Mahalanobis(1, 8)
    nn.init.normal_(s.W)
    distance = torch.cdist(q[0, 0] @ s.W[0].T, k[0, 0] @ s.W[0].T) ** 2
    x = gap(attention_weights(q, k, s)[0, 0], (-distance).softmax(-1))
    return Measurement(x, "largest difference from the softmax of the negative squared pairwise distances", x < 1e-4)


@show()
def latent() -> Measurement:
    """Similar if both have the same latent class: the weights are sum_z p(z|q) p(z|k), normalized."""
    q, k = torch.randn(2, 1, 1, 12, 8)
    s = Latent(1, 8, classes=3)
    p, r = (q[0, 0] @ s.W_q[0]).softmax(-1), (k[0, 0] @ s.W_k[0]).softmax(-1)
    agree = p @ r.T
    x = gap(attention_weights(q, k, s)[0, 0], agree / agree.sum(-1, keepdim=True))
    return Measurement(x, "largest difference from the normalized probability of the same latent class", x < EXACT)


@show()
def thinking_machines() -> Measurement:
    """Two words, "Thinking" and "Machines", with d_k = 3: queries, keys, values, scores / sqrt(3), softmax, sum."""
    X, W_q, W_k, W_v = torch.randn(2, 4), torch.randn(4, 3), torch.randn(4, 3), torch.randn(4, 3)
    Q, K, V, A, z = X @ W_q, X @ W_k, X @ W_v, [], []
    for q in Q:
        scores = [float(q @ k) / math.sqrt(3) for k in K]
        A.append([math.exp(score) / sum(map(math.exp, scores)) for score in scores])
        z.append(A[-1][0] * V[0] + A[-1][1] * V[1])
    x = gap(torch.stack(z), attend(Q[None, None], K[None, None], V[None, None], ScaledDot(3))[0, 0])
    words = f"largest difference from `attend`; weights of Thinking {A[0][0]:.2f} and {A[0][1]:.2f}, "
    words += f"of Machines {A[1][0]:.2f} and {A[1][1]:.2f}"
    return Measurement(x, words, x < EXACT)


@show()
def scaling() -> Measurement:
    """Divided by sqrt(d_k), a score of random vectors has variance 1 for any d_k (64 in the paper)."""
    q, k = torch.randn(2, 1, 1, 1000, 64)
    plain, scaled = (float(s.all_pairs(q, k).var()) for s in (Dot(), ScaledDot(64)))
    return Measurement(
        scaled, f"variance of a scaled score at d_k = 64; {plain:.1f} without scaling", abs(scaled - 1) < 0.05
    )


@show()
def saturation() -> Measurement:
    """Unscaled scores of wide vectors saturate the softmax, and its gradient vanishes."""
    q, k = torch.randn(2, 1, 1, 64, 512)
    scaled, plain = (attention_weights(q, k, s) for s in (ScaledDot(512), Dot()))
    x = float((scaled * (1 - scaled)).mean() / (plain * (1 - plain)).mean())  # derivative of a weight by its own score
    return Measurement(x, "ratio of the softmax gradients with and without scaling at d_k = 512", x > 3)


# --- heads and masks --------------------------------------------------------------------------------------------------


@show()
def heads() -> Measurement:
    """MHA = (head_1 || ... || head_H) W_o, each head with its own W_q, W_k, W_v of width d/H and sqrt(d/H)."""
    x, layer = torch.randn(1, 6, 12), Attention(12, 3, bias=False)
    outputs = []
    for h in range(3):
        q, k, v = (x[0] @ W.weight[4 * h : 4 * h + 4].T for W in (layer.W_q, layer.W_k, layer.W_v))
        outputs.append((q @ k.T / math.sqrt(12 / 3)).softmax(-1) @ v)
    diff = gap(layer(x)[0], torch.cat(outputs, -1) @ layer.W_o.weight.T)
    return Measurement(
        diff, "largest difference between three separate attentions and one layer with 3 heads", diff < EXACT
    )


@show()
def torch_heads() -> Measurement:
    """The layer equals nn.MultiheadAttention with the same weights."""
    ours, reference = Attention(32, 4), nn.MultiheadAttention(32, 4, batch_first=True)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([ours.W_q.weight, ours.W_k.weight, ours.W_v.weight]))
        reference.in_proj_bias.copy_(torch.cat([ours.W_q.bias, ours.W_k.bias, ours.W_v.bias]))
        reference.out_proj.load_state_dict(ours.W_o.state_dict())
    x = torch.randn(2, 9, 32)
    diff = gap(ours(x), reference(x, x, x, need_weights=False)[0])
    return Measurement(diff, "largest difference from nn.MultiheadAttention", diff < EXACT)


@show()
def cross() -> Measurement:
    """Cross-attention: the queries come from one sequence, keys and values from another."""
    ours, reference = Attention(32, 4, bias=False), nn.MultiheadAttention(32, 4, bias=False, batch_first=True)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([ours.W_q.weight, ours.W_k.weight, ours.W_v.weight]))
        reference.out_proj.weight.copy_(ours.W_o.weight)
    x, source = torch.randn(2, 5, 32), torch.randn(2, 8, 32)
    diff = gap(ours(x, source), reference(x, source, source, need_weights=False)[0])
    return Measurement(diff, "largest difference from nn.MultiheadAttention with 5 queries and 8 keys", diff < EXACT)


@show()
def four_steps() -> Measurement:
    """Scores, mask, row-wise softmax, weighted sum: the output of a word is a weighted mean of the values up to it."""
    q, k, v = torch.randn(3, 1, 1, 5, 8)
    scores = q @ k.mT / math.sqrt(8)
    masked = scores.masked_fill(~CAUSAL.mask(1, 5, 5), -torch.inf)
    x = gap(attend(q, k, v, ScaledDot(8), CAUSAL), masked.softmax(-1) @ v)
    return Measurement(x, "largest difference between the four steps and `attend(..., CAUSAL)`", x < EXACT)


@show()
def future() -> Measurement:
    """With the mask, a different last word does not change one bit of the earlier outputs."""
    stack, x = Stack(3, BlockConfig(16, 2), Sinusoid()), torch.randn(1, 9, 16)
    changed = torch.cat([x[:, :-1], torch.randn(1, 1, 16)], 1)
    before, after = stack(x, structure=CAUSAL), stack(changed, structure=CAUSAL)
    moved = gap(before[:, -1], after[:, -1])
    change = gap(before[:, :-1], after[:, :-1])
    words = f"change of the first eight outputs if the last word changes; {moved:.2f} change of the last output"
    return Measurement(change, words, change == 0 and moved > 0.1)


@show()
def reading_weights() -> Measurement:
    """Reading the attention weights does not change one bit of the output; the rows are distributions."""
    stack, x = Stack(2, BlockConfig(16, 2), Sinusoid()), torch.randn(1, 9, 16)
    with torch.no_grad():
        plain = stack(x, structure=CAUSAL)
        with watching(stack) as views:
            watched = stack(x, structure=CAUSAL)
    sums = views["blocks.1.attention"].full().sum(-1)
    change = gap(plain, watched)
    return Measurement(
        change,
        f"change of the output if the weights of {len(views)} layers are read",
        change == 0 and gap(sums, torch.ones(())) < EXACT,
    )


@show()
def bigbird_pairs() -> Measurement:
    """The number of pairs of random, window and global attention grows with L; the output equals the dense mask."""
    fractions = {L: len(bigbird(L).pairs[0]) / L**2 for L in (1024, 4096)}
    s, (q, k, v) = bigbird(64), torch.randn(3, 1, 1, 64, 8)
    diff = gap(attend(q, k, v, ScaledDot(8), s), attend(q, k, v, ScaledDot(8), replace(s, pairs=None)))
    growth = fractions[4096] * 16 / fractions[1024]
    words = f"times the pairs for 4 times the length; {100 * fractions[4096]:.2g} % of all pairs at L = 4,096"
    return Measurement(growth, words, growth < 4.2 and diff < EXACT)


@show()
def bigbird_blocks() -> Measurement:
    """A BERT with model.structure=bigbird: the number of scores grows with L; the output equals the dense mask."""
    structure, (q, k, v) = (
        BERTSettings(structure="bigbird", context=8192).block_structure(),
        torch.randn(3, 1, 1, 1000, 8),
    )
    tiles = {L: structure.layout(1, L, L, q.device).block_passes for L in (4096, 8192)}
    counts = {L: sum(layout.dense().allowed.numel() for *_, layout in t.passes) for L, t in tiles.items()}
    diff = gap(
        attend(q, k, v, ScaledDot(8), structure), attend(q, k, v, ScaledDot(8), replace(structure, block_plan=None))
    )
    growth = counts[8192] / counts[4096]
    words = f"times the scores for twice the length; {100 * counts[8192] / 8192**2:.2g} % of all scores at L = 8,192"
    return Measurement(growth, words, growth < 2.1 and diff < EXACT)
