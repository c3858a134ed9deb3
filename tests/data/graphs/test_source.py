"""Graphs read from tables, arrays and networkx; neighborhoods; positional encodings of nodes."""

import csv
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch

from harken.data.cache import cache_folder
from harken.data.detect import preview
from harken.data.detect.kinds import detect_kind
from harken.data.graphs.batch import add_positional_encoding, build_graph
from harken.data.graphs.files import (
    COLUMN_PATTERNS,
    GraphTables,
    SparseFeatures,
    folder_of_graph,
    from_networkx,
    save_networkx,
)
from harken.data.graphs.processor import GraphProcessor
from harken.data.graphs.source import GraphSource
from harken.errors import BadInput, BadRun, BadSetting
from harken.experiments.choose import choose
from harken.settings import MAX_HOPS


def write_csv(path: Path, *rows: list[object]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """30 nodes of two clubs; 'a3' has no label."""
    nodes = [[f"a{n}", n / 10, n % 2, "" if n == 3 else ("red", "blue")[n % 2], f"word {n}"] for n in range(30)]
    write_csv(tmp_path / "nodes.csv", ["id", "age", "tall", "club", "note"], *nodes)
    write_csv(tmp_path / "edges.csv", ["from", "to"], *([f"a{n}", f"a{(n + 2) % 30}"] for n in range(30)))
    return tmp_path


def load(path: Path, **settings):
    return GraphSource(path=str(path), **settings).load_data()


# --- files ------------------------------------------------------------------------------------------------------------


def test_columns_are_detected_by_name_and_numeric_columns_are_features(folder):
    notices = []
    data = GraphSource(path=str(folder)).load_data(listen=lambda event, **facts: notices.append(facts["text"]))
    assert data.processor.labels == ["blue", "red"]
    assert (data.processor.target_level, data.processor.features) == ("node", 2)  # age and tall
    assert notices == [f"{folder}: ignored non-numeric columns: note ('word 0')"]
    assert data.tables.edges[0].tolist() == [0, 2]


def test_an_empty_feature_list_makes_one_hot_node_features(folder, tmp_path):
    np.savez(tmp_path / "g.npz", edges=np.array([[0, 1], [1, 2]]), x=np.eye(3, 7), label=np.array(["a", "b", "a"]))
    for path, n_nodes in ((folder, 30), (tmp_path / "g.npz", 3)):
        events = []
        data = GraphSource(path=str(path), features=[]).load_data(
            listen=lambda event, events=events, **facts: events.append(facts)
        )
        assert (data.processor.feature_source, data.processor.features) == ("identity", n_nodes)
        assert data.tables.x is None
        assert not [facts for facts in events if "fewer than 5 nodes" not in facts["text"]]


def test_unlabelled_nodes_are_in_no_split(folder):
    data = load(folder)
    indices = data.train + data.splits["valid"] + data.splits["test"]
    assert sorted(indices) == [n for n in range(30) if n != 3]


def test_a_split_column_determines_the_splits(folder):
    rows = list(csv.reader((folder / "nodes.csv").read_text().splitlines()))
    splits = ["split"] + ["train"] * 10 + ["val"] * 5 + ["test"] * 5 + [""] * 10
    write_csv(folder / "nodes.csv", *([*row, split] for row, split in zip(rows, splits, strict=True)))
    data = load(folder)
    assert data.train == [n for n in range(10) if n != 3]
    assert data.splits == {"valid": list(range(10, 15)), "test": list(range(15, 20))}


def test_settings_name_the_label_and_feature_columns(folder):
    data = load(folder, label="tall", features=["age"])
    assert (data.processor.labels, data.processor.features) == (["0", "1"], 1)


def test_numeric_columns_are_standardized(folder):
    data = load(folder)
    x = data.processor.read(data.tables)
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(x.std(0), 1, atol=1e-6)


def test_features_are_standardized_before_they_are_cast_to_float32(folder, tmp_path):
    times = 1_700_000_000.0 + np.arange(30) % 2
    write_csv(folder / "nodes.csv", ["id", "when", "club"], *([f"a{n}", t, "ab"[n % 2]] for n, t in enumerate(times)))
    np.savez(tmp_path / "g.npz", edges=np.array([[0, 1], [1, 2]]), x=times[:, None], label=np.arange(30) % 2)
    for data in (load(folder), load(tmp_path / "g.npz", feature_scaling="columns")):
        x = data.processor.read(data.tables)
        assert x.dtype == np.float32
        assert x[:, 0].tolist() == [-1.0, 1.0] * 15
    half = np.tile(np.array([[0], [400]], np.float16), (15, 1))
    np.savez(tmp_path / "g.npz", edges=np.array([[0, 1]]), x=half, label=np.arange(30) % 2)
    data = load(tmp_path / "g.npz", feature_scaling="columns")  # its squares overflow in float16
    assert data.processor.read(data.tables)[:, 0].tolist() == [-1.0, 1.0] * 15


def test_drawn_splits_are_stratified_and_stable_when_nodes_are_added(folder):
    before = load(folder)
    with (folder / "nodes.csv").open("a", newline="") as file:
        csv.writer(file).writerows([[f"b{n}", 0, 0, "red", ""] for n in range(2)])
    after = load(folder)
    assert len(before.splits["test"]) == 6
    assert len({*before.splits["test"]} & {*after.splits["test"]}) >= 5


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("edges.csv", [["from", "to"], ["a1", "zz"]], "'zz' is not a node in nodes.csv"),
        ("edges.csv", [["from", "to"], ["a1", "a2", "a3"]], "edges.csv:2: 3 cells, but the header has 2"),
        ("edges.csv", [["from"], ["a1"]], "edges need two columns, source and target"),
        ("edges.csv", [["from", "to", "weight"], ["a1", "a2", ""]], "the edge 'a1' - 'a2' has no weight"),
        ("nodes.csv", [["id", "club"], ["a1", "x"], ["a1", "y"]], "node 'a1' has two rows"),
    ],
)
def test_an_invalid_table_is_reported_with_its_location(folder, name, rows, message):
    write_csv(folder / name, *rows)
    with pytest.raises(BadInput, match=message):
        load(folder)


