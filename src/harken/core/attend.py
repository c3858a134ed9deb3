"""The one equation: o_i = sum_j a_ij v_j, a_i = softmax_j sim(q_i, k_j), over the j the structure allows.

Five routes compute it: `explicit` (the equation, and the weights A), `fused` (PyTorch's kernel), `sparse` (pair by
pair, for graphs), `blocks` (for BigBird) and `flex` (blocks on a GPU). tests/core holds them to the same numbers. A
query that may look at nothing gets o = 0, with finite gradients, in all of them.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .similarity import Similarity
from .structure import FULL, Layout, Structure, Tiles, compiled
from .view import Edit, Editor, View, Watcher, pair_weights, weights

FEW = 32  # words on either side, up to which a compiled step on a GPU (heads of 32) is faster written out than fused
LONG = 4096  # words, below which a model that is not compiled lays its mask out: each new shape would be compiled


def attend(
    q: Tensor,  # B H Lq D
    k: Tensor,  # B H' Lk D: H' divides H, a group of query heads shares a key head
    v: Tensor,  # B H' Lk D_v
    similarity: Similarity,
    structure: Structure | Layout = FULL,
    *,
    bias: Tensor | None = None,  # H Lq Lk or B H Lq Lk, added to the scores; a layout has its own
    dropout: float = 0.0,
    watch: Watcher | None = None,
) -> Tensor:  # B H Lq D_v
    """Look into the memory (k, v) with the queries q."""
    shape = q.shape[0], q.shape[-2], k.shape[-2]
    layout = structure if isinstance(structure, Layout) else structure.lay(*shape, q.device, bias)
    q, k = similarity.project(q, k)
    if isinstance(watch, Editor):  # the one reason to take the slow road
        return explicit(q, k, v, similarity, layout, dropout=dropout, edit=watch.f)
    if watch is not None:
        watch(View(q, k, similarity, layout))  # nothing is computed yet
    if dropout == 0 and similarity.is_dot and _flexible(q, layout):
        return flex(q, k, v, similarity, layout)
    if layout.tiles is not None:
        return blocks(q, k, v, similarity, layout.tiles, dropout=dropout)
    return (dense if layout.pairs is None else sparse)(q, k, v, similarity, layout, dropout=dropout)


def dense(q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, layout: Layout, *, dropout: float = 0.0) -> Tensor:
    """All queries and all keys."""
    # few sums melt into their neighbours in a compiled step on a GPU; and many models at once have no kernel
    few, many = layout.Lq == 1 or max(layout.Lq, layout.Lk) <= FEW, torch._C._are_functorch_transforms_active
    written = q.is_cuda and few if torch.compiler.is_compiling() else many()
    route = explicit if written or not similarity.is_dot else fused
    return route(q, k, v, similarity, layout, dropout=dropout)


def explicit(
    q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, layout: Layout, *, dropout: float = 0.0, edit: Edit = None
) -> Tensor:
    """The equation as it is written, with all weights A laid out."""
    A = weights(q, k, similarity, layout.dense()[0], layout.bias)  # B H Lq Lk
    A = F.dropout(A if edit is None else edit(A), dropout).to(v.dtype)
    A = A.unflatten(1, (v.shape[1], -1)).flatten(2, 3)  # B H' (G Lq) Lk: the queries of a group, one below the other
    return (A @ v).unflatten(2, (-1, q.shape[-2])).flatten(1, 2)


def fused(q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, layout: Layout, *, dropout: float = 0.0) -> Tensor:
    """PyTorch's kernel. Here, and only here, is known when a mask may be replaced by a flag or by nothing."""
    D, width = max(q.shape[-1], v.shape[-1]), v.shape[-1]
    if q.shape[-1] != width:  # the fast kernels want one width; zeros add nothing to a dot
        q, k, v = (F.pad(x, (0, D - x.shape[-1])) for x in (q, k, v))
    _, empty, mask = (None, None, None) if layout.full or layout.causal else layout.dense()
    mask = mask if mask is None or layout.bias is None else mask.to(q.dtype)
    options: dict[str, Any] = {"scale": similarity.scale, "enable_gqa": q.shape[1] != k.shape[1]}
    o = F.scaled_dot_product_attention(q, k, v, mask, dropout, layout.causal, **options)[..., :width]
    return o if empty is None else o.masked_fill(empty, 0)


def sparse(q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, layout: Layout, *, dropout: float = 0.0) -> Tensor:
    """Pair by pair, over those the structure lists: nothing of size L x L."""
    i, j, _ = pairs = layout.listed()
    a = F.dropout(pair_weights(q, k, similarity, pairs, layout.shift(slice(None), i, j)), dropout)
    groups = a.unflatten(1, (v.shape[1], -1))  # B H' G E
    return mix(groups, v.unsqueeze(2), i, j, q.shape[-2]).flatten(1, 2).to(v.dtype)  # a hub's sum is too long for bf16


def mix(a: Tensor, v: Tensor, i: Tensor, j: Tensor, n: int) -> Tensor:
    """o_i = sum over pairs (i, j) of a_ij v_j. With a fixed by the degrees this is a graph convolution."""
    sent = a.unsqueeze(-1) * v[..., j, :]  # ... E D
    return sent.new_zeros(*sent.shape[:-2], n, sent.shape[-1]).index_add(-2, i, sent)


def blocks(q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, tiles: Tiles, *, dropout: float = 0.0) -> Tensor:
    """Block by block, each with the keys of the few it looks at: a batch of short texts, and nothing of size L x L."""
    parts, (q, k, v) = [], (x.transpose(1, 2).flatten(0, 1)[tiles.slots] for x in (q, k, v))  # N S H D
    for who, at, layout in tiles.passes:
        near = (F.embedding(at, x.flatten(1)).unflatten(-1, x.shape[1:]).flatten(1, 2) for x in (k, v))  # M KS H' D
        own, keys, values = (x.transpose(1, 2) for x in (q[who], *near))
        parts.append(dense(own, keys, values, similarity, layout, dropout=dropout).transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)[tiles.back].transpose(1, 2)


def flex(q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, layout: Layout) -> Tensor:
    """FlexAttention: only the blocks in which somebody may look at somebody are computed."""
    from torch.nn.attention.flex_attention import flex_attention

    kernel: Any = flex_attention if torch.compiler.is_compiling() else compiled(flex_attention)
    return kernel(q, k, v, block_mask=layout.blocks(), scale=similarity.scale, enable_gqa=q.shape[1] != k.shape[1])


def _flexible(q: Tensor, layout: Layout) -> bool:
    """Where FlexAttention pays: on a GPU, for a mask the kernel has no flag for, over more than a few blocks."""
    plain = layout.full or layout.causal or layout.bias is not None or not layout.structure.pointwise
    inside = torch.compiler.is_compiling()
    few = 512 if inside or layout.tiles is not None else LONG
    counted = not inside and torch._C._len_torch_dispatch_stack()  # nothing is compiled there
    return q.is_cuda and not plain and not counted and min(layout.Lq, layout.Lk) >= few
