"""Positions: sinusoids, learned tables, rotations, and how they encode distance."""

import math

import torch
from torch import Tensor

from harken.core import Alibi, Learned, Rotary, Sinusoid

from . import EXACT, Seen, gap, show

D = 64


def waves(count: int, layout: str = "interleaved") -> Tensor:
    """The position vectors alone: count D."""
    return Sinusoid(layout).add(torch.zeros(count, D), torch.arange(count))  # type: ignore[arg-type]


@show()
def halves() -> Seen:
    """sin(p / 10000^(i/d_m)) for i < d_m, then the cosines, d_m being half the width."""
    d_m = D // 2
    angle = [[p / 10_000 ** (i / d_m) for i in range(d_m)] for p in range(100)]
    wanted = torch.tensor([[math.sin(a) for a in row] + [math.cos(a) for a in row] for row in angle])
    x = gap(waves(100, "halves"), wanted)
    return Seen(x, 'largest difference from the formula over 100 words, `Sinusoid("halves")`', x < 1e-4)


@show()
def interleaved() -> Seen:
    """sin at even, cos at odd features, f_i = 10000^(-2 floor(i/2) / d)."""
    angle = [[p * 10_000 ** (-2 * (i // 2) / D) for i in range(D)] for p in range(100)]
    wanted = torch.tensor([[(math.cos if i % 2 else math.sin)(a) for i, a in enumerate(row)] for row in angle])
    x = gap(waves(100), wanted)
    return Seen(x, "largest difference from the formula over 100 words, `Sinusoid()`", x < 1e-4)


@show()
def layouts() -> Seen:
    """The two layouts hold the same waves in another order."""
    order = torch.cat([torch.arange(0, D, 2), torch.arange(1, D, 2)])
    x = gap(waves(100, "halves"), waves(100)[:, order])
    return Seen(x, "difference once the features are sorted alike", x == 0)


@show()
def relative() -> Seen:
    """The waves know distance: <PE_p, PE_p+n> depends on n, not on p."""
    PE = waves(512).double()
    products = torch.stack([(PE[p : p + 100] @ PE[p]) for p in range(0, 400, 20)])
    x = float((products - products[0]).abs().max() / products.max())
    return Seen(x, "largest change of <PE_p, PE_p+n> over p, relative to n = 0", x < 1e-4)


@show()
def proximity() -> Seen:
    """Near words have like position vectors: the cosine falls from 1 with the distance."""
    PE = waves(101)
    near = torch.cosine_similarity(PE[:1], PE[[1, 10, 100]]).tolist()
    return Seen(
        near[0], f"cosine at distance 1, {near[1]:.2f} at 10, {near[2]:.2f} at 100", near[0] > near[1] > near[2]
    )


@show()
def learned_ends() -> Seen:
    """A table of positions needs the longest length before training: the word after it has no vector."""
    table, met = Learned(64, D), 0
    for length in (64, 65):
        try:
            table.add(torch.zeros(1, length, D), torch.arange(length))
            met = length
        except IndexError:
            break
    return Seen(met, "words is the longest text a table of 64 takes; waves take any", met == 64)


@show()
def any_length() -> Seen:
    """Waves need no training and no longest length: 20,000 words have 20,000 different vectors."""
    PE = waves(20_000)
    weights = sum(p.numel() for p in Sinusoid().parameters())
    different = len(torch.unique(PE, dim=0))
    return Seen(different, f"different vectors for 20,000 words; {weights} weights", different == 20_000)


@show()
def other_positions() -> Seen:
    """It could be anything that encodes position: turned by an angle, or a bias that grows with the distance."""
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(i: int, j: int) -> float:
        rotation = Rotary(8).rotation
        return float((rotation(torch.tensor([i]))(q) * rotation(torch.tensor([j]))(k)).sum())

    x = max(abs(score(i + 5, i) - score(5, 0)) for i in range(0, 200, 10))
    bias = Alibi(4).bias(torch.arange(9), torch.arange(9))
    nearer = bool((bias[:, 8, 1:] > bias[:, 8, :-1]).all())
    return Seen(
        x, "largest change of a rotary score at equal distance; ALiBi: the nearer the higher", x < EXACT and nearer
    )
