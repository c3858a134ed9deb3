"""Backend `sparse`: attention over a list of pairs, as in a graph. No tensor has the size L x L."""

import torch
import torch.nn.functional as F
from torch import Tensor

from harken.core.similarity import Similarity, precise, score
from harken.core.structure import Layout, PairList


def sparse(q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, layout: Layout, *, dropout: float = 0.0) -> Tensor:
    """Attention over the pairs that the structure lists.

    >>> from harken.core import Dot, edges
    >>> q = torch.zeros(1, 1, 2, 3)
    >>> layout = edges(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2).layout(1, 2, 2, q.device)
    >>> sparse(q, q, torch.eye(2)[None, None], Dot(), layout)[0, 0]
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    i, j, _ = pairs = layout.pair_list()
    a = F.dropout(pair_weights(q, k, similarity, pairs, layout.bias_at(slice(None), i, j)), dropout)
    groups = a.unflatten(1, (v.shape[1], -1))  # B H' G E
    o = mix(groups, v.unsqueeze(2), i, j, q.shape[-2]).flatten(1, 2)  # float32: a long sum loses terms in bfloat16
    return o.to(v.dtype)


def mix(a: Tensor, v: Tensor, i: Tensor, j: Tensor, n: int) -> Tensor:
    """o_i = sum over pairs (i, j) of a_ij v_j for n queries. With a fixed by the degrees: a graph convolution.

    >>> mix(torch.tensor([2.0, 3.0]), torch.eye(2), torch.tensor([0, 0]), torch.tensor([0, 1]), 1)
    tensor([[2., 3.]])
    """
    messages = a.unsqueeze(-1) * v[..., j, :]  # ... E D
    return messages.new_zeros(*messages.shape[:-2], n, messages.shape[-1]).index_add(-2, i, messages)


def pair_weights(q: Tensor, k: Tensor, similarity: Similarity, pairs: PairList, bias: Tensor | None = None) -> Tensor:
    """Attention weights of listed pairs: B H E. gather, because the backward pass of indexing sorts on a GPU.

    >>> from harken.core import Dot
    >>> q, zero = torch.zeros(1, 1, 1, 2), torch.tensor([0, 0])
    >>> pair_weights(q, q, Dot(), PairList(zero, zero, torch.ones(1, 2, dtype=torch.bool)))
    tensor([[[0.5000, 0.5000]]])
    """
    (i, j, allowed), n = pairs, q.shape[-2]
    q, k = (x.gather(2, at[:, None].expand(*x.shape[:2], -1, x.shape[-1])) for x, at in ((q, i), (k, j)))  # B H E D
    scores = score(similarity.pair, q.unflatten(1, (k.shape[1], -1)), k.unsqueeze(2)).flatten(1, 2)  # B H E
    return edge_softmax(scores if bias is None else scores + bias, i, n, allowed[:, None])


def edge_softmax(scores: Tensor, i: Tensor, n: int, allowed: Tensor) -> Tensor:
    """Softmax over the pairs of each query i < n.

    >>> i = torch.tensor([0, 0, 1])
    >>> edge_softmax(torch.zeros(3), i, 2, torch.ones(3, dtype=torch.bool))
    tensor([0.5000, 0.5000, 1.0000])
    """
    scores = precise(scores).masked_fill(~allowed, -torch.inf)
    index, constant = i.expand_as(scores), scores.detach()
    top = constant.new_full((*scores.shape[:-1], n), -torch.inf).scatter_reduce(-1, index, constant, "amax")
    top = top.masked_fill(top.isinf(), 0)  # a query without an allowed pair
    weight = (scores - top.gather(-1, index)).exp()
    total = weight.new_zeros(top.shape).scatter_add(-1, index, weight)
    return weight / total.clamp_min(1).gather(-1, index)  # the largest score of a query adds 1
