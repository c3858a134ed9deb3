"""Edge types and pairs of graphs: the values of PyTorch Geometric and of loops in float64."""

import itertools

import numpy as np
import pytest
import torch

from harken.data.graphs.batch import build_graph, typed_edges
from harken.models.graph import GATSettings, GCNSettings, GraphTransformerSettings
from harken.models.graph_layers import GATLayer, GCN2Layer, RelationalLayer, TypeBias
from harken.models.graph_pairs import GraphComparison
from harken.settings import LabelOutputs

N, WIDTH, D, TYPES = 10, 5, 4, 3
LIKE = torch.zeros((), dtype=torch.float64)


def typed_graph(seed: int = 0, *, weight: bool = False, **options):
    """Edges (j, i) with types, some pairs with several of them; node 9 has none."""
    rng = np.random.default_rng(seed)
    ends, types = rng.integers(N - 1, size=(40, 2)), rng.integers(TYPES, size=40)
    rows = np.unique(np.c_[ends, types][ends[:, 0] != ends[:, 1]], axis=0)
    ends, types = rows[:, :2], rows[:, 2]
    w = rng.uniform(0.5, 2, len(ends)).astype(np.float32) if weight else None
    x = rng.normal(size=(N, WIDTH)).astype(np.float32)
    graph = build_graph(x, ends, w, np.zeros(N, np.int64), **options)
    graph.__dict__["typed_edges"] = typed_edges(ends, w, types, N, TYPES)
    return graph, graph.model_inputs(LIKE) | {"n_graphs": 0}, ends, types, w


@pytest.fixture(scope="module")
def geometric():
    return pytest.importorskip("torch_geometric.nn")


@pytest.mark.parametrize("bases", [0, 2])
def test_the_relational_layer_equals_rgcnconv(geometric, bases):
    _, inputs, ends, types, _ = typed_graph()
    layer = RelationalLayer(WIDTH, D, TYPES, bases=bases, dropout=0).double()
    reference = geometric.RGCNConv(WIDTH, D, TYPES, num_bases=bases or None, aggr="mean").double()
    W = layer.input_projection.W.detach().unflatten(1, (-1, D)).transpose(0, 1)  # n F D
    with torch.no_grad():
        reference.weight.copy_(W[:-1])
        reference.root.copy_(W[-1])
        if bases:
            reference.comp.copy_(layer.c)
    x = inputs["x"].requires_grad_()
    ours = layer(x, None, typed=inputs["typed"])
    expected = reference(x, torch.from_numpy(ends.T.copy()), torch.from_numpy(types))
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)  # the shares of the edges are float32
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-5)


def test_the_weights_of_typed_edges_are_their_share_at_the_node_and_type():
    graph, _, ends, types, w = typed_graph(weight=True)
    typed = graph.typed_edges
    for i, j, kind, a in zip(typed.i, typed.j, typed.type, typed.a, strict=True):
        total = sum(w[(ends[:, 1] == i) & (types == kind)])
        assert a == pytest.approx(w[(ends[:, 0] == j) & (ends[:, 1] == i) & (types == kind)][0] / total)


def test_a_gat_with_edge_types_adds_a_bias_to_the_score_of_each_edge():
    graph, inputs, ends, types, _ = typed_graph()
    layer = GATLayer(WIDTH, D, 2, mean=False, dropout=(0, 0), edge_types=TYPES).double()
    torch.nn.init.normal_(layer.type_bias.W)
    v = (inputs["x"] @ layer.input_projection.W).view(N, 2, D).transpose(0, 1)  # H N D
    q, k = layer.similarity.project(v[None], v[None])
    everyone = torch.arange(N)
    pairs = [x.repeat_interleave(N) if first else x.repeat(N) for x, first in ((everyone, True), (everyone, False))]
    scores = layer.similarity.pair(q[:, :, pairs[0]], k[:, :, pairs[1]])[0].view(2, N, N).detach().clone()
    for (j, i), kind in zip(ends, types, strict=True):
        scores[:, i, j] += layer.type_bias.W[:, kind].detach()
    allowed = torch.zeros(N, N, dtype=torch.bool)
    allowed[graph.i, graph.j] = True
    expected = (scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v).transpose(0, 1)
    ours = layer(inputs["x"], None, **{name: inputs[name] for name in ("layout", "message_passing", "typed")})
    torch.testing.assert_close(ours, expected.flatten(1) + layer.b)


