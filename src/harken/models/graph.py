"""Graph networks: a node aggregates its neighbors with fixed weights (GCN), with attention (GAT), or as a Transformer.

GCN: H' = A H W with weights fixed by the degrees, a_ij = 1 / sqrt(d_i d_j) (Kipf 2016).
GAT: a_ij = softmax_j LeakyReLU(a . [W h_i || W h_j]) over the neighbors j of i (Velickovic 2017).
Graph transformer: nodes are tokens that attend to all nodes or to the nodes within `reach` hops; positions of the nodes
may be added. Beside the attention, convolutions can read the same input: the output is the weighted sum of both
branches (Wu 2023, SGFormer).

The output of a graph is the mean of the outputs of its nodes.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from harken.core import (
    Block,
    Concat,
    CosineKernel,
    Editor,
    LayerContext,
    Layout,
    ScaledDot,
    Similarity,
    Watchable,
    attend,
    pair_weights,
)
from harken.settings import MAX_HOPS, LabelOutputs

from . import DIALS, Model, ModelSettings

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


class GCN2Layer(nn.Module):
    """relu(H ((1 - beta) I + beta W)) with H = (1 - alpha) A H_l + alpha H_0, beta = log(theta / l + 1) (Chen 2020).

    A share alpha of the input stays in every layer, so the nodes do not become equal in many layers. theta = 0 is the
    propagation of APPNP (Gasteiger 2019) with a relu.
    """

    def __init__(self, d: int, layer: int, *, alpha: float, theta: float, dropout: float) -> None:
        super().__init__()
        self.alpha, self.beta, self.p = alpha, math.log(theta / layer + 1), dropout
        self.W = nn.Parameter(nn.init.xavier_uniform_(torch.empty(d, d))) if theta else None

    def forward(self, h: Tensor, h_0: Tensor, a: Tensor, message_passing: Sum) -> Tensor:  # N d -> N d
        neighbors = message_passing(a, F.dropout(h, self.p, self.training))
        h = (1 - self.alpha) * neighbors + self.alpha * h_0
        return F.relu(h if self.W is None else (1 - self.beta) * h + self.beta * (h @ self.W))


class GATLayer(Watchable):
    """Attention to the neighbors: concatenated heads, or their mean in the last layer."""

    def __init__(self, width: int, D: int, heads: int, *, mean: bool, dropout: tuple[float, float]) -> None:
        super().__init__()
        self.heads, self.mean, self.p = heads, mean, dropout[1]
        self.input_projection = FeatureProjection(width, heads * D, dropout=dropout[0])
        self.similarity = Concat(heads, D)
        self.b = nn.Parameter(torch.zeros(D if mean else heads * D))
        for W in (self.similarity.W_q, self.similarity.W_k):
            nn.init.uniform_(W, -((6 / (D + heads)) ** 0.5), (6 / (D + heads)) ** 0.5)

    def forward(  # N F -> N d
        self, h: Tensor, feature_sum: Sum | None, *, layout: Layout, message_passing: Sum, **_: object
    ) -> Tensor:
        v = self.input_projection(h, feature_sum).unflatten(-1, (self.heads, -1)).transpose(0, 1)[None]  # 1 H N D
        dropout = self.p if self.training else 0.0
        if layout.pairs is None or isinstance(self.watch, Editor):
            o = attend(v, v, v, self.similarity, layout, dropout=dropout, watch=self.watch)[0]  # H N D
        else:  # the same with the faster sum
            q, k = self.similarity.project(v, v)
            if self.watch is not None:
                self.watch(q, k, self.similarity, layout)
            a = pair_weights(q, k, self.similarity, layout.pair_list())[0]  # H E
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


class GraphModel(Model):
    """Outputs of nodes or graphs. A subclass implements `node_outputs` and `input_layer`."""

    compiles = False  # the shape is constant, so a CUDA graph is as fast
    input_layer: Callable[[], nn.Module]  # reads the features

    def node_outputs(
        self, x: Tensor, *, layout: Layout, hops: Tensor, feature_sum: Sum | None = None,
        positional_encoding: Tensor | None = None, **inputs: object,
    ) -> Tensor:  # N F -> N C  # fmt: skip
        """Outputs of the nodes; a model reads those inputs that it needs."""
        raise NotImplementedError

    def node_states(
        self, x: Tensor, *, layout: Layout, hops: Tensor, feature_sum: Sum | None = None,
        positional_encoding: Tensor | None = None, **inputs: object,
    ) -> Tensor:  # N F -> N d  # fmt: skip
        """The input of the last layer: what the model has learned about the nodes before their outputs."""
        raise NotImplementedError

    def forward(self, x: Tensor, *, graph_ids: Tensor | None = None, n_graphs: int = 0, **inputs: object) -> Tensor:
        """Outputs of the nodes, or with `n_graphs` of the graphs: the means over their nodes, G C."""
        options: Any = inputs
        y = self.node_outputs(x, **options)
        return y if graph_ids is None or not n_graphs else graph_means(y, graph_ids, n_graphs)


def graph_means(y: Tensor, graph_ids: Tensor, n_graphs: int) -> Tensor:  # N C -> G C
    """The mean over the nodes of each graph."""
    sums = y.new_zeros(n_graphs, y.shape[-1]).index_add(0, graph_ids, y)
    return sums / y.new_zeros(n_graphs).index_add(0, graph_ids, y.new_ones(len(graph_ids))).clamp_min(1)[:, None]


class GNN(GraphModel):
    """GCN or GAT layers with an activation function between them."""

    def __init__(self, layers: list[nn.Module], activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.blocks, self.activation = nn.ModuleList(layers), activation

    def input_layer(self) -> nn.Module:
        return self.blocks[0]

    def node_outputs(self, x: Tensor, feature_sum: Sum | None = None, **inputs: object) -> Tensor:
        return self._apply_layers(len(self.blocks), x, feature_sum, **inputs)

    def node_states(self, x: Tensor, feature_sum: Sum | None = None, **inputs: object) -> Tensor:
        if len(self.blocks) == 1:  # its input is the features
            return self.node_outputs(x, feature_sum, **inputs)
        return self.activation(self._apply_layers(len(self.blocks) - 1, x, feature_sum, **inputs))

    def _apply_layers(self, count: int, x: Tensor, feature_sum: Sum | None, **inputs: object) -> Tensor:
        for n, layer in enumerate(self.blocks[:count]):
            x = layer(self.activation(x), None, **inputs) if n else layer(x, feature_sum, **inputs)
        return x


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


class GraphTransformer(GraphModel):
    """Nodes as tokens: features plus positions, attention and convolution as two branches, a linear output."""

    def __init__(self, settings: "GraphTransformerSettings", outputs: LabelOutputs) -> None:
        super().__init__()
        d, self.kind, self.p = settings.d, settings.positions, settings.dropout
        self.input_projection = FeatureProjection(outputs.vocab_size, d, dropout=settings.feature_dropout)
        self.pe_projection = nn.Linear(settings.pe_dim, d) if settings.positions != "none" else None
        self.hop_bias = nn.Parameter(torch.zeros(settings.heads, MAX_HOPS + 1)) if settings.distance else None
        self.state_attention = settings.attention != "blocks"
        if not self.state_attention:
            config = settings.block_config()
            self.blocks, self.norm = nn.ModuleList(Block(config) for _ in range(settings.layers)), config.build_norm()
        else:
            self.blocks = nn.ModuleList(settings.state_attention() for _ in range(settings.layers))
            self.norm = nn.Identity()
        self.convolutions = nn.ModuleList(settings.convolutions())
        self.graph_weight = settings.graph_weight if self.convolutions else 0.0
        self.W_y = nn.Linear(d, outputs.n_outputs or d)

    def input_layer(self) -> nn.Module:
        return self.input_projection

    def node_outputs(self, x: Tensor, **inputs: object) -> Tensor:
        options: Any = inputs
        return self.W_y(F.dropout(self.node_states(x, **options), self.p, self.training))

    def node_states(
        self, x: Tensor, layout: Layout, hops: Tensor, feature_sum: Sum | None = None,
        positional_encoding: Tensor | None = None, **inputs: object,
    ) -> Tensor:  # fmt: skip
        h, pe = self.input_projection(x, feature_sum), positional_encoding
        if self.pe_projection is not None and pe is not None:
            if self.kind == "laplacian" and self.training:  # the sign of an eigenvector is arbitrary
                pe = pe * (torch.rand_like(pe[:1]) < 0.5).to(pe.dtype).mul(2).sub(1)
            h = h + self.pe_projection(pe)
        edges: Any = inputs
        g = self.graph_weight  # 0 without convolutions
        return (1 - g) * self._attention(h, layout, hops) + (g * self._convolution(h, **edges) if g else 0)

    def _attention(self, h: Tensor, layout: Layout, hops: Tensor) -> Tensor:  # N d -> N d
        layout = self._with_hop_bias(layout, hops)
        if self.state_attention:
            for attention in self.blocks:
                h = attention(F.dropout(F.relu(h), self.p, self.training), layout)
            return h
        h, context = h[None], LayerContext(layout)
        for block in self.blocks:
            h = block(h, context)
        return self.norm(h[0])

    def _convolution(self, h: Tensor, a: Tensor, message_passing: Sum, **_: object) -> Tensor:  # N d -> N d
        h = h_0 = F.relu(h)
        for layer in self.convolutions:
            h = layer(h, h_0, a, message_passing)
        return h

    def _with_hop_bias(self, layout: Layout, hops: Tensor) -> Layout:
        """The layout with a learned bias of the scores for each number of hops."""
        if self.hop_bias is None:
            return layout
        bias = self.hop_bias[:, hops.clamp_max(MAX_HOPS)]  # H E, or H N N
        if layout.pairs is not None:
            return PairBiasLayout(layout, bias)
        return layout.structure.layout(1, layout.Lq, layout.Lk, layout.device, bias)


# --- settings ---------------------------------------------------------------------------------------------------------


class GraphOptions(NamedTuple):
    """Properties of the graph that a model needs as input."""

    reach: int = 1  # number of hops; 0: all nodes
    positions: Literal["none", "laplacian", "walk"] = "none"
    pe_dim: int = 0
    distance: bool = False  # with reach 0: the number of hops between all nodes


class GraphModelSettings(ModelSettings):
    """Settings of all graph networks."""

    stack_seeds: ClassVar[bool] = True

    layers: int = Field(2, ge=1, description="number of layers")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout probability of features and states")

    @property
    def graph_options(self) -> GraphOptions:
        return GraphOptions()


class GCNSettings(GraphModelSettings):
    """Settings of a graph convolutional network."""

    dials: ClassVar = DIALS["gcn"]
    kind: Literal["gcn"] = "gcn"
    size: Literal["tiny", "small", "medium", "large"] = Field("small", description="dial: sets d")
    d: int = Field(16, ge=1, description="width of the hidden layers")

    def build(self, vocab: LabelOutputs) -> GNN:
        widths = [vocab.vocab_size, *[self.d] * (self.layers - 1), vocab.n_outputs or self.d]
        return GNN([GCNLayer(a, b, dropout=self.dropout) for a, b in pairwise(widths)], F.relu)


def _check_heads(d: int, heads: int) -> None:
    if d % heads:
        raise ValueError(f"d={d} is not divisible by heads={heads}; use d={d // heads * heads + heads}")


class GATSettings(GraphModelSettings):
    """Settings of a graph attention network."""

    dials: ClassVar = DIALS["gat"]
    kind: Literal["gat"] = "gat"
    size: Literal["tiny", "small", "medium", "large"] = Field("small", description="dial: sets d and heads")
    d: int = Field(64, ge=1, description="width of the hidden layers, all heads together")
    heads: int = Field(8, ge=1, description="number of attention heads (H)")
    last_heads: int = Field(1, ge=1, description="number of heads of the last layer, which are averaged")
    dropout: float = Field(0.6, ge=0, lt=1, description="dropout probability of features and states")
    attention_dropout: float = Field(0.6, ge=0, lt=1, description="dropout probability of the attention weights")

    def build(self, vocab: LabelOutputs) -> GNN:
        _check_heads(self.d, self.heads)
        dropout = self.dropout, self.attention_dropout
        *hidden, last = [vocab.vocab_size, *[self.d] * (self.layers - 1)]
        layers = [GATLayer(width, self.d // self.heads, self.heads, mean=False, dropout=dropout) for width in hidden]
        output = GATLayer(last, vocab.n_outputs or self.d, self.last_heads, mean=True, dropout=dropout)
        return GNN([*layers, output], F.elu)


class GraphTransformerSettings(GraphModelSettings):
    """Settings of a graph transformer."""

    dials: ClassVar = DIALS["graph-transformer"]
    kind: Literal["graph-transformer"] = "graph-transformer"
    size: Literal["tiny", "small", "medium", "large"] = Field("small", description="dial: sets d, heads and pe_dim")
    d: int = Field(64, ge=1, description="width of the model (embedding dimension)")
    heads: int = Field(4, ge=1, description="number of attention heads (H)")
    d_ff: int | None = Field(None, ge=1, description="width of the MLP; none: 4 d")
    attention: Literal["blocks", "softmax", "linear"] = Field(
        "blocks",
        description="Transformer blocks, or attention with the states as values: softmax, or linear in the nodes",
    )
    reach: int = Field(1, ge=0, description="number of hops within which nodes attend to each other; 0: all nodes")
    convolution_layers: int = Field(0, ge=0, description="number of graph convolutions beside the attention")
    graph_weight: float = Field(0.8, ge=0, le=1, description="weight of the convolutions; the attention has the rest")
    initial_residual: float = Field(0.1, ge=0, le=1, description="share of the input in each convolution (alpha)")
    identity_mapping: float = Field(
        0.5, ge=0, description="layer l learns log(this / l + 1) of its matrix (theta), the rest is the identity"
    )
    positions: Literal["none", "laplacian", "walk"] = Field(
        "walk", description="positional encoding: Laplacian eigenvectors, or return probabilities of a random walk"
    )
    pe_dim: int = Field(16, ge=1, description="dimension of the positional encoding")
    distance: bool = Field(True, description="learned bias of the scores for each number of hops and each head")
    feature_dropout: float = Field(0.5, ge=0, lt=1, description="dropout probability of the features")

    @property
    def graph_options(self) -> GraphOptions:
        return GraphOptions(self.reach, self.positions, self.pe_dim, self.distance)

    def state_attention(self) -> StateAttention:
        """One layer of the attention branch without blocks."""
        _check_heads(self.d, self.heads)
        if self.attention == "linear" and self.distance:
            raise ValueError("attention=linear has no score for each pair to add a bias to; set model.distance=false")
        similarity = CosineKernel() if self.attention == "linear" else ScaledDot(self.d // self.heads)
        return StateAttention(self.d, self.heads, similarity)

    def convolutions(self) -> list[GCN2Layer]:
        """The layers of the convolution branch."""
        p = {"alpha": self.initial_residual, "theta": self.identity_mapping, "dropout": self.dropout}
        return [GCN2Layer(self.d, layer, **p) for layer in range(1, self.convolution_layers + 1)]

    def build(self, vocab: LabelOutputs) -> GraphTransformer:
        return GraphTransformer(self, vocab)
