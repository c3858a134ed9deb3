"""Reports about labels: every family shows its matrix, calibration, mistakes and support; no row without samples."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import confusion_matrix

import harken
from harken import run_folder
from harken.errors import BadSetting
from harken.events import silent
from harken.experiments.report.label_report import label_report
from harken.experiments.report.rebuild import rebuild_report
from harken.tasks import LabelPredictions, Score

TINY = {"model.d": 16, "train.threads": 1, "train.steps": 2, "data.valid": 0.2, "data.test": 0.3}
FAMILIES = ["texts", "images", "sets", "graph", "links", "stories", "tags", "spans"]
NOTICE = "This page shows samples: rows of the data"


def write_data(name: str, folder: Path) -> tuple[Path, dict[str, object]]:
    """Data of a family whose rows contain the word secret, and settings."""
    path, rng = folder / f"{name}.csv", np.random.default_rng(0)
    if name == "texts":
        rows = [[f"secret{n} {'good ' * (n % 7 + 1)} film", "yes" if n % 3 else "no"] for n in range(80)]
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["text", "label"], *rows, ["", "yes"], ["a text without a label", ""]])
        return path, {"model.layers": 1, "model.heads": 2, "data.vocab_size": 200}
    if name == "images":
        for n in range(40):
            (folder / name / f"l{n % 2}").mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"l{n % 2}" / f"secret{n}.png")
        return folder / name, {"model.layers": 1, "model.heads": 2, "model.patch": 4}
    if name == "sets":
        rows = [[f"secret{n // 4}", *rng.normal(size=2).round(3), "up" if n // 4 % 2 else "down"] for n in range(200)]
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["set", "x", "y", "label"], *rows])
        return path, {"data.kind": "sets", "model.layers": 1, "model.heads": 2}
    if name in ("graph", "links"):
        (folder / name).mkdir()
        nodes = "".join(f"secret{n},{'ab'[n // 20]},{rng.integers(50)}\n" for n in range(40))
        (folder / name / "nodes.csv").write_text("node,club,size\n" + nodes)
        edges = {tuple(sorted(rng.integers(0, 20, 2) + 20 * (n % 2))) for n in range(120)}
        (folder / name / "edges.csv").write_text(
            "source,target\n" + "".join(f"secret{a},secret{b}\n" for a, b in sorted(edges) if a != b)
        )
        return folder / name, {"model.layers": 1} | ({"data.target_level": "edge"} if name == "links" else {})
    if name == "stories":
        lines = []
        for n in range(60):
            place = ("kitchen", "garden", "office")[n * 7 % 3]
            lines += [f"1 Secretly Mary went to the {place}.", f"2 Where is Mary?\t{place}\t1"]
        (folder / "stories.txt").write_text("\n".join(lines) + "\n")
        return folder / "stories.txt", {"data.kind": "stories", "model.kind": "memnet"}
    if name == "tags":
        rows = [f"secret{n} B-PER\nmet O\nRome B-LOC\n" for n in range(60)]
        (folder / "tags.conll").write_text("\n".join(rows))
        return folder / "tags.conll", {"data.kind": "tags", "model.layers": 1, "model.heads": 2}
    questions = [
        {"id": str(n), "question": f"Where is secret{n}?", "answers": [{"text": "Rome", "answer_start": 14}]}
        for n in range(40)
    ]
    paragraphs = [{"context": f"Now number {n % 10}  Rome is old and secret{n} sleeps.", "qas": [q]}
                  for n, q in enumerate(questions)]  # fmt: skip
    for paragraph in paragraphs:
        paragraph["qas"][0]["answers"][0]["answer_start"] = paragraph["context"].index("Rome")
    (folder / "spans.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return folder / "spans.json", {"data.kind": "spans", "model.layers": 1, "model.heads": 2}


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request, tmp_path_factory) -> harken.Run:
    folder = tmp_path_factory.mktemp(request.param)
    path, settings = write_data(request.param, folder)
    return harken.train(path, out=folder / "run", settings=TINY | settings, listen=silent)


def test_a_report_shows_mistakes_and_without_samples_no_row_of_the_data(trained):
    page = (trained.path / "report.html").read_text()
    assert NOTICE in page
    kind = trained.recipe.task.kind
    if kind not in ("tag", "span"):
        assert ">Confusion matrix<" in page
        assert ">predicted label<" in page
        assert re.search(r"ECE \d", page)
        differ = kind == "classify" or (kind == "nodes" and trained.recipe.data.target_level == "auto")
        assert ("Accuracy by number of" in page) == differ
    assert "Commonest confusions" in page
    if kind != "span":
        assert "Examples of each label in each split" in page
    assert re.search("secret", page, re.I)
    bare = rebuild_report(trained.path, settings={"report.samples": 0}).read_text()
    assert NOTICE not in bare
    assert not re.search(r"secret(?!s)\w*", bare, re.I), re.search(r".{60}secret.{60}", bare, re.I)
    assert "Commonest confusions" in bare
    assert "example" not in json.loads((trained.path / "harken.json").read_text())
    run_folder.read_manifest(trained.path)
    assert NOTICE in rebuild_report(trained.path).read_text()


def test_only_settings_of_the_report_can_be_changed(trained):
    with pytest.raises(BadSetting, match=r"^model\.d: a finished run cannot be changed"):
        rebuild_report(trained.path, settings={"model.d": 8})
    with pytest.raises(BadSetting, match=r"report\.samples = 21"):
        rebuild_report(trained.path, settings={"report.samples": 21})


class AnyTask:
    """A task whose inputs are numbered."""

    def label_counts(self):
        return {"train": {"a": 5, "b": 0}, "test": {"a": 1, "b": 2, "c": 1}}

    def input_text(self, split, n):
        return f"{split} {n}"

    def input_sizes(self, split):
        return ("tokens", np.arange(1, 61)) if split == "test" else None


def predictions(n_labels: int = 3, n: int = 60) -> LabelPredictions:
    rng = np.random.default_rng(0)
    return LabelPredictions(
        [f"l{k}" for k in range(n_labels)], rng.dirichlet(np.ones(n_labels), n), np.arange(n) % n_labels
    )


def test_the_confusion_matrix_equals_that_of_scikit_learn():
    some = predictions()
    report = label_report(AnyTask(), "test", Score({}, {}, predictions=some), 10)
    expected = confusion_matrix(some.targets, some.predicted)
    assert report["matrix"]["counts"] == expected.tolist()
    counted = {(c["actual"], c["predicted"]): c["times"] for c in report["confusions"]}
    labels = some.labels
    assert counted == {(labels[i], labels[j]): expected[i, j] for i in range(3) for j in range(3) if i != j}


def test_the_mistakes_are_the_wrong_predictions_with_the_highest_probability():
    some = predictions()
    report = label_report(AnyTask(), "test", Score({}, {}, predictions=some), 4)
    confidence = some.probabilities.max(1)
    order = [n for n in np.argsort(-confidence).tolist() if some.predicted[n] != some.targets[n]]
    assert [sample["prompt"] for sample in report["mistakes"]] == [f"test {n}" for n in order[:4]]


def test_accuracy_by_size_counts_every_example_once():
    some = predictions()
    groups = label_report(AnyTask(), "test", Score({}, {}, predictions=some), 4)["sizes"]["groups"]
    assert sum(group["count"] for group in groups) == 60
    assert sum(group["count"] * group["accuracy"] for group in groups) == pytest.approx(some.correct.sum())
    assert all(group["low"] <= group["accuracy"] <= group["high"] for group in groups)
    assert [group["first"] for group in groups] == [1, 11, 21, 31, 41, 51]


def test_of_many_labels_the_matrix_shows_those_with_most_mistakes():
    some = predictions(n_labels=30, n=300)
    matrix = label_report(AnyTask(), "valid", Score({}, {}, predictions=some), 0)["matrix"]
    assert (len(matrix["labels"]), len(matrix["counts"]), matrix["total"]) == (20, 20, 30)


def test_support_names_labels_that_a_split_lacks():
    support = label_report(AnyTask(), "test", Score({}, {}), 0)["support"]
    assert support == {"a": {"train": 5, "test": 1}, "b": {"train": 0, "test": 2}, "c": {"train": 0, "test": 1}}


def test_rows_skipped_while_reading_are_in_the_report_and_in_the_manifest(tmp_path):
    path, settings = write_data("texts", tmp_path)
    run = harken.train(path, out=tmp_path / "run", settings=TINY | settings | {"report.samples": 0}, listen=silent)
    [notice] = [text for text in run.facts["notices"] if "skipped" in text]
    assert notice.startswith("skipped 2 rows (no text with a label)")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "skipped 2 rows (no text with a label)" in page
    assert (NOTICE in page, "secret" in page, "example" in run.facts) == (False, False, False)


def test_the_report_of_pairs_names_dropped_and_near_duplicate_pairs_without_their_texts(tmp_path):
    rows = [f"secret number {n}\tnumber {n} of it" for n in range(40)]
    (tmp_path / "test.tsv").write_text("\n".join(["Secret, number 3!\tnumber 3 of it", *rows[:2]]) + "\n")
    (tmp_path / "my.tsv").write_text("\n".join(rows) + "\n")
    small = {"model.kind": "gru", "model.d": 8, "train.steps": 2, "report.samples": 0}
    settings = small | {"data.tokenizer": "word", "data.source": 1, "data.target": 2, "data.valid": 0.0}
    settings |= {"data.test": str(tmp_path / "test.tsv")}
    harken.train(tmp_path / "my.tsv", out=tmp_path / "run", settings=settings, quiet=True)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "test.tsv:1 ~ " in page
    assert "held-out split: 2 (" in page
    assert "secret" not in page.lower()
