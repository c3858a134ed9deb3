"""Pairs of graphs, types of nodes and edges, and the identity of nodes: reading, splits and inputs."""

from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from harken.data.detect.kinds import detect_kind
from harken.data.graphs.batch import feature_tensor
from harken.data.graphs.source import GraphSource
from harken.data.synthetic.graph_pairs import edit_distance, graph_pairs, table
from harken.errors import BadInput


def write(folder: Path, **tables: str) -> Path:
    folder.mkdir()
    for name, rows in tables.items():
        (folder / f"{name}.csv").write_text("\n".join(rows.split()) + "\n")
    return folder


def pair_folder(path: Path, header: str = "graph_a,graph_b,ged", n: int = 20) -> Path:
    """n graphs of two nodes; every graph is compared with the next three."""
    nodes = [f"g{g}-{k},g{g}" for g in range(n) for k in range(2)]
    pairs = [f"g{g},g{(g + k) % n},{(g * k) % 5}" for g in range(n) for k in (1, 2, 3)]
    edges = [f"g{g}-0,g{g}-1" for g in range(n)]
    tables = {"nodes": ["node,graph", *nodes], "edges": ["source,target", *edges], "pairs": [header, *pairs]}
    return write(path, **{name: "\n".join(rows) for name, rows in tables.items()})


# --- pairs of graphs --------------------------------------------------------------------------------------------------


def test_a_folder_with_pairs_is_detected_and_its_integer_distances_are_numbers(tmp_path):
    detection = detect_kind(pair_folder(tmp_path / "g"))
    assert detection.settings == {"data.target_level": "pair"}
    assert "pairs.csv" in detection.reason
    data = GraphSource(path=str(tmp_path / "g")).load_data()
    assert (data.processor.target_level, data.processor.target_type) == ("pair", "number")
    assert data.unit_names()[:2] == ["g0--g1", "g0--g2"]


@pytest.mark.parametrize("header", ["a,b,label", "graph_a,graph_b,class"])
def test_few_integers_in_a_column_of_labels_are_labels(tmp_path, header):
    data = GraphSource(path=str(pair_folder(tmp_path / "g", header))).load_data()
    assert data.processor.labels == ["0", "1", "2", "3", "4"]


def test_features_that_are_the_same_for_all_nodes_are_replaced_by_degrees(tmp_path):
    folder, events = pair_folder(tmp_path / "g"), []
    header, *nodes = (folder / "nodes.csv").read_text().splitlines()
    (folder / "nodes.csv").write_text("\n".join([f"{header},size", *(f"{node},1" for node in nodes)]) + "\n")
    data = GraphSource(path=str(folder)).load_data(listen=lambda _, **facts: events.append(facts))
    assert data.processor.feature_source == "degree"
    assert feature_tensor(data.processor.read(data.tables), len(nodes)).to_dense().sum() == len(nodes)
    assert any("same for all nodes" in fact["text"] for fact in events)
    kept = GraphSource(path=str(folder), feature_scaling="none").load_data()
    assert kept.processor.feature_source == "file"


def test_a_graph_of_a_held_out_pair_that_was_drawn_is_in_no_training_pair(tmp_path):
    data = GraphSource(path=str(pair_folder(tmp_path / "g", n=60)), valid=0.2, test=0.3).load_data()
    pairs = data.tables.pairs
    train = {*pairs[data.train].ravel().tolist()}
    for split, share in (("test", 0.3), ("valid", 0.14)):
        held_out = pairs[data.splits[split]]
        assert all({a, b} - train for a, b in held_out.tolist())
        assert abs(len(held_out) / len(pairs) - share) < 0.12


def test_the_split_of_the_file_is_used(tmp_path):
    folder = pair_folder(tmp_path / "g")
    rows = (folder / "pairs.csv").read_text().split()
    splits = ["split", *(["train"] * 40), *(["valid"] * 8), *(["test"] * 12)]
    (folder / "pairs.csv").write_text("\n".join(f"{a},{b}" for a, b in zip(rows, splits, strict=True)))
    data = GraphSource(path=str(folder)).load_data()
    assert (len(data.train), len(data.splits["valid"]), len(data.splits["test"])) == (40, 8, 12)


