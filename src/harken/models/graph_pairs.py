"""Comparison of the vectors u, v of two graphs: a number or the scores of labels."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TENSOR_MATRICES = 16  # K of the neural tensor network, as in SimGNN (Bai 2019)


class GraphComparison(nn.Module):
    """An output that is the same for (u, v) and (v, u), unless `symmetric` is False.

    distance: W_2 relu(W_1 [|u - v|, u * v]), also with u - v if the order matters.
    tensor: W_2 relu(u W_k v + V [u, v] + b) for k = 1 ... K (Socher 2013), symmetric with W_k + W_k^T and V (u + v).
    """

    def __init__(self, d: int, outputs: int, *, kind: Literal["distance", "tensor"], symmetric: bool) -> None:
        super().__init__()
        self.symmetric, self.W = symmetric, None
        if kind == "tensor":
            self.W = nn.Parameter(nn.init.xavier_uniform_(torch.empty(TENSOR_MATRICES, d, d)))
            self.W_1, hidden = nn.Linear(d if symmetric else 2 * d, TENSOR_MATRICES), TENSOR_MATRICES
        else:
            self.W_1, hidden = nn.Linear(2 * d if symmetric else 3 * d, d), d
        self.W_2 = nn.Linear(hidden, outputs)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:  # P d, P d -> P C
        if self.W is None:
            parts = [(u - v).abs(), u * v, *([] if self.symmetric else [u - v])]
            return self.W_2(F.relu(self.W_1(torch.cat(parts, -1))))
        W = self.W + self.W.mT if self.symmetric else self.W
        products = torch.einsum("pd,kde,pe->pk", u, W, v)
        return self.W_2(F.relu(products + self.W_1(u + v if self.symmetric else torch.cat([u, v], -1))))
