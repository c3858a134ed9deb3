"""Cross-validation: runs of the folds, their mean, out-of-fold predictions, resume; on the command line too."""

import csv
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from harken.cli.train import train as train_command
from harken.data.labelled.source import TableSource
from harken.errors import BadInput, BadSetting
from harken.experiments import cross_validation
from harken.experiments.cross_validation import _mean, _user_columns, cross_validate
from harken.experiments.train import train
from harken.inference.run import load

TINY = {"model.d": 16, "model.layers": 1, "model.heads": 2, "train.steps": 2, "train.eval_every": 2, "train.batch": 4}
TINY |= {"data.tokenizer": "word", "report.samples": 0}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "my.csv"
    rows = (f"{n};word{n % 5} word{n % 3} number {n};{'good' if n % 3 else 'bad'}" for n in range(40))
    path.write_text("\n".join(["number;text;label", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def finished(table, tmp_path_factory):
    folder, events = tmp_path_factory.mktemp("runs") / "folds", []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(folder.parent / "cache"))
        outcome = cross_validate(
            table, 2, out=folder, settings=TINY, listen=lambda event, **facts: events.append((event, facts))
        )
    return outcome, events


def test_every_row_has_one_prediction_by_the_model_that_did_not_see_it(finished, table):
    outcome, _ = finished
    rows = list(csv.DictReader((outcome.folder / "predictions.csv").read_text().splitlines()))
    assert [(int(row["line"]), row["number"]) for row in rows] == [(n + 2, str(n)) for n in range(40)]
    assert table.read_text().splitlines()[5] == f"{rows[4]['number']};{rows[4]['text']};{rows[4]['label']}"
    run = load(outcome.folder / "fold-2")
    seen = {row.texts[0] for row in run.recipe.load_data(run.tokenizer).train.rows}
    mine = [row for row in rows if row["fold"] == "2"]
    assert len(mine) == 20
    assert not seen & {row["text"] for row in mine}
    best = run.classify(mine[0]["text"])[0]
    assert mine[0]["prediction"] == best["label"]
    assert float(mine[0]["probability"]) == pytest.approx(best["probability"], rel=1e-4)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "my.jsonl",
            '{"text": "a", "label": "x"}\n{"text": "b\n\n{"text": "c", "label": "y", "note": null, "tags": ["q"]}\n',
            {1: {"text": "a", "label": "x"}, 4: {"text": "c", "label": "y", "note": "", "tags": '["q"]'}},
        ),
        (
            "my.csv",
            "text,label,user\na,x,u1\nb,y\n\nc,x,u3\n" + "d,x,u4\n" * 40,
            {2: {"text": "a", "label": "x", "user": "u1"}, 3: {"text": "b", "label": "y"}}
            | {n: {"text": "c" if n == 5 else "d", "label": "x", "user": f"u{min(n, 6) - 2}"} for n in range(5, 46)},
        ),
    ],
)
def test_predictions_show_the_columns_of_every_row_beside_malformed_and_short_ones(name, content, expected, tmp_path):
    (path := tmp_path / name).write_text(content)
    rows = _user_columns(path, TableSource(path=str(path), text="text", label="label"))
    assert {line: row for line, row in rows.items() if any(row.values())} == expected


def test_the_interval_is_the_corrected_one_of_nadeau_and_bengio(finished):
    outcome, _ = finished
    runs = [load(outcome.folder / f"fold-{n}") for n in (1, 2)]
    a, b = (run.metrics["test"]["loss"] for run in runs)
    loss = outcome.metrics["loss"]
    assert loss["folds"] == [a, b]
    assert loss["mean"] == pytest.approx((a + b) / 2)
    counts = runs[0].facts["data"]["texts"]
    assert counts["test"] == 20
    half = 12.7062 * math.sqrt((1 / 2 + 20 / counts["train"]) * (a - b) ** 2 / 2)
    assert loss["high"] - loss["mean"] == pytest.approx(half, rel=1e-4)
    assert set(outcome.baseline) == {"most frequent label", "bag of words"}


def test_the_difference_from_the_best_baseline_is_paired_by_fold(finished):
    outcome, _ = finished
    difference = outcome.difference
    name = max(outcome.baseline, key=lambda name: outcome.baseline[name]["accuracy"])
    assert (difference["baseline"], difference["metric"]) == (name, "accuracy")
    runs = [load(outcome.folder / f"fold-{n}") for n in (1, 2)]
    rows = [run.metrics["test"]["accuracy"] - run.facts["baseline"]["test"][name]["accuracy"] for run in runs]
    assert difference["folds"] == pytest.approx(rows)
    assert json.loads((outcome.folder / "folds.json").read_text())["difference"] == difference
    assert "no clear difference over 2 folds from the best baseline" in outcome.verdict


