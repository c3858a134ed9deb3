"""Graphs whose files say odd things: arrays that do not fit together, splits by row, nodes that lie mixed."""

import csv

import networkx as nx
import numpy as np
import pytest

from harken.data.graphs.source import GraphSource
from harken.errors import BadInput
from harken.models.graph import GCNShape
from harken.tasks.nodes import Task


def table(path, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def opened(path, **settings):
    heard = []
    data = GraphSource(path=str(path), **settings).open(listen=lambda event, **facts: heard.append(facts["text"]))
    return data, heard


GOOD = {"edges": np.array([[0, 1], [1, 2], [2, 3], [3, 0]]), "x": np.eye(4), "label": np.array([0, 1, 0, 1])}
BAG = {"x": None, "feature_row": np.arange(4), "feature_col": np.arange(4), "shape": np.array([4, 4])}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weight": np.ones(3)}, r"weight is float64 of shape \(3,\); 4 edges need a number each"),
        ({"weight": np.array([1, -1, 1, 1])}, "a weight is below 0 or not finite"),
        ({"weight": np.array([1, np.nan, 1, 1])}, "a weight is below 0 or not finite"),
        ({"weight": np.array([1, 1e300, 1, 1])}, "a weight is below 0 or not finite"),
        ({"graph": np.array([0, 0, 1])}, r"graph has the shape \(3,\); one for each of 4 nodes is needed"),
        ({"name": np.array(["a", "b"])}, r"name has the shape \(2,\); one for each of 4 nodes is needed"),
        ({"x": np.array([["a"] * 2] * 4)}, r"x is <U1 of the shape \(4, 2\); finite numbers are accepted"),
        ({"edges": np.array([[0.5, 1.7], [1, 2]])}, "edges holds float64 that are no whole numbers"),
        ({"edges": np.array([[np.inf, 1], [1, 2]])}, "edges holds float64 that are no whole numbers"),
        ({"edges": np.array([["a", "b"]])}, "edges holds <U1 that are no whole numbers"),
        ({"train": np.array(["a"])}, "train holds <U1 that are no whole numbers"),
        ({"label": np.array([[0, 1]] * 4)}, r"labels of the shape \(4, 2\) for 4 nodes"),
        ({"label": np.array(1)}, r"labels of the shape \(\) for 4 nodes"),
        ({"x": None, "label": None, "edges": np.array([[0, 10**11]])}, "has 100,000,000,001 nodes; 10,000,000 at most"),
        (BAG | {"shape": np.array([10**11, 4])}, "has 100,000,000,000 nodes; 10,000,000 at most"),
        (BAG | {"shape": np.array([4, 10**11])}, "its features do not fit together"),
        (BAG | {"feature_val": np.array([1e300] * 4)}, "its features do not fit together"),
    ],
)
def test_arrays_that_do_not_fit_together_are_told(tmp_path, change, said):
    np.savez(tmp_path / "g.npz", **{name: array for name, array in (GOOD | change).items() if array is not None})
    with pytest.raises(BadInput, match=said):
        opened(tmp_path / "g.npz")


def test_a_weight_below_0_in_a_table_is_told(tmp_path):
    table(tmp_path / "edges.csv", ["source", "target", "weight"], ["a", "b", 1], ["b", "c", -2])
    with pytest.raises(BadInput, match="edges: a weight is below 0 or not finite"):
        opened(tmp_path)


def test_an_edge_that_is_written_twice_has_the_mean_of_its_weights(tmp_path):
    edges = np.array([[0, 1], [0, 1], [1, 2], [2, 3]])
    np.savez(tmp_path / "g.npz", **GOOD | {"edges": edges}, weight=np.array([1.0, 3.0, 2.0, 2.0]))
    data, _ = opened(tmp_path / "g.npz", valid=0.0, test=0.5)
    graph = Task().bind(data, GCNShape(), batch=4, seed=0).graph
    W = np.eye(4) + np.diag([2.0] * 3, 1) + np.diag([2.0] * 3, -1)
    made = np.zeros((4, 4))
    made[graph.i, graph.j] = graph.a
    np.testing.assert_allclose(made, W / np.sqrt(np.outer(W.sum(0), W.sum(0))), atol=1e-6)


