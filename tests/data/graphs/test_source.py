"""Graphs read from tables, arrays and networkx; who is near whom, and where a node stands."""

import csv
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch

from harken.data.cache import cache_folder
from harken.data.detect.kinds import sniff
from harken.data.graphs.batch import graph_of, placed
from harken.data.graphs.files import Bag, Raw, from_networkx, kept
from harken.data.graphs.source import GraphSource, GraphWords
from harken.errors import BadInput, BadRun, BadSetting
from harken.settings import FAR


def table(path: Path, *rows: list[object]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """30 nodes of two clubs; 'a3' has no label."""
    nodes = [[f"a{n}", n / 10, n % 2, "" if n == 3 else ("red", "blue")[n % 2], f"word {n}"] for n in range(30)]
    table(tmp_path / "nodes.csv", ["id", "age", "tall", "club", "note"], *nodes)
    table(tmp_path / "edges.csv", ["from", "to"], *([f"a{n}", f"a{(n + 2) % 30}"] for n in range(30)))
    return tmp_path


def opened(path: Path, **settings):
    return GraphSource(path=str(path), **settings).open()


# --- files ------------------------------------------------------------------------------------------------------------


def test_columns_are_found_by_their_names_and_numbers_are_features(folder):
    heard = []
    data = GraphSource(path=str(folder)).open(listen=lambda event, **facts: heard.append(facts["text"]))
    assert data.words.labels == ["blue", "red"]
    assert (data.words.ask, data.words.features, data.raw.columns) == ("node", 2, ["age", "tall"])
    assert heard == [f"{folder}: columns left out, as they hold no numbers: note"]
    assert data.raw.pairs[0].tolist() == [0, 2]


def test_with_features_of_no_column_nodes_are_known_by_their_names_alone(folder, tmp_path):
    np.savez(tmp_path / "g.npz", edges=np.array([[0, 1], [1, 2]]), x=np.eye(3, 7), label=np.array(["a", "b", "a"]))
    for path, many in ((folder, 30), (tmp_path / "g.npz", 3)):
        heard = []
        data = GraphSource(path=str(path), features=[]).open(
            listen=lambda event, heard=heard, **facts: heard.append(facts)
        )
        assert (data.words.made, data.words.features, data.raw.x, heard) == ("identity", many, None, [])


def test_what_has_no_label_is_in_no_split(folder):
    data = opened(folder)
    every = data.train + data.splits["valid"] + data.splits["test"]
    assert sorted(every) == [n for n in range(30) if n != 3]


def test_a_column_that_says_the_split_is_obeyed(folder):
    rows = list(csv.reader((folder / "nodes.csv").read_text().splitlines()))
    said = ["split"] + ["train"] * 10 + ["val"] * 5 + ["test"] * 5 + [""] * 10
    table(folder / "nodes.csv", *([*row, where] for row, where in zip(rows, said, strict=True)))
    data = opened(folder)
    assert data.train == [n for n in range(10) if n != 3]
    assert data.splits == {"valid": list(range(10, 15)), "test": list(range(15, 20))}


def test_named_columns_are_taken(folder):
    data = opened(folder, label="tall", features=["age"])
    assert (data.words.labels, data.words.features) == (["0", "1"], 1)


def test_columns_of_numbers_have_mean_0_and_spread_1(folder):
    data = opened(folder)
    x = data.words.read(data.raw)
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(x.std(0), 1, atol=1e-6)


def test_features_keep_the_digits_in_which_they_differ(folder, tmp_path):
    when = 1_700_000_000.0 + np.arange(30) % 2
    table(folder / "nodes.csv", ["id", "when", "club"], *([f"a{n}", t, "ab"[n % 2]] for n, t in enumerate(when)))
    np.savez(tmp_path / "g.npz", edges=np.array([[0, 1], [1, 2]]), x=when[:, None], label=np.arange(30) % 2)
    for data in (opened(folder), opened(tmp_path / "g.npz", scale="columns")):
        x = data.words.read(data.raw)
        assert x.dtype == np.float32
        assert x[:, 0].tolist() == [-1.0, 1.0] * 15
    short = np.tile(np.array([[0], [400]], np.float16), (15, 1))
    np.savez(tmp_path / "g.npz", edges=np.array([[0, 1]]), x=short, label=np.arange(30) % 2)
    data = opened(tmp_path / "g.npz", scale="columns")  # of which a float16 could not sum the squares
    assert data.words.read(data.raw)[:, 0].tolist() == [-1.0, 1.0] * 15


def test_a_held_out_share_has_its_part_of_each_label_and_stays_when_nodes_come(folder):
    before = opened(folder)
    with (folder / "nodes.csv").open("a", newline="") as file:
        csv.writer(file).writerows([[f"b{n}", 0, 0, "red", ""] for n in range(2)])
    after = opened(folder)
    assert len(before.splits["test"]) == 6
    assert len({*before.splits["test"]} & {*after.splits["test"]}) >= 5


@pytest.mark.parametrize(
    ("name", "rows", "said"),
    [
        ("edges.csv", [["from", "to"], ["a1", "zz"]], "'zz' is no node of nodes.csv"),
        ("edges.csv", [["from", "to"], ["a1", "a2", "a3"]], "edges.csv:2: 3 cells where the first line names 2"),
        ("edges.csv", [["from"], ["a1"]], "edges need two columns, source and target"),
        ("edges.csv", [["from", "to", "weight"], ["a1", "a2", ""]], "the edge of 'a1' and 'a2' has no weight"),
        ("nodes.csv", [["id", "club"], ["a1", "x"], ["a1", "y"]], "node 'a1' stands there twice"),
    ],
)
def test_a_table_that_is_no_graph_is_told_where(folder, name, rows, said):
    table(folder / name, *rows)
    with pytest.raises(BadInput, match=said):
        opened(folder)


def test_a_column_that_is_not_there_is_told_with_those_that_are(folder):
    with pytest.raises(
        BadInput, match=r"data.label = 'clubb' is no column of it; there are id, .* Did you mean club\?"
    ):
        opened(folder, label="clubb")


def test_arrays_bring_sparse_features_and_the_public_split(tmp_path):
    row, col = np.array([3, 0, 0, 1]), np.array([1, 0, 4, 2])
    arrays = {"feature_row": row, "feature_col": col, "feature_val": np.ones(4), "shape": [4, 5]}
    arrays |= {"edges": np.array([[0, 1], [1, 0], [1, 2], [2, 1]]), "label": np.array([0, 1, 1, 0])}
    np.savez(tmp_path / "g.npz", **arrays, train=[0, 1], valid=[2], test=np.array([3]))
    data = opened(tmp_path / "g.npz")
    assert (data.train, data.splits) == ([0, 1], {"valid": [2], "test": [3]})
    x = data.words.read(data.raw)
    assert isinstance(x, Bag)
    assert x.row.tolist() == [0, 0, 1, 3]
    assert x.val.tolist() == [0.5, 0.5, 1, 1]  # rows sum to 1
    assert sniff(tmp_path / "g.npz").kind == "graph"


def test_masks_and_edges_lying_down_are_the_same_as_lists(tmp_path):
    x, label = np.random.default_rng(0).normal(size=(4, 3)), np.array([0, 1, 1, 0])
    mask = np.array([True, True, False, False])
    np.savez(
        tmp_path / "g.npz", x=x, label=label, edges=np.array([[0, 1, 1], [1, 0, 2]]), train_mask=mask, test_mask=~mask
    )
    data = opened(tmp_path / "g.npz", valid=0.0)
    assert (data.train, data.splits) == ([0, 1], {"test": [2, 3]})
    assert data.raw.pairs.tolist() == [[0, 1], [1, 0], [1, 2]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"edges": np.array([[0, 9]])}, "edges names node 9, and there are 4"),
        ({"edges": np.arange(3)}, r"edges has the shape \(3,\)"),
        ({"label": np.arange(3)}, "3 labels for 4 nodes"),
        ({"x": np.full((4, 2), np.nan)}, "finite numbers are accepted"),
        ({"train": np.array([7])}, "train names number 7, and there are 4"),
        ({"x": np.array([["a"]], dtype=object)}, "cannot be read as arrays"),
    ],
)
def test_arrays_that_are_no_graph_are_told(tmp_path, change, said):
    good = {"x": np.eye(4), "edges": np.array([[0, 1], [1, 2]]), "label": np.array([0, 1, 1, 0])}
    np.savez(tmp_path / "g.npz", **good | change)
    with pytest.raises(BadInput, match=said):
        opened(tmp_path / "g.npz")