def test_an_unknown_column_is_reported_with_the_known_ones(folder):
    with pytest.raises(BadInput, match=r"data.label='clubb' is not a column; columns: id, .* Did you mean club\?"):
        load(folder, label="clubb")


def test_arrays_have_sparse_features_and_the_public_split(tmp_path):
    row, col = np.array([3, 0, 0, 1]), np.array([1, 0, 4, 2])
    arrays = {"feature_row": row, "feature_col": col, "feature_val": np.ones(4), "shape": [4, 5]}
    arrays |= {"edges": np.array([[0, 1], [1, 0], [1, 2], [2, 1]]), "label": np.array([0, 1, 1, 0])}
    np.savez(tmp_path / "g.npz", **arrays, train=[0, 1], valid=[2], test=np.array([3]))
    data = load(tmp_path / "g.npz")
    assert (data.train, data.splits) == ([0, 1], {"valid": [2], "test": [3]})
    x = data.processor.read(data.tables)
    assert isinstance(x, SparseFeatures)
    assert x.row.tolist() == [0, 0, 1, 3]
    assert x.val.tolist() == [0.5, 0.5, 1, 1]  # rows sum to 1
    assert detect_kind(tmp_path / "g.npz").kind == "graph"


def test_masks_and_transposed_edges_are_equal_to_index_lists(tmp_path):
    x, label = np.random.default_rng(0).normal(size=(4, 3)), np.array([0, 1, 1, 0])
    mask = np.array([True, True, False, False])
    np.savez(
        tmp_path / "g.npz", x=x, label=label, edges=np.array([[0, 1, 1], [1, 0, 2]]), train_mask=mask, test_mask=~mask
    )
    data = load(tmp_path / "g.npz", valid=0.0)
    assert (data.train, data.splits) == ([0, 1], {"test": [2, 3]})
    assert data.tables.edges.tolist() == [[0, 1], [1, 0], [1, 2]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edges": np.array([[0, 9]])}, "edges contains node 9; nodes are numbered 0 to 3"),
        ({"edges": np.arange(3)}, r"edges has shape \(3,\)"),
        ({"label": np.arange(3)}, "3 labels for 4 nodes"),
        ({"x": np.full((4, 2), np.nan)}, "finite numbers, one row per node, are needed"),
        ({"train": np.array([7])}, "train contains index 7; there are 4"),
        ({"x": np.array([["a"]], dtype=object)}, "unsupported dtype object"),
    ],
)
def test_invalid_arrays_are_reported(tmp_path, change, message):
    valid = {"x": np.eye(4), "edges": np.array([[0, 1], [1, 2]]), "label": np.array([0, 1, 1, 0])}
    np.savez(tmp_path / "g.npz", **valid | change)
    with pytest.raises(BadInput, match=message):
        load(tmp_path / "g.npz")


