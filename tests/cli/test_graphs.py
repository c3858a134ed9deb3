"""The commands on runs of graphs."""

import json
import shutil
from pathlib import Path

import numpy as np
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
    assert harken("classify", run, "other", "p7").out.split() == output[7].split()[:4]


def test_the_vectors_of_another_graph_need_not_the_graph_of_the_run(harken, run, tmp_path):
    friends(tmp_path / "other", 8)
    with_own = harken("embed", run, "other").out
    shutil.rmtree(tmp_path / "friends")
    assert harken("embed", run, "other").out == with_own
    assert harken("embed", run, "other", "--out", "v.npy").code == 0
    assert len(np.load("v.npy", allow_pickle=False)) == 8
    assert "pool='cls': has no effect" in harken("embed", run, "other", "--pool", "cls").err


def test_the_vectors_of_a_file_of_pairs_have_the_names_of_the_graphs(harken, tmp_path):
    tables = {"nodes": ["node,graph", *(f"n{k},g{k // 4}" for k in range(60))]}
    tables["edges"] = ["source,target", *(f"n{k},n{k // 4 * 4 + (k + 1) % 4}" for k in range(60))]
    tables["pairs"] = ["graph_a,graph_b,score", *(f"g{k % 15},g{(k + 1 + k // 15) % 15},{k / 10}" for k in range(30))]
    (tmp_path / "data").mkdir()
    for name, rows in tables.items():
        (tmp_path / "data" / f"{name}.csv").write_text("\n".join(rows) + "\n")
    assert harken("train", "data", *TINY).code == 0
    embedded = json.loads(harken("embed", "runs/data", "data", "--json").out)
    assert embedded["names"] == [f"g{k}" for k in range(15)]
    assert len(embedded["vectors"]) == 15
    assert len(json.loads(harken("classify", "runs/data", "data", "--json").out)["names"]) == 30