# --- splits and labels stay with those they are said of ---------------------------------------------------------------


@pytest.mark.parametrize("directed", [False, True])
def test_a_column_of_splits_is_of_the_edges_in_its_rows(tmp_path, directed):
    said = {"fa": "test", "eb": "test", "ab": "train", "bc": "train", "cd": "train", "de": "valid", "ef": "train"}
    rows = [[*ends, split] for ends, split in said.items()] + [["a", "a", "test"], ["a", "b", "train"]]
    table(tmp_path / "edges.csv", ["source", "target", "split"], *rows)
    data, _ = opened(tmp_path, directed=directed)
    found = {}
    for split, some in (data.splits | {"train": data.train}).items():
        found |= {"".join(data.raw.names[n] for n in data.asked[k]): split for k in some}
    wanted = said if directed else {"".join(sorted(ends, key=data.raw.names.index)): s for ends, s in said.items()}
    assert found == wanted


def test_labels_and_splits_stay_with_their_nodes_when_these_are_put_in_order(tmp_path):
    rows = [
        [f"n{k}", f"g{k % 2}", ("red", "blue")[k // 2 % 2], k // 2 % 2, "test" if k > 19 else ""] for k in range(40)
    ]
    table(tmp_path / "nodes.csv", ["node", "graph", "label", "colour", "split"], *rows)
    table(tmp_path / "edges.csv", ["source", "target"], *([f"n{k}", f"n{k + 2}"] for k in range(38)))
    data, _ = opened(tmp_path)
    assert (data.words.ask, data.raw.names[:2]) == ("node", ["n0", "n2"])
    assert dict(zip(data.raw.names, data.raw.said, strict=True)) == {row[0]: row[2] for row in rows}
    assert sorted(data.raw.names[n] for n in data.splits["test"]) == sorted(f"n{k}" for k in range(20, 40))


def test_features_of_whole_graphs_are_scaled_by_the_training_graphs_alone(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 3)) * np.arange(1, 41)[:, None]
    of, train = np.repeat(np.arange(20), 2), np.arange(12)
    edges = np.arange(40).reshape(-1, 2)
    np.savez(tmp_path / "g.npz", x=x, graph=of, edges=edges, label=np.arange(20) % 2, train=train, test=[18, 19])
    data, _ = opened(tmp_path / "g.npz", valid=0.0)
    assert data.words.ask == "graph"
    np.testing.assert_allclose(data.words.centre, x[:24].mean(0), rtol=1e-5)
    np.testing.assert_allclose(data.words.width, x[:24].std(0), rtol=1e-5)


# --- what is told -----------------------------------------------------------------------------------------------------


def test_empty_cells_are_counted_and_told(tmp_path):
    rows = [[f"n{k}", "" if k % 3 == 0 else k, k, "ab"[k % 2]] for k in range(10)]
    table(tmp_path / "nodes.csv", ["node", "age", "size", "label"], *rows)
    table(tmp_path / "edges.csv", ["source", "target"], *([f"n{k}", f"n{k + 1}"] for k in range(9)))
    assert opened(tmp_path)[1] == [f"{tmp_path}: empty cells are read as 0: 4 of age"]


def test_a_file_whose_edges_have_a_direction_is_told_unless_it_is_asked_for(tmp_path):
    G = nx.DiGraph([(k, k + 1) for k in range(20)])
    nx.write_graphml(G, tmp_path / "g.graphml")
    assert (
        "its edges have a direction, and are heard at both ends; data.directed=true"
        in opened(tmp_path / "g.graphml")[1][0]
    )
    assert opened(tmp_path / "g.graphml", directed=True)[1] == []
    nx.write_graphml(G.to_undirected(), tmp_path / "g.graphml")
    assert opened(tmp_path / "g.graphml")[1] == []
