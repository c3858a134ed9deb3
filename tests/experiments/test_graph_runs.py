"""Runs on graphs: train, evaluate, audit, resume, compare, classify."""

import csv
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

import harken
from harken import registry
from harken.errors import BadInput
from harken.files import sha256_of

KINDS = sorted(registry.MODELS["graphs"])
TINY = {"model.size": "tiny", "model.dropout": 0.2, "train.threads": 1, "train.steps": 60, "train.eval_every": 20}
TINY |= {"train.lr": 0.02}


def two_clubs(n: int = 80, seed: int = 0) -> nx.Graph:
    """Two clubs with mostly internal edges; the features of a member depend weakly on its club."""
    G = nx.stochastic_block_model([n // 2] * 2, [[0.2, 0.01], [0.01, 0.2]], seed=seed)
    rng = np.random.default_rng(seed)
    graph = nx.Graph()
    for k in G:
        club = k >= n // 2
        graph.add_node(
            f"m{k}", club=("north", "south")[club], age=float(rng.normal(1.2 * club)), height=float(rng.normal())
        )
    graph.add_edges_from((f"m{a}", f"m{b}") for a, b in G.edges)
    return graph


def folder(path: Path, G: nx.Graph) -> Path:
    path.mkdir()
    with (path / "nodes.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["node", "age", "height", "club"], *([n, d["age"], d["height"], d["club"]] for n, d in G.nodes(data=True))]
        )
    with (path / "edges.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["source", "target"], *G.edges])
    return path


@pytest.fixture(scope="module")
def clubs(tmp_path_factory) -> Path:
    return folder(tmp_path_factory.mktemp("graphs") / "clubs", two_clubs())


@pytest.fixture(scope="module", params=KINDS)
def trained(request, clubs, tmp_path_factory) -> harken.Run:
    out = tmp_path_factory.mktemp("runs") / request.param
    return harken.train(clubs, out=out, settings={**TINY, "model.kind": request.param})


def test_every_graph_model_beats_the_feature_baseline(trained):
    baseline = trained.facts["baseline"]["test"]
    assert baseline.keys() == {"most frequent label", "neighbors' majority", "logistic regression"}
    assert trained.metrics["test"]["accuracy"] > baseline["logistic regression"]["accuracy"] + 0.1
    assert trained.facts["audit"]["passed"]
    assert "accumulation" in trained.facts["audit"]["summary"]
    assert "m1" in (trained.path / "report.html").read_text()


def test_classify_returns_the_label_of_a_node_by_name(trained):
    labels = trained.classify(["m0", "m79"])
    assert [prediction[0]["label"] for prediction in labels] == ["north", "south"]
    assert sum(label["probability"] for label in labels[0]) == pytest.approx(1)
    assert trained.classify("m0") == labels[0]


def test_classify_returns_the_labels_of_another_graph(trained, tmp_path):
    other = folder(tmp_path / "other", two_clubs(seed=1))
    labels = trained.classify([str(other)])
    assert len(labels) == 80
    correct = [prediction[0]["label"] == ("north", "south")[n >= 40] for n, prediction in enumerate(labels)]
    assert np.mean(correct) > 0.7
    assert trained.classify([str(other), "m5"])[0] == labels[5]
    score, baseline = trained.evaluate("test", data=str(other))
    assert score.metrics["accuracy"] == pytest.approx(np.mean(correct))
    assert (score.protocol["nodes"], baseline) == (80, {})


def test_a_repeated_evaluation_gives_the_same_metrics(trained):
    score, baseline = harken.load(trained.path).evaluate("test")
    assert score.metrics == trained.metrics["test"]
    assert baseline == trained.facts["baseline"]["test"]


def test_an_unknown_node_is_reported_with_an_existing_one(trained):
    with pytest.raises(BadInput, match=r"'m799': not a node of .*; it has 80, such as m0, m1, m2. Did you mean m79\?"):
        trained.classify("m799")


def test_an_unsupported_method_is_refused_with_the_supported_ones(trained):
    for method in (trained.generate, trained.tag, trained.translate):
        with pytest.raises(BadInput, match="this run classifies graph nodes; use harken classify"):
            method("m0")


class Died(Exception):
    """Simulates a killed process."""


@pytest.mark.parametrize("settings", [{}, {"data.target_level": "edge"}, {"model.kind": "graph-transformer"}], ids=str)
def test_an_interrupted_training_resumes_bitwise(clubs, tmp_path, settings):
    all_settings = {**TINY, "train.steps": 8, "train.checkpoint_every": 2, "train.eval_every": 2, **settings}

    def die(event: str, **facts: Any) -> None:
        if event == "step" and facts["step"] == 5:
            raise Died

    harken.train(clubs, out=tmp_path / "complete", settings=all_settings)
    with suppress(Died):
        harken.train(clubs, out=tmp_path / "broken", settings=all_settings, listen=die)
    harken.train(tmp_path / "broken", resume=True)
    checksums = [sha256_of(tmp_path / name / "model.safetensors") for name in ("complete", "broken")]
    assert checksums[0] == checksums[1]


def test_a_networkx_graph_can_be_trained_on(tmp_path):
    run = harken.train(two_clubs(), out=tmp_path / "run", settings=TINY)
    assert run.recipe.data.kind == "graph"
    assert run.classify("m0")[0]["label"] == "north"


def test_messages_follow_the_edges_of_a_directed_networkx_graph_unless_overridden(tmp_path):
    G, short_settings = nx.DiGraph(two_clubs()), {**TINY, "train.steps": 2}
    assert harken.train(G, out=tmp_path / "one", settings=short_settings).recipe.data.directed
    assert not harken.train(
        G, out=tmp_path / "both", settings={**short_settings, "data.directed": False}
    ).recipe.data.directed


def test_a_node_with_the_name_of_a_file_is_a_node_independent_of_earlier_calls(clubs, tmp_path, monkeypatch):
    run = harken.train(clubs, out=tmp_path / "run", settings={**TINY, "train.steps": 2})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m7").write_text("no graph")
    first = harken.load(tmp_path / "run").classify(["m7"])
    assert first == run.classify(["m8", "m7"])[1:] == run.classify(["m7"])


def test_a_run_caches_one_other_graph(clubs, tmp_path):
    run = harken.train(clubs, out=tmp_path / "run", settings={**TINY, "train.steps": 2})
    other_graphs = [str(folder(tmp_path / f"other{seed}", two_clubs(seed=seed))) for seed in (1, 2)]
    for other in other_graphs:
        run.classify([other, "m5"])
    assert {*run.graph_cache} == {None, other_graphs[-1]}


def test_edge_prediction_beats_the_degree_baseline(tmp_path):
    G = nx.stochastic_block_model([20] * 4, np.eye(4) * 0.55 + 0.01, seed=0)
    np.savez(tmp_path / "g.npz", edges=np.array(G.edges))
    settings = {**TINY, "train.steps": 200, "train.eval_every": 50, "model.d": 16}
    run = harken.train(tmp_path / "g.npz", out=tmp_path / "run", settings=settings)
    assert run.metrics["test"]["auc"] > run.facts["baseline"]["test"]["product of degrees"]["auc"] + 0.2
    within, across = (run.classify(pair) for pair in ("0--1", "0--79"))
    assert {label["label"] for label in within} == {"edge", "no edge"}
    edge_probabilities = [
        next(s["probability"] for s in prediction if s["label"] == "edge") for prediction in (within, across)
    ]
    assert edge_probabilities[0] > edge_probabilities[1]
    with pytest.raises(BadInput, match="'7': not an edge; give two nodes with -- between them, such as 0--1"):
        run.classify("7")
    other = tmp_path / "other.npz"
    np.savez(other, edges=np.array(G.edges))
    with pytest.raises(BadInput, match=r"other.npz: no edges were given; give two nodes with -- "):
        run.classify([str(other)])


@pytest.mark.parametrize("of_graphs", [False, True])
def test_names_with_the_separator_of_pairs_are_accepted(tmp_path, of_graphs):
    edges = [[f"n--{k}", f"n--{k // 4 * 4 + (k + 1) % 4}"] for k in range(120)]
    tables = {"edges": [["source", "target"], *edges]}
    if of_graphs:
        tables["nodes"] = [["node", "graph"], *([f"n--{k}", f"g--{k // 4}"] for k in range(120))]
        pairs = [[f"g--{k}", f"g--{(k + 1) % 30}", k / 10] for k in range(30)]
        tables["pairs"] = [["graph_a", "graph_b", "score"], *pairs]
    (tmp_path / "data").mkdir()
    for name, rows in tables.items():
        with (tmp_path / "data" / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    run = harken.train(tmp_path / "data", out=tmp_path / "run", settings={**TINY, "train.steps": 2})
    a, b = ("g--1", "g--2") if of_graphs else ("n--1", "n--2")
    assert run.classify(f"{a}--{b}") == run.classify([(a, b)])[0]
    with pytest.raises(BadInput, match=f"'nobody': not a {'graph' if of_graphs else 'node'}"):
        run.classify(f"nobody--{b}")
    if of_graphs:
        assert run.classify([str(tmp_path / "data")])[1] == run.classify(f"{a}--{b}")


def test_graphs_are_classified(tmp_path):
    graphs = [nx.cycle_graph(4 + g % 4) if g % 2 else nx.star_graph(3 + g % 4) for g in range(60)]
    graph_index = np.repeat(np.arange(60), [len(G) for G in graphs])
    edges = np.array(nx.disjoint_union_all(graphs).edges)
    np.savez(tmp_path / "shapes.npz", edges=edges, graph=graph_index, label=np.where(np.arange(60) % 2, "ring", "star"))
    run = harken.train(tmp_path / "shapes.npz", out=tmp_path / "run", settings={**TINY, "train.batch": 16})
    assert run.metrics["test"]["accuracy"] == 1.0
    assert [prediction[0]["label"] for prediction in run.classify(["7", "8"])] == ["ring", "star"]


def test_node_values_are_regressed(clubs, tmp_path):
    settings = {**TINY, "data.label": "age", "data.features": ["height"], "train.steps": 5}
    run = harken.train(clubs, out=tmp_path / "run", settings=settings)
    assert run.metrics["test"].keys() == {"loss", "pearson", "spearman", "mae", "rmse"}
    assert run.facts["baseline"]["test"].keys() == {"mean of all", "mean of neighbors", "linear regression"}
    assert run.classify("m0")[0].keys() == {"label", "value"}


def test_models_are_compared_on_one_graph(clubs, tmp_path):
    settings = {**TINY, "train.steps": 5}
    comparison = harken.compare(clubs, {"model.kind": ["gcn", "gat"]}, settings=settings, seeds=1, out=tmp_path / "c")
    assert [row["model"] for row in comparison.rows] == ["gcn", "gat"]
    assert all("accuracy" in row["metrics"] for row in comparison.rows)


def test_messages_about_a_run_state_the_meaning_of_its_numbers(trained):
    processor = json.loads((trained.path / "labels.json").read_text())
    assert (processor["target_level"], processor["labels"], processor["features"]) == ("node", ["north", "south"], 2)