def test_a_networkx_graph_has_its_attributes_as_columns():
    raw = from_networkx(nx.karate_club_graph(), {})
    assert (len(raw.names), len(raw.pairs)) == (34, 78)
    assert raw.said is not None
    assert {*raw.said} == {"Mr. Hi", "Officer"}
    assert raw.weight is not None


def test_a_networkx_graph_is_kept_as_files_that_are_read_again_the_same():
    G = nx.karate_club_graph()
    again, raw = GraphSource().read(str(kept(G))), from_networkx(G, {})
    assert (again.names, again.said) == (raw.names, raw.said)
    np.testing.assert_array_equal(again.pairs, raw.pairs)
    assert kept(G) == kept(nx.karate_club_graph())
    with pytest.raises(BadInput, match="dict: a path, a recipe or a networkx graph is accepted"):
        kept({})


@pytest.mark.parametrize("ending", ["gml", "graphml"])
def test_graph_files_are_read_by_networkx(tmp_path, ending):
    path = tmp_path / f"club.{ending}"
    getattr(nx, f"write_{ending}")(nx.karate_club_graph(), path)
    assert sniff(path).kind == "graph"
    data = opened(path)
    assert data.words.labels == ["Mr. Hi", "Officer"]
    path.write_text("this is no graph")
    with pytest.raises(BadInput, match="networkx cannot read it"):
        opened(path)


