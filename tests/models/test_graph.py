"""GCN, GAT and the graph transformer: the values of PyTorch Geometric, and the contract of graph models."""

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harken import registry
from harken.core import Attention, LayerContext, edges, editing, mix, watching
from harken.core.backends.graph_sum import PairSum
from harken.data.graphs.batch import add_positional_encoding, build_graph
from harken.data.graphs.files import SparseFeatures
from harken.errors import BadSetting
from harken.models.graph_layers import GATLayer, GCN2Layer, GCNLayer, PairBiasLayout
from harken.settings import LabelOutputs

N, WIDTH, D, HEADS = 12, 7, 4, 3
LIKE = torch.zeros((), dtype=torch.float64)
TWO_BRANCHES = {"attention": "linear", "distance": False, "convolution_layers": 2}
VARIANTS = {kind: (kind, {}) for kind in registry.MODELS["graphs"]} | {"branches": ("graph-transformer", TWO_BRANCHES)}
KINDS = sorted(VARIANTS)
every_kind = pytest.mark.parametrize("kind", KINDS)


def pairs(seed: int = 0, n_pairs: int = 30) -> np.ndarray:
    """Edges from the first column to the second; node 11 has none."""
    edge_list = np.unique(np.random.default_rng(seed).integers(N - 1, size=(n_pairs, 2)), axis=0)
    return edge_list[edge_list[:, 0] != edge_list[:, 1]]


def graph_inputs(seed: int = 0, *, weight: Any = None, sparse: bool = False, positions: str = "none", **options: Any):
    x = np.random.default_rng(seed + 1).normal(size=(N, WIDTH)).astype(np.float32)
    if sparse:
        row, col = np.nonzero(x > 0)
        x = SparseFeatures(row, col, x[row, col], WIDTH)
    graph = build_graph(x, pairs(seed), weight, np.zeros(N, np.int64), **options)
    return add_positional_encoding(graph, positions, 4).model_inputs(LIKE) | {"n_graphs": 0}


def build(kind: str, seed: int = 0, outputs: int = 5, **fields: Any):
    torch.manual_seed(seed)
    kind, defaults = VARIANTS[kind]
    settings = registry.find_kind("model", kind, "graphs")
    fields = {"size": "tiny", **defaults, **fields}
    known = {name: value for name, value in fields.items() if name in settings.model_fields}
    return settings(**known).build(LabelOutputs(WIDTH, outputs)).double()


def assert_equal(ours: Tensor, expected: Tensor, parameters: list[tuple[Tensor, Tensor]], atol: float = 1e-10) -> None:
    """Equal values and gradients. The matrix of a FeatureProjection is transposed: x W."""
    torch.testing.assert_close(ours, expected, rtol=0, atol=atol)
    g = torch.randn_like(ours)
    (ours * g).sum().backward()
    (expected * g).sum().backward()
    for p, reference in parameters:
        grad = reference.grad.mT if p.shape == (WIDTH, len(reference)) else reference.grad.view_as(p)
        torch.testing.assert_close(p.grad, grad, rtol=0, atol=atol)


@pytest.fixture(scope="module")
def geometric():
    return pytest.importorskip("torch_geometric.nn")


# --- the values of PyTorch Geometric ----------------------------------------------------------------------------------


@pytest.mark.oracle
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gcn_layer_equals_gcnconv(geometric, weighted):
    weight = np.random.default_rng(3).uniform(0.5, 2, len(pairs())).astype(np.float32) if weighted else None
    inputs, layer = graph_inputs(weight=weight), GCNLayer(WIDTH, D, dropout=0).double()
    reference = geometric.GCNConv(WIDTH, D).double()
    with torch.no_grad():
        layer.b.normal_()
        reference.lin.weight.copy_(layer.input_projection.W.T)
        reference.bias.copy_(layer.b)
    index = torch.from_numpy(pairs().T.copy())
    expected = reference(inputs["x"], index, None if weight is None else torch.from_numpy(weight).double())
    ours = layer(inputs.pop("x"), **inputs)
    assert_equal(
        ours, expected, [(layer.input_projection.W, reference.lin.weight), (layer.b, reference.bias)], atol=1e-6
    )  # a is float32


