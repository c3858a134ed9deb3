"""Decoding steps on a CPU, where a program may read values, and many short products are faster than the kernel."""

import torch
from torch import Tensor

MAX_QUERIES, MIN_HEADS = 8, 64  # queries of a short step, and heads of all its texts
MIN_WORK = 400  # multiplications of a head; below, PyTorch's batched product is slow


def is_readable(x: Tensor) -> bool:
    """Whether the program may depend on a value of x: on a CPU, and neither compiled nor recorded."""
    return not x.is_cuda and not torch.compiler.is_compiling() and not torch._C._len_torch_dispatch_stack()


def is_last_slot(slots: Tensor | None, Lk: int) -> bool:
    """Whether one query is known to be at the last slot of the keys; None: it is."""
    return slots is None or (slots.shape == (1,) and is_readable(slots) and int(slots) == Lk - 1)


def is_short(q: Tensor, Lq: int, Lk: int) -> bool:  # B H Lq D
    """Whether q are the few queries of many heads in a decoding step on a CPU."""
    if Lq > MAX_QUERIES or q.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return q.shape[0] * q.shape[1] >= MIN_HEADS and Lq * Lk * q.shape[-1] >= MIN_WORK
