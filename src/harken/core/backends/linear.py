"""Backend `linear`: attention with a kernel <phi(q), phi(k)> over all keys. No tensor has the size L x L."""

import torch
from torch import Tensor

from harken.core.similarity import TINY, Similarity, precise
from harken.core.structure import Layout


def linear(q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, layout: Layout, *, dropout: float = 0.0) -> Tensor:
    """o_i = phi(q_i) sum_j phi(k_j)^T v_j / <phi(q_i), sum_j phi(k_j)>: both sums are the same for all queries i.

    >>> import torch; from harken.core import FULL, CosineKernel
    >>> v, similarity = torch.eye(2)[None, None], CosineKernel()
    >>> linear(*similarity.project(v, v), v, similarity, FULL.layout(1, 2, 2, v.device))[0, 0]
    tensor([[0.6667, 0.3333],
            [0.3333, 0.6667]])
    """
    if dropout:
        raise ValueError(f"linear attention has no single weights to drop; dropout={dropout}; use the backend explicit")
    with torch.autocast(q.device.type, enabled=False):
        phi_q = precise(q).unflatten(1, (k.shape[1], -1)).flatten(2, 3)  # B H' (G Lq) D: heads that share a key head
        phi_k = precise(k)
        o = phi_q @ (phi_k.mT @ precise(v))  # B H' (G Lq) D_v
        o = o / (phi_q @ phi_k.sum(-2, keepdim=True).mT).clamp_min(TINY)
    return o.unflatten(2, (-1, q.shape[-2])).flatten(1, 2).to(v.dtype)
