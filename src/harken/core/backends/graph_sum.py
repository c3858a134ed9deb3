"""Weighted sums over the pairs of a graph by one kernel: o_i = sum_j a_ij v_j, as `core.mix` has it but faster.

A list of pairs is fixed, so where the pairs of each i and of each j stand is found once. Many models are one sum: where
they share the weights a their vectors stand side by side in one wide row, else their pairs follow one another.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class Sums:
    """Pairs in the order of i, with i below n and j below m: `sums(a, v)` is n D for a of E and v of m D."""

    def __init__(self, i: Tensor, j: Tensor, n: int, m: int) -> None:
        order = torch.argsort(j, stable=True)
        self.lists = (*_listed(i, j, n, order), *_listed(j[order], i[order], m, torch.argsort(order)))

    def __call__(self, a: Tensor, v: Tensor) -> Tensor:  # ... E, ... m D -> ... n D
        like = torch.promote_types(a.dtype, v.dtype)  # the kernel wants one; weights are more precise than vectors
        return Weighted.apply(a.to(like), v.to(like), *self.lists)  # type: ignore[no-untyped-call]


def _listed(i: Tensor, j: Tensor, n: int, order: Tensor) -> tuple[Tensor, ...]:
    """Pairs in the order of i, where those of each i begin, and the order in which they are turned round."""
    return i, j, torch.searchsorted(i, torch.arange(n + 1, device=i.device)), order


class Weighted(torch.autograd.Function):
    """The sum, its gradients by the pairs turned round, and the sums of many models as one."""

    @staticmethod
    def forward(a: Tensor, v: Tensor, *lists: Tensor) -> Tensor:
        return _bags(a, v, lists[1], lists[2])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        a, v, *lists = ctx.saved_tensors
        i, j, _, order = lists[:4]
        g_a = (_rows(g, i) * _rows(v, j)).sum(-1) if ctx.needs_input_grad[0] else None
        g_v = Weighted.apply(a[..., order], g, *lists[4:], *lists[:4]) if ctx.needs_input_grad[1] else None  # type: ignore[no-untyped-call]
        return g_a, g_v, *[None] * len(lists)

    @staticmethod
    def vmap(info: Any, dims: Any, a: Tensor, v: Tensor, *lists: Tensor) -> tuple[Tensor, int]:
        M, (of_a, of_v) = info.batch_size, dims[:2]
        if of_a is None:
            wide = v.movedim(of_v, -2)  # ... m M D
            o = Weighted.apply(a, wide.flatten(-2), *lists)  # type: ignore[no-untyped-call]
            return o.unflatten(-1, (M, -1)), o.dim() - 1
        v = v.expand(M, *v.shape) if of_v is None else v.movedim(of_v, 0)
        return Weighted.apply(a.movedim(of_a, 0), v, *lists), 0  # type: ignore[no-untyped-call]


def _rows(v: Tensor, j: Tensor) -> Tensor:  # ... m D, E -> ... E D
    """The rows j of each; on a CPU as those of one table, so that they are copied at once."""
    if v.is_cuda:  # where a kernel for whole rows leaves most of its threads idle if they are short
        return v[..., j, :]
    lead, (m, D) = v.shape[:-2], v.shape[-2:]
    return F.embedding(_after(j, math.prod(lead), m), v.reshape(-1, D)).view(*lead, -1, D)


def _after(j: Tensor, many: int, m: int) -> Tensor:
    """Numbers below m, so many times; each time they go on where they ended."""
    return j if many == 1 else (j + m * torch.arange(many, device=j.device)[:, None]).flatten()


def _bags(a: Tensor, v: Tensor, j: Tensor, starts: Tensor) -> Tensor:
    """The kernel: a bag of rows of v for each i. What stands before E and m D in the shapes follows one another."""
    lead, (m, D) = a.shape[:-1], v.shape[-2:]
    many = math.prod(lead)
    rows = v.expand(*lead, m, D).reshape(-1, D)
    starts = torch.cat([_after(starts[:-1], many, len(j)), starts[-1:] * many])
    j = _after(j, many, m)
    o = F.embedding_bag(j, rows, starts, mode="sum", per_sample_weights=a.reshape(-1), include_last_offset=True)
    return o.view(*lead, -1, D)
