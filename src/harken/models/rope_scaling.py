"""Slower turns of rotary positions, for texts longer than those of the training: frequencies -> frequencies."""

import math
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from harken.core.positions import Scaling

Slower = dict[Literal["factor", "low", "high", "context"], PositiveFloat]


def stretched(factor: float) -> Scaling:
    """Positions squeezed by a factor, so that a longer text fits the angles seen in training."""
    return lambda f: f / factor


def ntk(factor: float) -> Scaling:
    """Slow pairs are slowed by the factor, fast ones are left: neighbours stay as far apart as they were."""
    return lambda f: f * factor ** -torch.linspace(0, 1, len(f), device=f.device)


def llama3(factor: float, *, low: float = 1.0, high: float = 4.0, context: int = 8192) -> Scaling:
    """Llama 3's: waves longer than context/low are slowed by the factor, shorter than context/high left as they are."""

    def scale(f: Tensor) -> Tensor:
        turns = context / (2 * math.pi / f)  # how often a wave fits into the original context
        smooth = ((turns - low) / (high - low)).clamp(0, 1)
        return (1 - smooth) * f / factor + smooth * f

    return scale
