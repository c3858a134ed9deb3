"""Where a token stands. Position enters at one of three doors: added to x, turning q and k, or biasing the score."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from .similarity import precise

Order = Literal["interleaved", "halves"]  # pairs of features side by side, or the first half with the second
Scaling = Callable[[Tensor], Tensor]  # frequencies -> frequencies, for texts longer than those of the training


class Positions(nn.Module):
    """No positions: the sequence is a set."""

    def add(self, x: Tensor, pos: Tensor) -> Tensor:  # B L d
        return x

    def turner(self, pos: Tensor) -> Callable[[Tensor], Tensor]:
        """What turns q or k (B H L D) that stand at pos; its angles are computed once, for all layers."""
        return lambda x: x

    def bias(self, pos_q: Tensor, pos_k: Tensor) -> Tensor | None:  # H Lq Lk or B H Lq Lk
        return None


class Sinusoid(Positions):
    """sin(p f_i) and cos(p f_i) added, f_i = 10000^(-2 floor(i/2) / d): side by side (CS5242), or in halves."""

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
    """One vector for each position up to the context. Positions beyond it do not exist."""

    def __init__(self, context: int, d: int) -> None:
        super().__init__()
        self.table = nn.Embedding(context, d)

    def add(self, x: Tensor, pos: Tensor) -> Tensor:
        return x + self.table(pos)


class Rotary(Positions):
    """Turns feature pairs by an angle that grows with position, so <q, k> depends on i - j only."""

    def __init__(self, D: int, *, base: float = 1e4, layout: Order = "halves", scaling: Scaling = lambda f: f) -> None:
        super().__init__()
        if D % 2:
            raise ValueError(f"rotary positions turn pairs of features: D={D} is odd; choose an even width per head")
        self.D, self.base, self.layout, self.scaling = D, base, layout, scaling

    def turner(self, pos: Tensor) -> Callable[[Tensor], Tensor]:
        f = self.scaling(frequencies(self.D, self.base, pos.device))  # no buffer: it would be cast with the model
        angles = pos[..., None, :, None] * f  # 1 L D/2 or B 1 L D/2: the heads turn alike
        c, s = angles.cos(), angles.sin()

        def turn(x: Tensor) -> Tensor:
            halves = self.layout == "halves"
            u, w = precise(x).chunk(2, -1) if halves else precise(x).unflatten(-1, (-1, 2)).unbind(-1)
            turned = [u * c - w * s, u * s + w * c]
            return (torch.cat(turned, -1) if halves else torch.stack(turned, -1).flatten(-2)).to(x.dtype)

        return turn


class Alibi(Positions):
    """-slope |i - j| added to the score, one slope per head: nearer tokens weigh more (Press 2021)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def bias(self, pos_q: Tensor, pos_k: Tensor) -> Tensor:
        distance = (pos_q.unsqueeze(-1) - pos_k.unsqueeze(-2)).abs()  # Lq Lk or B Lq Lk
        return -slopes(self.heads, pos_q.device)[:, None, None] * distance.unsqueeze(-3)


def slopes(heads: int, device: torch.device | None = None) -> Tensor:  # H
    """2^(-8h/heads) for a power of two; otherwise those of the power below, and every other of the power above."""
    power = 2 ** math.floor(math.log2(heads))
    h = torch.arange(1, heads + 1, device=device, dtype=torch.float32)
    return 2.0 ** -torch.where(h <= power, 8 * h, 8 * (h - power) - 4).div(power)


def frequencies(d: int, base: float = 1e4, device: torch.device | None = None) -> Tensor:  # d/2
    return 1 / base ** torch.arange(0, d, 2, device=device, dtype=torch.float32).div(d)
