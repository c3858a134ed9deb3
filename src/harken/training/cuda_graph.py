"""A whole update recorded once on the GPU and played again: a small model's step is a thousand small kernels, and the
CPU that starts them is slower than the GPU that runs them. Played from a recording they need one start."""

from collections.abc import Callable

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
        given, mine = ({name: x.shape for name, x in b.tensors().items()} for b in (batch, self.batch))
        return batch.steady and given == mine

    def play(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The summed loss and the gradient's length of this batch, after its update; both still on the device."""
        given = batch.tensors()
        for name, mine in self.batch.tensors().items():
            new = given[name]  # pinned: what is not, and is large, is copied only after the update before
            mine.copy_(new.pin_memory() if mine.is_cuda and new.is_cpu else new, non_blocking=True)
        self.graph.replay()
        return self.result
