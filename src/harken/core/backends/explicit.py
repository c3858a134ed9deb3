"""Backend `explicit`: the equation with all weights A in memory."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from harken.core.attend import attention_weights, register_backend, weighted_values
from harken.core.similarity import Similarity
from harken.core.structure import Layout


@register_backend
def explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    similarity: Similarity,
    layout: Layout,
    *,
    dropout: float = 0.0,
    edit: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """o = dropout(edit(A)) v with all weights A: for every similarity, and to edit the weights.

    >>> import torch; from harken.core import CAUSAL, Dot
    >>> q = torch.zeros(1, 1, 2, 3)
    >>> explicit(q, q, torch.eye(2)[None, None], Dot(), CAUSAL.layout(1, 2, 2, q.device))[0, 0]
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    A = attention_weights(q, k, similarity, layout.dense().allowed, layout.bias)  # B H Lq Lk
    return weighted_values(F.dropout(A if edit is None else edit(A), dropout).to(v.dtype), v)