def test_the_attributes_of_a_networkx_graph_become_columns():
    tables = from_networkx(nx.karate_club_graph(), {})
    assert (len(tables.node_names), len(tables.edges)) == (34, 78)
    assert tables.labels is not None
    assert {*tables.labels} == {"Mr. Hi", "Officer"}
    assert tables.weight is not None


def test_a_saved_networkx_graph_is_loaded_unchanged():
    G = nx.karate_club_graph()
    loaded, tables = GraphSource().read(str(save_networkx(G))), from_networkx(G, {})
    assert (loaded.node_names, loaded.labels) == (tables.node_names, tables.labels)
    np.testing.assert_array_equal(loaded.edges, tables.edges)
    assert save_networkx(G) == save_networkx(nx.karate_club_graph())
    with pytest.raises(BadInput, match="dict: a path, a recipe or a networkx graph is accepted"):
        save_networkx({})


@pytest.mark.parametrize("extension", ["gml", "graphml"])
def test_graph_files_are_read_by_networkx(tmp_path, extension):
    path = tmp_path / f"club.{extension}"
    getattr(nx, f"write_{extension}")(nx.karate_club_graph(), path)
    assert detect_kind(path).kind == "graph"
    data = load(path)
    assert data.processor.labels == ["Mr. Hi", "Officer"]
    path.write_text("this is no graph")
    with pytest.raises(BadInput, match="networkx cannot read it"):
        load(path)


def test_a_folder_with_edges_is_a_graph_and_without_nodes_it_predicts_edges(folder):
    assert detect_kind(folder).kind == "graph"
    (folder / "nodes.csv").unlink()
    data = load(folder)
    assert (data.processor.target_level, data.processor.labels) == ("edge", ["no edge", "edge"])


# --- several graphs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"data.kind": "graph"}])
def test_a_table_of_nodes_next_to_its_edges_names_the_folder(folder, settings):
    nodes, message = str(folder / "nodes.csv"), f"the nodes of a graph, next to edges.csv; .*: harken train {folder}"
    with pytest.raises(BadInput, match=message):
        choose(nodes, settings).recipe.load_data()
    assert choose(nodes, {"data.label": "club", "data.text": "note"}).recipe.data.kind == "table"


@pytest.mark.parametrize(("header", "kind"), [("source,target", "graph"), ("x,y", "")])
def test_edges_alone_are_read_with_a_notice_or_refused_with_the_name_of_the_folder(folder, header, kind):
    edges = folder / "edges.csv"
    edges.write_text(edges.read_text().replace("from,to", header))
    detection = detect_kind(edges)
    assert detection.kind == kind or not kind
    assert detection.notice + detection.refusal == folder_of_graph(edges)
    assert bool(detection.refusal) == (not kind)