def test_pairs_as_arrays_equal_the_folder(tmp_path):
    folder = GraphSource(path=str(pair_folder(tmp_path / "g"))).load_data()
    graph = np.repeat(np.arange(20), 2)
    pairs = np.array([[g, (g + k) % 20] for g in range(20) for k in (1, 2, 3)])
    score = np.array([(g * k) % 5 + 0.5 for g in range(20) for k in (1, 2, 3)])
    np.savez(tmp_path / "g.npz", edges=np.arange(40).reshape(-1, 2), graph=graph, pairs=pairs, label=score)
    arrays = GraphSource(path=str(tmp_path / "g.npz")).load_data()
    assert arrays.processor.target_type == "number"
    assert sorted(map(tuple, arrays.tables.pairs.tolist())) == sorted(map(tuple, folder.tables.pairs.tolist()))
    np.savez(
        tmp_path / "bad.npz", edges=np.array([[0, 1]]), graph=np.array([0, 1]), pairs=np.array([[0, 2]]), label=[1]
    )
    with pytest.raises(BadInput, match="pairs contains graph 2"):
        GraphSource(path=str(tmp_path / "bad.npz")).load_data()


def test_a_folder_with_pairs_and_labels_of_nodes_has_targets_of_each_level(tmp_path):
    nodes = [f"n{k},g{k // 5},{'ab'[k % 2]},{'xy'[k // 5 % 2]}" for k in range(60)]
    edges, pairs = (
        [f"n{k},n{k // 5 * 5 + (k + 1) % 5}" for k in range(60)],
        [f"g{k},g{(k + 1) % 12},0.{k}" for k in range(12)],
    )
    tables = {"nodes": ["node,graph,label,side", *nodes], "edges": ["source,target", *edges]}
    folder = write(tmp_path / "g", pairs="\n".join(["graph_a,graph_b,score", *pairs]),
                   **{name: "\n".join(rows) for name, rows in tables.items()})  # fmt: skip
    levels = {"auto": 12, "pair": 12, "node": 60, "edge": 60}
    sizes = {level: GraphSource(path=str(folder), target_level=level).load_data() for level in levels}
    assert {level: len(data.targets) for level, data in sizes.items()} == levels
    of_graphs = GraphSource(path=str(folder), target_level="graph", label="side").load_data()
    assert (len(of_graphs.targets), of_graphs.processor.labels) == (12, ["x", "y"])


def test_an_unknown_graph_and_missing_graphs_are_named(tmp_path):
    folder = pair_folder(tmp_path / "g")
    with (folder / "pairs.csv").open("a") as file:
        file.write("g1,g99,3\n")
    with pytest.raises(BadInput, match="'g99' is not a graph of nodes"):
        GraphSource(path=str(folder)).load_data()
    (folder / "nodes.csv").write_text("node\n" + "\n".join(f"g{g}-{k}" for g in range(20) for k in range(2)))
    with pytest.raises(BadInput, match="does not say to which graph"):
        GraphSource(path=str(folder)).load_data()


def test_pairs_without_labels_are_refused_in_training_and_read_for_predictions(tmp_path):
    folder = pair_folder(tmp_path / "g")
    trained = GraphSource(path=str(folder)).load_data()
    rows = (line.rpartition(",")[0] for line in (folder / "pairs.csv").read_text().splitlines())
    (folder / "pairs.csv").write_text("\n".join(rows) + "\n")
    source = GraphSource(path=str(folder))
    with pytest.raises(BadInput, match=r"its pairs of graphs have no labels; add a column .* to pairs.csv"):
        source.load_data()
    assert len(source.load_split(str(folder), "", tokenizer=trained.processor).unit_names()) == 60


