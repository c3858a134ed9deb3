"""Backends with a mask of all pairs: `explicit`, with all weights A in memory, and `fused`, a kernel of PyTorch."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from harken.core.attend import attention_weights, weighted_values
from harken.core.similarity import Similarity
from harken.core.structure import Layout

Edit = Callable[[Tensor], Tensor] | None  # of the weights


def explicit(
    q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, layout: Layout, *, dropout: float = 0.0, edit: Edit = None
) -> Tensor:
    """o = dropout(edit(A)) v with all weights A: for every similarity, and to edit the weights.

    >>> import torch; from harken.core import CAUSAL, Dot
    >>> q = torch.zeros(1, 1, 2, 3)
    >>> explicit(q, q, torch.eye(2)[None, None], Dot(), CAUSAL.layout(1, 2, 2, q.device))[0, 0]
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    A = attention_weights(q, k, similarity, None if layout.full else layout.dense().allowed, layout.bias)  # B H Lq Lk
    return weighted_values(F.dropout(A if edit is None else edit(A), dropout).to(v.dtype), v)


def fused(q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, layout: Layout, *, dropout: float = 0.0) -> Tensor:
    """PyTorch's kernel for dot products. A full or causal layout needs no mask.

    >>> import torch; from harken.core import CAUSAL, Dot
    >>> q = torch.zeros(1, 1, 2, 3)
    >>> fused(q, q, torch.eye(2)[None, None], Dot(), CAUSAL.layout(1, 2, 2, q.device))[0, 0]
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    D, D_v = max(q.shape[-1], v.shape[-1]), v.shape[-1]
    if q.shape[-1] != D_v:  # the fast kernels need one width; padding with zeros does not change a dot
        q, k, v = (F.pad(x, (0, D - x.shape[-1])) for x in (q, k, v))
    _, empty, mask = (None, None, None) if layout.full or layout.causal else layout.dense()
    mask = mask if mask is None or layout.bias is None else mask.to(q.dtype)
    scale, gqa = similarity.scale, q.shape[1] != k.shape[1]
    o = F.scaled_dot_product_attention(q, k, v, mask, dropout, layout.causal, scale=scale, enable_gqa=gqa)[..., :D_v]
    return o if empty is None else o.masked_fill(empty, 0)
