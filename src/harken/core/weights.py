"""The weights: softmax over the pairs that are allowed, all pairs or listed ones, in float32 at least."""

import torch
from torch import Tensor

from .similarity import HALF, Similarity


def weights(q: Tensor, k: Tensor, similarity: Similarity, allowed: Tensor, bias: Tensor | None = None) -> Tensor:
    """a_ij for projected q and k: softmax in float32 at least, 0 where not allowed."""
    groups = q.unflatten(1, (k.shape[1], -1)).flatten(2, 3)  # B H' (G Lq) D
    scores = similarity.all_pairs(groups, k).unflatten(2, (-1, q.shape[-2])).flatten(1, 2)  # B H Lq Lk
    if scores.dtype in HALF:
        scores = scores.float()
    if bias is not None:
        scores = scores + bias
    # "times -inf" in the lecture means: replace by -inf. The lowest finite number keeps an empty row's gradient finite
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return scores.softmax(-1).masked_fill(~allowed, 0)


def edge_softmax(scores: Tensor, i: Tensor, n: int, allowed: Tensor) -> Tensor:
    """Softmax over the pairs that leave each query i, in float32 at least."""
    scores = scores.float() if scores.dtype in HALF else scores
    scores = scores.masked_fill(~allowed, -torch.inf)
    index = i.expand_as(scores)
    top = (
        scores.detach().new_full((*scores.shape[:-1], n), -torch.inf).scatter_reduce(-1, index, scores.detach(), "amax")
    )
    top = top.masked_fill(top.isinf(), 0)  # a query without an allowed pair
    weight = (scores - top.gather(-1, index)).exp()
    total = weight.new_zeros(*weight.shape[:-1], n).scatter_add(-1, index, weight)
    return weight / total.clamp_min(torch.finfo(weight.dtype).tiny).gather(-1, index)
