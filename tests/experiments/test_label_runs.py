"""Runs on texts with labels: train, evaluate, audit, resume, compare, classify."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harken
from harken import registry
from harken.errors import BadInput
from harken.events import silent
from harken.experiments.choose import choose
from harken.experiments.compare import comparison
from harken.experiments.compare.comparison import evaluate_under
from harken.experiments.report.sections import report_sections

WORDS = ["red", "green", "blue", "loud", "quiet", "warm", "cold", "tall"]
KINDS = sorted(registry.MODELS["labels"])
TINY = {
    "model.d": 32,
    "model.layers": 1,
    "data.vocab_size": 300,
    "train.threads": 1,
    "train.batch": 48,
    "train.lr": 1e-2,
}


def rows(n_rows: int = 300) -> list[tuple[str, str, str]]:
    """A text, whether it names colors, and the fraction of colors."""
    table = []
    for n in range(n_rows):
        words = [WORDS[(n * k * k + k + n // 8) % 8] for k in range(1, 5)]
        n_colors = sum(word in WORDS[:3] for word in words)
        table.append((" ".join(words) + f" {n % 10}.", "colour" if n_colors > 1 else "plain", f"{n_colors / 3:.2f}"))
    return table


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for name, header, cells in (
        ("labels.csv", ["text", "label"], [(t, label) for t, label, _ in rows()]),
        ("numbers.csv", ["text", "score"], [(t, score) for t, _, score in rows()]),
        ("pairs.csv", ["sentence1", "sentence2", "label"], [(t, t.upper(), label) for t, label, _ in rows()]),
        ("other.csv", ["text", "label"], [(t, label) for t, label, _ in rows(350)[300:]]),
    ):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([header, *cells])
    return folder


def model_settings(kind: str) -> dict[str, Any]:
    return {**TINY, "model.kind": kind, **({"model.heads": 2} if kind in ("bert", "gpt") else {})}


@pytest.fixture(scope="module", params=KINDS)
def trained(request, tables, tmp_path_factory) -> harken.Run:
    out = tmp_path_factory.mktemp("runs") / request.param
    return harken.train(tables / "labels.csv", out=out, settings={**model_settings(request.param), "train.steps": 60})


def test_every_model_beats_the_most_frequent_label(trained):
    baseline = trained.facts["baseline"]["valid"]["most frequent label"]["accuracy"]
    assert trained.metrics["valid"]["accuracy"] > baseline + 0.1
    assert "bag of words" in trained.facts["baseline"]["test"]
    assert "accuracy" in (trained.path / "report.html").read_text()


def test_a_loaded_run_gives_the_same_labels_and_probabilities_sum_to_1(trained):
    texts = [text for text, _, _ in rows(20)]
    again = harken.load(trained.path).classify(texts)
    assert again == trained.classify(texts)
    alone, batched = trained.classify(texts[3])[0], again[3][0]
    assert alone["label"] == batched["label"]
    assert alone["probability"] == pytest.approx(batched["probability"], rel=1e-4)
    for labels in again:
        assert {prediction["label"] for prediction in labels} == {"colour", "plain"}
        assert labels[0]["probability"] >= labels[1]["probability"]
        assert sum(prediction["probability"] for prediction in labels) == pytest.approx(1)


def test_other_data_is_evaluated_with_its_own_labels(trained, tables):
    score, baseline = trained.evaluate("test", data=str(tables / "other.csv"))
    assert score.protocol["texts"] == 50
    correct = [trained.classify(text)[0]["label"] == label for text, label, _ in rows(350)[300:]]
    assert score.metrics["accuracy"] == pytest.approx(sum(correct) / 50)
    assert baseline


def test_the_audit_of_a_model_with_a_head_passes(trained):
    checks = {check.name: check for check in harken.audit(trained).checks}
    assert all(check.outcome != "failed" for check in checks.values())
    expected = {"padding", "batching", "accumulation"} | (
        {"packing"} if trained.recipe.model.kind in ("bert", "gpt") else set()
    )
    assert {name for name, check in checks.items() if check.outcome == "passed"} >= expected


def test_a_classifier_does_not_generate_and_a_language_model_does_not_classify(trained):
    with pytest.raises(BadInput, match="this run classifies texts; use harken classify"):
        trained.generate("red")


def test_a_regression_target_is_returned_in_its_unit(tables, tmp_path):
    settings = {**model_settings("bert"), "train.steps": 40, "model.pool": "mean"}
    run = harken.train(tables / "numbers.csv", out=tmp_path / "n", settings=settings)
    assert run.metrics["valid"].keys() >= {"pearson", "spearman"}
    predictions = [run.classify(text)[0] for text, _, _ in rows(30)]
    assert {prediction["label"] for prediction in predictions} == {"score"}
    assert all(-0.5 < prediction["value"] < 2 for prediction in predictions)
    part = run.recipe.load_data(run.tokenizer).splits["valid"].rows
    errors = [abs(run.classify(row.texts[0])[0]["value"] - float(row.labels[0])) for row in part]
    assert run.metrics["valid"]["mae"] == pytest.approx(sum(errors) / len(errors), rel=1e-4)
    low, high = run.facts["intervals"]["valid"]["mae"]
    assert low < run.metrics["valid"]["mae"] < high
    report = (run.path / "report.html").read_text()
    assert "mae and rmse in the unit of 'score'" in report.replace("&#x27;", "'")


def test_a_text_pair_is_a_pair_or_a_string_with_a_tab(tables, tmp_path):
    run = harken.train(tables / "pairs.csv", out=tmp_path / "p", settings={**model_settings("bert"), "train.steps": 3})
    assert run.classify([("red blue", "RED BLUE")]) == run.classify(["red blue\tRED BLUE"])
    with pytest.raises(BadInput, match="trained on pairs; give two texts with a tab between them"):
        run.classify("red blue")


def test_models_are_compared_on_labels_by_accuracy(tables, tmp_path):
    settings = {k: v for k, v in TINY.items() if k != "model.layers"} | {"train.steps": 3, "data.test": 0.5}
    axes = {"model.kind": ["bert", "gpt", "lstm"]}
    comparison = harken.compare(tables / "labels.csv", axes, settings=settings, seeds=1, out=tmp_path / "c")
    assert [row["model"] for row in comparison.rows] == ["bert", "gpt", "lstm"]
    assert all("accuracy" in row["metrics"] for row in comparison.rows)
    assert "accuracy" in comparison.verdict


def test_a_changed_labels_file_of_a_finished_run_is_detected(tables, tmp_path):
    harken.train(tables / "labels.csv", out=tmp_path / "r", settings={**model_settings("bert"), "train.steps": 2})
    fields = json.loads((tmp_path / "r" / "labels.json").read_text())
    (tmp_path / "r" / "labels.json").write_text(json.dumps({**fields, "labels": fields["labels"][::-1]}))
    with pytest.raises(harken.HarkenError, match=r"labels.json: SHA-256 mismatch: the file was modified"):
        harken.load(tmp_path / "r")


@pytest.mark.parametrize("model", ["bert", "gpt", "lstm", "gru"])
def test_a_table_with_labels_gets_the_labels_recipe_of_its_model(tables, model):
    choice = choose(str(tables / "labels.csv"), {"model.kind": model})
    assert choice.detection.kind == "table"
    assert (choice.recipe.data.kind, choice.recipe.task.kind) == ("table", "classify")
    assert (choice.recipe.data.text, choice.recipe.data.label) == ("text", "label")
    assert choice.recipe.model.kind == model
    assert choice.recipe.data.max_length <= (choice.recipe.model.context if model in ("bert", "gpt") else 10**9)


# --- several labels, splits by column ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def topics(tmp_path_factory) -> harken.Run:
    """A run on texts with several labels."""
    folder = tmp_path_factory.mktemp("topics")
    names = ("news", "sport", "music")
    lines = [[name for k, name in enumerate(names) if n % (k + 2) == 0] for n in range(200)]
    table = [(" ".join([*labels, WORDS[n % 8], str(n)]), ";".join(labels)) for n, labels in enumerate(lines)]
    with (folder / "topics.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], *table])
    settings = {**model_settings("bert"), "data.label": "label", "data.separator": ";", "data.valid": 0.3}
    return harken.train(folder / "topics.csv", out=folder / "run", settings={**settings, "train.steps": 6})


def test_thresholds_are_saved_with_the_run_and_used_by_classify_and_eval(topics):
    thresholds = topics.facts["thresholds"]
    assert set(thresholds) == {"news", "sport", "music"}
    assert set(thresholds.values()) != {0.5}
    run = harken.load(topics.path)
    for score in run.classify("sport music red 7"):
        assert score["predicted"] == (score["probability"] > thresholds[score["label"]])
    score, baseline = run.evaluate("test")
    assert score.metrics == pytest.approx(topics.metrics["test"])
    assert score.protocol["thresholds"] == "chosen on valid"
    assert {"f1", "f1_micro"} <= set(baseline["bag of words"])


def test_compare_and_the_rebuilt_report_use_the_thresholds_of_the_run(topics):
    run = harken.load(topics.path)
    assert evaluate_under(run, {}) == pytest.approx(topics.metrics["valid"])
    [(first, outcomes)] = comparison._outcomes(run).items()
    expected = topics.final_scores[first].outcomes
    assert outcomes.keys() == expected.keys()
    for name, outcome in expected.items():
        weights = np.ones((1, outcome.n))
        assert outcomes[name](weights) == pytest.approx(outcome(weights)), name
    labels = []
    for scores in (topics.final_scores, None):
        task = run.recipe.bind(run.recipe.load_data(run.tokenizer))
        labels.append(report_sections(run, task, run.path, {}, scores)["labels"])
    assert str(labels[1]) == str(labels[0])


def test_a_split_by_group_is_in_the_report_and_in_the_facts(tables, tmp_path):
    table = [(n, text, label) for n, (text, label, _) in enumerate(rows())]
    with (tmp_path / "groups.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["number", "text", "label"], *((f"g{n % 30}", t, label) for n, t, label in table)])
    settings = {**model_settings("bert"), "data.group": "number", "train.steps": 2}
    run = harken.train(tmp_path / "groups.csv", out=tmp_path / "run", settings=settings)
    assert "rows with the same 'number' are in one split" in run.facts["data"]["split"]
    assert "rows with the same &#x27;number&#x27; are in one split" in (run.path / "report.html").read_text()
    assert run.facts["protocol"]["test"]["most_frequent_label"].startswith("'")
    score, _ = run.evaluate(data=str(tables / "other.csv"))
    assert score.n_examples == score.n_units == 50
    with (tmp_path / "more.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["number", "text", "label"], *((f"h{n % 12}", t, label) for n, t, label in table)])
    score, _ = run.evaluate(data=str(tmp_path / "more.csv"))
    assert (score.n_examples, score.n_units) == (300, 12)
    assert score.outcomes["accuracy"].n == 12


def test_eval_reads_long_texts_in_windows_as_classify_does(tables, tmp_path, char):
    settings = {**model_settings("bert"), "data.max_length": 8, "train.steps": 20}
    run = harken.train(tables / "labels.csv", out=tmp_path / "run", settings=settings, listen=silent)
    texts, labels = zip(*((f"{t} {t[::-1]} {n}", label) for n, (t, label, _) in enumerate(rows(40))), strict=True)
    with (tmp_path / "long.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], *zip(texts, labels, strict=True)])
    truncated, notices = run.evaluate(data=str(tmp_path / "long.csv")).score, []
    options = {"overflow": "windows", "listen": lambda event, **facts: notices.append(facts.get("text", ""))}
    score = run.evaluate(data=str(tmp_path / "long.csv"), **options).score
    p = [{row["label"]: row["probability"] for row in rows} for rows in run.classify(texts, overflow="windows")]
    loss = -np.mean([np.log(row[label]) for row, label in zip(p, labels, strict=True)])
    assert score.metrics["loss"] == pytest.approx(loss, rel=1e-4)
    assert score.metrics["loss"] != pytest.approx(truncated.metrics["loss"], rel=1e-4)
    assert score.protocol["windows"] > score.protocol["texts"]
    assert not any("truncated" in text for text in notices)
    with pytest.raises(BadInput, match="overflow='windows': is for texts of a run that classifies texts; leave it out"):
        char.evaluate("valid", overflow="windows")