def write_graphs(tmp_path: Path) -> Path:
    """Twenty rings and stars, with their nodes shuffled."""
    nodes, links = [], []
    for g in range(20):
        n = 4 + g % 3
        nodes += [[f"{g}-{k}", f"g{g}"] for k in range(n)]
        links += [[f"{g}-{k}", f"{g}-{(k + 1) % n if g % 2 else 0}"] for k in range(n) if g % 2 or k]
    order = np.random.default_rng(0).permutation(len(nodes))
    write_csv(tmp_path / "nodes.csv", ["node", "graph"], *(nodes[n] for n in order))
    write_csv(tmp_path / "edges.csv", ["source", "target"], *links)
    write_csv(tmp_path / "graphs.csv", ["graph", "label"], *([f"g{g}", ("star", "ring")[g % 2]] for g in range(20)))
    return tmp_path


def test_a_graph_column_makes_several_labelled_graphs(tmp_path):
    data = load(write_graphs(tmp_path))
    assert (data.processor.target_level, data.processor.feature_source, len(data.tables.graph_names)) == (
        "graph",
        "degree",
        20,
    )
    assert (np.diff(data.tables.graph_ids) >= 0).all()
    for g, name in enumerate(data.tables.graph_names):
        nodes = [data.tables.node_names[n] for n in np.flatnonzero(data.tables.graph_ids == g)]
        assert {node.split("-")[0] for node in nodes} == {name[1:]}
        assert data.processor.labels[data.targets[g]] == ("star", "ring")[int(name[1:]) % 2]


def test_edges_connect_the_same_names_after_sorting_by_graph(tmp_path):
    tables = load(write_graphs(tmp_path)).tables
    edges = {tuple(tables.node_names[n] for n in pair) for pair in tables.edges.tolist()}
    expected = {tuple(row) for row in list(csv.reader((tmp_path / "edges.csv").read_text().splitlines()))[1:]}
    assert edges == expected


# --- regression targets -----------------------------------------------------------------------------------------------


def test_regression_targets_are_standardized(folder):
    data = load(folder, label="age")
    assert data.processor.target_type == "number"
    targets = data.targets[data.train]
    assert abs(targets.mean()) < 1e-6
    assert abs(targets.std() - 1) < 1e-5


# --- neighborhoods and positional encodings ---------------------------------------------------------------------------


def undirected(G: nx.Graph) -> np.ndarray:
    edges = np.array(G.edges)
    return np.concatenate([edges, edges[:, ::-1]])


@pytest.mark.parametrize("reach", [1, 2, 3])
def test_pairs_within_reach_equal_those_of_shortest_paths(reach):
    G = nx.karate_club_graph()
    graph = build_graph(np.zeros((34, 1), np.float32), undirected(G), None, np.zeros(34, np.int64), reach=reach)
    paths = dict(nx.all_pairs_shortest_path_length(G, cutoff=reach))
    expected = {(i, j): hops for i in paths for j, hops in paths[i].items()}
    assert dict(zip(zip(graph.i.tolist(), graph.j.tolist(), strict=True), graph.hops.tolist(), strict=True)) == expected


def test_too_many_pairs_within_reach_are_refused(monkeypatch):
    monkeypatch.setattr("harken.data.graphs.batch.MAX_PAIRS", 100)
    with pytest.raises(BadSetting, match=r"model.reach: more than 100 node pairs are within 2 hops"):
        build_graph(np.zeros((34, 1), np.float32), undirected(nx.path_graph(34)), None, np.zeros(34, np.int64), reach=2)


def test_gcn_weights_equal_the_normalized_adjacency_matrix():
    G = nx.karate_club_graph()
    graph = build_graph(np.zeros((34, 1), np.float32), undirected(G), None, np.zeros(34, np.int64))
    A = nx.to_numpy_array(G, weight=None) + np.eye(34)
    d = A.sum(0)
    weights = np.zeros((34, 34))
    weights[graph.i, graph.j] = graph.a
    np.testing.assert_allclose(weights, A / np.sqrt(np.outer(d, d)), atol=1e-6)


