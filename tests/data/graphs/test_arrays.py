"""Unusual graph files: inconsistent arrays, splits by row, nodes in random order."""

import csv

import networkx as nx
import numpy as np
import pytest

from harken.data.graphs.source import GraphSource
from harken.errors import BadInput
from harken.models.graph import GCNSettings
from harken.tasks.nodes import GraphTaskSettings


def write_csv(path, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def load(path, **settings):
    notices = []
    data = GraphSource(path=str(path), **settings).load_data(
        listen=lambda event, **facts: notices.append(facts["text"])
    )
    return data, notices


VALID = {"edges": np.array([[0, 1], [1, 2], [2, 3], [3, 0]]), "x": np.eye(4), "label": np.array([0, 1, 0, 1])}
SPARSE = {"x": None, "feature_row": np.arange(4), "feature_col": np.arange(4), "shape": np.array([4, 4])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": np.ones(3)}, r"weight is float64 of shape \(3,\); 4 edges need one number each"),
        ({"weight": np.array([1, -1, 1, 1])}, "a weight is negative or not finite"),
        ({"weight": np.array([1, np.nan, 1, 1])}, "a weight is negative or not finite"),
        ({"weight": np.array([1, 1e300, 1, 1])}, "a weight is negative or not finite"),
        ({"graph": np.array([0, 0, 1])}, r"graph has shape \(3,\); one value per node \(4\) is needed"),
        ({"name": np.array(["a", "b"])}, r"name has shape \(2,\); one value per node \(4\) is needed"),
        ({"x": np.array([["a"] * 2] * 4)}, r"x is <U1 of shape \(4, 2\); finite numbers, one row per node"),
        ({"edges": np.array([[0.5, 1.7], [1, 2]])}, "edges is float64 with values that are not integers"),
        ({"edges": np.array([[np.inf, 1], [1, 2]])}, "edges is float64 with values that are not integers"),
        ({"edges": np.array([["a", "b"]])}, "edges is <U1 with values that are not integers"),
        ({"train": np.array(["a"])}, "train is <U1 with values that are not integers"),
        ({"label": np.array([[0, 1]] * 4)}, r"labels of shape \(4, 2\) for 4 nodes"),
        ({"label": np.array(1)}, r"labels of shape \(\) for 4 nodes"),
        ({"x": None, "label": None, "edges": np.array([[0, 10**11]])}, "100,000,000,001 nodes; at most 10,000,000"),
        (SPARSE | {"shape": np.array([10**11, 4])}, "100,000,000,000 nodes; at most 10,000,000"),
        (SPARSE | {"shape": np.array([4, 10**11])}, "its feature arrays are inconsistent"),
        (SPARSE | {"feature_val": np.array([1e300] * 4)}, "its feature arrays are inconsistent"),
    ],
)
def test_inconsistent_arrays_are_reported(tmp_path, change, message):
    np.savez(tmp_path / "g.npz", **{name: array for name, array in (VALID | change).items() if array is not None})
    with pytest.raises(BadInput, match=message):
        load(tmp_path / "g.npz")


def test_a_negative_weight_in_a_table_is_reported(tmp_path):
    write_csv(tmp_path / "edges.csv", ["source", "target", "weight"], ["a", "b", 1], ["b", "c", -2])
    with pytest.raises(BadInput, match="edges: a weight is negative or not finite"):
        load(tmp_path)


def test_the_weights_of_duplicate_edges_are_averaged(tmp_path):
    edges = np.array([[0, 1], [0, 1], [1, 2], [2, 3]])
    np.savez(tmp_path / "g.npz", **VALID | {"edges": edges}, weight=np.array([1.0, 3.0, 2.0, 2.0]))
    data, _ = load(tmp_path / "g.npz", valid=0.0, test=0.5)
    graph = GraphTaskSettings().bind(data, GCNSettings(), batch=4, seed=0).graph
    W = np.eye(4) + np.diag([2.0] * 3, 1) + np.diag([2.0] * 3, -1)
    weights = np.zeros((4, 4))
    weights[graph.i, graph.j] = graph.a
    np.testing.assert_allclose(weights, W / np.sqrt(np.outer(W.sum(0), W.sum(0))), atol=1e-6)


