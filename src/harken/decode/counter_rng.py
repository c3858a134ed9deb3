"""Chance as a pure function of (seed, place): the same on every device, alone and in a batch, played or recorded."""

import numpy as np
import torch
from torch import Tensor

WORD = 0xFFFFFFFF  # the numbers below are of 32 bits, held in 64 so that products do not lose the lower half
STEP = 0x9E3779B1  # 2^32 / the golden ratio, odd: consecutive places fall far apart


def seeds(seed: int, index: int, rows: int) -> Tensor:  # B
    """A seed for each row: row r of seed s is the first of seed s + r, and no two places in a list share theirs."""
    mixed = [np.random.SeedSequence([(seed + row) % 2**64, index]).generate_state(1)[0] for row in range(rows)]
    return torch.from_numpy(np.array(mixed, np.int64))


def chance(seeds: Tensor, n: Tensor, many: int) -> Tensor:  # B many
    """Numbers between 0 and 1 for the n-th draw of each row, none of them 0 or 1."""
    row = _mix(seeds ^ _mix(n * STEP + 1))  # B
    x = _mix(torch.arange(many, device=seeds.device) * STEP + row[:, None])
    return ((x >> 9).float() + 0.5) / 2**23  # exact in float32: one bit more, and the last would be rounded to 1


def _mix(x: Tensor) -> Tensor:
    """Every bit of x changes about half of the result's bits (the constants are Wellons')."""
    x = x & WORD
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & WORD
    return x ^ (x >> 16)
