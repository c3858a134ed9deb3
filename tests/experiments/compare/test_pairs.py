"""harken.compare on sentence pairs: by the primary metric of the task, BLEU by length and recall by distance."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import harken
from harken.data.synthetic.phrases import phrases
from harken.data.synthetic.recall import recall
from harken.experiments.compare.page import _part_chart
from harken.experiments.compare.summary import comparison_table

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
def comparison(home) -> Any:
    data = table(home / "phrases.tsv", "english french", phrases(600))
    return harken.compare(data, {"model.positions": ["rotary", "sinusoid"]}, settings=TINY, seeds=1, out=home / "by")


@pytest.fixture(scope="module")
def recall_comparison(home) -> Any:
    data = table(home / "recall.tsv", "source target distance", recall("test", 400, max_distance=20))
    recall_settings = {"data.group": "distance", "task.metric": "exact_match", "task.beam": 1}
    return harken.compare(
        data, {"model.layers": [1, 2]}, settings=without_layers() | recall_settings, seeds=1, out=home / "far"
    )


def without_layers() -> dict[str, Any]:
    return {path: value for path, value in TINY.items() if path != "model.layers"}


def test_pairs_are_compared_by_bleu_with_an_interval_over_the_pairs(comparison):
    assert (comparison.facts["metric"], comparison.facts["curve_metric"]) == ("bleu", "bleu")
    for row in comparison.rows:
        facts = json.loads((Path(row["runs"][0]) / "harken.json").read_text())
        ends = facts["intervals"]["valid"]
        assert row["interval"]["bleu"] == ends["bleu"]
        assert ends["bleu"][0] <= row["metrics"]["bleu"] < ends["bleu"][1]


def test_a_baseline_without_a_loss_is_a_row_of_the_table(comparison):
    heads, lines = comparison_table(comparison.facts)
    baseline = next(line for line in lines if line[0] == "baseline: copy of the source")
    assert heads[1] == "valid bleu"
    assert float(baseline[1]) == pytest.approx(comparison.facts["baseline"]["copy of the source"]["bleu"], rel=1e-3)


def test_every_evaluated_sentence_is_in_one_length_group(comparison):
    for row in comparison.rows:
        positions = [part["metrics"]["position"] for part in row["parts"].values()]
        assert len(positions) > 1
        assert positions == sorted(positions)
        assert sum(part["metrics"]["pairs"] for part in row["parts"].values()) == 40
        assert all("bleu" in part["metrics"] for part in row["parts"].values())


def test_the_charts_show_bleu_over_steps_over_time_and_by_length(comparison):
    for name in ("compare.svg", "report.html"):
        chart = (comparison.path / name).read_text()
        titles = ("Validation BLEU over steps", "Validation BLEU over time", "Validation BLEU by words")
        assert all(title in chart for title in titles)
        assert "alidation loss over" not in chart


def test_distances_of_several_orders_of_magnitude_have_a_logarithmic_axis(recall_comparison):
    [row], positions = recall_comparison.rows[:1], (5.0, 50.0, 500.0)
    parts = {f"distance {x:g}": {"metrics": {"position": x, "exact_match": 0.5}, "interval": {}} for x in positions}
    chart = _part_chart({**recall_comparison.facts, "rows": [row | {"parts": parts}]})
    assert re.findall(r'class="x" x="([\d.]+)%"', chart.marks) == ["0.00", "50.00", "100.00"]
    assert re.findall(r">(?:distance )?(\d+)</text>", chart.marks)[-3:] == ["5", "50", "500"]


def test_recall_is_evaluated_and_drawn_by_distance(recall_comparison):
    assert recall_comparison.facts["metric"] == "exact_match"
    for row in recall_comparison.rows:
        assert list(row["parts"]) == ["distance 5", "distance 10", "distance 20"]
        n_correct = sum(part["metrics"]["exact_match"] * part["metrics"]["pairs"] for part in row["parts"].values())
        assert n_correct / 40 == pytest.approx(row["metrics"]["exact_match"])
    assert "Validation exact match by distance" in (recall_comparison.path / "compare.svg").read_text()
