"""What is said of nodes, edges and graphs: the loss, the pull of the weights, and what costs nothing."""

import networkx as nx
import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from harken.data.graphs.source import GraphSource
from harken.errors import BadSetting
from harken.models.graph import GCNSettings
from harken.tasks.metrics import classification
from harken.tasks.nodes import GraphTaskSettings
from harken.training.stacked_seeds import StackedTask


@pytest.fixture
def club(tmp_path):
    """The karate club as arrays, without features."""
    G = nx.karate_club_graph()
    labels = np.array([int(G.nodes[n]["club"] == "Officer") for n in G])
    np.savez(tmp_path / "club.npz", edges=np.array(G.edges), label=labels)
    return tmp_path / "club.npz"


def bound(path, task=None, **settings):
    data = GraphSource(path=str(path), **settings).load_data()
    torch.manual_seed(0)
    shape = GCNSettings(dropout=0.0)
    return (task or GraphTaskSettings()).bind(data, shape, batch=4, seed=0), shape.build(data.vocab)


def test_all_training_nodes_are_asked_in_every_step(club):
    task, _ = bound(club)
    batch = task.batch(3, 0)
    assert batch.tokens[:, 0].tolist() == task.data.train
    assert batch.targets.tolist() == task.data.targets[task.data.train].tolist()
    assert (task.steps, batch.n_tokens) == (1, 34)


def test_the_pull_is_what_adam_calls_weight_decay_on_the_first_layer_alone(club):
    task, model = bound(club, GraphTaskSettings(l2=0.1))
    free, _ = bound(club)
    batch = task.batch(0, 0)
    gradients = []
    for each in (task, free):
        model.zero_grad()
        (each.loss(model, batch).total / batch.n_targets).backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, p in model.named_parameters():
        pulled = 0.1 * p.detach() if name.startswith("blocks.0.") else 0.0
        torch.testing.assert_close(gradients[0][name], gradients[1][name] + pulled)


def test_the_loss_that_is_told_is_without_the_pull(club):
    task, model = bound(club, GraphTaskSettings(l2=0.1, l2_of="all"))
    loss = task.loss(model, task.batch(0, 0))
    assert float(loss.model_inputs) == pytest.approx(float(bound(club)[0].loss(model, task.batch(0, 0)).total.detach()))
    assert float(loss.total.detach()) > float(loss.model_inputs)


def test_the_neighbours_majority_counts_training_neighbours_alone(club):
    task, _ = bound(club)
    G, train, labels = nx.karate_club_graph(), {*task.data.train}, task.data.targets
    share = np.bincount(labels[task.data.train], minlength=2) / len(train)
    for n, said in enumerate(task._neighbor_means.exp().numpy()):
        known = [labels[k] for k in G[n] if k in train]
        np.testing.assert_allclose(said, (np.bincount(known, minlength=2) + share) / (len(known) + 1), atol=1e-5)


def test_a_measure_that_does_not_fit_is_refused(club):
    with pytest.raises(BadSetting, match=r"task.metric=auc: does not fit, as the data asks for a label"):
        bound(club, GraphTaskSettings(metric="auc"))
    with pytest.raises(BadSetting, match=r"task.metric=f1: does not fit, as the data asks for edges; take one of auc"):
        bound(club, GraphTaskSettings(metric="f1"), target_level="edge")


# --- edges ------------------------------------------------------------------------------------------------------------


def test_held_out_edges_are_not_looked_along(club):
    task, _ = bound(club, target_level="edge")
    seen = {*zip(task.graph.i.tolist(), task.graph.j.tolist(), strict=True)}
    held = task.data.targets[[n for some in task.data.splits.values() for n in some]].tolist()
    known = task.data.targets[task.data.train].tolist()
    assert all((a, b) not in seen and (b, a) not in seen for a, b in held)
    assert all((a, b) in seen and (b, a) in seen for a, b in known)
    assert len(held) + len(known) == 78


def test_drawn_pairs_have_no_edge_and_are_drawn_anew_in_each_epoch(club):
    task, _ = bound(club, target_level="edge")
    G = nx.karate_club_graph()
    first, again, later = (task.batch(epoch, 0) for epoch in (0, 0, 1))
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, later.tokens)
    assert [G.has_edge(*pair) for pair in first.tokens.tolist()] == first.targets.bool().tolist()
    assert int(first.targets.sum()) == len(first.targets) // 2