def test_a_folder_with_edges_is_a_graph_and_edges_alone_ask_for_edges(folder):
    assert sniff(folder).kind == "graph"
    (folder / "nodes.csv").unlink()
    data = opened(folder)
    assert (data.words.ask, data.words.labels) == ("edge", ["no edge", "edge"])


# --- many graphs ------------------------------------------------------------------------------------------------------


def graphs(tmp_path: Path) -> Path:
    """Twenty rings and stars, whose nodes lie mixed."""
    nodes, links = [], []
    for g in range(20):
        n = 4 + g % 3
        nodes += [[f"{g}-{k}", f"g{g}"] for k in range(n)]
        links += [[f"{g}-{k}", f"{g}-{(k + 1) % n if g % 2 else 0}"] for k in range(n) if g % 2 or k]
    order = np.random.default_rng(0).permutation(len(nodes))
    table(tmp_path / "nodes.csv", ["node", "graph"], *(nodes[n] for n in order))
    table(tmp_path / "edges.csv", ["source", "target"], *links)
    table(tmp_path / "graphs.csv", ["graph", "label"], *([f"g{g}", ("star", "ring")[g % 2]] for g in range(20)))
    return tmp_path


def test_a_column_of_graphs_makes_many_graphs_with_a_label_each(tmp_path):
    data = opened(graphs(tmp_path))
    assert (data.words.ask, data.words.made, len(data.raw.graphs)) == ("graph", "degree", 20)
    assert (np.diff(data.raw.of) >= 0).all()
    for g, name in enumerate(data.raw.graphs):
        nodes = [data.raw.names[n] for n in np.flatnonzero(data.raw.of == g)]
        assert {node.split("-")[0] for node in nodes} == {name[1:]}
        assert data.words.labels[data.asked[g]] == ("star", "ring")[int(name[1:]) % 2]


def test_an_edge_joins_nodes_of_the_same_names_after_they_were_put_in_order(tmp_path):
    raw = opened(graphs(tmp_path)).raw
    ends = {tuple(raw.names[n] for n in pair) for pair in raw.pairs.tolist()}
    said = {tuple(row) for row in list(csv.reader((tmp_path / "edges.csv").read_text().splitlines()))[1:]}
    assert ends == said


# --- numbers as labels ------------------------------------------------------------------------------------------------


def test_amounts_are_learned_as_numbers_with_mean_0_and_spread_1(folder):
    data = opened(folder, label="age")
    assert data.words.answer == "number"
    targets = data.asked[data.train]
    assert abs(targets.mean()) < 1e-6
    assert abs(targets.std() - 1) < 1e-5


# --- who is near, and where one stands --------------------------------------------------------------------------------


def both_ways(G: nx.Graph) -> np.ndarray:
    found = np.array(G.edges)
    return np.concatenate([found, found[:, ::-1]])


@pytest.mark.parametrize("reach", [1, 2, 3])
def test_pairs_within_reach_are_those_of_the_shortest_paths(reach):
    G = nx.karate_club_graph()
    graph = graph_of(np.zeros((34, 1), np.float32), both_ways(G), None, np.zeros(34, np.int64), reach=reach)
    paths = dict(nx.all_pairs_shortest_path_length(G, cutoff=reach))
    wanted = {(i, j): hops for i in paths for j, hops in paths[i].items()}
    assert dict(zip(zip(graph.i.tolist(), graph.j.tolist(), strict=True), graph.hops.tolist(), strict=True)) == wanted


def test_too_many_pairs_within_reach_are_refused(monkeypatch):
    monkeypatch.setattr("harken.data.graphs.source.batch.MOST", 100)
    with pytest.raises(BadSetting, match=r"model.reach: more than 100 pairs of nodes are within 2 hops"):
        graph_of(np.zeros((34, 1), np.float32), both_ways(nx.path_graph(34)), None, np.zeros(34, np.int64), reach=2)