@pytest.mark.parametrize(
    ("model", "word"),
    [
        ([0.8, 0.81, 0.82, 0.8, 0.81], "better over 5 folds than"),
        ([0.2, 0.21, 0.22, 0.2, 0.21], "worse over 5 folds than"),
        ([0.4, 0.65, 0.52, 0.6, 0.45], "no clear difference over 5 folds from"),
        ([0.5] * 5, "no clear difference over 5 folds from"),
        ([0.51] * 5, "no clear difference over 5 folds from"),
        ([1.0] * 5, "better over 5 folds than"),
    ],
)
def test_folds_are_better_or_worse_than_the_baseline_only_if_the_corrected_interval_excludes_0(model, word):
    baseline = {"majority": {"accuracy": 0.5}, "other": {"accuracy": 0.1}}
    data = {"unit": "texts", "texts": {"train": 150, "test": 40}}
    runs = [
        SimpleNamespace(metrics={"test": {"accuracy": x}}, facts={"data": data, "baseline": {"test": baseline}})
        for x in model
    ]
    difference = cross_validation._difference(runs, baseline, "accuracy")
    metrics = {"accuracy": cross_validation._mean("accuracy", model, runs[0])}
    outcome = cross_validation.CrossValidation(Path(), metrics, baseline, "accuracy", runs[0], difference)
    assert f", {word} the best baseline 0.500 (majority): the accuracy is " in outcome.verdict
    assert cross_validation._difference(runs, {}, "accuracy") is None


def test_the_final_run_has_no_test_split(finished):
    outcome, events = finished
    facts = outcome.final.facts["data"]
    assert sum(facts["texts"].values()) == 40
    assert set(facts["texts"]) == {"train", "valid"}
    assert [facts["number"] for event, facts in events if event == "fold"] == [1, 2]
    assert json.loads((outcome.folder / "folds.json").read_text())["metrics"] == outcome.metrics


def test_a_resumed_cross_validation_skips_finished_folds(finished, table, tmp_path):
    outcome, _ = finished
    folder = tmp_path / "folds"
    shutil.copytree(outcome.folder, folder)
    shutil.rmtree(folder / "fold-2")
    (folder / "predictions.csv").unlink()
    before = (folder / "fold-1" / "model.safetensors").stat().st_mtime_ns
    again = cross_validate(table, 2, out=folder, settings=TINY, resume=True)
    assert (folder / "fold-1" / "model.safetensors").stat().st_mtime_ns == before
    assert again.metrics == outcome.metrics
    assert (folder / "predictions.csv").read_bytes() == (outcome.folder / "predictions.csv").read_bytes()
    command = CliRunner().invoke(train_command, [str(folder), "--resume", "--json"])
    assert json.loads(command.stdout)["metrics"] == outcome.metrics
    with pytest.raises(
        BadInput, match=rf"is a cross-validation, not a run; resume it with: harken train {folder} --re"
    ):
        train(folder, resume=True)
    with pytest.raises(BadInput, match="was started with other n_folds"):
        cross_validate(table, 3, out=folder, settings=TINY, resume=True)
    with pytest.raises(BadInput, match="is not empty; resume it"):
        cross_validate(table, 2, out=folder, settings=TINY)


def test_the_command_prints_mean_interval_and_files(finished, table):
    outcome, _ = finished
    settings = [f"{name}={str(value).lower()}" for name, value in TINY.items()]
    command = [str(table), *settings, "--folds", "2", "--out", str(outcome.folder), "--resume"]
    printed = CliRunner().invoke(train_command, command)
    assert "mean of 2 folds, 95 % interval" in printed.output
    assert "baseline: bag of words" in printed.output
    assert f"  verdict {outcome.verdict}" in printed.output
    assert f"{outcome.folder / 'predictions.csv'} (the prediction for every row" in printed.output
    values = json.loads(CliRunner().invoke(train_command, [*command, "--json"]).stdout)
    assert values["metrics"] == outcome.metrics
    assert values["run"] == str(outcome.final.path)


@pytest.mark.parametrize(
    ("folds", "extra", "error", "message"),
    [
        (1, {}, BadSetting, "folds=1: at least 2"),
        (2, {"data.fold": "1/2"}, BadSetting, "data.fold=1/2: is set for each fold"),
        (2, {"data.time": "number"}, BadSetting, r"^folds=2 \(--folds\): .* does not go with data.time$"),
        (2, {"data.kind": "text"}, BadInput, "data of kind text has no folds"),
    ],
)
def test_what_has_no_folds_is_refused_before_the_first_run(table, tmp_path, folds, extra, error, message):
    with pytest.raises(error, match=message):
        cross_validate(table, folds, out=tmp_path / "folds", settings=extra)
    assert not (tmp_path / "folds").exists()


def test_the_training_time_is_divided_and_all_runs_have_the_steps_of_the_first(table, monkeypatch, tmp_path, finished):
    trained = []
    run = finished[0].final
    monkeypatch.setattr(run, "recipe", run.recipe.change(train__eval_every=7))
    monkeypatch.setattr(run, "facts", load(finished[0].folder / "fold-1").facts)

    def fake_train(what, settings, out, **_):
        trained.append((out.name, settings))
        return run

    monkeypatch.setattr("harken.experiments.cross_validation.train", fake_train)
    monkeypatch.setattr("harken.experiments.cross_validation._write_predictions", lambda *_: [])
    cross_validate(table, 3, out=tmp_path / "folds", settings={"train.minutes": 10})
    steps = {"train.steps": 2, "train.eval_every": 7}
    assert trained == [
        ("fold-1", {"train.minutes": 2.5, "data.fold": "1/3"}),
        ("fold-2", {**steps, "data.fold": "2/3"}),
        ("fold-3", {**steps, "data.fold": "3/3"}),
        ("final", {**steps, "data.test": 0.0}),
    ]


@pytest.mark.parametrize(("metric", "high"), [("bleu", 100.0), ("pearson", 1.0), ("accuracy", 1.0)])
def test_the_interval_of_a_metric_is_in_its_range(metric, high, finished):
    run = load(finished[0].folder / "fold-1")
    assert _mean(metric, [high, high / 2, high], run)["high"] == high
