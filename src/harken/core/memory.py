"""Memory: the stored keys and values of a layer (kv-cache). It grows in a decoder and is fixed after an encoder.

It is preallocated and written in place, so a decoding step has the same shapes for every text length. Unwritten slots
must be masked: `CAUSAL.at_slots(slots)` does it, since j <= slot.
"""

import torch
from torch import Tensor

from .steps import is_readable

MAX_COPY_RATIO = 3  # a CPU copies all slots faster than at least a third of each row


class Memory:
    """Keys and values of one layer: `capacity` slots, written at the slots of the queries.

    >>> new, memory = torch.tensor([5.0, 7.0]).view(2, 1, 1, 1), Memory(*torch.zeros(2, 2, 1, 3, 1))
    >>> memory.write(new, new, torch.tensor([1]))[0].flatten(1)
    tensor([[0., 5., 0.],
            [0., 7., 0.]])
    >>> memory.reorder(torch.tensor([1, 1]))
    >>> memory.v[:, 0, 1, 0], memory.prefix(2).k[:, 0, :, 0]
    (tensor([7., 7.]), tensor([[0., 7.],
            [0., 7.]]))
    """

    def __init__(self, k: Tensor, v: Tensor) -> None:  # B H C D, B H C D_v
        self.k, self.v, self.capacity = k, v, k.shape[2]
        self.spare: tuple[Tensor, Tensor] | None = None  # what `reorder` writes on a CPU; new memory would cost more

    def write(self, k: Tensor, v: Tensor, slots: Tensor | None) -> tuple[Tensor, Tensor]:
        """Write k and v (B H L D) at these slots (L, or B L if the rows differ) and return all keys and values."""
        if slots is None:
            raise ValueError("a memory is written at the slots of the queries; set them with structure.at_slots(slots)")
        for store, new in ((self.k, k), (self.v, v)):
            if slots.shape == (1,) and is_readable(slots):
                store[:, :, int(slots)] = new[:, :, 0]  # a CPU copies faster than it scatters
            else:  # indexed assignment stays in place under torch.compile
                store[torch.arange(len(k), device=k.device)[:, None], :, slots] = new.transpose(1, 2).to(store.dtype)
        return self.k, self.v

    def prefix(self, n: int) -> "Memory":
        """View of the first n slots: a step need not attend to unwritten slots."""
        return Memory(self.k[:, :, :n], self.v[:, :, :n])

    def reorder(self, rows: Tensor, length: int | None = None) -> None:
        """Select batch rows, as in beam search; in place if captured, because a graph reads the same tensors."""
        if is_readable(rows) and MAX_COPY_RATIO * (length or self.capacity) >= self.capacity:
            k, v = self.spare or (torch.empty_like(self.k), torch.empty_like(self.v))
            torch.index_select(self.k, 0, rows, out=k)
            torch.index_select(self.v, 0, rows, out=v)
            self.k, self.v, self.spare = k, v, (self.k, self.v)
            return
        for store in (self.k[:, :, :length], self.v[:, :, :length]):  # slots from `length` on are not written yet
            store.copy_(store.index_select(0, rows))


class FixedMemory(Memory):
    """Keys and values that are only read: those of an encoder."""

    def write(self, k: Tensor, v: Tensor, slots: Tensor | None) -> tuple[Tensor, Tensor]:
        """An error: nothing is written."""
        raise ValueError("a FixedMemory is read-only; use Memory for keys and values that grow")