def test_drawn_pairs_are_no_edges_turned_round_as_the_score_has_no_direction(club):
    task, _ = bound(club, target_level="edge", directed=True)
    G = nx.karate_club_graph()  # 561 pairs, of which 78 are edges
    for epoch in range(5):
        batch = task.batch(epoch, 0)
        assert not any(G.has_edge(*pair) for pair in batch.tokens[batch.targets == 0].tolist())


def test_no_more_pairs_are_drawn_than_are_needed(club):
    task, _ = bound(club, target_level="edge")
    drawn = []

    class Counted:
        def integers(self, n, size):
            drawn.append(size)
            return np.random.default_rng(0).integers(n, size=size)

    assert len(task._sample_negatives(20, Counted())) == 20
    assert drawn == [(40, 2)]


def test_the_score_of_an_edge_is_the_dot_of_what_is_said_of_its_ends(club):
    task, model = bound(club, target_level="edge")
    h = model(**task.model_inputs(model))
    torch.testing.assert_close(
        task.outputs(model, torch.tensor([[0, 5], [3, 3]])), torch.stack([h[0] @ h[5], h[3] @ h[3]])
    )


@pytest.mark.oracle
def test_the_area_under_the_curve_is_scikit_learns():
    rng = np.random.default_rng(0)
    gold, found = rng.random(200) < 0.3, rng.integers(20, size=200)  # many are equal
    assert classification.auc(gold, found) == pytest.approx(roc_auc_score(gold, found))
    assert classification.auc(np.ones(3, bool), np.arange(3)) == 0.5


# --- graphs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shapes(tmp_path):
    """Rings and stars."""
    every = [nx.cycle_graph(4 + g % 4) if g % 2 else nx.star_graph(3 + g % 4) for g in range(40)]
    whole = nx.disjoint_union_all(every)
    of = np.repeat(np.arange(40), [len(G) for G in every])
    np.savez(tmp_path / "shapes.npz", edges=np.array(whole.edges), graph=of, label=np.arange(40) % 2)
    return tmp_path / "shapes.npz"


def test_drawn_pairs_lie_in_one_graph(shapes):
    task, _ = bound(shapes, target_level="edge")
    pairs, of = np.concatenate([task._eval_pairs("test")[0], task.batch(0, 0).tokens.numpy()]), task.data.graph_ids
    assert (of[pairs[:, 0]] == of[pairs[:, 1]]).all()
    assert len(np.unique(of[pairs[:, 0]])) > 30


def test_seeds_of_whole_graphs_are_refused_along_a_model_axis_and_their_steps_are_not_recorded(shapes, club):
    task, _ = bound(shapes)
    assert not task.batch(0, 0).static_shape
    with pytest.raises(BadSetting, match=r"train.seeds: batches of different shapes .* train the seeds one by one"):
        StackedTask([task, task])
    nodes, _ = bound(club)
    assert nodes.batch(0, 0).static_shape
    StackedTask([nodes, nodes])


def test_an_epoch_asks_every_training_graph_once(shapes):
    task, _ = bound(shapes)
    batches = [task.batch(0, n) for n in range(task.steps)]
    assert sorted(torch.cat([b.tokens for b in batches])[:, 0].tolist()) == task.data.train
    assert all(len(b.tokens) <= 4 for b in batches)


def test_a_graph_in_a_batch_is_said_to_be_what_it_is_said_alone(shapes):
    task, model = bound(shapes)
    whole = model(**task.graph.model_inputs(next(model.parameters())))
    torch.testing.assert_close(task.outputs(model, torch.tensor([7, 2])), whole[[7, 2]])
    torch.testing.assert_close(task.predict(model, [2]), whole[[2]])


def test_parts_of_a_batch_of_graphs_add_up_to_its_loss(shapes):
    task, model = bound(shapes, GraphTaskSettings(l2=0.1))
    batch = task.batch(0, 0)
    parts = [task.loss(model, batch.slice_rows(n, n + 1)).total for n in range(4)]
    torch.testing.assert_close(sum(parts), task.loss(model, batch).total)
    assert sum(batch.slice_rows(n, n + 1).n_tokens for n in range(4)) == batch.n_tokens
