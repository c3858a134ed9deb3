"""The outcomes of every kind of data: metrics as functions of weights, intervals, and differences to the baselines."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

HOME = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOME / "scripts"))

import matrix  # noqa: E402
from harken.experiments.choose import choose  # noqa: E402

NUMBERS = "text,score\n" + "".join(f"{'very ' * (n % 4)}good {n},{n % 4 + n % 3 / 5}\n" for n in range(60))
POINTS = "cloud,x,y,target\n" + "".join(
    f"c{n},{n % 5 + n / 99},{k},{n % 5 + n % 3}\n" for n in range(60) for k in range(3)
)
FILES = {"numbers": ("scores.csv", NUMBERS), "points": ("points.csv", POINTS)}
POINT_COLUMNS = {"data.group": "cloud", "data.label": "target", "data.target_type": "number"}
TINY = {"train.threads": 1, "train.steps": 2, "data.valid": 0.3}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {  # data, model, settings
    "next words": ("text", "gpt", {}),
    "next words, recurrent": ("text", "gru", {}),
    "masked words": ("text", "bert", {}),
    "pairs": ("pairs", "transformer", {"task.max_new_tokens": 8}),
    "labels": ("table", "bert", {}),
    "numbers": ("numbers", "bert", {}),
    "tags": ("tags", "bert", {}),
    "spans": ("spans", "bert", {}),
    "images": ("images", "vit", {}),
    "stories": ("stories", "memnet", {}),
    "nodes": ("graph", "gcn", {}),
    "edges": ("graph", "gcn", {"data.target_level": "edge"}),
    "sets": ("sets", "set", {"model.heads": 2}),
    "points": ("points", "set", {"data.kind": "sets", "model.kind": "set"} | POINT_COLUMNS),
    "captions": ("captions", "caption", {"task.max_new_tokens": 8}),
    "gcd": ("maths", "transformer", {"data.valid": 40}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_kind_has_an_interval_around_each_metric_and_a_difference_to_each_baseline(case, tmp_path):
    data, model, settings = CASES[case]
    if data in FILES:
        name, content = FILES[data]
        path: Any = tmp_path / name
        path.write_text(content)
        known = {"model.size": "tiny"}
    else:
        family = matrix.Family(data, model)
        path, known = family.write(tmp_path), family.settings()
    recipe = choose(str(path), known | TINY | settings).recipe
    torch.manual_seed(0)
    dataset = recipe.load_data()
    task, network = recipe.bind(dataset), recipe.build(dataset.vocab)
    split = "valid" if "valid" in task.splits else task.splits[0]
    score = task.evaluate(network, split)
    baselines = task.evaluate_baselines(split)

    for metrics, outcomes in [(score.metrics, score.outcomes), *baselines.values()]:
        for name, outcome in outcomes.items():
            assert outcome(np.ones((1, outcome.n)))[0] == pytest.approx(metrics[name], rel=1e-4, abs=1e-6), name
    assert score.intervals.keys() <= score.metrics.keys()
    missing = score.metrics.keys() - score.intervals.keys()
    assert all(score.metrics[name] == 0 for name in missing)  # of constant predictions
    assert missing <= {"matthews", "pearson", "spearman"}
    for name, (low, high) in score.intervals.items():
        assert low - 1e-6 <= score.metrics[name] <= high + 1e-6, name
    differences = score.compare(baselines)
    assert differences.keys() == baselines.keys()
    assert all(row["low"] <= row["value"] <= row["high"] for rows in differences.values() for row in rows.values())
    assert sum(map(len, differences.values())) >= len(baselines)
    assert not task.evaluate(network, split, quick=True).outcomes
