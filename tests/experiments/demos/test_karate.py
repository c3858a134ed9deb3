"""harken demo karate, and the picture of a graph."""

import sys
from xml.etree import ElementTree

import networkx as nx
import pytest

from harken.experiments.demos.karate import karate, generate_club
from harken.experiments.report.graph_plot import NodePrediction, _sprung, graph_svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    home = tmp_path_factory.mktemp("karate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        return karate(minutes=0.02, out=home / "run")


def test_two_labelled_leaders_suffice_to_classify_most_members(shown):
    assert shown.run.recipe.load_data(shown.run.tokenizer).train == [0, 33]
    assert shown.run.metrics["test"]["accuracy"] >= 29 / 32
    assert "of 32 are right" in shown.lines[0]
    assert "Zachary" in shown.whose


def test_the_svg_has_each_member_and_each_edge_once(shown):
    drawn = ElementTree.parse(shown.run.path / "graph.svg").getroot()
    titles = [title.text for title in drawn.iter(f"{SVG}title")]
    assert len(titles) == 34
    assert len({title.split(":")[0] for title in titles}) == 34
    assert len(list(drawn.iter(f"{SVG}line"))) == 78


def test_without_networkx_a_generated_club_is_used(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    heard = []
    made = karate(minutes=0.01, out=tmp_path / "run", listen=lambda event, **facts: heard.append(facts.get("text")))
    assert made.whose == "harken's own (Apache-2.0)"
    assert any("networkx is missing" in text for text in heard if text)
    assert made.run.metrics["test"]["accuracy"] > 0.8


def test_the_generated_club_is_connected_with_mostly_internal_edges():
    clubs, edges = generate_club()
    G = nx.Graph(edges)
    assert (len(clubs), nx.is_connected(G), set(G)) == (34, True, set(range(34)))
    assert sum(clubs[a] != clubs[b] for a, b in edges) < len(edges) / 5


def test_neighbors_are_closer_than_other_nodes_and_all_are_inside():
    G = nx.connected_caveman_graph(3, 6)
    at = _sprung(18, list(G.edges))
    far = ((at[:, None] - at) ** 2).sum(-1) ** 0.5
    joined = nx.to_numpy_array(G) > 0
    assert far[joined].mean() < 0.6 * far[~joined].mean()
    assert abs(at).max() <= 1


def test_a_node_name_is_escaped_in_the_svg():
    drawn = graph_svg(["<b>&"], [], [NodePrediction('"a<', 0.9, False, "b")])
    title = next(ElementTree.fromstring(drawn).iter(f"{SVG}title"))
    assert title.text == '<b>&: "a< 90 %, in truth b'