def encode(G: nx.Graph, kind: str, k: int) -> np.ndarray:
    n = len(G)
    graph = build_graph(np.zeros((n, 1), np.float32), undirected(G), None, np.zeros(n, np.int64))
    encoding = add_positional_encoding(graph, kind, k).positional_encoding
    assert encoding is not None
    return encoding


def test_return_probabilities_equal_the_diagonals_of_matrix_powers():
    G = nx.karate_club_graph()
    A = nx.to_numpy_array(G, weight=None)
    P = A / A.sum(1, keepdims=True)
    expected = np.stack([np.diag(np.linalg.matrix_power(P, t)) for t in (1, 2, 3, 4)], 1)
    np.testing.assert_allclose(encode(G, "walk", 4), expected, atol=1e-6)


def test_encodings_of_a_large_graph_are_cached_and_recomputed_if_the_file_is_damaged(monkeypatch):
    monkeypatch.setattr("harken.data.graphs.batch.MAX_DENSE_NODES", 10)
    G, expected = nx.karate_club_graph(), encode(nx.karate_club_graph(), "walk", 4)
    (cached,) = cache_folder("node-encodings").iterdir()
    path_graph = encode(nx.path_graph(34), "walk", 4)
    assert not np.array_equal(path_graph, expected)
    cached.write_bytes(cached.read_bytes()[:-7])
    np.testing.assert_array_equal(encode(G, "walk", 4), expected)
    monkeypatch.setattr("harken.data.graphs.batch._random_walk", None)
    np.testing.assert_array_equal(encode(G, "walk", 4), expected)


def test_a_random_walk_equals_index_add_over_the_edges():
    G = nx.random_regular_graph(8, 500, seed=0)
    i, j = torch.from_numpy(undirected(G)).T
    v, expected = torch.eye(500, dtype=torch.float64), []
    for _ in range(8):
        v = torch.zeros_like(v).index_add(0, i, v[j] / 8)
        expected.append(v.diagonal())
    np.testing.assert_allclose(encode(G, "walk", 8), torch.stack(expected, 1), atol=1e-6)


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "subspace iteration"])
def test_eigenvectors_belong_to_the_smallest_eigenvalues_of_the_laplacian(dense, monkeypatch):
    monkeypatch.setattr("harken.data.graphs.batch.MAX_DENSE_NODES", 100 if dense else 10)
    G = nx.karate_club_graph()
    L = nx.normalized_laplacian_matrix(G, weight=None).toarray()
    v = encode(G, "laplacian", 3) / np.sqrt(34)
    expected = np.linalg.eigvalsh(L)[1:4]
    np.testing.assert_allclose(L @ v, v * expected, atol=1e-3)


def test_a_fully_connected_graph_clips_distances_at_the_maximum():
    G = nx.path_graph(12)
    graph = build_graph(np.zeros((12, 1), np.float32), undirected(G), None, np.zeros(12, np.int64), reach=0)
    hops = graph.model_inputs(torch.zeros(()))["hops"]
    assert hops[0].tolist() == [min(n, MAX_HOPS) for n in range(12)]


# --- the processor file -----------------------------------------------------------------------------------------------


def test_a_saved_processor_is_loaded_unchanged(folder, tmp_path):
    processor = load(folder).processor
    (tmp_path / "labels.json").write_bytes(processor.files()["labels.json"])
    assert vars(GraphProcessor.load(tmp_path)) == vars(processor)


WRONG_TYPE = '{"target_level": "node", "labels": ["a"], "features": 3, "feature_mean": ["x"]}'


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"target_level": "node"}', '{"target_level": "x", "labels": ["a"], "features": 3}', WRONG_TYPE],
)
def test_an_invalid_processor_file_is_refused(tmp_path, content):
    (tmp_path / "labels.json").write_text(content)
    with pytest.raises(BadRun, match="cannot read the processor"):
        GraphProcessor.load(tmp_path)


