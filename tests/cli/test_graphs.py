"""The commands on runs of graphs."""

import json
from pathlib import Path

import pytest

TINY = ["train.steps=2", "model.size=tiny", "train.threads=1"]


def friends(path: Path, n_nodes: int) -> Path:
    path.mkdir()
    rows = [f"p{n},{('chess', 'choir')[n % 2]},{n % 7}" for n in range(n_nodes)]
    (path / "nodes.csv").write_text("\n".join(["name,club,age", *rows]) + "\n")
    edges = [f"p{n},p{(n + 2) % n_nodes}" for n in range(n_nodes)]
    (path / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    return path


@pytest.fixture
def run(harken, tmp_path) -> str:
    friends(tmp_path / "friends", 30)
    assert harken("train", "friends", *TINY).code == 0
    return "runs/friends"


def test_predictions_for_nodes_have_their_names(harken, run, tmp_path):
    other_graph = friends(tmp_path / "other", 300)  # more than one block of texts
    output = harken("classify", run, "other").out.splitlines()
    assert [line.split()[-1] for line in output] == [f"p{n}" for n in range(300)]
    selected = harken("classify", run, other_graph, "p299", "p7").out.splitlines()
    assert selected == [output[299], output[7]]
    assert harken("classify", run, "-", stdin=b"p3\np1\n").out.split()[4::5] == ["p3", "p1"]
    messages = json.loads(harken("classify", run, "other", "p7", "p8", "--json").out)
    assert messages["names"] == ["p7", "p8"]
    assert len(messages["labels"]) == 2
    assert len(harken("classify", run, "p7").out.split()) == 4  # one alone needs no name
