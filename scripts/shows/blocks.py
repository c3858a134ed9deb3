"""Around the equation: norms, residuals, stacked layers, and their cost."""

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from harken.core import CAUSAL, Block, BlockConfig, Gaussian, LayerContext, Sinusoid, Stack, Structure, attend, window

from . import EXACT, Measurement, gap, show


@show()
def blocks() -> Measurement:
    """LN(q + MHA) then LN(h + MLP) in 2017; q + MHA(LN q) then h + MLP(LN h) in 2019."""
    x, off = torch.randn(1, 6, 16), []
    for norm in ("post", "pre"):
        b = Block(BlockConfig(16, 2, norm=norm))
        for sub in (b.attention_sublayer, b.mlp_sublayer):
            nn.init.normal_(sub.norm.weight)
        LN, LN_ = b.attention_sublayer.norm, b.mlp_sublayer.norm
        h = LN(x + b.attention(x)) if norm == "post" else x + b.attention(LN(x))
        off.append(gap(b(x, LayerContext()), LN_(h + b.mlp(h)) if norm == "post" else h + b.mlp(LN_(h))))
    return Measurement(max(off), "largest difference of both blocks from their formulas", max(off) < EXACT)


@show()
def feed_forward() -> Measurement:
    """The MLP of a block is W_2 relu(W_1 h + b_1) + b_2 for each word alone: other words have no effect on it."""
    h, mlp = torch.randn(1, 6, 16), Block(BlockConfig(16, 2, activation="relu")).mlp
    W_1, W_2 = (part for part in mlp.modules() if isinstance(part, nn.Linear))
    x = gap(mlp(h), (h @ W_1.weight.T + W_1.bias).relu() @ W_2.weight.T + W_2.bias)
    alone = gap(mlp(h)[:, 2], mlp(h[:, 2]))
    return Measurement(x, "largest difference from W_2 relu(W_1 h + b_1) + b_2", max(x, alone) < EXACT)


@show()
def layer_norm() -> Measurement:
    """a (q - mean) / std + b: z-scores with a scale and a shift that are learned (1e-5 is added to std^2)."""
    q, norm = 5 * torch.randn(10, 64) + 3, BlockConfig(64, 4).build_norm()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    z = (q - q.mean(-1, keepdim=True)) / q.std(-1, correction=0, keepdim=True)
    x = gap(norm(q), norm.weight * z + norm.bias)
    return Measurement(x, "largest difference from a (q - mean) / std + b", x < 1e-4)


@show()
def norm_before_softmax() -> Measurement:
    """Large word vectors saturate the softmax; after layer normalization its gradient does not vanish."""
    x, W_q, W_k = 10 * torch.randn(20, 32), torch.randn(32, 32) / 6, torch.randn(32, 32) / 6

    def slope(h: Tensor) -> float:
        A = (h @ W_q @ (h @ W_k).T / math.sqrt(32)).softmax(-1)
        return float((A * (1 - A)).mean())  # derivative of a weight by its own score

    bare, normed = slope(x), slope(nn.functional.layer_norm(x, (32,)))
    words = f"ratio of the softmax gradients with and without LN ({normed:.2g} and {bare:.2g})"
    return Measurement(normed / bare, words, normed > 5 * bare)


@show()
def residual() -> Measurement:
    """dL/dx = dL/dy (Id + df/dx): through 12 blocks the gradient vanishes without residual connections."""
    sizes = []
    for skip in (True, False):
        torch.manual_seed(1)
        stack, x = Stack(12, BlockConfig(32, 2, residual=skip, norm="none")), torch.randn(1, 8, 32, requires_grad=True)
        y = stack(x)
        sizes.append(float(torch.autograd.grad(y, x, torch.ones_like(y))[0].norm()))
    words = f"gradient norm after 12 blocks with residual connections, {sizes[1]:.0e} without"
    return Measurement(sizes[0], words, sizes[0] > 1 and sizes[1] < 1e-3 * sizes[0])


@show()
def sets() -> Measurement:
    """Without positional encoding, shuffled words give the same outputs in shuffled order."""
    stack, x, order = Stack(3, BlockConfig(16, 2)), torch.randn(1, 12, 16), torch.randperm(12)
    diff = gap(stack(x[:, order]), stack(x)[:, order])
    placed = Stack(3, BlockConfig(16, 2), Sinusoid())
    pos = torch.arange(12)
    y, shuffled = (placed(placed.positions.add(h, pos)) for h in (x, x[:, order]))
    moved = gap(shuffled, y[:, order])
    words = f"change of the output if the words are shuffled; {moved:.2g} with positional encoding"
    return Measurement(diff, words, diff < EXACT and moved > 0.1)


@show()
def context_to_word() -> Measurement:
    """The vector of "broke" is equal in two sentences before attention and differs after it."""
    table = dict(zip(["the", "vase", "news", "broke"], torch.randn(4, 32), strict=True))
    stack, vectors = Stack(4, BlockConfig(32, 4), Sinusoid()), []
    with torch.no_grad():
        for block in stack.blocks:
            block.attention.W_v.weight.mul_(4)  # initial weights are small
    for sentence in ("the vase broke", "the news broke"):
        x = torch.stack([table[w] for w in sentence.split()])[None]
        vectors.append(stack(stack.positions.add(x, torch.arange(3)), structure=CAUSAL)[0, -1])
    x = float(torch.cosine_similarity(vectors[0], vectors[1], 0).detach())
    return Measurement(
        x, 'cosine similarity of the two vectors of "broke" after four blocks; 1 before the first block', x < 0.999
    )


