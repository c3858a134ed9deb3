"""Graphs: a node is told by its neighbours, equally (GCN), by those that are alike (GAT), or as a Transformer's token.

GCN: H' = A H W with weights fixed by the degrees, a_ij = 1 / sqrt(d_i d_j) (Kipf 2016).
GAT: a_ij = softmax_j LeakyReLU(a . [W h_i || W h_j]) over the neighbours j of i (Velickovic 2017).
Graph transformer: blocks whose tokens are nodes, who look at those within reach; where a node stands is added to it.

What is said of a graph is the mean of what its nodes say.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from harken.core import Block, Concat, Layout, Place, Wiring, attend
from harken.core.view import Editor, View, pair_weights
from harken.settings import FAR, Outputs, Part

Sums = Callable[[Tensor, Tensor], Tensor]  # o_i = sum_j a_ij v_j over listed pairs, of a (E) and v


class Lift(nn.Module):
    """x W, where x may be sparse: a bag of words is a graph from nodes to words, and x W sums over it."""

    def __init__(self, width: int, d: int, *, dropout: float) -> None:
        super().__init__()
        self.W, self.p = nn.Parameter(torch.empty(width, d)), dropout
        nn.init.xavier_uniform_(self.W)

    def forward(self, x: Tensor, words: Sums | None = None) -> Tensor:  # N F -> N d
        if words is None:
            return F.dropout(x, self.p, self.training) @ self.W
        return words(F.dropout(x.values(), self.p, self.training), self.W)


class Convolution(nn.Module):
    """A H W + b."""

    def __init__(self, width: int, d: int, *, dropout: float) -> None:
        super().__init__()
        self.input_projection, self.b = Lift(width, d, dropout=dropout), nn.Parameter(torch.zeros(d))

    def forward(self, h: Tensor, words: Sums | None, *, a: Tensor, heard: Sums, **_: Any) -> Tensor:  # N F -> N d
        return heard(a, self.input_projection(h, words)) + self.b


class Neighbours(nn.Module):
    """Attention to the neighbours: heads side by side, or their mean in the last layer."""

    def __init__(self, width: int, D: int, heads: int, *, mean: bool, dropout: tuple[float, float]) -> None:
        super().__init__()
        self.heads, self.mean, self.p = heads, mean, dropout[1]
        self.input_projection, self.similarity = Lift(width, heads * D, dropout=dropout[0]), Concat(heads, D)
        self.b = nn.Parameter(torch.zeros(D if mean else heads * D))
        for W in (self.similarity.W_q, self.similarity.W_k):
            nn.init.uniform_(W, -((6 / (D + heads)) ** 0.5), (6 / (D + heads)) ** 0.5)
        self.watch: Any = None

    def forward(self, h: Tensor, words: Sums | None, *, layout: Layout, heard: Sums, **_: Any) -> Tensor:  # N F -> N d
        v = self.input_projection(h, words).unflatten(-1, (self.heads, -1)).transpose(0, 1)[None]  # 1 H N D
        dropout = self.p if self.training else 0.0
        if layout.pairs is None or isinstance(self.watch, Editor):
            o = attend(v, v, v, self.similarity, layout, dropout=dropout, watch=self.watch)[0]  # H N D
        else:  # the same by the faster sum
            q, k = self.similarity.project(v, v)
            if self.watch is not None:
                self.watch(View(q, k, self.similarity, layout))
            a = pair_weights(q, k, self.similarity, layout.listed())[0]  # H E
            o = heard(F.dropout(a, dropout), v[0])
        return (o.mean(0) if self.mean else o.transpose(0, 1).flatten(1)) + self.b


class GNN(nn.Module):
    """Layers of one kind, with a non-linearity between them. The layers are named so that the first can be told."""

    compiles = False  # a graph has one shape: what a GPU plays from a recording is as fast

    def __init__(self, layers: list[nn.Module], act: Any) -> None:
        super().__init__()
        self.blocks, self.activation = nn.ModuleList(layers), act

    def first(self) -> nn.Module:
        """What reads the features."""
        return self.blocks[0]

    def forward(
        self, x: Tensor, *, words: Sums | None = None, of: Tensor | None = None, graphs: int = 0, **told: Any
    ) -> Tensor:
        """What is said of each node, N C; with `graphs` of each of so many graphs."""
        for n, layer in enumerate(self.blocks):
            x = layer(self.activation(x), None, **told) if n else layer(x, words, **told)
        return pooled(x, of, graphs)


def pooled(h: Tensor, of: Tensor | None, graphs: int) -> Tensor:  # N C -> G C
    """The mean over the nodes of each graph, where graphs are asked for."""
    if of is None or not graphs:
        return h
    sums = h.new_zeros(graphs, h.shape[-1]).index_add(0, of, h)
    return sums / h.new_zeros(graphs).index_add(0, of, h.new_ones(len(of))).clamp_min(1)[:, None]


class Near(Layout):
    """A layout whose pairs have a bias each, H E: no N x N table."""

    def __init__(self, laid: Layout, each: Tensor) -> None:
        self.__dict__ |= laid.__dict__
        self.each = each

    def shift(self, heads: Tensor | slice, i: Tensor, j: Tensor | slice = slice(None)) -> Tensor:
        each = self.each if isinstance(heads, slice) else self.each[heads.flatten()]
        if not isinstance(j, slice):  # the listed pairs
            return each
        own, to, _ = self.listed()
        row, pair = (i[:, None] == own).nonzero(as_tuple=True)
        rows = each.new_zeros(len(each), len(i), self.Lk)
        rows[:, row, to[pair]] = each[:, pair]
        return rows


class GraphTransformer(nn.Module):
    """Nodes as tokens: features and places added, blocks of attention to those within reach, one map at the end."""

    compiles = False

    def __init__(self, shape: "TransformerShape", asked: Outputs) -> None:
        super().__init__()
        self.kind, self.p = shape.positions, shape.dropout
        self.input_projection = Lift(asked.vocab, shape.d, dropout=shape.feature_dropout)
        self.places = nn.Linear(shape.pe_dim, shape.d) if shape.positions != "none" else None
        self.near = nn.Parameter(torch.zeros(shape.heads, FAR + 1)) if shape.distance else None
        wiring = Wiring(shape.d, shape.heads, norm="pre", d_ff=shape.d_ff, dropout=shape.dropout)
        self.blocks = nn.ModuleList(Block(wiring) for _ in range(shape.layers))
        self.norm, self.W_y = wiring.normalise(), nn.Linear(shape.d, asked.outputs or shape.d)

    def first(self) -> nn.Module:
        return self.input_projection

    def forward(
        self, x: Tensor, *, layout: Layout, hops: Tensor, words: Sums | None = None, places: Tensor | None = None,
        **told: Any,
    ) -> Tensor:  # fmt: skip
        h = self.input_projection(x, words)
        if self.places is not None and places is not None:
            if self.kind == "laplacian" and self.training:  # an eigenvector has no sign of its own
                places = places * (torch.rand_like(places[:1]) < 0.5).to(places.dtype).mul(2).sub(1)
            h = h + self.places(places)
        h, place = h[None], Place(self._near(layout, hops))
        for block in self.blocks:
            h = block(h, place)
        y: Tensor = self.W_y(F.dropout(self.norm(h[0]), self.p, self.training))
        return pooled(y, told.get("of"), told.get("graphs", 0))

    def _near(self, layout: Layout, hops: Tensor) -> Layout:
        """Who is how far apart, as a bias of the scores."""
        if self.near is None:
            return layout
        each = self.near[:, hops.clamp_max(FAR)]  # H E, or H N N
        if layout.pairs is not None:
            return Near(layout, each)
        return layout.structure.lay(1, layout.Lq, layout.Lk, layout.device, each)


# --- settings ---------------------------------------------------------------------------------------------------------


class _Shape(Part):
    abreast: ClassVar[bool] = True  # the seeds of a comparison are trained together: it is the faster way

    layers: int = Field(2, ge=1, description="number of layers: how many hops away a node is heard")
    dropout: float = Field(0.5, ge=0, lt=1, description="share of features and states dropped, in training")


class GCNShape(_Shape):
    """A graph-convolutional network."""

    dials: ClassVar = {"size": {"tiny": {"d": 8}, "small": {"d": 16}, "medium": {"d": 64}, "large": {"d": 256}}}

    kind: Literal["gcn"] = "gcn"
    size: Literal["tiny", "small", "medium", "large"] = Field("small", description="the one dial: sets d")
    d: int = Field(16, ge=1, description="width of the layers between")

    def build(self, vocab: Outputs) -> GNN:
        widths = [vocab.vocab, *[self.d] * (self.layers - 1), vocab.outputs or self.d]
        made = [Convolution(a, b, dropout=self.dropout) for a, b in pairwise(widths)]
        return GNN(list(made), F.relu)


class GATShape(_Shape):
    """A graph attention network."""

    dials: ClassVar = {
        "size": {
            "tiny": {"d": 8, "heads": 2},
            "small": {"d": 64, "heads": 8},
            "medium": {"d": 256, "heads": 8},
            "large": {"d": 1024, "heads": 16},
        }
    }

    kind: Literal["gat"] = "gat"
    size: Literal["tiny", "small", "medium", "large"] = Field("small", description="the one dial: sets d and heads")
    d: int = Field(64, ge=1, description="width of the layers between, all heads together")
    heads: int = Field(8, ge=1, description="number of attention heads (H)")
    last_heads: int = Field(1, ge=1, description="heads of the last layer, whose mean is taken")
    dropout: float = Field(0.6, ge=0, lt=1, description="share of features and states dropped, in training")
    attention_dropout: float = Field(0.6, ge=0, lt=1, description="share of neighbours not heard, in training")

    def build(self, vocab: Outputs) -> GNN:
        if self.d % self.heads:
            wider = self.d // self.heads * self.heads + self.heads
            raise ValueError(f"d={self.d} does not split over {self.heads} heads; try d={wider}")
        how: Any = {"dropout": (self.dropout, self.attention_dropout)}
        between = [vocab.vocab, *[self.d] * (self.layers - 1)]
        made = [Neighbours(a, self.d // self.heads, self.heads, mean=False, **how) for a in between[:-1]]
        last = Neighbours(between[-1], vocab.outputs or self.d, self.last_heads, mean=True, **how)
        return GNN([*made, last], F.elu)


class TransformerShape(_Shape):
    """A graph transformer."""

    dials: ClassVar = {
        "size": {
            "tiny": {"d": 8, "heads": 2, "pe_dim": 4},
            "small": {"d": 64, "heads": 4, "pe_dim": 16},
            "medium": {"d": 128, "heads": 8, "pe_dim": 16},
            "large": {"d": 256, "heads": 8, "pe_dim": 32},
        }
    }

    kind: Literal["graph-transformer"] = "graph-transformer"
    size: Literal["tiny", "small", "medium", "large"] = Field(
        "small", description="the one dial: sets d, heads, pe_dim"
    )
    d: int = Field(64, ge=1, description="width of a node's state")
    heads: int = Field(4, ge=1, description="number of attention heads (H)")
    d_ff: int | None = Field(None, ge=1, description="width of the MLP; none: 4 d")
    reach: int = Field(1, ge=0, description="hops within which nodes look at each other; 0: all nodes of a graph")
    positions: Literal["none", "laplacian", "walk"] = Field(
        "walk", description="where a node stands: eigenvectors of the Laplacian, or chances that a walk comes back"
    )
    pe_dim: int = Field(16, ge=1, description="numbers that say where a node stands")
    distance: bool = Field(True, description="who is how many hops away weighs more or less, by head")
    feature_dropout: float = Field(0.5, ge=0, lt=1, description="share of features dropped, in training")

    def build(self, vocab: Outputs) -> GraphTransformer:
        return GraphTransformer(self, vocab)
