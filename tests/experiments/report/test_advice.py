"""Advice follows from the curves, the best baseline and the ablation; every baseline is explained."""

import ast
from pathlib import Path

import numpy as np
import pytest

import harken
from harken.experiments.report.advice import BASELINES, advise, column_advice, curve_summary, read_curves

TASKS = Path(__file__).parents[3] / "src" / "harken" / "tasks"
RECIPE = '[model]\nkind = "gpt"\nsize = "small"\nd = 128\nlayers = 4\ndropout = 0.1\n'


def facts(valid: list[float], train: list[float] | None = None, accuracy: float = 0.5, **more: object):
    """A run with these losses whose bag of words has an accuracy of 0.8."""
    losses = train or valid
    log = [{"step": 10 * n, "loss": a, "valid": b} for n, (a, b) in enumerate(zip(losses, valid, strict=True), 1)]
    return {
        "name": "x", "log": log, "recipe": RECIPE, "metrics": {"test": {"loss": 1.0, "accuracy": accuracy}},
        "protocol": {"test": {"texts": 5000, "primary_metric": "accuracy"}},
        "baseline": {"test": {"bag of words": {"accuracy": 0.8}, "most frequent label": {"accuracy": 0.4}}}, **more,
    }  # fmt: skip


def test_a_rising_validation_loss_is_overfitting_and_no_larger_model_is_advised():
    run = facts([1.0, 0.8, 0.9, 1.2], [0.9, 0.5, 0.2, 0.1])
    advice = " ".join(advise(run))
    assert "the model overfits" in advice
    assert "lowest at step 20 (0.800), then rose to 1.20" in advice
    assert "The training loss fell to 0.100" in advice
    assert "model.dropout=0.3 or a smaller model (model.size is now small" in advice
    assert "larger" not in advice


@pytest.mark.parametrize(
    ("valid", "train", "curves"),
    [
        ([1.0, 0.9, 0.8], [1.0, 0.9, 0.8], "improving"),
        ([1.0, 0.9, 0.8], [1.0, 0.5, 0.1], "improving"),  # a gap while the validation loss still falls
        ([1.0, 0.8, 0.805], [1.0, 0.81, 0.8], "flat"),
        ([1.0, 0.8, 0.805], [1.0, 0.5, 0.1], "overfitting"),
        ([1.0, 0.8, 0.9], [1.0, 0.9, 0.8], "overfitting"),
        ([1.0, 0.8], [1.0, 0.5], "unknown"),
    ],
)
def test_curves_are_read_from_both_losses(valid, train, curves):
    run = facts(valid, train)
    assert read_curves(run) == curves
    words = {
        "improving": "train longer",
        "flat": "larger model",
        "overfitting": "smaller model",
        "unknown": "rain longer",
    }
    assert words[curves] in advise(run)[-1]
    assert ("overfits" in curve_summary(run)) == (curves == "overfitting")


def test_a_better_baseline_is_explained_with_the_next_thing_to_try():
    advice = advise(facts([1.0, 0.9, 0.8]))
    assert advice[0].startswith(
        "The baseline “bag of words” predicts about as well or better without the order of the words."
    )
    assert "Next: start from a pretrained model (from=RUN)" in advice[0]
    assert advise(facts([1.0, 0.8, 1.2], accuracy=0.95)) == []


def test_a_baseline_below_the_model_is_not_described_as_equally_good():
    difference = {"value": 0.02, "low": -0.01, "high": 0.05, "needed": 9000, "size": 0.02}
    differences = {"test": {"bag of words": {"accuracy": difference}}}
    advice = advise(facts([1.0, 0.9, 0.8], accuracy=0.82, differences=differences))
    assert advice[0].startswith(
        "The model is not clearly better than the baseline “bag of words”, which works without the order of the words."
    )
    behind = {"test": {"bag of words": {"accuracy": difference | {"value": -0.01, "low": -0.04, "high": 0.02}}}}
    assert "about as well or better" in advise(facts([1.0, 0.9, 0.8], accuracy=0.79, differences=behind))[0]


def test_columns_that_hurt_are_named_with_the_setting_that_leaves_them_out():
    ablation = {"columns": ["shoe_size", "id"], "remaining": ["age"], "loss": 0.9, "loss_without": 0.5, "clear": True}
    ablation |= {"setting": "data.features", "baseline": "logistic regression"}
    text = column_advice(ablation)
    assert text.startswith("Columns that hurt: shoe_size, id (the loss of the logistic regression is 0.900 with them")
    assert text.endswith("Train without them: 'data.features=age'.")
    assert column_advice(ablation | {"remaining": [], "clear": False}).endswith("'data.features=[]'.")
    assert "do not help" in column_advice(ablation | {"clear": False})
    assert text in advise(facts([1.0, 0.9, 0.8], ablation=ablation))
    assert advise(facts([1.0, 0.9, 0.8], accuracy=0.95, ablation=ablation)) == [text]
    assert advise(facts([1.0, 0.9, 0.8], accuracy=0.95, ablation=ablation | {"clear": False})) == []


def baseline_names() -> set[str]:
    """String keys and `regression_name` values in the functions that compute baselines."""
    names = set[str]()
    for path in TASKS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Assign) and "regression_name" in ast.unparse(node.targets[0]):
                names |= {
                    c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant) and len(str(c.value)) > 6
                }
            if isinstance(node, ast.FunctionDef) and node.name in (
                "evaluate_baselines",
                "_other_baselines",
                "_heuristics",
            ):
                names |= {c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
    return names


def test_every_baseline_of_a_task_is_explained_and_no_other():
    names = {name.replace("5-gram", "n-gram") for name in baseline_names()}
    assert {*BASELINES} <= names
    docstrings = {name for name in names if name.endswith((".", "\n        "))}
    keys = {
        "number",
        "label",
        "accuracy",
        "loss",
        "next_sentence_accuracy",
        "auc",
        "right",
        "images",
        "sets",
        "texts",
        "",
    }
    assert {name for name in names - docstrings - {*BASELINES} if " " in name} <= keys


def test_the_advice_for_a_graph_with_two_columns_of_noise_is_to_train_without_them_and_that_helps(tmp_path):
    rng, folder = np.random.default_rng(0), tmp_path / "clubs"
    folder.mkdir()
    rows = [f"n{n},{'red' if n < 40 else 'blue'},{rng.normal():.2f},{rng.integers(100)}" for n in range(80)]
    (folder / "nodes.csv").write_text("node,club,shoe_size,number\n" + "\n".join(rows))
    edges = {(a, b) for a in range(80) for b in range(a) if rng.random() < (0.25 if (a < 40) == (b < 40) else 0.01)}
    (folder / "edges.csv").write_text("source,target\n" + "\n".join(f"n{a},n{b}" for a, b in sorted(edges)))
    tiny = {"train.steps": 60, "train.threads": 1, "train.lr": 0.02, "model.size": "tiny"}
    run = harken.train(folder, out=tmp_path / "run", settings=tiny, quiet=True)
    assert run.facts["ablation"]["columns"] == ["shoe_size", "number"]
    assert "Columns that" in (page := (tmp_path / "run" / "report.html").read_text())
    assert "Train without them: &#x27;data.features=[]&#x27;" in page
    better = harken.train(folder, out=tmp_path / "better", settings=tiny | {"data.features": []}, quiet=True)
    assert better.metrics["test"]["accuracy"] > run.metrics["test"]["accuracy"] + 0.2
