"""Pairs of graphs and edges with features or types: outputs, baselines, negative pairs, ablation."""

import numpy as np
import pytest
import torch

from harken.data.graphs.batch import build_graph
from harken.data.graphs.source import GraphSource
from harken.data.synthetic import graph_pairs, rivals
from harken.models.graph import GCNSettings
from harken.tasks.nodes import GraphTaskSettings


def bind(path, model=None, **settings):
    data = GraphSource(path=str(path), **settings).load_data()
    torch.manual_seed(0)
    model = model or GCNSettings(dropout=0.0)
    return GraphTaskSettings().bind(data, model, batch=8, seed=0), model.build(data.vocab)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    for name in ("nodes", "edges", "pairs"):
        (folder / f"{name}.csv").write_text("".join(graph_pairs.table(name, 100)))
    return folder


@pytest.mark.parametrize("model", [GCNSettings(pool="sum", dropout=0.0), GCNSettings(comparison="tensor", dropout=0.0)])
def test_the_output_of_a_pair_does_not_depend_on_its_batch_or_order(compared, model):
    task, network = bind(compared, model)
    pairs = task.pairs[:20]
    together = task.predict_pairs(network, pairs)
    alone = torch.cat([task.predict_pairs(network, pair[None, ::-1]) for pair in pairs])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together, task.predict(network, [*range(20)]))


def test_the_features_of_a_pair_are_the_differences_of_the_numbers_of_nodes_edges_and_degrees(compared):
    task, _ = bind(compared)
    generated = [*graph_pairs.graph_pairs(100)]
    for n in (0, 7, 55):
        a, b = generated[n].a, generated[n].b
        counts = [(len(A), A.sum() / 2, *np.bincount(A.sum(0), minlength=32)) for A in (a, b)]
        np.testing.assert_allclose(task.features([n])[0], abs(np.subtract(*counts)))


def test_the_baselines_of_pairs_are_regressions_on_sizes_and_degrees(compared):
    task, _ = bind(compared)
    baselines = task.evaluate_baselines("test")
    assert set(baselines) == {"mean of all", "difference of sizes", "bag of degrees"}
    assert baselines["mean of all"].metrics["spearman"] == 0


def test_a_batch_of_pairs_trains_every_weight(compared):
    task, model = bind(compared)
    batch = task.batch(0, 1)
    assert batch.n_tokens == sum(len(a) + len(b) for a, b, _ in np.array(
        [*graph_pairs.graph_pairs(100)], dtype=object)[batch.tokens[:, 0]])  # fmt: skip
    task.loss(model, batch).total.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


# --- types ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def teams(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rivals")
    for name in ("nodes", "edges"):
        (folder / f"{name}.csv").write_text("".join(rivals.table(name, 300)))
    return folder


def accuracy(task, model, steps=80):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        (task.loss(model, task.batch(0, 0)).total / len(task.data.train)).backward()
        optimizer.step()
    return task.evaluate(model, "test").metrics["accuracy"]


def test_where_the_label_depends_on_the_types_of_the_edges_a_model_that_reads_them_is_far_better(teams):
    typed, untyped = (accuracy(*bind(teams, types=types)) for types in (True, False))
    assert typed > untyped + 0.1
    assert typed > 0.8


def test_held_out_edges_are_no_message_of_any_type(teams):
    task, _ = bind(teams, target_level="edge")
    held_out = {
        tuple(sorted(edge)) for part in task.splits for edge in task.data.targets[task.data.splits[part]].tolist()
    }
    typed = task.graph.typed_edges
    messages = {tuple(sorted(edge)) for edge in zip(typed.i.tolist(), typed.j.tolist(), strict=True)}
    assert held_out
    assert not held_out & messages
    names = {*task.data.processor.edge_types}
    assert names == {"friend", "rival"}


