"""Positional encodings: added to x, rotating q and k, or as a bias of the scores; and scaling of rotary frequencies."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from .similarity import precise

Order = Literal["interleaved", "halves"]  # feature pairs side by side, or first half with second half
Scaling = Callable[[Tensor], Tensor]  # frequencies -> frequencies, for texts longer than in training


class Positions(nn.Module):
    """No positions: the sequence is a set. Base class of all positional encodings.

    >>> x, pos = torch.ones(1, 2, 2), torch.arange(2)
    >>> Sinusoid().add(x, pos)[0, 0], Alibi(heads=1).bias(pos, pos)[0].abs()
    (tensor([1., 2.]), tensor([[0.0000, 0.0039],
            [0.0039, 0.0000]]))
    >>> Rotary(2).rotation(pos)(x)[0, 1]
    tensor([-0.3012,  1.3818])
    """

    def add(self, x: Tensor, pos: Tensor) -> Tensor:
        """x (B L d) with the vectors of its positions."""
        return x

    def rotation(self, pos: Tensor) -> Callable[[Tensor], Tensor]:
        """Function that rotates q or k (B H L D) at these positions; its angles are computed once for all layers."""
        return lambda x: x

    def bias(self, pos_q: Tensor, pos_k: Tensor) -> Tensor | None:
        """Bias of the scores: H Lq Lk or B H Lq Lk."""
        return None


class Sinusoid(Positions):
    """Adds sin(p f_i) and cos(p f_i), f_i = 10000^(-2 floor(i/2) / d): interleaved (CS5242) or in halves."""

    def __init__(self, layout: Order = "interleaved") -> None:
        super().__init__()
        self.layout = layout

    def add(self, x: Tensor, pos: Tensor) -> Tensor:
        d = x.shape[-1]
        a = pos[..., None] * frequencies(d + d % 2, device=x.device)
        waves = [a.sin(), a.cos()]
        PE = torch.stack(waves, -1).flatten(-2) if self.layout == "interleaved" else torch.cat(waves, -1)
        return x + PE[..., :d].to(x.dtype)


class Learned(Positions):
    """Adds a learned vector for each position below the context length."""

    def __init__(self, context: int, d: int) -> None:
        super().__init__()
        self.table = nn.Embedding(context, d)

    def add(self, x: Tensor, pos: Tensor) -> Tensor:
        return x + self.table(pos)


class Rotary(Positions):
    """Rotates feature pairs by an angle proportional to the position, so <q, k> depends on i - j only."""

    def __init__(self, D: int, *, base: float = 1e4, layout: Order = "halves", scaling: Scaling = lambda f: f) -> None:
        super().__init__()
        if D % 2:
            raise ValueError(f"rotary positions rotate pairs of features: D={D} is odd; use an even width per head")
        self.D, self.base, self.layout, self.scaling = D, base, layout, scaling

    def rotation(self, pos: Tensor) -> "Rotation":
        f = self.scaling(frequencies(self.D, self.base, pos.device))  # not a buffer: it would be cast with the model
        return Rotation(pos[..., None, :, None] * f, self.layout == "halves")


class Rotation:
    """Rotates feature pairs of q or k (B H L D) by these angles: 1 L D/2 or B 1 L D/2, the same for all heads.

    >>> rotation, x = Rotary(4).rotation(torch.arange(3)), torch.randn(1, 2, 3, 4)
    >>> W = rotation.pair_features(torch.eye(4))  # the same rotation, of features in another order
    >>> torch.allclose(rotation.pairs((x @ W.mT).transpose(1, 2).flatten(2)).view(1, 3, 2, 4).transpose(1, 2) @ W,
    ...                rotation(x), atol=1e-6)
    True
    """

    def __init__(self, angles: Tensor, halves: bool) -> None:
        self.angles, self.halves, self.c, self.s = angles, halves, angles.cos(), angles.sin()
        self._factors: dict[int, Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:
        u, w = precise(x).chunk(2, -1) if self.halves else precise(x).unflatten(-1, (-1, 2)).unbind(-1)
        rotated = [u * self.c - w * self.s, u * self.s + w * self.c]
        return (torch.cat(rotated, -1) if self.halves else torch.stack(rotated, -1).flatten(-2)).to(x.dtype)

    def pair_features(self, W: Tensor) -> Tensor:
        """Rows of q or k (of all heads) in the order in which the two features of a pair are side by side."""
        return W.unflatten(0, (-1, 2, self.angles.shape[-1])).transpose(1, 2).flatten(0, 2) if self.halves else W

    def pairs(self, x: Tensor) -> Tensor:  # B L (heads D)
        """Rotates features whose pairs are side by side: one product of complex numbers for all heads."""
        heads = x.shape[-1] // (2 * self.angles.shape[-1])
        if heads not in self._factors:
            factor = torch.polar(torch.ones_like(self.angles), self.angles).squeeze(-3)  # L D/2 or B L D/2
            self._factors[heads] = factor.repeat(*[1] * (factor.dim() - 1), heads)
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * self._factors[heads]).flatten(-2)


class Alibi(Positions):
    """Adds -slope |i - j| to the score, with one slope per head: near tokens get more weight (Press 2021)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def bias(self, pos_q: Tensor, pos_k: Tensor) -> Tensor:
        distance = (pos_q.unsqueeze(-1) - pos_k.unsqueeze(-2)).abs()  # Lq Lk or B Lq Lk
        return -slopes(self.heads, pos_q.device)[:, None, None] * distance.unsqueeze(-3)