# --- splits and labels after sorting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("directed", [False, True])
def test_a_split_column_of_edges_applies_to_its_rows(tmp_path, directed):
    splits = {"fa": "test", "eb": "test", "ab": "train", "bc": "train", "cd": "train", "de": "valid", "ef": "train"}
    rows = [[*ends, split] for ends, split in splits.items()] + [["a", "a", "test"], ["a", "b", "train"]]
    write_csv(tmp_path / "edges.csv", ["source", "target", "split"], *rows)
    data, _ = load(tmp_path, directed=directed)
    names, loaded = data.tables.node_names, {}
    for split, indices in (data.splits | {"train": data.train}).items():
        loaded |= {"".join(names[n] for n in data.targets[k]): split for k in indices}
    assert loaded == (
        splits if directed else {"".join(sorted(ends, key=names.index)): split for ends, split in splits.items()}
    )


def test_labels_and_splits_follow_their_nodes_when_these_are_sorted(tmp_path):
    rows = [
        [f"n{k}", f"g{k % 2}", ("red", "blue")[k // 2 % 2], k // 2 % 2, "test" if k > 19 else ""] for k in range(40)
    ]
    write_csv(tmp_path / "nodes.csv", ["node", "graph", "label", "color", "split"], *rows)
    write_csv(tmp_path / "edges.csv", ["source", "target"], *([f"n{k}", f"n{k + 2}"] for k in range(38)))
    data, _ = load(tmp_path)
    assert (data.processor.target_level, data.tables.node_names[:2]) == ("node", ["n0", "n2"])
    assert dict(zip(data.tables.node_names, data.tables.labels, strict=True)) == {row[0]: row[2] for row in rows}
    assert sorted(data.tables.node_names[n] for n in data.splits["test"]) == sorted(f"n{k}" for k in range(20, 40))


def test_feature_scaling_of_graphs_uses_only_the_training_graphs(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 3)) * np.arange(1, 41)[:, None]
    graph_ids, train = np.repeat(np.arange(20), 2), np.arange(12)
    edges = np.arange(40).reshape(-1, 2)
    np.savez(tmp_path / "g.npz", x=x, graph=graph_ids, edges=edges, label=np.arange(20) % 2, train=train, test=[18, 19])
    data, _ = load(tmp_path / "g.npz", valid=0.0)
    assert data.processor.target_level == "graph"
    np.testing.assert_allclose(data.processor.feature_mean, x[:24].mean(0), rtol=1e-5)
    np.testing.assert_allclose(data.processor.feature_std, x[:24].std(0), rtol=1e-5)


# --- notices ----------------------------------------------------------------------------------------------------------


def test_empty_cells_are_counted_in_a_notice(tmp_path):
    rows = [[f"n{k}", "" if k % 3 == 0 else k, k, "ab"[k % 2]] for k in range(10)]
    write_csv(tmp_path / "nodes.csv", ["node", "age", "size", "label"], *rows)
    write_csv(tmp_path / "edges.csv", ["source", "target"], *([f"n{k}", f"n{k + 1}"] for k in range(9)))
    assert load(tmp_path)[1] == [f"{tmp_path}: missing values (empty, NA) are read as 0: age 4"]


def test_a_directed_file_gives_a_notice_unless_data_directed_is_set(tmp_path):
    G = nx.DiGraph([(k, k + 1) for k in range(20)])
    nx.write_graphml(G, tmp_path / "g.graphml")
    assert "its edges are directed but read as undirected; data.directed=true" in load(tmp_path / "g.graphml")[1][0]
    assert load(tmp_path / "g.graphml", directed=True)[1] == []
    nx.write_graphml(G.to_undirected(), tmp_path / "g.graphml")
    assert load(tmp_path / "g.graphml")[1] == []