def test_negative_pairs_have_node_types_that_occur_at_the_ends_of_an_edge(tmp_path):
    types = np.arange(40) % 2
    rng = np.random.default_rng(0)
    edges = np.stack([2 * rng.integers(20, size=80), 2 * rng.integers(20, size=80) + 1], 1)  # between the two types
    np.savez(tmp_path / "g.npz", edges=edges, node_type=types)
    task, _ = bind(tmp_path / "g.npz")
    batch = task.batch(0, 0)
    assert (types[batch.tokens[:, 0]] != types[batch.tokens[:, 1]]).all()


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    """400 users with edges to two of 8 items each, and few edges between users."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("ratings") / "g.npz"
    items = np.concatenate([[[user, 400 + item] for item in rng.choice(8, 2, replace=False)] for user in range(400)])
    edges = np.concatenate([items, rng.integers(400, size=(30, 2))])
    np.savez(path, edges=edges, node_type=np.where(np.arange(408) < 400, "user", "item"))
    return path


def test_negative_pairs_have_the_types_of_edges_as_often_as_edges_have(ratings):
    task, _ = bind(ratings)
    batch = task.batch(0, 0)
    has_item, is_edge = (batch.tokens >= 400).any(1), batch.targets == 1
    assert is_edge.float().mean() == 0.5
    assert abs(has_item[is_edge].float().mean() - has_item[~is_edge].float().mean()) < 0.03


def test_negative_pairs_of_several_graphs_with_types_are_of_one_graph(ratings, tmp_path):
    with np.load(ratings) as arrays:
        edges = np.concatenate([arrays["edges"], arrays["edges"] + 408])
        types = np.tile(arrays["node_type"], 2)
    np.savez(tmp_path / "g.npz", edges=edges, node_type=types, graph=np.arange(816) // 408)
    batch = bind(tmp_path / "g.npz")[0].batch(0, 0)
    assert (batch.targets == 0).sum() == (batch.targets == 1).sum()
    assert (batch.tokens[:, 0] // 408 == batch.tokens[:, 1] // 408).all()


# --- edges with features ----------------------------------------------------------------------------------------------


def blocks(path, **columns):
    """A graph of two groups, mostly with edges inside them, and columns of features."""
    rng = np.random.default_rng(0)
    group = np.arange(120) % 2
    ends = rng.integers(120, size=(900, 2))
    keep = (group[ends[:, 0]] == group[ends[:, 1]]) | (rng.random(900) < 0.05)
    path.mkdir()
    features = {name: make(group, rng) for name, make in columns.items()}
    rows = [
        ",".join(["node", *features]),
        *(",".join([f"n{k}", *(f"{x[k]:.4f}" for x in features.values())]) for k in range(120)),
    ]
    (path / "nodes.csv").write_text("\n".join(rows))
    (path / "edges.csv").write_text("\n".join(["source,target", *(f"n{a},n{b}" for a, b in ends[keep])]))
    return path


def test_a_column_of_noise_is_named_and_a_useful_one_is_not(tmp_path):
    noise, useful = (lambda _, rng: rng.normal(size=120)), (lambda group, rng: group + 0.1 * rng.normal(size=120))
    task, _ = bind(blocks(tmp_path / "both", noise=noise, useful=useful), valid=0.3)
    found = task.ablation()
    assert (found["columns"], found["remaining"]) == (["noise"], ["useful"])
    assert found["setting"] == "data.features"
    assert bind(blocks(tmp_path / "one", useful=useful), valid=0.3)[0].ablation() == {}
    assert bind(blocks(tmp_path / "none"), valid=0.3)[0].ablation() == {}


def test_with_only_a_constant_column_a_model_of_edges_still_knows_which_node_is_which(tmp_path):
    task, model = bind(blocks(tmp_path / "g", constant=lambda _, rng: rng.normal(size=120) * 1e-9))
    graph = build_graph(task.processor.read(task.data.tables), np.empty((0, 2), np.int64), None, task.data.graph_ids)
    h = model(**graph.model_inputs(torch.zeros(())) | {"n_graphs": 0})
    assert len(torch.unique(h.round(decimals=4), dim=0)) > 100