def test_a_convolution_of_the_transformer_adds_the_mean_of_each_type_times_its_vector():
    _, inputs, ends, types, _ = typed_graph()
    layer = GCN2Layer(WIDTH, 1, alpha=0.2, theta=0.0, dropout=0, edge_types=TYPES).double()
    plain = GCN2Layer(WIDTH, 1, alpha=0.2, theta=0.0, dropout=0).double()
    h, graph = inputs["x"], (inputs["a"], inputs["message_passing"])
    torch.testing.assert_close(layer(h, h, *graph, inputs["typed"]), plain(h, h, *graph))  # the scale starts at 0
    torch.nn.init.normal_(layer.type_scale)
    typed = torch.zeros_like(h)
    for i, kind in itertools.product(range(N), range(TYPES)):
        senders = ends[(ends[:, 1] == i) & (types == kind), 0]
        typed[i] += (h[senders].mean(0) if len(senders) else 0) * layer.type_scale[kind].detach()
    expected = (0.8 * (inputs["message_passing"](inputs["a"], h) + typed) + 0.2 * h).relu()
    torch.testing.assert_close(layer(h, h, *graph, inputs["typed"]), expected)


def test_a_pair_with_two_types_gets_the_sum_of_their_biases():
    graph, inputs, ends, types, _ = typed_graph()
    bias = TypeBias(2, TYPES).double()
    torch.nn.init.normal_(bias.W)
    table = torch.zeros(2, N, N, dtype=torch.float64)
    for (j, i), kind in zip(ends, types, strict=True):
        table[:, i, j] += bias.W[:, kind].detach()
    assert (np.unique(ends, axis=0, return_counts=True)[1] > 1).any()
    torch.testing.assert_close(bias(inputs["typed"], len(graph.i)), table[:, graph.i, graph.j])


@pytest.mark.parametrize("settings", [
    GCNSettings(size="tiny"), GATSettings(size="tiny"), GraphTransformerSettings(size="tiny", positions="none"),
    GraphTransformerSettings(size="tiny", positions="none", attention="linear", distance=False, convolution_layers=2),
])  # fmt: skip
def test_every_model_reads_the_edge_types(settings):
    torch.manual_seed(0)
    model = settings.build(LabelOutputs(WIDTH, 2, edge_types=TYPES)).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p)
    options = {"reach": settings.graph_options.reach, "distance": settings.graph_options.distance}
    graph, inputs, ends, types, _ = typed_graph(**options)
    graph.__dict__["typed_edges"] = typed_edges(ends, None, TYPES - 1 - types, N, TYPES)
    assert not torch.allclose(model(**inputs), model(**graph.model_inputs(LIKE) | {"n_graphs": 0}))


# --- pairs of graphs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["distance", "tensor"])
def test_a_symmetric_comparison_ignores_the_order_of_the_graphs_and_another_one_does_not(kind):
    u, v = torch.randn(2, 6, D).double()
    symmetric = GraphComparison(D, 3, kind=kind, symmetric=True).double()
    torch.testing.assert_close(symmetric(u, v), symmetric(v, u), rtol=0, atol=1e-12)
    ordered = GraphComparison(D, 3, kind=kind, symmetric=False).double()
    assert not torch.allclose(ordered(u, v), ordered(v, u))


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_neural_tensor_is_its_formula(symmetric):
    u, v = torch.randn(2, D).double()
    layer = GraphComparison(D, 2, kind="tensor", symmetric=symmetric).double()
    hidden = []
    for k, W in enumerate(layer.W):
        W = W + W.T if symmetric else W
        linear = layer.W_1.weight[k] @ (u + v if symmetric else torch.cat([u, v])) + layer.W_1.bias[k]
        hidden.append((u @ W @ v + linear).relu())
    torch.testing.assert_close(layer(u[None], v[None])[0], layer.W_2(torch.stack(hidden)))


@pytest.mark.parametrize("pool", ["mean", "sum"])
def test_a_pair_model_compares_the_pooled_states_of_its_graphs(pool):
    settings = GCNSettings(size="tiny", pool=pool, dropout=0.0)
    model = settings.build(LabelOutputs(WIDTH, 1, of_pairs=True)).double().eval()
    _, inputs, *_ = typed_graph()
    ids = torch.tensor([0] * 4 + [1] * 3 + [2] * 3)
    pairs = torch.tensor([[0, 1], [2, 2], [1, 0]])
    states = model.node_outputs(**{k: v for k, v in inputs.items() if k not in ("graph_ids", "n_graphs")})
    h = torch.stack([getattr(states[ids == g], pool)(0) for g in range(3)])
    y = model(**(inputs | {"graph_ids": ids, "n_graphs": 3}), pairs=pairs)
    torch.testing.assert_close(y, model.comparison(h[pairs[:, 0]], h[pairs[:, 1]]))
    torch.testing.assert_close(y[0], y[2])
