"""Tasks on nodes, edges and graphs: loss, L2 penalty, negative pairs and baselines."""

import networkx as nx
import numpy as np
import pytest
import torch

from harken.data.graphs.source import GraphSource
from harken.errors import BadSetting
from harken.models.graph import GCNSettings
from harken.tasks.nodes import GraphTaskSettings
from harken.training.stacked_seeds import StackedTask


@pytest.fixture
def club(tmp_path):
    """The karate club as arrays, without features."""
    G = nx.karate_club_graph()
    labels = np.array([int(G.nodes[n]["club"] == "Officer") for n in G])
    np.savez(tmp_path / "club.npz", edges=np.array(G.edges), label=labels)
    return tmp_path / "club.npz"


def bind(path, task=None, **settings):
    data = GraphSource(path=str(path), **settings).load_data()
    torch.manual_seed(0)
    model = GCNSettings(dropout=0.0)
    return (task or GraphTaskSettings()).bind(data, model, batch=4, seed=0), model.build(data.vocab)


def test_every_batch_has_all_training_nodes(club):
    task, _ = bind(club)
    batch = task.batch(3, 0)
    assert batch.tokens[:, 0].tolist() == task.data.train
    assert batch.targets.tolist() == task.data.targets[task.data.train].tolist()
    assert (task.steps, batch.n_tokens) == (1, 34)


def test_the_l2_penalty_has_the_gradient_of_coupled_weight_decay_on_the_first_layer(club):
    task, model = bind(club, GraphTaskSettings(l2=0.1))
    plain, _ = bind(club)
    batch = task.batch(0, 0)
    gradients = []
    for each_task in (task, plain):
        model.zero_grad()
        (each_task.loss(model, batch).total / batch.n_targets).backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, p in model.named_parameters():
        penalty = 0.1 * p.detach() if name.startswith("blocks.0.") else 0.0
        torch.testing.assert_close(gradients[0][name], gradients[1][name] + penalty)


def test_the_reported_loss_has_no_l2_penalty(club):
    task, model = bind(club, GraphTaskSettings(l2=0.1, l2_of="all"))
    loss = task.loss(model, task.batch(0, 0))
    plain = bind(club)[0].loss(model, task.batch(0, 0)).total.detach()
    assert float(loss.reported) == pytest.approx(float(plain))
    assert float(loss.total.detach()) > float(loss.reported)


def test_the_neighbor_baseline_counts_training_neighbors_only(club):
    task, _ = bind(club)
    G, train, labels = nx.karate_club_graph(), {*task.data.train}, task.data.targets
    frequency = np.bincount(labels[task.data.train], minlength=2) / len(train)
    baseline = task._other_baselines(list(range(len(labels))))["neighbors' majority"]
    for n, mean in enumerate(baseline.exp().numpy()):
        neighbors = [labels[k] for k in G[n] if k in train]
        expected = (np.bincount(neighbors, minlength=2) + frequency) / (len(neighbors) + 1)
        np.testing.assert_allclose(mean, expected, atol=1e-5)


def test_a_metric_that_does_not_apply_is_rejected(club):
    with pytest.raises(BadSetting, match=r"task.metric=auc: does not apply to targets of type label"):
        bind(club, GraphTaskSettings(metric="auc"))
    with pytest.raises(BadSetting, match=r"task.metric=f1: does not apply to edges; set it to one of auc"):
        bind(club, GraphTaskSettings(metric="f1"), target_level="edge")


# --- edges ------------------------------------------------------------------------------------------------------------


def test_the_model_does_not_see_held_out_edges(club):
    task, _ = bind(club, target_level="edge")
    visible = {*zip(task.graph.i.tolist(), task.graph.j.tolist(), strict=True)}
    held_out = task.data.targets[[n for indices in task.data.splits.values() for n in indices]].tolist()
    train = task.data.targets[task.data.train].tolist()
    assert all((a, b) not in visible and (b, a) not in visible for a, b in held_out)
    assert all((a, b) in visible and (b, a) in visible for a, b in train)
    assert len(held_out) + len(train) == 78


