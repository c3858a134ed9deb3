"""The one equation: o_i = sum_j a_ij v_j, a_i = softmax_j sim(q_i, k_j), over the j the structure allows.

Four routes compute it: `explicit` (the equation, and the weights A), `fused` (PyTorch's kernel), `sparse` (pair by
pair, for graphs and BigBird) and `flex` (block by block, on a GPU). tests/core/test_attend.py holds them to the same
numbers. A query that may look at nothing gets o = 0, with finite gradients, in all of them.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .similarity import Similarity
from .structure import FULL, Layout, Structure
from .view import Editor, View, Watcher
from .weights import edge_softmax, weights


def attend(
    q: Tensor,  # B H Lq D
    k: Tensor,  # B H' Lk D: H' divides H, a group of query heads shares a key head
    v: Tensor,  # B H' Lk D_v
    similarity: Similarity,
    structure: Structure | Layout = FULL,
    *,
    bias: Tensor | None = None,  # H Lq Lk or B H Lq Lk, added to the scores
    dropout: float = 0.0,
    watch: Watcher | None = None,
) -> Tensor:  # B H Lq D_v
    """Look into the memory (k, v) with the queries q."""
    layout = structure.lay(len(q), q.shape[-2], k.shape[-2], q.device)
    q, k = similarity.project(q, k)
    if isinstance(watch, Editor):  # the one reason to take the slow road
        return explicit(q, k, v, similarity, layout, bias=bias, dropout=dropout, edit=watch.f)
    if watch is not None:
        watch(View(q, k, similarity, layout, bias))  # nothing is computed yet
    if similarity.is_dot and bias is None and dropout == 0 and _flexible(q, layout):
        return flex(q, k, v, similarity.scale, layout)
    if layout.pairs is not None and bias is None:
        return sparse(q, k, v, similarity, layout.pairs, dropout=dropout)
    if similarity.is_dot:
        return fused(q, k, v, similarity.scale, layout, bias=bias, dropout=dropout)
    return explicit(q, k, v, similarity, layout, bias=bias, dropout=dropout)


def explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    similarity: Similarity,
    layout: Layout,
    *,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    edit: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The equation as it is written, with all weights A laid out."""
    A = weights(q, k, similarity, layout.mask, bias)  # B H Lq Lk
    if edit is not None:
        A = edit(A)
    A = F.dropout(A, dropout).to(v.dtype)
    groups = A.unflatten(1, (v.shape[1], -1)).flatten(
        2, 3
    )  # B H' (G Lq) Lk: the queries of a group, one below the other
    return (groups @ v).unflatten(2, (-1, q.shape[-2])).flatten(1, 2)


def fused(
    q: Tensor, k: Tensor, v: Tensor, scale: float, layout: Layout, *, bias: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """PyTorch's kernel. Here, and only here, is known when a mask may be replaced by a flag or by nothing."""
    D, width = max(q.shape[-1], v.shape[-1]), v.shape[-1]
    q, k, v = _widen(q, D), _widen(k, D), _widen(v, D)  # the fast kernels want one width; zeros add nothing to a dot
    options: dict[str, Any] = {"dropout_p": dropout, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    if bias is None and (layout.full or layout.causal):
        o = F.scaled_dot_product_attention(q, k, v, is_causal=layout.causal, **options)
        return o[..., :width]
    mask, empty = layout.mask, layout.empty
    if empty is not None:
        mask = mask | empty  # an empty row looks everywhere for a moment, so that nothing divides by 0 ...
    if bias is not None:
        mask = bias.masked_fill(~mask, -torch.inf).to(q.dtype)
    o = F.scaled_dot_product_attention(q, k, v, mask, **options)[..., :width]
    return o if empty is None else o.masked_fill(empty, 0)  # ... and then gets nothing


def sparse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    similarity: Similarity,
    pairs: tuple[Tensor, Tensor, Tensor],
    *,
    dropout: float = 0.0,
) -> Tensor:
    """Pair by pair, over those the structure lists: nothing of size L x L."""
    i, j, allowed = pairs
    heads, L = k.shape[1], q.shape[-2]
    scores = similarity.pair(q[:, :, i].unflatten(1, (heads, -1)), k[:, :, None, j])  # B H' G E
    a = edge_softmax(scores, i, L, allowed[:, None, None])
    return mix(F.dropout(a, dropout).to(v.dtype), v.unsqueeze(2), i, j, L).flatten(1, 2)


def mix(a: Tensor, v: Tensor, i: Tensor, j: Tensor, n: int) -> Tensor:
    """o_i = sum over pairs (i, j) of a_ij v_j. With a fixed by the degrees this is a graph convolution."""
    sent = a.unsqueeze(-1) * v[..., j, :]  # ... E D
    return sent.new_zeros(*sent.shape[:-2], n, sent.shape[-1]).index_add(-2, i, sent)


def flex(q: Tensor, k: Tensor, v: Tensor, scale: float, layout: Layout) -> Tensor:
    """FlexAttention: only the blocks in which somebody may look at somebody are computed."""
    kernel = _flex_kernel(torch.compiler.is_compiling())
    o: Tensor = kernel(q, k, v, block_mask=layout.blocks, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return o


def _flexible(q: Tensor, layout: Layout) -> bool:
    """Where FlexAttention pays: on a GPU, for a mask the kernel has no flag for, over more than a few blocks."""
    return q.is_cuda and not (layout.full or layout.causal) and min(layout.Lq, layout.Lk) >= 512


@cache
def _flex_kernel(compiling: bool) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention if compiling else torch.compile(flex_attention, dynamic=False)


def _widen(x: Tensor, D: int) -> Tensor:
    return x if x.shape[-1] == D else F.pad(x, (0, D - x.shape[-1]))
