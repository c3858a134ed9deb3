"""Weighted sums over the pairs of a graph, o_i = sum_j a_ij v_j, with one kernel: a faster `core.mix`.

The pairs are fixed, so their order by i and by j is computed once. Under vmap several models are one sum: if they share
the weights a, their vectors are concatenated to one wide row, otherwise their pairs are concatenated.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class PairSum:
    """Sum over pairs sorted by i, with i < n and j < m: `pair_sum(a, v)` is n D for a of E and v of m D.

    >>> pair_sum = PairSum(torch.tensor([0, 0]), torch.tensor([0, 1]), 1, 2)
    >>> pair_sum(torch.tensor([2.0, 3.0]), torch.eye(2))
    tensor([[2., 3.]])
    """

    def __init__(self, i: Tensor, j: Tensor, n: int, m: int) -> None:
        order = torch.argsort(j, stable=True)
        self.lists = (*_pair_lists(i, j, n, order), *_pair_lists(j[order], i[order], m, torch.argsort(order)))

    def __call__(self, a: Tensor, v: Tensor) -> Tensor:  # ... E, ... m D -> ... n D
        dtype = torch.promote_types(a.dtype, v.dtype)  # the kernel needs one dtype; weights are the more precise
        return _WeightedSum.apply(a.to(dtype), v.to(dtype), *self.lists)  # type: ignore[no-untyped-call]


class TypedPairs(NamedTuple):
    """Pairs with types; one pair may have several. A sum over j and its types is one over n x types vectors."""

    a: Tensor  # E: the share of j among the pairs of i of this type
    sum: PairSum  # o_i = sum_j,r a_ijr v_jr for v of n types D, flattened
    pair: Tensor  # E: the index of (i, j) in the list of pairs without types
    type: Tensor  # E


def _pair_lists(i: Tensor, j: Tensor, n: int, order: Tensor) -> tuple[Tensor, ...]:
    """Pairs sorted by i, the start of each i, and the order of the transposed pairs."""
    return i, j, torch.searchsorted(i, torch.arange(n + 1, device=i.device)), order


class _WeightedSum(torch.autograd.Function):
    """The sum, its gradients (a sum over the transposed pairs), and its vmap rule."""

    @staticmethod
    def forward(a: Tensor, v: Tensor, *lists: Tensor) -> Tensor:
        return _bag_sums(a, v, lists[1], lists[2])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        a, v, *lists = ctx.saved_tensors
        i, j, _, order = lists[:4]
        g_a = (_select_rows(g, i) * _select_rows(v, j)).sum(-1) if ctx.needs_input_grad[0] else None
        transposed = a[..., order], g, *lists[4:], *lists[:4]
        g_v = _WeightedSum.apply(*transposed) if ctx.needs_input_grad[1] else None  # type: ignore[no-untyped-call]
        return g_a, g_v, *[None] * len(lists)

    @staticmethod
    def vmap(batch: Any, in_dims: Any, a: Tensor, v: Tensor, *lists: Tensor) -> tuple[Tensor, int]:
        M, (dim_a, dim_v) = batch.batch_size, in_dims[:2]
        if dim_a is None:
            wide = v.movedim(dim_v, -2)  # ... m M D
            o = _WeightedSum.apply(a, wide.flatten(-2), *lists)  # type: ignore[no-untyped-call]
            return o.unflatten(-1, (M, -1)), o.dim() - 1
        v = v.expand(M, *v.shape) if dim_v is None else v.movedim(dim_v, 0)
        return _WeightedSum.apply(a.movedim(dim_a, 0), v, *lists), 0  # type: ignore[no-untyped-call]


def _select_rows(v: Tensor, j: Tensor) -> Tensor:  # ... m D, E -> ... E D
    """v[..., j, :]; on a CPU as an embedding lookup, which copies rows faster."""
    if v.is_cuda:  # the row kernel leaves most threads idle if rows are short
        return v[..., j, :]
    lead, (m, D) = v.shape[:-2], v.shape[-2:]
    return F.embedding(_repeat_offset(j, math.prod(lead), m), v.reshape(-1, D)).view(*lead, -1, D)


def _repeat_offset(j: Tensor, n: int, m: int) -> Tensor:
    """n copies of indices below m, each offset by m from the one before."""
    return j if n == 1 else (j + m * torch.arange(n, device=j.device)[:, None]).flatten()


def _bag_sums(a: Tensor, v: Tensor, j: Tensor, starts: Tensor) -> Tensor:
    """The kernel: a bag of rows of v for each i. Leading dimensions of a and v are flattened."""
    lead, (m, D) = a.shape[:-1], v.shape[-2:]
    n = math.prod(lead)
    rows = v.expand(*lead, m, D).reshape(-1, D)
    starts = torch.cat([_repeat_offset(starts[:-1], n, len(j)), starts[-1:] * n])
    j = _repeat_offset(j, n, m)
    o = F.embedding_bag(j, rows, starts, mode="sum", per_sample_weights=a.reshape(-1), include_last_offset=True)
    return o.view(*lead, -1, D)
