"""Memory: the stored (key, value) pairs a query is compared with. Filling in a decoder, fixed after an encoder.

The lectures' word for the kv-cache. It is preallocated and written in place, so the step of one token has the same
shapes whatever the length of the text. Unwritten slots must stay hidden: `CAUSAL.at(slots)` does it, since j <= slot.
"""

import torch
from torch import Tensor


class Memory:
    """One layer's pairs, filling: `capacity` slots, written where the queries sit."""

    def __init__(self, k: Tensor, v: Tensor) -> None:  # B H C D, B H C D_v
        self.k, self.v, self.capacity = k, v, k.shape[2]

    def write(self, k: Tensor, v: Tensor, slots: Tensor | None) -> tuple[Tensor, Tensor]:
        """Put k and v (B H L D) at these slots (L, or B L when the rows stand at different places); give all pairs."""
        if slots is None:
            raise ValueError("a memory is written where the queries sit: say so with structure.at(slots)")
        for store, new in ((self.k, k), (self.v, v)):  # so written, it stays in place where it is compiled
            store[torch.arange(len(k), device=k.device)[:, None], :, slots] = new.transpose(1, 2).to(store.dtype)
        return self.k, self.v

    def reorder(self, rows: Tensor, upto: int | None = None) -> None:
        """Keep these batch rows: how a beam search follows its survivors. In place, so that a captured step sees it."""
        # a GPU is not asked which rows move
        moved = slice(None) if rows.is_cuda else (rows != torch.arange(len(rows))).nonzero()[:, 0]
        for store in (self.k[:, :, :upto], self.v[:, :, :upto]):  # what is not yet written need not follow
            store[moved] = store[rows[moved]]


class Fixed(Memory):
    """Pairs that are given once and only read: an encoder's output, a story."""

    def write(self, k: Tensor, v: Tensor, slots: Tensor | None) -> tuple[Tensor, Tensor]:
        raise ValueError("a fixed memory is only read; use Memory for pairs that are still to come")
