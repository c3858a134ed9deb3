"""GCN, GAT and the graph transformer: the numbers of PyTorch Geometric's layers, and what every graph model owes."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harken import registry
from harken.core import Attention, Place, edges, editing, mix, watching
from harken.core.backends.graph_sum import Sums
from harken.data.graphs.batch import graph_of, placed
from harken.data.graphs.files import Bag
from harken.models.graph import Convolution, Near, Neighbours
from harken.settings import Outputs

N, WIDTH, D, HEADS = 12, 7, 4, 3
LIKE = torch.zeros((), dtype=torch.float64)
KINDS = sorted(registry.BUILT_IN["model of graphs"])
every_kind = pytest.mark.parametrize("kind", KINDS)


def pairs(seed: int = 0, many: int = 30) -> np.ndarray:
    """Edges from the first column to the second; node 11 has none."""
    found = np.unique(np.random.default_rng(seed).integers(N - 1, size=(many, 2)), axis=0)
    return found[found[:, 0] != found[:, 1]]


def told(seed: int = 0, *, weight: Any = None, sparse: bool = False, reach: int = 1, positions: str = "none"):
    x = np.random.default_rng(seed + 1).normal(size=(N, WIDTH)).astype(np.float32)
    if sparse:
        row, col = np.nonzero(x > 0)
        x = Bag(row, col, x[row, col], WIDTH)
    graph = graph_of(x, pairs(seed), weight, np.zeros(N, np.int64), reach=reach)
    return placed(graph, positions, 4).told(LIKE) | {"graphs": 0}


def build(kind: str, seed: int = 0, outputs: int = 5, **fields: Any):
    torch.manual_seed(seed)
    shape = registry.find("model", kind, " of graphs")
    known = {name: value for name, value in {"size": "tiny", **fields}.items() if name in shape.model_fields}
    return shape(**known).build(Outputs(WIDTH, outputs)).double()


def agree(ours: Tensor, theirs: Tensor, parameters: list[tuple[Tensor, Tensor]], atol: float = 1e-10) -> None:
    """Values and gradients, of the same random direction. The matrix of a Lift lies as its equation has it, x W."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)
    g = torch.randn_like(ours)
    (ours * g).sum().backward()
    (theirs * g).sum().backward()
    for mine, other in parameters:
        its = other.grad.mT if mine.shape == (WIDTH, len(other)) else other.grad.view_as(mine)
        torch.testing.assert_close(mine.grad, its, rtol=0, atol=atol)


@pytest.fixture(scope="module")
def geometric():
    return pytest.importorskip("torch_geometric.nn")


# --- the numbers of PyTorch Geometric ---------------------------------------------------------------------------------


@pytest.mark.oracle
@pytest.mark.parametrize("weighted", [False, True])
def test_the_convolution_equals_gcnconv(geometric, weighted):
    weight = np.random.default_rng(3).uniform(0.5, 2, len(pairs())).astype(np.float32) if weighted else None
    given, layer = told(weight=weight), Convolution(WIDTH, D, dropout=0).double()
    other = geometric.GCNConv(WIDTH, D).double()
    with torch.no_grad():
        layer.b.normal_()
        other.lin.weight.copy_(layer.lift.W.T)
        other.bias.copy_(layer.b)
    index = torch.from_numpy(pairs().T.copy())
    theirs = other(given["x"], index, None if weight is None else torch.from_numpy(weight).double())
    ours = layer(given.pop("x"), **given)
    agree(ours, theirs, [(layer.lift.W, other.lin.weight), (layer.b, other.bias)], atol=1e-6)  # a is kept in float32