def test_other_labels_in_reverse_order_are_a_notice(tmp_path):
    folder = pair_folder(tmp_path / "g")
    with (folder / "pairs.csv").open("a") as file:
        file.write("g1,g0,4\n")
    notices = []
    GraphSource(path=str(folder)).load_data(listen=lambda _, **facts: notices.append(facts["text"]))
    assert any("model.symmetric=false" in text for text in notices)


def test_the_edit_distance_of_generated_pairs_is_that_of_networkx():
    for pair in [p for p in graph_pairs(60) if len(p.a) + len(p.b) <= 12][:8]:
        graphs = (nx.from_numpy_array(A) for A in (pair.a, pair.b))
        assert pair.distance == nx.graph_edit_distance(*graphs)


def test_the_edit_distance_counts_nodes_and_does_not_depend_on_their_order():
    path = np.diag(np.ones(3, int), 1)
    path = path + path.T  # four nodes in a row
    assert edit_distance(path, path[::-1, ::-1]) == 0
    assert edit_distance(path, path[:2, :2]) == 4  # two nodes and two edges
    assert edit_distance(path, np.zeros((4, 4), int)) == 3


def test_no_generated_graph_is_in_two_pairs_or_splits():
    rows = [line.split(",") for line in "".join(table("pairs", 100)).split()[1:]]
    names = [name for row in rows for name in row[:2]]
    assert len({*names}) == len(names)
    assert {row[3] for row in rows} == {"train", "valid", "test"}


# --- types ------------------------------------------------------------------------------------------------------------

NODES = "name,type,age,club a,person,1,x b,person,2,y c,paper,3,x d,paper,4,y"
EDGES = "source,target,type a,c,writes b,d,writes a,d,reads a,b,knows"


@pytest.fixture
def typed(tmp_path):
    return write(tmp_path / "typed", nodes=NODES.replace(" ", "\n"), edges=EDGES.replace(" ", "\n"))


def load(path: Path, **settings):
    return GraphSource(path=str(path), valid=0, test=0, **settings).load_data()


def test_each_node_type_has_its_own_columns_of_features_and_one_for_the_type(typed):
    data = load(typed)
    assert (data.processor.node_types, data.processor.edge_types) == (["paper", "person"], ["knows", "reads", "writes"])
    x = feature_tensor(data.processor.read(data.tables), 4).to_dense().numpy()
    z = (np.array([1, 2, 3, 4]) - 2.5) / np.std([1, 2, 3, 4])
    expected = [[0, z[0], 0, 1], [0, z[1], 0, 1], [z[2], 0, 1, 0], [z[3], 0, 1, 0]]
    np.testing.assert_allclose(x, expected, rtol=1e-6)
    assert "2 node types, 3 edge types" in data.facts()["summary"]


def test_types_can_be_switched_off(typed):
    data = load(typed, types=False)
    assert (data.processor.node_types, data.processor.edge_types, data.processor.features) == ([], [], 1)


def test_a_run_from_before_there_were_types_reads_a_column_of_numbers_as_a_feature(tmp_path):
    nodes = "\n".join(["name,type,age,club", *(f"n{n},{n % 3},{n},{'xy'[n % 2]}" for n in range(20))])
    edges = "\n".join(["source,target", *(f"n{n},n{(n + 1) % 20}" for n in range(20))])
    folder = write(tmp_path / "old", nodes=nodes, edges=edges)
    before, now = load(folder, types=False), load(folder)
    assert (before.processor.features, now.processor.node_types) == (2, ["0", "1", "2"])
    source = GraphSource(path=str(folder))  # an old recipe does not say that there are no types
    same, other = (
        source.load_data(tokenizer=before.processor),
        source.load_split(folder, "", tokenizer=before.processor),
    )
    for data in (same, other):
        assert np.array_equal(data.tables.x, before.tables.x)
        assert before.processor.read(data.tables).shape == (20, 2)
    assert source.load_data(tokenizer=now.processor).tables.node_types == now.tables.node_types


