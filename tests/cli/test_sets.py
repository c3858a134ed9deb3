"""The commands on runs of sets: check, train, classify, eval, demo clouds."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from harken.data import catalogue
from harken.data.synthetic.clouds import SOLIDS
from harken.experiments import train
from harken.experiments.demos import pictures

TINY = ["train.steps=2", "train.batch=8", "model.size=tiny", "train.threads=1"]


def clouds(path: Path, n_sets: int, *, label: bool) -> Path:
    rng, lines = np.random.default_rng(n_sets), ["cloud,x,y" + ",where" * label]
    for n in range(n_sets):
        for x, y in rng.normal(3 * (n % 2), 1, (4, 2)):
            lines.append(f"c{n},{x:.3f},{y:.3f}" + f",{('near', 'far')[n % 2]}" * label)
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def run(harken, tmp_path) -> str:
    """A run in the working folder, and sets without labels."""
    clouds(tmp_path / "clouds.csv", 60, label=True)
    clouds(tmp_path / "other.csv", 5, label=False)
    messages = harken("train", "clouds.csv", *TINY).out
    assert "sets (4 rows of 2 columns, 2 labels)" in messages
    assert re.search(r"next +harken classify runs/clouds '?clouds.csv\[c\d+\]", messages)
    return "runs/clouds"


def test_sets_are_checked_classified_and_evaluated(harken, run):
    checked = harken("check", "clouds.csv", *TINY).out
    assert "clouds.csv is sets: " in checked
    assert "column 'cloud' identifies sets of 4 rows on average, column 'where' is constant in each" in checked
    output = harken("classify", run, "other.csv").out.splitlines()
    assert [line.split()[-1] for line in output] == [f"c{n}" for n in range(5)]
    assert re.fullmatch(r"0\.\d{3} (near|far)  0\.\d{3} (near|far)\n", harken("classify", run, "other.csv[c2]").out)
    assert "baseline: regression on means and standard deviations" in harken("eval", run, "clouds.csv").out


def test_predictions_have_the_names_of_their_sets(harken, run, tmp_path):
    actual = json.loads(harken("classify", run, "other.csv", "--json").out)
    assert actual["sets"] == [f"c{n}" for n in range(5)]
    assert "5 answers in out.jsonl" in harken("classify", run, "--in", "other.csv", "--out", "out.jsonl").out
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["set"] for line in lines] == actual["sets"]
    assert [line["label"] for line in lines] == [labels[0]["label"] for labels in actual["labels"]]


@pytest.mark.parametrize("args", [["other.csv"], ["--in", "other.csv", "--out", "out.jsonl"]])
def test_rows_without_a_number_are_reported_once_by_classify(harken, run, tmp_path, args):
    lines = (tmp_path / "other.csv").read_text().splitlines()
    lines[2:4] = [f"c0,,{n}" for n in range(2)]
    (tmp_path / "other.csv").write_text("\n".join(lines))
    done = harken("classify", run, *args)
    assert done.code == 0
    assert done.err.count("skipped 2 rows (no row of a set): other.csv:3: column 'x' is missing") == 1


@pytest.mark.parametrize(
    ("rows", "args", "message"),
    [
        ("a,1,2,ring a,2,3,ring", ["data.group=cloud"], "own.csv: the only training set is 'a'"),
        ("a,1,2,ring a,2,3,ring b,1,1,ring b,2,1,ring", [], "own.csv: the only label is 'ring'; classification needs"),
        ("a,1,2,ring a,2,3,ring b,1,1,ring b,2,1,ring", ["data.group=cloud"], "own.csv: the only label is 'ring'"),
        (
            "a,1,2,ring a,2,3,blob b,1,1,ring b,1,2,ring",
            ["data.group=cloud"],
            "own.csv:3: set 'a' has the label 'blob'",
        ),
        ("a,1,2,ring b,2,3,blob", ["data.group=clouds"], "own.csv: no column 'clouds'; its columns are cloud, x"),
        (
            "a,p,q,ring a,r,s,ring b,t,u,blob",
            ["data.group=cloud"],
            "column 'cloud' groups the rows, but no other column is",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["check", "train"])
def test_rows_that_form_no_sets_are_refused_with_the_cause(harken, tmp_path, verb, rows, args, message):
    (tmp_path / "own.csv").write_text("\n".join(["cloud,x,y,shape", *rows.split()]))
    done = harken(verb, "own.csv", *args, "data.label=shape", "data.valid=0", "data.test=0", *TINY)
    assert done.code in (1, 2)
    assert message in done.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["classify", "RUN", "othr.csv"], "othr.csv: no such table; check the name"),
        (["classify", "RUN", "other.csv[c9]"], "other.csv: has no set 'c9'; it has 5, such as c0, c1, c2."),
        (["eval", "RUN", "other.csv"], "other.csv: no column 'where'; its columns are cloud, x, y"),
        (["train", "clouds.csv", "data.group=cluod"], "no column 'cluod'"),
        (["train", "clouds.csv", "data.gruop=cloud"], "data.gruop is not a setting. Did you mean data.group?"),
        (["train", "clouds.csv", "data.columns=x,z"], "no column 'z'"),
        (["train", "clouds.csv", "model.pool=max"], "model.pool = 'max': accepted: mean, first, seed"),
        (["train", "clouds.csv", "model.kind=vit"], "model.kind = 'vit' is not a model of sets"),
        (
            ["train", "clouds.csv", "task.metric=r2"],
            "task.metric=r2: does not apply to targets of type label; set it to one of accuracy, f1, matthews, loss",
        ),
    ],
)
def test_mistyped_arguments_are_reported_in_one_line(harken, run, args, message):
    done = harken(*[run if word == "RUN" else word for word in args])
    assert done.code in (1, 2)
    assert message in done.err
    assert done.err.count("\n") == 1


def test_the_clouds_demo_classifies_points_in_any_order(harken, monkeypatch):
    def small(data, *, minutes, **how):
        assert (data, minutes) == ("clouds", 1.0)
        return train.train(data, settings={"train.steps": 2, "model.size": "tiny"}, **how)

    monkeypatch.setitem(catalogue.ENTRIES["clouds"].arguments, "count", 60)
    monkeypatch.setattr(pictures, "train", small)
    output = harken("demo", "clouds", "--out", "mine").out
    assert {*re.findall(r"true: (\w+)", output)} == {*SOLIDS}
    assert len(re.findall(r"\w+ \(\d+ %\)", output)) == 4
    assert "with the points in reverse order: the same predictions" in output
    place = re.search(r"harken classify mine '?([^'\n]+?\[c0\])'?  ", output)
    assert place
    assert re.match(r"0\.\d{3} \w+  ", harken("classify", "mine", place[1]).out)


def test_sets_of_a_file_are_read_with_its_encoding(harken, run, tmp_path):
    names = (tmp_path / "other.csv").read_text().replace("c0", "caf\u00e9")
    (tmp_path / "other.csv").write_bytes(names.encode("cp1252"))
    arguments = ("classify", run, "--in", "other.csv", "--out", "out.jsonl")
    assert "is not UTF-8" in harken(*arguments).err
    done = harken(*arguments, "--encoding", "cp1252")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["set"] == "caf\u00e9"
