"""Counter-based random numbers: a pure function of (seed, draw number), equal on every device and in every batch."""

import numpy as np
import torch
from torch import Tensor

MASK32 = 0xFFFFFFFF  # values have 32 bits; int64 holds them so that products keep the lower half
GOLDEN = 0x9E3779B1  # 2^32 / the golden ratio, an odd number: spreads consecutive counters


def row_seeds(seed: int, index: int, rows: int) -> Tensor:  # B
    """One seed per row: row r of seed s equals row 0 of seed s + r; different `index` values never share a seed."""
    mixed = [np.random.SeedSequence([(int(seed) + row) % 2**64, index]).generate_state(1)[0] for row in range(rows)]
    return torch.from_numpy(np.array(mixed, np.int64))


def uniform(seeds: Tensor, n: Tensor, size: int) -> Tensor:  # B size
    """Uniform numbers in the open interval (0, 1) for the n-th draw of each row."""
    row = _mix(seeds ^ _mix(n * GOLDEN + 1))  # B
    x = _mix(torch.arange(size, device=seeds.device) * GOLDEN + row[:, None])
    return ((x >> 9).float() + 0.5) / 2**23  # exact in float32; with one more bit the largest would round to 1


def _mix(x: Tensor) -> Tensor:
    """32-bit hash: flipping one input bit flips about half of the output bits (constants by Wellons)."""
    x = x & MASK32
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK32
    return x ^ (x >> 16)