def test_a_type_is_the_label_if_there_is_no_other(tmp_path):
    rows = [f"n{k},{('tree', 'bush')[k % 2]}" for k in range(20)]
    edges = [f"n{k},n{(k + 1) % 20}" for k in range(20)]
    folder = write(tmp_path / "t", nodes="\n".join(["name,type", *rows]), edges="\n".join(["source,target", *edges]))
    assert load(folder).processor.labels == ["bush", "tree"]
    as_types = load(folder, node_type="type")
    assert (as_types.processor.target_level, as_types.processor.node_types) == ("edge", ["bush", "tree"])


def test_a_type_that_the_training_did_not_have_is_named(typed, tmp_path):
    data = load(typed)
    other = write(
        tmp_path / "other", nodes=NODES.replace("paper", "book").replace(" ", "\n"), edges=EDGES.replace(" ", "\n")
    )
    with pytest.raises(BadInput, match="unknown type 'book'; known types are paper, person"):
        data.processor.read(GraphSource(path=str(other)).read(str(other)))


def test_types_as_arrays(tmp_path):
    types = {"node_type": np.array([0, 0, 1]), "edge_type": np.array(["a", "b"])}
    arrays = {"edges": np.array([[0, 1], [1, 2]]), "x": np.arange(6.0).reshape(3, 2), "label": np.array([0, 1, 0])}
    np.savez(tmp_path / "g.npz", **arrays, **types)
    processor = load(tmp_path / "g.npz").processor
    assert (processor.node_types, processor.edge_types, processor.features) == (["0", "1"], ["a", "b"], 2 * 2 + 2)
    np.savez(tmp_path / "bad.npz", **arrays, edge_type=np.array([1, 2, 3]))
    with pytest.raises(BadInput, match="edge_type has shape"):
        load(tmp_path / "bad.npz")


def test_types_move_with_their_nodes_if_the_nodes_of_a_graph_are_not_together(tmp_path):
    graph, types = np.array([1, 0, 1, 0]), np.array(["a", "b", "c", "d"])
    arrays = {"edges": np.array([[0, 2], [1, 3]]), "label": np.array([0, 1]), "pairs": np.array([[0, 1], [1, 0]])}
    np.savez(tmp_path / "g.npz", graph=graph, node_type=types, **arrays)
    tables = load(tmp_path / "g.npz").tables
    assert (tables.node_names, tables.node_types) == (["1", "3", "0", "2"], ["b", "d", "a", "c"])
    assert tables.labels == ["0", "1"]


# --- identity ---------------------------------------------------------------------------------------------------------


def test_for_edges_every_node_has_an_input_of_its_own_beside_its_features(typed):
    data = load(typed, target_level="edge", types=False)
    x = feature_tensor(data.processor.read(data.tables), 4).to_dense().numpy()
    np.testing.assert_allclose(x[:, 1:], np.eye(4) * np.sqrt((x[:, 0] ** 2).mean()), rtol=1e-6)
    assert load(typed, target_level="edge", types=False, identity=False).processor.features == 1
    assert load(typed, types=False, identity=True).processor.features == 5


@pytest.mark.parametrize("settings", [{"features": []}, {"identity": True}])
def test_a_run_with_an_input_for_each_node_refuses_other_nodes_and_another_order(typed, tmp_path, settings):
    processor = load(typed, types=False, **settings).processor
    known, edges = NODES.split(), EDGES.replace(" ", "\n")
    for name, rows in {"order": [known[0], *known[:0:-1]], "names": [row.replace("a,", "e,") for row in known]}.items():
        other = write(
            tmp_path / name, nodes="\n".join(rows), edges=edges.replace("a,", "e,") if name == "names" else edges
        )
        with pytest.raises(BadInput, match="other nodes, or another order, than those this run was trained on"):
            processor.read(GraphSource(path=str(other), **settings).read(str(other)))
    assert processor.read(load(typed, types=False, **settings).tables).n_features == processor.features
    assert load(typed, types=False).processor.nodes_sha256 is None