def test_negative_pairs_have_no_edge_and_differ_between_epochs(club):
    task, _ = bind(club, target_level="edge")
    G = nx.karate_club_graph()
    first, again, later = (task.batch(epoch, 0) for epoch in (0, 0, 1))
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, later.tokens)
    assert [G.has_edge(*pair) for pair in first.tokens.tolist()] == first.targets.bool().tolist()
    assert int(first.targets.sum()) == len(first.targets) // 2


def test_reversed_edges_are_not_negative_pairs_because_the_score_is_symmetric(club):
    task, _ = bind(club, target_level="edge", directed=True)
    G = nx.karate_club_graph()  # 561 pairs, of which 78 are edges
    for epoch in range(5):
        batch = task.batch(epoch, 0)
        assert not any(G.has_edge(*pair) for pair in batch.tokens[batch.targets == 0].tolist())


def test_negative_sampling_stops_when_there_are_enough_pairs(club):
    task, _ = bind(club, target_level="edge")
    sizes = []

    class LoggingRng:
        def integers(self, n, size):
            sizes.append(size)
            return np.random.default_rng(0).integers(n, size=size)

    assert len(task._sample_negatives(20, LoggingRng())) == 20
    assert sizes == [(40, 2)]


def test_the_score_of_an_edge_is_the_dot_product_of_its_node_states(club):
    task, model = bind(club, target_level="edge")
    h = task.node_outputs(model)
    torch.testing.assert_close(
        task.outputs(model, torch.tensor([[0, 5], [3, 3]])), torch.stack([h[0] @ h[5], h[3] @ h[3]])
    )


# --- graphs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shapes(tmp_path):
    """Rings and stars."""
    graphs = [nx.cycle_graph(4 + g % 4) if g % 2 else nx.star_graph(3 + g % 4) for g in range(40)]
    edges = np.array(nx.disjoint_union_all(graphs).edges)
    graph_ids = np.repeat(np.arange(40), [len(G) for G in graphs])
    np.savez(tmp_path / "shapes.npz", edges=edges, graph=graph_ids, label=np.arange(40) % 2)
    return tmp_path / "shapes.npz"


def test_both_nodes_of_a_pair_are_in_one_graph(shapes):
    task, _ = bind(shapes, target_level="edge")
    pairs = np.concatenate([task._eval_pairs("test")[0], task.batch(0, 0).tokens.numpy()])
    first, second = (task.data.graph_ids[pairs[:, k]] for k in range(2))
    assert (first == second).all()
    assert len(np.unique(first)) > 30


def test_batches_of_graphs_have_no_static_shape_and_cannot_be_stacked(shapes, club):
    task, _ = bind(shapes)
    assert not task.batch(0, 0).static_shape
    with pytest.raises(BadSetting, match=r"train.seeds: batches of different shapes .* train the seeds one by one"):
        StackedTask([task, task])
    nodes, _ = bind(club)
    assert nodes.batch(0, 0).static_shape
    StackedTask([nodes, nodes])


def test_an_epoch_has_every_training_graph_once(shapes):
    task, _ = bind(shapes)
    batches = [task.batch(0, n) for n in range(task.steps)]
    assert sorted(torch.cat([b.tokens for b in batches])[:, 0].tolist()) == task.data.train
    assert all(len(b.tokens) <= 4 for b in batches)


def test_a_graph_has_the_same_outputs_in_every_batch(shapes):
    task, model = bind(shapes)
    outputs = model(**task.graph.model_inputs(next(model.parameters())))
    torch.testing.assert_close(task.outputs(model, torch.tensor([7, 2])), outputs[[7, 2]])
    torch.testing.assert_close(task.predict(model, [2]), outputs[[2]])


def test_the_losses_of_micro_batches_of_graphs_add_up(shapes):
    task, model = bind(shapes, GraphTaskSettings(l2=0.1))
    batch = task.batch(0, 0)
    parts = [task.loss(model, batch.slice_rows(n, n + 1)).total for n in range(4)]
    torch.testing.assert_close(sum(parts), task.loss(model, batch).total)
    assert sum(batch.slice_rows(n, n + 1).n_tokens for n in range(4)) == batch.n_tokens
