"""Layers of graph networks: convolutions with fixed weights, attention to the neighbors, and both with edge types."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harken.core import Concat, Editor, Layout, Similarity, Watchable, attend, pair_weights
from harken.core.backends.graph_sum import TypedPairs

Sum = Callable[[Tensor, Tensor], Tensor]  # o_i = sum_j a_ij v_j over listed pairs, for a (E) and v


class FeatureProjection(nn.Module):
    """x W, where x may be sparse: a bag of words is a graph from nodes to words, and x W is a sum over its pairs."""

    def __init__(self, width: int, d: int, *, dropout: float) -> None:
        super().__init__()
        self.W, self.p = nn.Parameter(torch.empty(width, d)), dropout
        nn.init.xavier_uniform_(self.W)

    def forward(self, x: Tensor, feature_sum: Sum | None = None) -> Tensor:  # N F -> N d
        if feature_sum is None:
            return F.dropout(x, self.p, self.training) @ self.W
        return feature_sum(F.dropout(x.values(), self.p, self.training), self.W)


class GCNLayer(nn.Module):
    """A H W + b."""

    def __init__(self, width: int, d: int, *, dropout: float) -> None:
        super().__init__()
        self.input_projection, self.b = FeatureProjection(width, d, dropout=dropout), nn.Parameter(torch.zeros(d))

    def forward(  # N F -> N d
        self, h: Tensor, feature_sum: Sum | None, *, a: Tensor, message_passing: Sum, **_: object
    ) -> Tensor:
        return message_passing(a, self.input_projection(h, feature_sum)) + self.b


class RelationalLayer(nn.Module):
    """sum_r A_r H W_r + H W_0 + b: a matrix for each edge type, the mean over the neighbors of it (Schlichtkrull 2017).

    With bases, the matrices of the types are W_r = sum_b c_rb V_b.
    """

    def __init__(self, width: int, d: int, edge_types: int, *, bases: int, dropout: float) -> None:
        super().__init__()
        n = 1 + (bases or edge_types)  # the last matrix is W_0
        self.input_projection, self.shape = FeatureProjection(width, n * d, dropout=dropout), (n, d)
        for W in self.input_projection.W.detach().chunk(n, 1):
            nn.init.xavier_uniform_(W)
        self.c = nn.Parameter(nn.init.xavier_uniform_(torch.empty(edge_types, bases))) if bases else None
        self.b = nn.Parameter(torch.zeros(d))

    def forward(  # N F -> N d
        self, h: Tensor, feature_sum: Sum | None, *, typed: TypedPairs, **_: object
    ) -> Tensor:
        h = self.input_projection(h, feature_sum).unflatten(-1, self.shape)  # N n d
        v = h[:, :-1] if self.c is None else torch.einsum("rb,nbd->nrd", self.c, h[:, :-1])
        return typed.sum(typed.a, v.flatten(0, 1)) + h[:, -1] + self.b


class TypeBias(nn.Module):
    """A learned bias of the scores for each edge type and head; a pair of several types has the sum."""

    def __init__(self, heads: int, edge_types: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.zeros(heads, edge_types))

    def forward(self, typed: TypedPairs, n_pairs: int) -> Tensor:  # H E
        return self.W.new_zeros(len(self.W), n_pairs).index_add(1, typed.pair, self.W[:, typed.type])


class GCN2Layer(nn.Module):
    """relu(H ((1 - beta) I + beta W)) with H = (1 - alpha) A H_l + alpha H_0, beta = log(theta / l + 1) (Chen 2020).

    A share alpha of the input stays in every layer, so the nodes do not become equal in many layers. theta = 0 is the
    propagation of APPNP (Gasteiger 2019) with a relu. With edge types, each type adds the mean of its neighbors,
    multiplied by a learned vector.
    """

    def __init__(self, d: int, layer: int, *, alpha: float, theta: float, dropout: float, edge_types: int = 0) -> None:
        super().__init__()
        self.type_scale = nn.Parameter(torch.zeros(edge_types, d)) if edge_types else None
        self.alpha, self.beta, self.p = alpha, math.log(theta / layer + 1), dropout
        self.W = nn.Parameter(nn.init.xavier_uniform_(torch.empty(d, d))) if theta else None

    def forward(  # N d -> N d
        self, h: Tensor, h_0: Tensor, a: Tensor, message_passing: Sum, typed: TypedPairs | None = None
    ) -> Tensor:
        h = F.dropout(h, self.p, self.training)
        neighbors = message_passing(a, h)
        if self.type_scale is not None and typed is not None:
            neighbors = neighbors + typed.sum(typed.a, (h[:, None] * self.type_scale).flatten(0, 1))
        h = (1 - self.alpha) * neighbors + self.alpha * h_0
        return F.relu(h if self.W is None else (1 - self.beta) * h + self.beta * (h @ self.W))


class GATLayer(Watchable):
    """Attention to the neighbors: concatenated heads, or their mean in the last layer."""

    def __init__(
        self, width: int, D: int, heads: int, *, mean: bool, dropout: tuple[float, float], edge_types: int = 0
    ) -> None:
        super().__init__()
        self.type_bias = TypeBias(heads, edge_types) if edge_types else None
        self.heads, self.mean, self.p = heads, mean, dropout[1]
        self.input_projection = FeatureProjection(width, heads * D, dropout=dropout[0])
        self.similarity = Concat(heads, D)
        self.b = nn.Parameter(torch.zeros(D if mean else heads * D))
        for W in (self.similarity.W_q, self.similarity.W_k):
            nn.init.uniform_(W, -((6 / (D + heads)) ** 0.5), (6 / (D + heads)) ** 0.5)

    def forward(  # N F -> N d
        self, h: Tensor, feature_sum: Sum | None, *, layout: Layout, message_passing: Sum,
        typed: TypedPairs | None = None, **_: object,
    ) -> Tensor:  # fmt: skip
        if self.type_bias is not None and typed is not None:
            layout = PairBiasLayout(layout, self.type_bias(typed, len(layout.pair_list().i)))
        v = self.input_projection(h, feature_sum).unflatten(-1, (self.heads, -1)).transpose(0, 1)[None]  # 1 H N D
        dropout = self.p if self.training else 0.0
        if layout.pairs is None or isinstance(self.watch, Editor):
            o = attend(v, v, v, self.similarity, layout, dropout=dropout, watch=self.watch)[0]  # H N D
        else:  # the same with the faster sum
            q, k = self.similarity.project(v, v)
            if self.watch is not None:
                self.watch(q, k, self.similarity, layout)
            pairs = layout.pair_list()
            bias = layout.bias_at(slice(None), pairs.i, pairs.j)
            a = pair_weights(q, k, self.similarity, pairs, bias)[0]  # H E
            o = message_passing(F.dropout(a, dropout), v[0])
        return (o.mean(0) if self.mean else o.transpose(0, 1).flatten(1)) + self.b


class StateAttention(Watchable):
    """Attention whose values are the states: o_i = sum_j a_ij h_j. Only queries and keys are projected (Wu 2023)."""

    def __init__(self, d: int, heads: int, similarity: Similarity) -> None:
        super().__init__()
        self.heads, self.similarity = heads, similarity
        self.W_q, self.W_k = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, h: Tensor, layout: Layout) -> Tensor:  # N d -> N d
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(0, 1)[None] for x in (self.W_q(h), self.W_k(h), h))
        return attend(q, k, v, self.similarity, layout, watch=self.watch)[0].transpose(0, 1).flatten(1)


class PairBiasLayout(Layout):
    """A layout with a bias for each listed pair, H E, instead of an N x N table."""

    def __init__(self, layout: Layout, pair_bias: Tensor) -> None:
        self.__dict__ |= layout.__dict__
        self.pair_bias = pair_bias

    def bias_at(self, heads: Tensor | slice, i: Tensor, j: Tensor | slice = slice(None)) -> Tensor:
        pair_bias = self.pair_bias if isinstance(heads, slice) else self.pair_bias[heads.flatten()]
        if not isinstance(j, slice):  # the listed pairs
            return pair_bias
        pairs = self.pair_list()
        row, pair = (i[:, None] == pairs.i).nonzero(as_tuple=True)
        rows = pair_bias.new_zeros(len(pair_bias), len(i), self.Lk)
        rows[:, row, pairs.j[pair]] = pair_bias[:, pair]
        return rows
