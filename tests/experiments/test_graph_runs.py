"""From a graph to a run that says what nodes are: trained, judged, audited, resumed, compared, used."""

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

KINDS = sorted(registry.BUILT_IN["model of graphs"])
TINY = {"model.size": "tiny", "model.dropout": 0.2, "train.threads": 1, "train.steps": 60, "train.eval_every": 20}
TINY |= {"train.lr": 0.02}


def two_clubs(n: int = 80, seed: int = 0) -> nx.Graph:
    """Two clubs whose members know each other; what a member has says little of the club."""
    G = nx.stochastic_block_model([n // 2] * 2, [[0.2, 0.01], [0.01, 0.2]], seed=seed)
    rng = np.random.default_rng(seed)
    made = nx.Graph()
    for k in G:
        club = k >= n // 2
        made.add_node(
            f"m{k}", club=("north", "south")[club], age=float(rng.normal(1.2 * club)), height=float(rng.normal())
        )
    made.add_edges_from((f"m{a}", f"m{b}") for a, b in G.edges)
    return made


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
    place = tmp_path_factory.mktemp("runs") / request.param
    return harken.train(clubs, out=place, settings={**TINY, "model.kind": request.param})


def test_every_graph_model_beats_the_feature_baseline(trained):
    free = trained.facts["baseline"]["test"]
    assert free.keys() == {"most frequent label", "neighbors' majority", "logistic regression"}
    assert trained.metrics["test"]["accuracy"] > free["logistic regression"]["accuracy"] + 0.1
    assert trained.facts["audit"]["passed"]
    assert "accumulation" in trained.facts["audit"]["summary"]
    assert "m1" in (trained.path / "report.html").read_text()


def test_classify_returns_the_label_of_a_node_by_name(trained):
    labels = trained.classify(["m0", "m79"])
    assert [each[0]["label"] for each in labels] == ["north", "south"]
    assert sum(said["probability"] for said in labels[0]) == pytest.approx(1)
    assert trained.classify("m0") == labels[0]


def test_classify_returns_the_labels_of_another_graph(trained, tmp_path):
    other = folder(tmp_path / "other", two_clubs(seed=1))
    labels = trained.classify([str(other)])
    assert len(labels) == 80
    right = [each[0]["label"] == ("north", "south")[n >= 40] for n, each in enumerate(labels)]
    assert np.mean(right) > 0.7
    assert trained.classify([str(other), "m5"])[0] == labels[5]
    score, free = trained.evaluate("test", data=str(other))
    assert score.metrics["accuracy"] == pytest.approx(np.mean(right))
    assert (score.protocol["nodes"], free) == (80, {})


def test_a_repeated_evaluation_gives_the_same_metrics(trained):
    score, free = harken.load(trained.path).evaluate("test")
    assert score.metrics == trained.metrics["test"]
    assert free == trained.facts["baseline"]["test"]


def test_an_unknown_node_is_reported_with_an_existing_one(trained):
    with pytest.raises(BadInput, match=r"'m799': no node of .*; it has 80, such as m0, m1, m2. Did you mean m79\?"):
        trained.classify("m799")


def test_an_unsupported_method_is_refused_with_the_supported_ones(trained):
    for ask in (trained.generate, trained.embed, trained.translate):
        with pytest.raises(BadInput, match="this run says what nodes of a graph are; use harken classify"):
            ask("m0")


class Died(Exception):
    """What stands in for a kill."""


@pytest.mark.parametrize("settings", [{}, {"data.target_level": "edge"}, {"model.kind": "graph-transformer"}], ids=str)
def test_an_interrupted_training_resumes_bitwise(clubs, tmp_path, settings):
    given = {**TINY, "train.steps": 8, "train.checkpoint_every": 2, "train.eval_every": 2, **settings}

    def die(event: str, **facts: Any) -> None:
        if event == "step" and facts["step"] == 5:
            raise Died

    harken.train(clubs, out=tmp_path / "whole", settings=given)
    with suppress(Died):
        harken.train(clubs, out=tmp_path / "broken", settings=given, listen=die)
    harken.train(tmp_path / "broken", resume=True)
    ends = [sha256_of(tmp_path / name / "model.safetensors") for name in ("whole", "broken")]
    assert ends[0] == ends[1]


def test_a_networkx_graph_can_be_trained_on(tmp_path):
    made = harken.train(two_clubs(), out=tmp_path / "run", settings=TINY)
    assert made.recipe.data.kind == "graph"
    assert made.classify("m0")[0]["label"] == "north"


def test_messages_follow_the_edges_of_a_directed_networkx_graph_unless_overridden(tmp_path):
    G, few = nx.DiGraph(two_clubs()), {**TINY, "train.steps": 2}
    assert harken.train(G, out=tmp_path / "one", settings=few).recipe.data.directed
    assert not harken.train(G, out=tmp_path / "both", settings={**few, "data.directed": False}).recipe.data.directed


def test_a_node_with_the_name_of_a_file_is_a_node_independent_of_earlier_calls(clubs, tmp_path, monkeypatch):
    made = harken.train(clubs, out=tmp_path / "run", settings={**TINY, "train.steps": 2})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m7").write_text("no graph")
    first = harken.load(tmp_path / "run").classify(["m7"])
    assert first == made.classify(["m8", "m7"])[1:] == made.classify(["m7"])


def test_a_run_caches_one_other_graph(clubs, tmp_path):
    made = harken.train(clubs, out=tmp_path / "run", settings={**TINY, "train.steps": 2})
    others = [str(folder(tmp_path / f"other{seed}", two_clubs(seed=seed))) for seed in (1, 2)]
    for other in others:
        made.classify([other, "m5"])
    assert {*made.__dict__["_graph"]} == {None, others[-1]}


def test_edge_prediction_beats_the_degree_baseline(tmp_path):
    G = nx.stochastic_block_model([20] * 4, np.eye(4) * 0.55 + 0.01, seed=0)
    np.savez(tmp_path / "g.npz", edges=np.array(G.edges))
    settings = {**TINY, "train.steps": 200, "train.eval_every": 50, "model.d": 16}
    made = harken.train(tmp_path / "g.npz", out=tmp_path / "run", settings=settings)
    assert made.metrics["test"]["auc"] > made.facts["baseline"]["test"]["product of degrees"]["auc"] + 0.2
    near, far = (made.classify(pair) for pair in ("0--1", "0--79"))
    assert {said["label"] for said in near} == {"edge", "no edge"}
    odds = [next(s["probability"] for s in each if s["label"] == "edge") for each in (near, far)]
    assert odds[0] > odds[1]
    with pytest.raises(BadInput, match="'7': two nodes are accepted, with -- between them, such as 0--1"):
        made.classify("7")
    other = tmp_path / "other.npz"
    np.savez(other, edges=np.array(G.edges))
    with pytest.raises(BadInput, match=r"other.npz: no edge of it is asked about; two nodes are accepted, with -- "):
        made.classify([str(other)])


def test_graphs_are_classified(tmp_path):
    every = [nx.cycle_graph(4 + g % 4) if g % 2 else nx.star_graph(3 + g % 4) for g in range(60)]
    of = np.repeat(np.arange(60), [len(G) for G in every])
    whole = np.array(nx.disjoint_union_all(every).edges)
    np.savez(tmp_path / "shapes.npz", edges=whole, graph=of, label=np.where(np.arange(60) % 2, "ring", "star"))
    made = harken.train(tmp_path / "shapes.npz", out=tmp_path / "run", settings={**TINY, "train.batch": 16})
    assert made.metrics["test"]["accuracy"] == 1.0
    assert [each[0]["label"] for each in made.classify(["7", "8"])] == ["ring", "star"]


def test_node_values_are_regressed(clubs, tmp_path):
    settings = {**TINY, "data.label": "age", "data.features": ["height"], "train.steps": 5}
    made = harken.train(clubs, out=tmp_path / "run", settings=settings)
    assert made.metrics["test"].keys() == {"loss", "pearson", "spearman"}
    assert made.facts["baseline"]["test"].keys() == {"mean of all", "mean of neighbors", "linear regression"}
    assert made.classify("m0")[0].keys() == {"label", "value"}


def test_models_are_compared_on_one_graph(clubs, tmp_path):
    settings = {**TINY, "train.steps": 5}
    found = harken.compare(clubs, {"model.kind": ["gcn", "gat"]}, settings=settings, seeds=1, out=tmp_path / "c")
    assert [row["model"] for row in found.rows] == ["gcn", "gat"]
    assert all("accuracy" in row["metrics"] for row in found.rows)


def test_messages_about_a_run_state_the_meaning_of_its_numbers(trained):
    said = json.loads((trained.path / "labels.json").read_text())
    assert (said["ask"], said["labels"], said["features"]) == ("node", ["north", "south"], 2)
