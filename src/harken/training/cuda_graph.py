"""CUDA graph of one training update. The step of a small model launches about a thousand small kernels, and the CPU
launches them more slowly than the GPU runs them; replaying a graph needs one launch."""

from collections.abc import Callable

import torch
from torch import Tensor

from harken.data.batch import Batch

WARMUP_STEPS = 3  # eager steps before the capture: compilation and optimizer state must exist by then


class CapturedUpdate:
    """A captured update for batches of one shape."""

    def __init__(self, batch: Batch, update: Callable[[Batch], tuple[Tensor, Tensor]]) -> None:
        self.batch, self.graph = batch, torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            self.outputs = update(batch)

    def matches(self, batch: Batch) -> bool:
        new, captured = ({name: x.shape for name, x in b.tensors().items()} for b in (batch, self.batch))
        return batch.static_shape and new == captured

    def replay(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Update with this batch; return its summed loss and gradient norm, both on the device."""
        tensors = batch.tensors()
        for name, captured in self.batch.tensors().items():
            new = tensors[name]  # pinned: a large pageable tensor is copied only after the previous update
            captured.copy_(new.pin_memory() if captured.is_cuda and new.is_cpu else new, non_blocking=True)
        self.graph.replay()
        return self.outputs