@pytest.mark.oracle
@pytest.mark.parametrize("mean", [False, True], ids=["side by side", "their mean"])
def test_attention_to_neighbours_equals_gatconv(geometric, mean):
    given, layer = told(), Neighbours(WIDTH, D, HEADS, mean=mean, dropout=(0, 0)).double()
    other = geometric.GATConv(WIDTH, D, HEADS, concat=not mean).double()
    with torch.no_grad():
        layer.b.normal_()
        other.lin.weight.copy_(layer.lift.W.T)
        other.att_dst.copy_(layer.similarity.W_q[..., 0])
        other.att_src.copy_(layer.similarity.W_k[..., 0])
        other.bias.copy_(layer.b)
    theirs = other(given["x"], torch.from_numpy(pairs().T.copy()))
    a = layer.similarity
    same = [(a.W_q, other.att_dst), (a.W_k, other.att_src), (layer.b, other.bias), (layer.lift.W, other.lin.weight)]
    agree(layer(given.pop("x"), **given), theirs, same)


@pytest.mark.oracle
def test_the_transformers_attention_over_edges_equals_transformerconv(geometric):
    d, index = HEADS * D, torch.from_numpy(pairs().T.copy())
    look = Attention(d, HEADS).double()
    other = geometric.TransformerConv(d, D, HEADS, root_weight=False).double()
    names = {"W_q": "lin_query", "W_k": "lin_key", "W_v": "lin_value"}
    with torch.no_grad():
        look.W_o.weight.copy_(torch.eye(d))
        look.W_o.bias.zero_()
        for mine, its in names.items():
            getattr(other, its).load_state_dict(getattr(look, mine).state_dict())
    x = torch.randn(N, d, dtype=torch.float64)
    ours = look(x[None], place=Place(edges(index[1], index[0], N)))[0]
    assert not ours[N - 1].any()  # who sees nobody is told nothing
    same = [
        (getattr(look, m).get_parameter(p), getattr(other, t).get_parameter(p))
        for m, t in names.items()
        for p in ("weight", "bias")
    ]
    agree(ours, other(x, index), same)


# --- the sums over pairs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)], ids=str)
def test_a_fused_sum_over_pairs_is_the_cores_mix_in_values_and_gradients(lead):
    i, j = (torch.from_numpy(t) for t in np.unique(np.random.default_rng(0).integers(9, size=(20, 2)), axis=0).T.copy())
    a, v = (torch.randn(*lead, *s, dtype=torch.float64, requires_grad=True) for s in ((len(i),), (11, D)))
    ours, wanted = Sums(i, j, 10, 11)(a, v), mix(a, v, i, j, 10)
    torch.testing.assert_close(ours, wanted)
    g = torch.randn_like(ours)
    torch.testing.assert_close(torch.autograd.grad(ours, (a, v), g), torch.autograd.grad(wanted, (a, v), g))


@pytest.mark.parametrize("shared", [True, False], ids=["one a for all models", "an a for each"])
def test_the_sums_of_many_models_are_those_of_each(shared):
    i, j = (torch.from_numpy(t) for t in np.unique(np.random.default_rng(0).integers(9, size=(20, 2)), axis=0).T.copy())
    a = torch.randn(*(() if shared else (3,)), len(i), dtype=torch.float64, requires_grad=True)
    v, sums = torch.randn(3, 9, D, dtype=torch.float64, requires_grad=True), Sums(i, j, 9, 9)
    ours = torch.func.vmap(sums, (None if shared else 0, 0))(a, v)
    wanted = torch.stack([mix(a if shared else a[n], v[n], i, j, 9) for n in range(3)])
    torch.testing.assert_close(ours, wanted)
    g = torch.randn_like(ours)
    torch.testing.assert_close(torch.autograd.grad(ours, (a, v), g), torch.autograd.grad(wanted, (a, v), g))


# --- what every graph model owes --------------------------------------------------------------------------------------


@every_kind
def test_sparse_features_give_the_numbers_and_gradients_of_dense_ones(kind):
    one, other = build(kind).eval(), build(kind).eval()
    given = told(sparse=True)
    (one(**given).sin().sum()).backward()
    (other(**given | {"x": given["x"].to_dense(), "words": None}).sin().sum()).backward()
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@every_kind
def test_another_order_of_the_nodes_gives_the_same_of_each(kind):
    model, order = build(kind).eval(), np.random.default_rng(5).permutation(N)
    x = np.random.default_rng(1).normal(size=(N, WIDTH)).astype(np.float32)
    new = np.argsort(order)
    zeros = np.zeros(N, np.int64)
    before = model(**placed(graph_of(x, pairs(), None, zeros), "walk", 4).told(LIKE) | {"graphs": 0})
    moved = placed(graph_of(x[order], new[pairs()], None, zeros), "walk", 4)
    torch.testing.assert_close(model(**moved.told(LIKE) | {"graphs": 0}), before[torch.from_numpy(order)])


