"""Backend `fused`: PyTorch's scaled_dot_product_attention."""

import torch.nn.functional as F
from torch import Tensor

from harken.core.attend import register_backend
from harken.core.similarity import Similarity
from harken.core.structure import Layout


@register_backend
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
    grouped = q.shape[1] != k.shape[1]
    o = F.scaled_dot_product_attention(
        q, k, v, mask, dropout, layout.causal, scale=similarity.scale, enable_gqa=grouped
    )[..., :D_v]
    return o if empty is None else o.masked_fill(empty, 0)