def test_a_graph_with_another_number_of_features_is_refused():
    processor = GraphProcessor("node", ["a", "b"], 3)
    tables = GraphTables("g", ["1"], np.empty((0, 2), np.int64), x=np.ones((1, 2), np.float32))
    with pytest.raises(BadInput, match="g: 2 features; this run was trained on 3"):
        processor.read(tables)


def test_label_columns_extend_a_copy_of_the_table():
    label = preview.TABLES["graph_columns"]["label"]
    assert COLUMN_PATTERNS["label"] == f"{label}|{preview.LABEL_NAME.pattern}"
    assert preview.LABEL_NAME.pattern not in label


def write_ages(folder, age, label=lambda n: "ab"[n % 2], weight=None):
    names = [f"n{n}" for n in range(20)]
    nodes = [f"{name};{age(n)};{label(n)}" for n, name in enumerate(names)]
    (folder / "nodes.csv").write_text("\n".join(["id;age;label", *nodes]))
    edges = [f"{a};{b}" + (f";{weight}" if weight else "") for a, b in pairwise(names)]
    (folder / "edges.csv").write_text("\n".join(["source;target" + ";weight" * bool(weight), *edges]))
    return folder


def test_decimal_commas_are_refused_by_column_and_read_with_the_setting(tmp_path):
    write_ages(tmp_path, lambda n: f"{n},5")
    with pytest.raises(BadInput, match=r"nodes: column 'age': '0,5' has a decimal comma; .* set data.decimal=','$"):
        GraphSource(path=str(tmp_path)).load_data()
    tables = GraphSource(path=str(tmp_path), decimal=",").read(str(tmp_path))
    assert tables.x[:, 0].tolist() == [n + 0.5 for n in range(20)]
    write_ages(tmp_path, lambda n: n, weight="0,5")
    with pytest.raises(BadInput, match=r"edges: column 'weight': '0,5' has a decimal comma"):
        GraphSource(path=str(tmp_path)).load_data()
    assert set(GraphSource(decimal=",").read(str(tmp_path)).weight.tolist()) == {0.5}


def test_missing_numbers_of_a_feature_are_0_and_counted(tmp_path):
    notices = []
    write_ages(tmp_path, lambda n: ("NA", "", "n/a", "4.5")[n % 4])
    tables = GraphSource(path=str(tmp_path)).read(str(tmp_path), lambda _, **facts: notices.append(facts["text"]))
    assert tables.x[:4, 0].tolist() == [0, 0, 0, 4.5]
    assert notices == [f"{tmp_path}: missing values (empty, NA) are read as 0: age 15"]


def test_numeric_targets_have_decimal_commas_and_missing_values(tmp_path):
    write_ages(tmp_path, lambda n: n, label=lambda n: "NA" if n < 3 else f"{n},25")
    with pytest.raises(BadInput, match=r"the target '3,25' has a decimal comma"):
        GraphSource(path=str(tmp_path)).load_data()
    data = GraphSource(path=str(tmp_path), decimal=",").load_data()
    assert data.processor.target_type == "number"
    y = data.targets[:, 0] * data.processor.std + data.processor.mean
    np.testing.assert_allclose(y, [np.nan] * 3 + [n + 0.25 for n in range(3, 20)], rtol=1e-5)


@pytest.mark.parametrize(("missing", "labels"), [("keep", ["NA", "a", "b"]), ("drop", ["a", "b"])])
def test_missing_labels_of_nodes_are_kept_unless_they_are_dropped(tmp_path, missing, labels):
    write_ages(tmp_path, lambda n: n, label=lambda n: ("NA", "a", "b")[n % 3])
    assert GraphSource(path=str(tmp_path), missing=missing).load_data().processor.labels == labels
