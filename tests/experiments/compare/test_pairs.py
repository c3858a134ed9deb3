"""harken.compare on sentence pairs: judged by what the task names, with BLEU by length and recall by distance."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import harken
from harken.data.synthetic.phrases import phrases
from harken.data.synthetic.recall import recall
from harken.experiments.compare.page import _grouped
from harken.experiments.compare.summary import grid

pytest.importorskip("sacrebleu")
TINY = {
    "model.d": 16, "model.layers": 1, "model.heads": 2, "model.d_ff": 32, "data.tokenizer": "word", "train.steps": 4,
    "train.batch": 8, "train.eval_every": 2, "train.threads": 1, "task.eval_pairs": 40,
}  # fmt: skip


def table(path: Path, head: str, rows: Any) -> Path:
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in [head.split(), *rows]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("pairs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        yield home


@pytest.fixture(scope="module")
def made(home) -> Any:
    data = table(home / "phrases.tsv", "english french", phrases(600))
    return harken.compare(data, {"model.positions": ["rotary", "sinusoid"]}, settings=TINY, seeds=1, out=home / "by")


@pytest.fixture(scope="module")
def recalled(home) -> Any:
    data = table(home / "recall.tsv", "source target distance", recall("test", 400, farthest=20))
    asked = {"data.group": "distance", "task.metric": "exact_match", "task.beam": 1}
    return harken.compare(data, {"model.layers": [1, 2]}, settings=without_layers() | asked, seeds=1, out=home / "far")


def without_layers() -> dict[str, Any]:
    return {path: value for path, value in TINY.items() if path != "model.layers"}


def test_pairs_are_judged_by_bleu_with_an_interval_over_the_sentences(made):
    assert (made.facts["metric"], made.facts["watched"]) == ("bleu", "bleu")
    for row in made.rows:
        kept = json.loads((Path(row["runs"][0]) / "harken.json").read_text())
        half = kept["protocol"]["valid"]["bleu_interval"]
        middle = row["metrics"]["bleu"]
        assert row["interval"]["bleu"] == pytest.approx([middle - half, middle + half])
        assert row["interval"]["loss"] is None


def test_a_baseline_without_a_loss_is_a_row_of_the_table(made):
    heads, lines = grid(made.facts)
    free = next(line for line in lines if line[0] == "copy of the source, for free")
    assert heads[1] == "valid bleu"
    assert float(free[1]) == pytest.approx(made.facts["baseline"]["copy of the source"]["bleu"], rel=1e-3)


def test_the_formula_takes_the_mean_length_of_both_sides(made):
    lengths = json.loads((Path(made.rows[0]["runs"][0]) / "harken.json").read_text())["data"]["length"]["train"]
    L = (lengths["source"] + lengths["target"]) / 2
    assert made.rows[0]["formula"] == {"order": "L² d", "L": L, "d": 16, "products": L * L * 16}
    assert "L² d = " in (made.path / "report.html").read_text()


def test_every_judged_sentence_stands_in_one_stretch_of_lengths(made):
    for row in made.rows:
        places = [part["metrics"]["at"] for part in row["parts"].values()]
        assert len(places) > 1
        assert places == sorted(places)
        assert sum(part["metrics"]["pairs"] for part in row["parts"].values()) == 40
        assert all("bleu" in part["metrics"] for part in row["parts"].values())


def test_the_pictures_show_bleu_over_time_and_by_length(made):
    for name in ("compare.svg", "report.html"):
        drawn = (made.path / name).read_text()
        assert all(title in drawn for title in ("Valid bleu over time", "Valid bleu by words"))
        assert "Valid loss" not in drawn


def test_distances_of_several_orders_are_drawn_at_equal_ratios(recalled):
    [row], places = recalled.rows[:1], (5.0, 50.0, 500.0)
    far = {f"distance {at:g}": {"metrics": {"at": at, "exact_match": 0.5}, "interval": {}} for at in places}
    drawn = _grouped({**recalled.facts, "rows": [row | {"parts": far}]})
    assert re.findall(r'class="x" x="([\d.]+)%"', drawn.marks) == ["0.00", "50.00", "100.00"]
    assert re.findall(r">(?:distance )?(\d+)</text>", drawn.marks)[-3:] == ["5", "50", "500"]


def test_recall_is_judged_and_drawn_by_distance(recalled):
    assert recalled.facts["metric"] == "exact_match"
    for row in recalled.rows:
        assert list(row["parts"]) == ["distance 5", "distance 10", "distance 20"]
        right = sum(part["metrics"]["exact_match"] * part["metrics"]["pairs"] for part in row["parts"].values())
        assert right / 40 == pytest.approx(row["metrics"]["exact_match"])
    assert "Valid exact match by distance" in (recalled.path / "compare.svg").read_text()
