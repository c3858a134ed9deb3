"""A whole update recorded once on the GPU and played again: forward, backward, clipping and the rule in one launch.

A small model's step is a thousand small kernels, and the CPU that starts them is slower than the GPU that runs them.
Played from a recording they need one start. Nothing is read back either: whether a number was not finite is noted on
the device, which then leaves the weights as they are.
"""

from collections.abc import Callable
from dataclasses import fields

import torch
from torch import Tensor

from harken.data.batch import Batch

WARM = 3  # steps made plainly first: the compiler and the rule's memory must be there before anything is recorded


class Recording:
    """The updates for batches of one shape."""

    def __init__(self, batch: Batch, update: Callable[[Batch], tuple[Tensor, Tensor]]) -> None:
        self.batch, self.graph = batch, torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            self.result = update(batch)

    def fits(self, batch: Batch) -> bool:
        return all(
            getattr(self.batch, f.name).shape == x.shape if isinstance(x := getattr(batch, f.name), Tensor) else True
            for f in fields(batch)
        )

    def play(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The summed loss and the gradient's length of this batch, after its update; both still on the device."""
        for f in fields(batch):
            if isinstance(x := getattr(batch, f.name), Tensor):
                getattr(self.batch, f.name).copy_(x, non_blocking=True)
        self.graph.replay()
        return self.result


def recordable(batch: Batch) -> bool:
    """Whether every batch like this one is the same work: all rows full, one text, no documents to keep apart."""
    return batch.doc is None and batch.source is None and batch.count == batch.targets.numel()
