"""Graph networks: a node aggregates its neighbors with fixed weights (GCN), with attention (GAT), or as a Transformer.

GCN: H' = A H W with weights fixed by the degrees, a_ij = 1 / sqrt(d_i d_j) (Kipf 2016).
GAT: a_ij = softmax_j LeakyReLU(a . [W h_i || W h_j]) over the neighbors j of i (Velickovic 2017).
Graph transformer: nodes are tokens that attend to all nodes or to the nodes within `reach` hops; positions of the nodes
may be added. Beside the attention, convolutions can read the same input: the output is the weighted sum of both
branches (Wu 2023, SGFormer).

The output of a graph is the mean or the sum of the outputs of its nodes; a pair of graphs compares two of them
(graph_pairs.py). With edge types, a GCN has a matrix for each type, and attention a bias.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from harken.core import Block, CosineKernel, LayerContext, Layout, ScaledDot
from harken.core.backends.graph_sum import TypedPairs
from harken.errors import BadSetting
from harken.settings import MAX_HOPS, LabelOutputs

from . import DIALS, Model, ModelSettings
from .graph_layers import (
    FeatureProjection,
    GATLayer,
    GCN2Layer,
    GCNLayer,
    PairBiasLayout,
    RelationalLayer,
    StateAttention,
    Sum,
    TypeBias,
)
from .graph_pairs import GraphComparison


class GraphModel(Model):
    """Outputs of nodes, graphs or pairs of graphs. A subclass implements `node_outputs` and `input_layer`."""

    compiles = False  # the shape is constant, so a CUDA graph is as fast
    pool: Literal["mean", "sum"] = "mean"  # output of a graph from those of its nodes
    input_layer: Callable[[], nn.Module]  # reads the features

    def __init__(self) -> None:
        super().__init__()
        self.comparison: nn.Module | None = None  # of two graphs

    def node_outputs(
        self, x: Tensor, *, layout: Layout, hops: Tensor, feature_sum: Sum | None = None,
        positional_encoding: Tensor | None = None, typed: TypedPairs | None = None, **inputs: object,
    ) -> Tensor:  # N F -> N C  # fmt: skip
        """Outputs of the nodes; a model reads those inputs that it needs."""
        raise NotImplementedError

    def node_states(
        self, x: Tensor, *, layout: Layout, hops: Tensor, feature_sum: Sum | None = None,
        positional_encoding: Tensor | None = None, typed: TypedPairs | None = None, **inputs: object,
    ) -> Tensor:  # N F -> N d  # fmt: skip
        """The input of the last layer: what the model has learned about the nodes before their outputs."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, *, graph_ids: Tensor | None = None, n_graphs: int = 0, pairs: Tensor | None = None,
        **inputs: object,
    ) -> Tensor:  # fmt: skip
        """Outputs of the nodes; with `n_graphs` of graphs (means or sums, G C), with `pairs` (P 2) of pairs of them."""
        options: Any = inputs
        y = self.node_outputs(x, **options)
        if graph_ids is None or not n_graphs:
            return y
        pool = graph_means if self.pool == "mean" else graph_sums
        h = pool(y, graph_ids, n_graphs)
        return h if pairs is None or self.comparison is None else self.comparison(h[pairs[:, 0]], h[pairs[:, 1]])


def graph_sums(y: Tensor, graph_ids: Tensor, n_graphs: int) -> Tensor:  # N C -> G C
    """The sum over the nodes of each graph."""
    return y.new_zeros(n_graphs, y.shape[-1]).index_add(0, graph_ids, y)


def graph_means(y: Tensor, graph_ids: Tensor, n_graphs: int) -> Tensor:  # N C -> G C
    """The mean over the nodes of each graph."""
    counts = y.new_zeros(n_graphs).index_add(0, graph_ids, y.new_ones(len(graph_ids)))
    return graph_sums(y, graph_ids, n_graphs) / counts.clamp_min(1)[:, None]


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