def receptive_field_size(structure: Structure, layers: int, L: int = 33) -> int:
    """Return the number of input words that the output of the middle word depends on."""
    stack, x = Stack(layers, BlockConfig(8, 1)).double(), torch.randn(1, L, 8, dtype=torch.float64, requires_grad=True)
    stack(x, structure=structure)[0, L // 2].sum().backward()
    return int((x.grad[0].abs().sum(-1) > 0).sum())


@show()
def receptive_field() -> Measurement:
    """With a context of 3 words in each layer, a word depends on 3, then 5, then 7, then 9 words of the input."""
    n_words = [receptive_field_size(window(1), layers) for layers in (1, 2, 3, 4)]
    words = f"words in the receptive field of 4 layers; of 1, 2, 3 layers: {n_words[:3]}"
    return Measurement(n_words[-1], words, n_words == [3, 5, 7, 9])


@show()
def smoothing() -> Measurement:
    """Each layer averages nearby points: every cluster contracts to a point."""
    centers = torch.tensor([[0.0, 0.0], [5.0, 0.0], [40.0, 0.0], [45.0, 0.0]])
    x = (centers[:, None] + torch.randn(4, 25, 2)).flatten(0, 1)
    spread = []
    for _ in range(4):
        spread.append(float(x.unflatten(0, (4, 25)).std(1).mean()))
        x = attend(x[None, None], x[None, None], x[None, None], Gaussian(1.0))[0, 0]
    fall = all(b < a for a, b in pairwise(spread))
    earlier = ", ".join(f"{s:.2f}" for s in spread[:3])
    words = f"standard deviation within a cluster after 3 layers; after 0, 1, 2 layers: {earlier}"
    stays = gap(x.unflatten(0, (4, 25)).mean(1), centers) < 1
    return Measurement(spread[-1], words, fall and stays and spread[-1] < 0.2 * spread[0])


@cache
def cloud_layers(layers: int = 6) -> list[Tensor]:
    """Three groups of two clusters of points after 0, 1, 2 ... attention layers with a Gaussian similarity."""
    centers = torch.tensor([[2.0, 2.0], [10.0, 3.0], [5.0, 10.0]], dtype=torch.float64)
    apart = torch.tensor([[1.15, 0.34], [-0.24, 1.18], [0.96, -0.72]], dtype=torch.float64)
    noise = torch.randn(3, 2, 12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (torch.stack([centers - apart, centers + apart], 1)[:, :, None] + 0.7 * noise).flatten(0, 2)
    clouds = [x]
    for _ in range(layers):
        clouds.append(x := attend(x[None, None], x[None, None], x[None, None], Gaussian(1.0))[0, 0])
    return clouds


def n_clusters(x: Tensor, distance: float = 0.5) -> int:
    """The number of groups of points that are connected by steps of at most this distance."""
    near = torch.cdist(x, x) <= distance
    for _ in range(len(x).bit_length()):  # each product doubles the number of steps
        near = near.double() @ near.double() > 0
    return len(near.unique(dim=0))


@show()
def hierarchy_of_a_cloud() -> Measurement:
    """Layer by layer, nearby points become clusters, and nearby clusters groups: a multi-scale representation."""
    clouds = cloud_layers()
    counts = [n_clusters(x) for x in clouds]
    words = f"groups after {len(counts) - 1} layers; {counts[2]} clusters after 2 layers, of {len(clouds[0])} points"
    return Measurement(counts[-1], words, (counts[2], counts[-1]) == (6, 3) and counts == sorted(counts, reverse=True))


def multiplications(f: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    with FlopCounterMode(display=False) as counted:
        f(*args, **kwargs)
    return counted.get_total_flops() // 2


@show()
def operations() -> Measurement:
    """Attention L^2 d, recurrence L d^2, convolution L d^2 k: the lecture's example 1, L = 100, d = 1000, k = 3."""
    x, W, kernel = torch.zeros(1, 1, 100, 1000), torch.zeros(1000, 1000), torch.zeros(1000, 1000, 3)
    scores = multiplications(lambda: x @ x.mT)
    recurrence = sum(multiplications(lambda t: x[0, 0, t : t + 1] @ W, t) for t in range(100))
    conv = multiplications(lambda: nn.functional.conv1d(x[0].mT, kernel, padding=1))
    words = f"multiplications for the scores, {recurrence:.0e} for a recurrence, {conv:.0e} for a convolution"
    return Measurement(float(scores), words, [scores, recurrence, conv] == [10**7, 10**8, 3 * 10**8])


@show()
def long_texts() -> Measurement:
    """The cost grows with the square of the length: twice the words need four times the multiplications."""
    cost = [multiplications(lambda x: x @ x.mT, torch.zeros(1, 1, L, 64)) for L in (256, 512)]
    ratio = cost[1] / cost[0]
    return Measurement(ratio, "times the multiplications for twice the length", ratio == 4)
