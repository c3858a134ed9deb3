"""Positions: sinusoids, learned tables, rotations, and how they encode distance."""

import math

import torch
from torch import Tensor

from harken.core import Alibi, Learned, Rotary, Sinusoid

from . import EXACT, Measurement, gap, show

D = 64


def sinusoids(count: int, layout: str = "interleaved") -> Tensor:
    """Return the position vectors, count D."""
    return Sinusoid(layout).add(torch.zeros(count, D), torch.arange(count))  # type: ignore[arg-type]


@show()
def halves() -> Measurement:
    """sin(p / 10000^(i/d_m)) for i < d_m, then the cosines, d_m being half the width."""
    d_m = D // 2
    angle = [[p / 10_000 ** (i / d_m) for i in range(d_m)] for p in range(100)]
    expected = torch.tensor([[math.sin(a) for a in row] + [math.cos(a) for a in row] for row in angle])
    x = gap(sinusoids(100, "halves"), expected)
    return Measurement(x, 'largest difference from the formula over 100 positions, `Sinusoid("halves")`', x < 1e-4)


@show()
def interleaved() -> Measurement:
    """sin at even, cos at odd features, f_i = 10000^(-2 floor(i/2) / d)."""
    angle = [[p * 10_000 ** (-2 * (i // 2) / D) for i in range(D)] for p in range(100)]
    expected = torch.tensor([[(math.cos if i % 2 else math.sin)(a) for i, a in enumerate(row)] for row in angle])
    x = gap(sinusoids(100), expected)
    return Measurement(x, "largest difference from the formula over 100 positions, `Sinusoid()`", x < 1e-4)


@show()
def layouts() -> Measurement:
    """The two layouts contain the same sinusoids in a different order."""
    order = torch.cat([torch.arange(0, D, 2), torch.arange(1, D, 2)])
    x = gap(sinusoids(100, "halves"), sinusoids(100)[:, order])
    return Measurement(x, "difference after reordering the features", x == 0)


@show()
def relative() -> Measurement:
    """The encoding is relative: <PE_p, PE_p+n> depends on n, not on p."""
    PE = sinusoids(512).double()
    products = torch.stack([(PE[p : p + 100] @ PE[p]) for p in range(0, 400, 20)])
    x = float((products - products[0]).abs().max() / products.max())
    return Measurement(x, "largest change of <PE_p, PE_p+n> over p, relative to n = 0", x < 1e-4)


@show()
def proximity() -> Measurement:
    """Near words have similar position vectors: the cosine similarity falls with the distance."""
    PE = sinusoids(101)
    near = torch.cosine_similarity(PE[:1], PE[[1, 10, 100]]).tolist()
    return Measurement(
        near[0],
        f"cosine similarity at distance 1; {near[1]:.2f} at 10, {near[2]:.2f} at 100",
        near[0] > near[1] > near[2],
    )


@show()
def learned_ends() -> Measurement:
    """A table of positions requires the maximum length before training; later words have no vector."""
    table, max_length = Learned(64, D), 0
    for length in (64, 65):
        try:
            table.add(torch.zeros(1, length, D), torch.arange(length))
            max_length = length
        except IndexError:
            break
    words = "words is the maximum length with a table of 64 positions; sinusoids have no maximum"
    return Measurement(max_length, words, max_length == 64)


@show()
def any_length() -> Measurement:
    """Sinusoids need no training and no maximum length: 20,000 positions have 20,000 different vectors."""
    PE = sinusoids(20_000)
    weights = sum(p.numel() for p in Sinusoid().parameters())
    different = len(torch.unique(PE, dim=0))
    return Measurement(different, f"different vectors for 20,000 positions; {weights} weights", different == 20_000)


@show()
def other_positions() -> Measurement:
    """Any encoding of the position is possible: a rotation, or a bias that depends on the distance."""
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(i: int, j: int) -> float:
        rotation = Rotary(8).rotation
        return float((rotation(torch.tensor([i]))(q) * rotation(torch.tensor([j]))(k)).sum())

    x = max(abs(score(i + 5, i) - score(5, 0)) for i in range(0, 200, 10))
    bias = Alibi(4).bias(torch.arange(9), torch.arange(9))
    nearer = bool((bias[:, 8, 1:] > bias[:, 8, :-1]).all())
    words = "largest change of a rotary score at equal distance; the ALiBi bias is higher for nearer words"
    return Measurement(x, words, x < EXACT and nearer)


@show()
def position_circles() -> Measurement:
    """Geometrically, the position moves a word on a circle in each pair of features, by the same angle per word."""
    PE = sinusoids(100).unflatten(1, (-1, 2))  # position, pair, sin and cos
    radius = float((PE.norm(dim=-1) - 1).abs().max())
    angles = torch.atan2(PE[..., 0], PE[..., 1]).diff(dim=0) % (2 * torch.pi)
    is_even = gap(angles, angles[:1].expand_as(angles)) < 1e-3
    turns = ", ".join(f"{angle:.2g}" for angle in angles[0, ::8].tolist())
    words = f"largest deviation from radius 1; a word later, every eighth pair has turned by {turns} radians"
    return Measurement(radius, words, radius < EXACT and is_even)