class GraphTransformer(GraphModel):
    """Nodes as tokens: features plus positions, attention and convolution as two branches, a linear output.

    The attention reads the features, or the output of the convolutions. Then its weights depend on smoothed states, and
    not on the features of single nodes, which memorize few labels.
    """

    def __init__(self, settings: "GraphTransformerSettings", outputs: LabelOutputs) -> None:
        super().__init__()
        d, self.kind, self.p = settings.d, settings.positions, settings.dropout
        self.input_projection = FeatureProjection(outputs.vocab_size, d, dropout=settings.feature_dropout)
        self.pe_projection = nn.Linear(settings.pe_dim, d) if settings.positions != "none" else None
        self.hop_bias = nn.Parameter(torch.zeros(settings.heads, MAX_HOPS + 1)) if settings.distance else None
        listed = outputs.edge_types and settings.reach  # attention to all nodes has no pairs with types
        self.type_bias = TypeBias(settings.heads, outputs.edge_types) if listed else None
        self.state_attention = settings.attention != "blocks"
        if not self.state_attention:
            config = settings.block_config()
            self.blocks, self.norm = nn.ModuleList(Block(config) for _ in range(settings.layers)), config.build_norm()
        else:
            self.blocks = nn.ModuleList(settings.state_attention() for _ in range(settings.layers))
            self.norm = nn.Identity()
        self.convolutions = nn.ModuleList(settings.convolutions(outputs.edge_types))
        self.graph_weight = settings.graph_weight
        self.attends_to_smoothed = settings.attention_input == "convolutions"
        self.W_y = nn.Linear(d, outputs.n_outputs or d)

    def input_layer(self) -> nn.Module:
        return self.input_projection

    def node_outputs(self, x: Tensor, **inputs: object) -> Tensor:
        options: Any = inputs
        return self.W_y(F.dropout(self.node_states(x, **options), self.p, self.training))

    def node_states(
        self, x: Tensor, layout: Layout, hops: Tensor, feature_sum: Sum | None = None,
        positional_encoding: Tensor | None = None, typed: TypedPairs | None = None, **inputs: object,
    ) -> Tensor:  # fmt: skip
        h, pe = self.input_projection(x, feature_sum), positional_encoding
        if self.pe_projection is not None and pe is not None:
            if self.kind == "laplacian" and self.training:  # the sign of an eigenvector is arbitrary
                pe = pe * (torch.rand_like(pe[:1]) < 0.5).to(pe.dtype).mul(2).sub(1)
            h = h + self.pe_projection(pe)
        edges: Any = inputs | {"typed": typed}
        layout = self._with_bias(layout, hops, typed)
        if not self.convolutions:
            return self._attention(h, layout)
        smoothed, g = self._convolution(h, **edges), self.graph_weight
        return (1 - g) * self._attention(smoothed if self.attends_to_smoothed else h, layout) + g * smoothed

    def _attention(self, h: Tensor, layout: Layout) -> Tensor:  # N d -> N d
        if self.state_attention:
            for attention in self.blocks:
                h = attention(F.dropout(F.relu(h), self.p, self.training), layout)
            return h
        h, context = h[None], LayerContext(layout)
        for block in self.blocks:
            h = block(h, context)
        return self.norm(h[0])

    def _convolution(  # N d -> N d
        self, h: Tensor, a: Tensor, message_passing: Sum, typed: TypedPairs | None, **_: object
    ) -> Tensor:
        h = h_0 = F.relu(h)
        for layer in self.convolutions:
            h = layer(h, h_0, a, message_passing, typed)
        return h

    def _with_bias(self, layout: Layout, hops: Tensor, typed: TypedPairs | None) -> Layout:
        """The layout with a learned bias of the scores for each number of hops, and for each edge type."""
        bias = None if self.hop_bias is None else self.hop_bias[:, hops.clamp_max(MAX_HOPS)]  # H E, or H N N
        if self.type_bias is not None and typed is not None:
            of_types = self.type_bias(typed, len(hops))
            bias = of_types if bias is None else bias + of_types
        if bias is None:
            return layout
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

    d: int = Field(16, ge=1, description="width of the hidden layers")
    layers: int = Field(2, ge=1, description="number of layers")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout probability of features and states")

    pool: Literal["mean", "sum"] = Field("mean", description="output of a graph from the outputs of its nodes")
    comparison: Literal["distance", "tensor"] = Field(
        "distance",
        description="pairs of graphs u, v: an MLP of |u - v| and u * v, or a neural tensor u W v of several matrices",
    )
    symmetric: bool = Field(True, description="pairs of graphs: the output does not depend on the order of the two")

    @property
    def graph_options(self) -> GraphOptions:
        return GraphOptions()

    def build(self, vocab: LabelOutputs) -> GraphModel:
        model = self.build_encoder(vocab._replace(n_outputs=0) if vocab.of_pairs else vocab)
        model.pool = self.pool
        if vocab.of_pairs:
            options: Any = {"kind": self.comparison, "symmetric": self.symmetric}
            model.comparison = GraphComparison(self.d, vocab.n_outputs, **options)
        return model

    def build_encoder(self, vocab: LabelOutputs) -> GraphModel:
        """The model of the nodes; without outputs, its states have the width d."""
        raise NotImplementedError


class GCNSettings(GraphModelSettings):
    """Settings of a graph convolutional network."""

    dials: ClassVar = DIALS["gcn"]
    kind: Literal["gcn"] = "gcn"
    size: Literal["tiny", "small", "medium", "large"] = Field("small", description="dial: sets d")
    bases: int = Field(0, ge=0, description="matrices that the edge types share; 0: a matrix for each type")

    def build_encoder(self, vocab: LabelOutputs) -> GNN:
        widths = pairwise([vocab.vocab_size, *[self.d] * (self.layers - 1), vocab.n_outputs or self.d])
        if (n := vocab.edge_types) == 0:
            return GNN([GCNLayer(a, b, dropout=self.dropout) for a, b in widths], F.relu)
        return GNN([RelationalLayer(a, b, n, bases=self.bases, dropout=self.dropout) for a, b in widths], F.relu)


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

    def build_encoder(self, vocab: LabelOutputs) -> GNN:
        _check_heads(self.d, self.heads)
        options: Any = {"dropout": (self.dropout, self.attention_dropout), "edge_types": vocab.edge_types}
        *hidden, last = [vocab.vocab_size, *[self.d] * (self.layers - 1)]
        layers = [GATLayer(width, self.d // self.heads, self.heads, mean=False, **options) for width in hidden]
        output = GATLayer(last, vocab.n_outputs or self.d, self.last_heads, mean=True, **options)
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
    attention_input: Literal["features", "convolutions"] = Field(
        "features", description="input of the attention: the projected features, or the output of the convolutions"
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

    def convolutions(self, edge_types: int) -> list[GCN2Layer]:
        """The layers of the convolution branch."""
        if self.attention_input == "convolutions" and not self.convolution_layers:
            fix = "set model.convolution_layers=8 or model.attention_input=features"
            raise BadSetting(f"model.attention_input=convolutions: model.convolution_layers=0 has no output; {fix}")
        p = {"alpha": self.initial_residual, "theta": self.identity_mapping, "dropout": self.dropout}
        return [GCN2Layer(self.d, layer, **p, edge_types=edge_types) for layer in range(1, self.convolution_layers + 1)]

    def build_encoder(self, vocab: LabelOutputs) -> GraphTransformer:
        return GraphTransformer(self, vocab)