@every_kind
def test_who_is_more_hops_away_than_layers_is_not_heard(kind):
    """A path of nodes: with two layers the last feels the two before it."""
    path = np.stack([np.arange(N - 1), np.arange(1, N)], 1)
    x = torch.randn(N, WIDTH, dtype=torch.float64, requires_grad=True)
    model = build(kind, positions="none").eval()
    graph = graph_of(np.zeros((N, WIDTH), np.float32), path, None, np.zeros(N, np.int64))
    y = model(**graph.told(x) | {"x": x, "graphs": 0})
    (g,) = torch.autograd.grad(y[-1].sum(), x)
    assert (g.abs().sum(1) > 0).tolist() == [False] * (N - 3) + [True] * 3


@every_kind
def test_graphs_side_by_side_are_each_as_alone(kind):
    model = build(kind).eval()
    x = np.random.default_rng(1).normal(size=(2 * N, WIDTH)).astype(np.float32)
    of = np.repeat([0, 1], N)
    both = placed(graph_of(x, np.concatenate([pairs(), pairs(1) + N]), None, of), "laplacian", 4)
    together = model(**both.told(LIKE))
    for g, edges_ in enumerate((pairs(), pairs(1))):
        alone = placed(graph_of(x[g * N :][:N], edges_, None, np.zeros(N, np.int64)), "laplacian", 4)
        torch.testing.assert_close(model(**alone.told(LIKE))[0], together[g])
        torch.testing.assert_close(model(**both.some(np.array([g])).told(LIKE))[0], together[g])


@every_kind
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_models_of_one_graph_trained_together_have_the_gradients_of_each_alone(kind):
    models, given = [build(kind, seed=s).eval() for s in range(3)], told(sparse=True, positions="walk")
    names = [name for name, _ in models[0].named_parameters()]

    def loss(weights: dict[str, Tensor], targets: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(models[0], weights, (), given), targets)

    targets = torch.randint(5, (3, N))
    stacked = {name: torch.stack([m.get_parameter(name).detach() for m in models]) for name in names}
    together = torch.func.vmap(torch.func.grad(loss))(stacked, targets)
    for n, model in enumerate(models):
        F.cross_entropy(model(**given), targets[n]).backward()
        alone = {name: p.grad for name, p in model.named_parameters()}
        torch.testing.assert_close({name: together[name][n] for name in names}, alone)


@every_kind
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_products_in_bfloat16_give_nearly_the_same_alone_and_together(kind):
    model, like = build(kind).float().eval(), torch.zeros(())
    graph = graph_of(np.random.default_rng(1).normal(size=(N, WIDTH)), pairs(), None, np.zeros(N, np.int64))
    given = graph.told(like) | {"graphs": 0}
    stacked = {name: p.detach().expand(2, *p.shape) for name, p in model.named_parameters()}
    exact = model(**given)
    with torch.autocast("cpu", torch.bfloat16):
        together = torch.func.vmap(lambda weights: torch.func.functional_call(model, weights, (), given))(stacked)
        alone = model(**given)
    alone.sum().backward()
    for near in (alone, *together):
        torch.testing.assert_close(near.float(), exact, rtol=0.05, atol=0.05)


@every_kind
def test_each_of_several_models_has_its_own_dropout(kind):
    model, given = build(kind, dropout=0.5).train(), told(sparse=True)
    stacked = {name: p.detach().expand(4, *p.shape) for name, p in model.named_parameters()}
    y = torch.func.vmap(lambda weights: torch.func.functional_call(model, weights, (), given), randomness="different")(
        stacked
    )
    assert len({tuple(each.flatten().tolist()) for each in y}) == 4