@pytest.mark.oracle
@pytest.mark.parametrize(("alpha", "theta", "number"), [(0.1, 0.5, 1), (0.3, 1.5, 7), (0.1, 0.0, 2)])
def test_the_gcn2_layer_equals_gcn2conv(geometric, alpha, theta, number):
    inputs, layer = graph_inputs(), GCN2Layer(D, number, alpha=alpha, theta=theta, dropout=0).double()
    reference = geometric.GCN2Conv(D, alpha, theta, number).double()
    parameters = [] if layer.W is None else [(layer.W, reference.weight1)]
    for W, expected in parameters:
        expected.data.copy_(W.data)
    h, h_0 = torch.randn(2, N, D, dtype=torch.float64, requires_grad=True).unbind()
    expected = reference(h, h_0, torch.from_numpy(pairs().T.copy())).relu()
    assert_equal(layer(h, h_0, inputs["a"], inputs["message_passing"]), expected, parameters, atol=1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("mean", [False, True], ids=["concatenated", "mean"])
def test_the_gat_layer_equals_gatconv(geometric, mean):
    inputs, layer = graph_inputs(), GATLayer(WIDTH, D, HEADS, mean=mean, dropout=(0, 0)).double()
    reference = geometric.GATConv(WIDTH, D, HEADS, concat=not mean).double()
    with torch.no_grad():
        layer.b.normal_()
        reference.lin.weight.copy_(layer.input_projection.W.T)
        reference.att_dst.copy_(layer.similarity.W_q[..., 0])
        reference.att_src.copy_(layer.similarity.W_k[..., 0])
        reference.bias.copy_(layer.b)
    expected = reference(inputs["x"], torch.from_numpy(pairs().T.copy()))
    a = layer.similarity
    parameters = [
        (a.W_q, reference.att_dst),
        (a.W_k, reference.att_src),
        (layer.b, reference.bias),
        (layer.input_projection.W, reference.lin.weight),
    ]
    assert_equal(layer(inputs.pop("x"), **inputs), expected, parameters)


@pytest.mark.oracle
def test_attention_over_edges_equals_transformerconv(geometric):
    d, index = HEADS * D, torch.from_numpy(pairs().T.copy())
    attention = Attention(d, HEADS).double()
    reference = geometric.TransformerConv(d, D, HEADS, root_weight=False).double()
    names = {"W_q": "lin_query", "W_k": "lin_key", "W_v": "lin_value"}
    with torch.no_grad():
        attention.W_o.weight.copy_(torch.eye(d))
        attention.W_o.bias.zero_()
        for name, reference_name in names.items():
            reference.get_submodule(reference_name).load_state_dict(attention.get_submodule(name).state_dict())
    x = torch.randn(N, d, dtype=torch.float64)
    ours = attention(x[None], context=LayerContext(edges(index[1], index[0], N)))[0]
    assert not ours[N - 1].any()  # a node without edges gets zero
    parameters = [
        (attention.get_parameter(f"{name}.{p}"), reference.get_parameter(f"{reference_name}.{p}"))
        for name, reference_name in names.items()
        for p in ("weight", "bias")
    ]
    assert_equal(ours, reference(x, index), parameters)


# --- the sums over pairs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)], ids=str)
def test_pair_sum_has_the_values_and_gradients_of_mix(lead):
    i, j = (torch.from_numpy(t) for t in np.unique(np.random.default_rng(0).integers(9, size=(20, 2)), axis=0).T.copy())
    a, v = (torch.randn(*lead, *s, dtype=torch.float64, requires_grad=True) for s in ((len(i),), (11, D)))
    ours, expected = PairSum(i, j, 10, 11)(a, v), mix(a, v, i, j, 10)
    torch.testing.assert_close(ours, expected)
    g = torch.randn_like(ours)
    torch.testing.assert_close(torch.autograd.grad(ours, (a, v), g), torch.autograd.grad(expected, (a, v), g))


@pytest.mark.parametrize("shared", [True, False], ids=["shared a", "a per model"])
def test_pair_sum_under_vmap_equals_single_sums(shared):
    i, j = (torch.from_numpy(t) for t in np.unique(np.random.default_rng(0).integers(9, size=(20, 2)), axis=0).T.copy())
    a = torch.randn(*(() if shared else (3,)), len(i), dtype=torch.float64, requires_grad=True)
    v, pair_sum = torch.randn(3, 9, D, dtype=torch.float64, requires_grad=True), PairSum(i, j, 9, 9)
    ours = torch.func.vmap(pair_sum, (None if shared else 0, 0))(a, v)
    expected = torch.stack([mix(a if shared else a[n], v[n], i, j, 9) for n in range(3)])
    torch.testing.assert_close(ours, expected)
    g = torch.randn_like(ours)
    torch.testing.assert_close(torch.autograd.grad(ours, (a, v), g), torch.autograd.grad(expected, (a, v), g))


# --- the contract of graph models -------------------------------------------------------------------------------------


@every_kind
def test_sparse_features_have_the_gradients_of_dense_ones(kind):
    sparse_model, dense_model = build(kind).eval(), build(kind).eval()
    inputs = graph_inputs(sparse=True)
    (sparse_model(**inputs).sin().sum()).backward()
    (dense_model(**inputs | {"x": inputs["x"].to_dense(), "feature_sum": None}).sin().sum()).backward()
    for a, b in zip(sparse_model.parameters(), dense_model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@every_kind
def test_models_are_equivariant_to_the_order_of_the_nodes(kind):
    model, order = build(kind).eval(), np.random.default_rng(5).permutation(N)
    x = np.random.default_rng(1).normal(size=(N, WIDTH)).astype(np.float32)
    new = np.argsort(order)
    zeros = np.zeros(N, np.int64)
    before = model(
        **add_positional_encoding(build_graph(x, pairs(), None, zeros), "walk", 4).model_inputs(LIKE) | {"n_graphs": 0}
    )
    moved = add_positional_encoding(build_graph(x[order], new[pairs()], None, zeros), "walk", 4)
    torch.testing.assert_close(model(**moved.model_inputs(LIKE) | {"n_graphs": 0}), before[torch.from_numpy(order)])


@every_kind
def test_the_receptive_field_is_the_number_of_layers(kind):
    """On a path, two layers reach the two nodes before the last one."""
    path = np.stack([np.arange(N - 1), np.arange(1, N)], 1)
    x = torch.randn(N, WIDTH, dtype=torch.float64, requires_grad=True)
    model = build(kind, positions="none").eval()
    graph = build_graph(np.zeros((N, WIDTH), np.float32), path, None, np.zeros(N, np.int64))
    y = model(**graph.model_inputs(x) | {"x": x, "n_graphs": 0})
    (g,) = torch.autograd.grad(y[-1].sum(), x)
    assert (g.abs().sum(1) > 0).tolist() == [False] * (N - 3) + [True] * 3


@every_kind
def test_a_batch_of_graphs_equals_single_graphs(kind):
    model = build(kind).eval()
    x = np.random.default_rng(1).normal(size=(2 * N, WIDTH)).astype(np.float32)
    graph_ids = np.repeat([0, 1], N)
    graphs = add_positional_encoding(
        build_graph(x, np.concatenate([pairs(), pairs(1) + N]), None, graph_ids), "laplacian", 4
    )
    expected = model(**graphs.model_inputs(LIKE))
    for g, edge_list in enumerate((pairs(), pairs(1))):
        single = add_positional_encoding(
            build_graph(x[g * N :][:N], edge_list, None, np.zeros(N, np.int64)), "laplacian", 4
        )
        torch.testing.assert_close(model(**single.model_inputs(LIKE))[0], expected[g])
        torch.testing.assert_close(model(**graphs.subset(np.array([g])).model_inputs(LIKE))[0], expected[g])


@every_kind
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_stacked_models_have_the_gradients_of_single_models(kind):
    models, inputs = [build(kind, seed=s).eval() for s in range(3)], graph_inputs(sparse=True, positions="walk")
    names = [name for name, _ in models[0].named_parameters()]

    def loss(weights: dict[str, Tensor], targets: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(models[0], weights, (), inputs), targets)

    targets = torch.randint(5, (3, N))
    stacked = {name: torch.stack([m.get_parameter(name).detach() for m in models]) for name in names}
    stacked_grads = torch.func.vmap(torch.func.grad(loss))(stacked, targets)
    for n, model in enumerate(models):
        F.cross_entropy(model(**inputs), targets[n]).backward()
        single = {name: p.grad for name, p in model.named_parameters()}
        torch.testing.assert_close({name: stacked_grads[name][n] for name in names}, single)


@every_kind
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_bfloat16_autocast_is_close_to_float32(kind):
    model = build(kind).float().eval()
    graph = build_graph(np.random.default_rng(1).normal(size=(N, WIDTH)), pairs(), None, np.zeros(N, np.int64))
    inputs = graph.model_inputs(torch.zeros(())) | {"n_graphs": 0}
    stacked = {name: p.detach().expand(2, *p.shape) for name, p in model.named_parameters()}
    exact = model(**inputs)
    with torch.autocast("cpu", torch.bfloat16):
        stacked_output = torch.func.vmap(lambda weights: torch.func.functional_call(model, weights, (), inputs))(
            stacked
        )
        output = model(**inputs)
    output.sum().backward()
    for y in (output, *stacked_output):
        torch.testing.assert_close(y.float(), exact, rtol=0.05, atol=0.05)


@every_kind
def test_stacked_models_have_different_dropout_masks(kind):
    model, inputs = build(kind, dropout=0.5).train(), graph_inputs(sparse=True)
    stacked = {name: p.detach().expand(4, *p.shape) for name, p in model.named_parameters()}
    y = torch.func.vmap(lambda weights: torch.func.functional_call(model, weights, (), inputs), randomness="different")(
        stacked
    )
    assert len({tuple(output.flatten().tolist()) for output in y}) == 4


# --- the graph transformer --------------------------------------------------------------------------------------------


def with_hop_bias(model: Any) -> Any:
    """A copy of the model with a large bias for each number of hops."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.hop_bias.normal_(std=2)
    return model.eval()


def test_reach_0_means_attention_to_all_nodes():
    x = torch.randn(N, WIDTH, dtype=torch.float64, requires_grad=True)
    for fields in ({}, {"attention": "linear", "distance": False}):
        model = build("graph-transformer", positions="none", layers=1, **fields).eval()
        y = model(**graph_inputs(reach=0, distance=model.hop_bias is not None) | {"x": x})
        (g,) = torch.autograd.grad(y[0].square().sum(), x)
        assert (g.abs().sum(1) > 0).all()


ALL_NODES = {"reach": 0, "distance": False}


def test_linear_attention_over_all_nodes_equals_its_formula():
    """o_i = sum_j (1 + cos(q_i, k_j)) h_j / sum_j (1 + cos(q_i, k_j)) per head."""
    inputs = graph_inputs(**ALL_NODES)
    model = build("branches", layers=1, convolution_layers=0, positions="none").eval()
    h, (attention,) = (inputs["x"] @ model.input_projection.W).relu(), model.blocks
    q, k, v = (x.view(N, 2, -1) for x in (attention.W_q(h), attention.W_k(h), h))
    o = torch.zeros_like(v)
    for i, head in itertools.product(range(N), range(2)):
        f = [1 + F.cosine_similarity(q[i, head], k[j, head], dim=0) for j in range(N)]
        o[i, head] = sum(f[j] * v[j, head] for j in range(N)) / sum(f)
    torch.testing.assert_close(model(**inputs), model.W_y(o.flatten(1)))


def test_softmax_attention_of_states_equals_scaled_dot_product_attention():
    inputs = graph_inputs(**ALL_NODES)
    model = build("branches", attention="softmax", layers=1, convolution_layers=0, positions="none").eval()
    h, (attention,) = (inputs["x"] @ model.input_projection.W).relu(), model.blocks
    q, k, v = (x.view(N, 2, -1).transpose(0, 1) for x in (attention.W_q(h), attention.W_k(h), h))
    o = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
    torch.testing.assert_close(model(**inputs), model.W_y(o))


def test_linear_attention_builds_no_table_of_all_nodes(largest):
    rng, sizes = np.random.default_rng(0), []
    model = build("branches", layers=1, positions="none").float().train()
    for n in (500, 1000):
        x, links = rng.normal(size=(n, WIDTH)).astype(np.float32), rng.integers(n, size=(2 * n, 2))
        inputs = build_graph(x, links, None, np.zeros(n, np.int64), **ALL_NODES).model_inputs(torch.zeros(()))
        largest.numel = 0
        with largest:
            model(**inputs | {"n_graphs": 0}).sum().backward()
        sizes.append(largest.numel)
        assert inputs["hops"].dim() == 1
    assert sizes[1] < 2.2 * sizes[0] < 500**2


def test_graph_weight_mixes_the_attention_and_the_convolution():
    inputs, outputs = graph_inputs(**ALL_NODES), []
    for graph_weight in (0.0, 0.3, 1.0):
        model = build("branches", positions="none", graph_weight=graph_weight).eval()
        outputs.append(model(**inputs))
    attention, mixed, convolution = outputs
    torch.testing.assert_close(mixed, 0.7 * attention + 0.3 * convolution)
    no_convolution = build("branches", positions="none", convolution_layers=0).eval()
    no_convolution.load_state_dict(build("branches", positions="none").state_dict(), strict=False)
    torch.testing.assert_close(no_convolution(**inputs), attention)
    h = h_0 = (inputs["x"] @ model.input_projection.W).relu()
    for layer in model.convolutions:
        h = layer(h, h_0, inputs["a"], inputs["message_passing"])
    torch.testing.assert_close(model.W_y(h), convolution)


def test_the_attention_can_read_the_output_of_the_convolutions():
    """g s_i + (1 - g) sum_j (1 + cos(q_i, k_j)) s_j / sum_j (1 + cos(q_i, k_j)) with the smoothed states s."""
    inputs, options = graph_inputs(**ALL_NODES), {"layers": 1, "heads": 1, "positions": "none", "graph_weight": 0.3}
    model = build("branches", attention_input="convolutions", **options).eval()
    s = s_0 = (inputs["x"] @ model.input_projection.W).relu()
    for layer in model.convolutions:
        s = layer(s, s_0, inputs["a"], inputs["message_passing"])
    (attention,) = model.blocks
    q, k = (F.normalize(W(s), dim=-1) for W in (attention.W_q, attention.W_k))
    f = 1 + q @ k.T
    expected = model.W_y(0.3 * s + 0.7 * (f / f.sum(1, keepdim=True)) @ s)
    torch.testing.assert_close(model(**inputs), expected)


def test_attention_to_the_output_of_no_convolutions_is_refused():
    with pytest.raises(BadSetting, match=r"^model.attention_input=convolutions: model.convolution_layers=0 .*; set "):
        build("branches", attention_input="convolutions", convolution_layers=0)


def test_attention_to_all_nodes_reads_a_graph_without_distances_as_edges_only():
    with_distances, without = graph_inputs(reach=0), graph_inputs(**ALL_NODES)
    assert with_distances["hops"].shape == (N, N)
    assert without["hops"].tolist() == graph_inputs(reach=1)["hops"].tolist()
    model = build("graph-transformer", distance=False, positions="none").eval()
    torch.testing.assert_close(model(**without), model(**with_distances))


def test_a_hop_bias_is_refused_for_linear_attention():
    with pytest.raises(ValueError, match=r"attention=linear has no score for each pair .*; set model.distance=false"):
        build("branches", distance=True)


def test_listed_pairs_equal_dense_attention_if_all_nodes_are_within_reach():
    ring = np.stack([np.arange(N), (np.arange(N) + 1) % N], 1)  # no node is more than 6 hops away
    edge_list = np.concatenate([ring, ring[:, ::-1]])
    x = np.random.default_rng(1).normal(size=(N, WIDTH)).astype(np.float32)
    model = with_hop_bias(build("graph-transformer", positions="none"))
    listed, dense = (
        model(**build_graph(x, edge_list, None, np.zeros(N, np.int64), reach=reach).model_inputs(LIKE))
        for reach in (6, 0)
    )
    torch.testing.assert_close(listed, dense)


def test_bias_at_returns_the_bias_of_rows_and_pairs():
    inputs = graph_inputs(reach=2)
    pair_bias = torch.randn(HEADS, len(inputs["hops"]), dtype=torch.float64)
    layout = PairBiasLayout(inputs["layout"], pair_bias)
    i, j, _ = layout.pair_list()
    rows = layout.bias_at(torch.tensor([[0], [2]]), torch.tensor([3, 5]))
    table = torch.zeros(HEADS, N, N, dtype=torch.float64)
    table[:, i, j] = pair_bias
    torch.testing.assert_close(rows, table[[0, 2]][:, [3, 5]])
    assert torch.equal(layout.bias_at(slice(None), i, j), pair_bias)


def test_the_sign_of_eigenvectors_is_random_in_training_only():
    model = build("graph-transformer", positions="laplacian", dropout=0.0, feature_dropout=0.0)
    inputs = graph_inputs(positions="laplacian")
    assert torch.equal(model.eval()(**inputs), model(**inputs))
    outputs = {tuple(model.train()(**inputs).flatten().tolist()) for _ in range(8)}
    assert len(outputs) > 1


@pytest.mark.parametrize("kind", ["gat", "branches", "graph-transformer"])
def test_an_indivisible_width_is_reported_with_a_divisible_one(kind):
    with pytest.raises(ValueError, match="d=10 is not divisible by heads=4; use d=12"):
        build(kind, d=10, heads=4)


def test_watching_gat_changes_no_bit_and_shows_its_weights():
    rng, n = np.random.default_rng(0), 500
    x, links = rng.normal(size=(n, WIDTH)).astype(np.float32), rng.integers(n, size=(4000, 2))
    large = build_graph(x, links, None, np.zeros(n, np.int64)).model_inputs(torch.zeros(())) | {"n_graphs": 0}
    model, inputs = build("gat").eval(), graph_inputs()
    float_model = copy.deepcopy(model).float()
    with watching(float_model):
        watched = float_model(**large)
    assert torch.equal(watched, float_model(**large))
    with watching(model) as views:
        model(**inputs)
    i, _, _ = inputs["layout"].pair_list()
    first = views["blocks.0"].edges()[0]  # H E
    torch.testing.assert_close(torch.zeros_like(first[:, :N]).index_add(1, i, first), torch.ones_like(first[:, :N]))
    v = model.blocks[0].input_projection(inputs["x"]).unflatten(-1, (first.shape[0], -1)).transpose(0, 1)
    expected = inputs["message_passing"](first, v).transpose(0, 1).flatten(1) + model.blocks[0].b
    layer_inputs = {name: inputs[name] for name in ("layout", "message_passing")}
    torch.testing.assert_close(model.blocks[0](inputs["x"], None, **layer_inputs), expected)


def test_an_editor_replaces_the_weights_of_gat():
    model, inputs = build("gat").eval(), graph_inputs()
    with editing(model, "blocks.1", torch.zeros_like):
        torch.testing.assert_close(model(**inputs), model.blocks[1].b.expand(N, -1))