def test_fixed_weights_are_those_of_the_normalised_matrix():
    G = nx.karate_club_graph()
    graph = graph_of(np.zeros((34, 1), np.float32), both_ways(G), None, np.zeros(34, np.int64))
    A = nx.to_numpy_array(G, weight=None) + np.eye(34)
    d = A.sum(0)
    made = np.zeros((34, 34))
    made[graph.i, graph.j] = graph.a
    np.testing.assert_allclose(made, A / np.sqrt(np.outer(d, d)), atol=1e-6)


def places(G: nx.Graph, kind: str, many: int) -> np.ndarray:
    n = len(G)
    graph = graph_of(np.zeros((n, 1), np.float32), both_ways(G), None, np.zeros(n, np.int64))
    found = placed(graph, kind, many).places
    assert found is not None
    return found


def test_a_walk_comes_back_with_the_chance_of_the_matrix_power():
    G = nx.karate_club_graph()
    A = nx.to_numpy_array(G, weight=None)
    P = A / A.sum(1, keepdims=True)
    wanted = np.stack([np.diag(np.linalg.matrix_power(P, t)) for t in (1, 2, 3, 4)], 1)
    np.testing.assert_allclose(places(G, "walk", 4), wanted, atol=1e-6)


def test_places_of_a_large_graph_are_computed_once_and_again_where_the_kept_ones_are_broken(monkeypatch):
    monkeypatch.setattr("harken.data.graphs.source.batch.SMALL", 10)
    G, wanted = nx.karate_club_graph(), places(nx.karate_club_graph(), "walk", 4)
    (kept,) = cache_folder("places").iterdir()
    other = places(nx.path_graph(34), "walk", 4)
    assert not np.array_equal(other, wanted)
    kept.write_bytes(kept.read_bytes()[:-7])
    np.testing.assert_array_equal(places(G, "walk", 4), wanted)
    monkeypatch.setattr("harken.data.graphs.source.batch._walk", None)
    np.testing.assert_array_equal(places(G, "walk", 4), wanted)


def test_a_walk_is_what_adding_pair_after_pair_gives():
    G = nx.random_regular_graph(8, 500, seed=0)
    i, j = torch.from_numpy(both_ways(G)).T
    v, wanted = torch.eye(500, dtype=torch.float64), []
    for _ in range(8):
        v = torch.zeros_like(v).index_add(0, i, v[j] / 8)
        wanted.append(v.diagonal())
    np.testing.assert_allclose(places(G, "walk", 8), torch.stack(wanted, 1), atol=1e-6)


@pytest.mark.parametrize("small", [True, False], ids=["laid out whole", "by turning vectors"])
def test_eigenvectors_belong_to_the_smallest_eigenvalues_of_the_laplacian(small, monkeypatch):
    monkeypatch.setattr("harken.data.graphs.source.batch.SMALL", 100 if small else 10)
    G = nx.karate_club_graph()
    L = nx.normalized_laplacian_matrix(G, weight=None).toarray()
    v = places(G, "laplacian", 3) / np.sqrt(34)
    wanted = np.linalg.eigvalsh(L)[1:4]
    np.testing.assert_allclose(L @ v, v * wanted, atol=1e-3)


def test_everyone_sees_everyone_with_far_ones_alike():
    G = nx.path_graph(12)
    graph = graph_of(np.zeros((12, 1), np.float32), both_ways(G), None, np.zeros(12, np.int64), reach=0)
    hops = graph.told(torch.zeros(()))["hops"]
    assert hops[0].tolist() == [min(n, FAR) for n in range(12)]


# --- what a run keeps -------------------------------------------------------------------------------------------------


def test_what_a_run_keeps_is_read_again(folder, tmp_path):
    words = opened(folder).words
    (tmp_path / "labels.json").write_bytes(words.files()["labels.json"])
    assert vars(GraphWords.load(tmp_path)) == vars(words)


LOOSE = '{"ask": "node", "labels": ["a"], "features": 3, "centre": ["x"]}'


@pytest.mark.parametrize(
    "content", ["", "[]", '{"ask": "node"}', '{"ask": "x", "labels": ["a"], "features": 3}', LOOSE]
)
def test_labels_that_are_none_are_refused(tmp_path, content):
    (tmp_path / "labels.json").write_text(content)
    with pytest.raises(BadRun, match="does not tell what is said of a graph"):
        GraphWords.load(tmp_path)


def test_a_graph_with_other_features_is_refused():
    words = GraphWords("node", ["a", "b"], 3)
    raw = Raw("g", ["1"], np.empty((0, 2), np.int64), x=np.ones((1, 2), np.float32))
    with pytest.raises(BadInput, match="g: 2 features where 3 were learned"):
        words.read(raw)