def slopes(heads: int, device: torch.device | None = None) -> Tensor:  # H
    """ALiBi slopes: 2^(-8h/heads) for a power of two; otherwise those of the power below and every other one above.

    >>> slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    power = 2 ** math.floor(math.log2(heads))
    h = torch.arange(1, heads + 1, device=device, dtype=torch.float32)
    return 2.0 ** -torch.where(h <= power, 8 * h, 8 * (h - power) - 4).div(power)


def frequencies(d: int, base: float = 1e4, device: torch.device | None = None) -> Tensor:  # d/2
    """Frequencies base^(-2i/d) of sinusoidal and rotary positions.

    >>> frequencies(4)
    tensor([1.0000, 0.0100])
    """
    return 1 / base ** torch.arange(0, d, 2, device=device, dtype=torch.float32).div(d)


# --- scaling of rotary frequencies, for texts longer than in training -------------------------------------------------


def linear_scaling(factor: float) -> Scaling:
    """Position interpolation: all frequencies divided by a factor, so a longer text has the angles of training.

    >>> linear_scaling(2)(torch.tensor([1.0, 0.5]))
    tensor([0.5000, 0.2500])
    """
    return lambda f: f / factor


def ntk_scaling(factor: float) -> Scaling:
    """NTK-aware scaling: the lowest frequency is divided by the factor, the highest one is unchanged.

    >>> ntk_scaling(4)(torch.tensor([1.0, 1.0]))
    tensor([1.0000, 0.2500])
    """
    return lambda f: f * factor ** -torch.linspace(0, 1, len(f), device=f.device)


def llama3_scaling(factor: float, *, low: float = 1.0, high: float = 4.0, context: int = 8192) -> Scaling:
    """Llama 3: wavelengths above context/low are scaled by the factor, those below context/high are unchanged.

    >>> llama3_scaling(8)(torch.tensor([1.0, 8e-6]))
    tensor([1.0000e+00, 1.0000e-06])
    """

    def scale(f: Tensor) -> Tensor:
        periods = context / (2 * math.pi / f)  # in the original context
        smooth = ((periods - low) / (high - low)).clamp(0, 1)
        return (1 - smooth) * f / factor + smooth * f

    return scale