# --- the graph transformer's own --------------------------------------------------------------------------------------


def far(model: Any) -> Any:
    """The same model with a bias that matters."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        made.near.normal_(std=2)
    return made.eval()


def test_all_nodes_of_a_graph_look_at_each_other_with_a_reach_of_0():
    x = torch.randn(N, WIDTH, dtype=torch.float64, requires_grad=True)
    model = build("graph-transformer", positions="none", layers=1).eval()
    y = model(**told(reach=0) | {"x": x})
    (g,) = torch.autograd.grad(y[0].square().sum(), x)
    assert (g.abs().sum(1) > 0).all()


def test_where_all_are_within_reach_the_list_of_pairs_and_the_table_of_all_agree():
    ring = np.stack([np.arange(N), (np.arange(N) + 1) % N], 1)  # nobody is more than 6 hops away
    both = np.concatenate([ring, ring[:, ::-1]])
    x = np.random.default_rng(1).normal(size=(N, WIDTH)).astype(np.float32)
    model = far(build("graph-transformer", positions="none"))
    listed, whole = (
        model(**graph_of(x, both, None, np.zeros(N, np.int64), reach=reach).told(LIKE)) for reach in (6, 0)
    )
    torch.testing.assert_close(listed, whole)


def test_rows_of_a_view_have_the_bias_of_their_pairs():
    given, each = told(reach=2), torch.randn(HEADS, len(told(reach=2)["hops"]), dtype=torch.float64)
    laid = Near(given["layout"], each)
    i, j, _ = laid.listed()
    rows = laid.shift(torch.tensor([[0], [2]]), torch.tensor([3, 5]))
    table = torch.zeros(HEADS, N, N, dtype=torch.float64)
    table[:, i, j] = each
    torch.testing.assert_close(rows, table[[0, 2]][:, [3, 5]])
    assert torch.equal(laid.shift(slice(None), i, j), each)


def test_the_sign_of_an_eigenvector_is_drawn_in_training_alone():
    model = build("graph-transformer", positions="laplacian", dropout=0.0, feature_dropout=0.0)
    given = told(positions="laplacian")
    assert torch.equal(model.eval()(**given), model(**given))
    drawn = {tuple(model.train()(**given).flatten().tolist()) for _ in range(8)}
    assert len(drawn) > 1


def test_a_width_that_does_not_split_over_the_heads_is_told():
    with pytest.raises(ValueError, match="d=10 does not split over 4 heads; try d=12"):
        build("gat", d=10, heads=4)


def test_looking_at_gat_changes_no_bit_and_shows_the_weights_that_are_used():
    rng, n = np.random.default_rng(0), 500
    x, links = rng.normal(size=(n, WIDTH)).astype(np.float32), rng.integers(n, size=(4000, 2))
    large = graph_of(x, links, None, np.zeros(n, np.int64)).told(torch.zeros(())) | {"graphs": 0}
    model, given = build("gat").eval(), told()
    one = copy.deepcopy(model).float()
    with watching(one):
        watched = one(**large)
    assert torch.equal(watched, one(**large))
    with watching(model) as views:
        model(**given)
    i, _, _ = given["layout"].listed()
    first = views["blocks.0"].edges()[0]  # H E
    torch.testing.assert_close(torch.zeros_like(first[:, :N]).index_add(1, i, first), torch.ones_like(first[:, :N]))
    v = model.blocks[0].lift(given["x"]).unflatten(-1, (first.shape[0], -1)).transpose(0, 1)
    wanted = given["heard"](first, v).transpose(0, 1).flatten(1) + model.blocks[0].b
    used = {name: given[name] for name in ("layout", "heard")}
    torch.testing.assert_close(model.blocks[0](given["x"], None, **used), wanted)


def test_an_editor_of_gat_still_replaces_its_weights():
    model, given = build("gat").eval(), told()
    with editing(model, "blocks.1", torch.zeros_like):
        torch.testing.assert_close(model(**given), model.blocks[1].b.expand(N, -1))
