"""harken compare: its table, its JSON object and its error messages."""

import json
from pathlib import Path

import pytest

from harken.cli.compare import TrialListener

TINY = ["model.d=16", "model.layers=1", "model.context=16", "train.steps=2", "train.batch=4", "train.eval_every=1"]


@pytest.fixture
def refused(harken):
    """Run a comparison that fails, check its exit code, and return its one error line."""

    def call(*args: object, code: int = 2) -> str:
        output = harken("compare", *args)
        assert (output.code, output.err.count("\n")) == (code, 1), output
        return output.err.removeprefix("harken: ").removesuffix("\n")

    return call


def test_a_notice_of_every_trial_is_printed_once(capsys):
    with TrialListener(to_stderr=False) as listener:
        for text in ("skipped 2 rows", "skipped 2 rows", "labels", "skipped 2 rows"):
            listener("notice", text=text)
    assert capsys.readouterr().err == "skipped 2 rows\nlabels\n"


def test_json_of_compare(harken, text):
    output = harken("compare", text, "model.heads=1,2", *TINY, "--seeds", 2, "--eval", "model.context=16,32", "--json")
    assert output.code == 0, output
    actual = json.loads(output.out)
    assert [row["settings"] for row in actual["rows"]] == [{"model.heads": 1}, {"model.heads": 2}]
    wanted = {"model", "settings", "metrics", "interval", "seconds", "parameters", "flops", "kwh", "co2e_kg"}
    for row in actual["rows"]:
        assert wanted <= row.keys()
        assert row["model"] == "gpt"
        low, high = row["interval"]["loss"]
        assert low <= row["metrics"]["loss"] <= high
        assert [e["settings"]["model.context"] for e in row["evals"]] == [16, 32]
    assert all(Path(file).is_file() for file in actual["files"])
    assert {"unigram", "5-gram Kneser-Ney"} == actual["baseline"].keys()


def test_compare_prints_trials_a_table_a_verdict_and_the_report(harken, text):
    output = harken("compare", text, "--models", "gpt,lstm", *TINY, "--seeds", 1, "--eval", "model.context=8")
    assert output.code == 0, output
    lines = output.out.splitlines()
    assert lines[0] == "  compare 2 settings x 1 seed"
    trials = [line for line in lines if line.startswith("  trial ")]
    assert trials == ["  trial 1 of 2: gpt, seed 0", "  trial 2 of 2: lstm, seed 0"]
    table = lines.index(next(line for line in lines if line.lstrip().startswith("valid loss  ")))
    assert [line.split("  ")[0] for line in lines[table + 1 : table + 5]] == [
        "gpt", "lstm", "baseline: unigram", "baseline: 5-gram Kneser-Ney",
    ]  # fmt: skip
    assert any(line.lstrip().startswith("valid loss, as trained  model.context=8") for line in lines)
    assert "Each has one seed; other seeds may differ." in lines[-2]
    assert lines[-1] == "  report  runs/my-compare/report.html      plot: runs/my-compare/compare.svg"


def test_a_failed_trial_is_printed_with_its_reason(harken, text):
    output = harken("compare", text, "model.heads=2,3", *TINY, "--seeds", 1)
    assert output.code == 0, output
    assert "    failed: model: d=16 is not divisible by heads=3" in output.out
    assert "  failed  model.heads=3, seed 0: model: d=16 is not divisible by heads=3" in output.out


def test_minutes_are_the_budget_of_each_trial(harken, text):
    tiny = [word for word in TINY if not word.startswith("train.steps")]
    output = harken("compare", text, *tiny, "--minutes", 0.001, "--seeds", 2, "--json")
    assert json.loads(output.out)["settings"]["train.minutes"] == 0.001
    assert output.err.splitlines()[0] == "  compare 1 setting x 2 seeds: 0.1 s of training"


def test_a_finished_comparison_is_printed_again_without_training(harken, text, tmp_path):
    first = json.loads(harken("compare", text, *TINY, "--seeds", 1, "--json").out)
    built = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/my-compare/*/model.safetensors")}
    again = harken("compare", "runs/my-compare", "--resume", "--json")
    assert json.loads(again.out)["rows"] == first["rows"]
    assert built == {path: path.stat().st_mtime_ns for path in built}


def test_a_mistyped_argument_is_refused_before_training(refused, text, tmp_path):
    assert refused(text, "model.haeds=1,2") == "model.haeds is not a setting. Did you mean model.heads?"
    assert refused(text, "model.heads=1,,2") == (
        "model.heads=1,,2: a value is missing before or after a comma; expected model.heads=1,2,8"
    )
    assert refused(text, "heads=1,2") == (
        "'heads=1' is not a setting; settings look like model.layers=6. Did you mean model.heads=1?"
    )
    assert refused(text, "--models", "gpt,lsmt").endswith("Did you mean lstm?")
    assert refused(text, "--models", "gpt", "model.kind=lstm") == (
        "compare: --models and model.kind set the same thing; give one of them; see harken compare --help"
    )
    assert refused(text, "--seeds", "0").startswith("compare: invalid value for '--seeds'")
    assert refused(text) == (
        "my.txt: there is nothing to compare; give a setting several values, such as model.heads=1,2, "
        "or set seeds (--seeds 3)"
    )
    assert refused("mt.txt", "model.heads=1,2").startswith("mt.txt: no such file")
    assert not (tmp_path / "runs").exists()


def test_the_exit_code_is_1_if_every_trial_failed(refused, text):
    output = refused(text, "model.heads=3", *TINY, "--seeds", 1, "--out", "none", code=1)
    assert output.startswith("none: every trial failed; the first: model: d=16 is not divisible by heads=3")
