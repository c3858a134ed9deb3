"""harken cost."""

import json
import shutil


def test_the_cost_of_all_runs_and_of_those_that_are_named(harken, run, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(run, tmp_path / "runs" / name)
    alone = json.loads(harken("cost", "runs/one", "--json").out)
    both = json.loads(harken("cost", "--json").out)
    assert {"kWh", "kwh", "co2e_kg", "seconds", "tokens", "flops", "rows"} == alone.keys()
    assert alone["kWh"] == alone["kwh"] == alone["rows"][0]["kwh"]
    assert [row["run"] for row in both["rows"]] == ["runs/one", "runs/two"]
    assert both["kWh"] == 2 * alone["kWh"] > 0
    assert alone["tokens"] == 2 * 4 * 16  # two steps of four rows of 16


def test_the_trials_of_a_comparison_are_counted(harken, run, tmp_path):
    for name in ("my", "c/model.heads=1-seed=0", "c/model.heads=2-seed=0"):
        shutil.copytree(run, tmp_path / "runs" / name)
    (tmp_path / "runs" / "c" / "compare.json").write_text("{}")
    actual = [json.loads(harken("cost", *named, "--json").out) for named in ((), ("runs/c",), ("runs/my",))]
    assert [len(one["rows"]) for one in actual] == [3, 2, 1]
    assert actual[0]["kwh"] == 3 * actual[2]["kwh"] > 0


def test_the_table_ends_with_the_sum(harken, run, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(run, tmp_path / "runs" / name)
    heads, first, second, total = harken("cost").out.splitlines()
    assert heads.split()[:3] == ["run", "time", "energy"]
    assert first.startswith("runs/one ")
    assert "core" in second
    assert total.startswith("2 together ")


def test_a_run_that_is_not_finished_is_named_and_nothing_fails(harken, run, tmp_path):
    for name in ("half", "whole"):
        shutil.copytree(run, tmp_path / "runs" / name)
    (tmp_path / "runs" / "half" / "harken.json").unlink()
    output = harken("cost")
    assert output.code == 0
    assert output.out.splitlines()[-1].startswith("not counted: runs/half: this run is not finished; go on with: ")
    assert "together" not in output.out


def test_a_folder_that_is_not_there_is_refused(harken):
    output = harken("cost", "runs/nowhere")
    assert (output.code, output.out) == (2, "")
    assert output.err.startswith("harken: runs/nowhere: there is no such folder; ")


def test_without_runs_it_says_how_to_make_one(harken):
    assert harken("cost").out == "no runs in runs; make one with: harken train my.txt\n"


def test_the_lectures_table_is_printed_with_what_was_computed(harken):
    out = harken("cost", "--lecture").out
    (big,) = [line for line in out.splitlines() if line.startswith("Transformer (big)")]
    assert big.split()[2:] == ["P100x8", "1,515.43", "84", "201", "201.1", "192", "191.9"]
    actual = json.loads(harken("cost", "--lecture", "--json").out)
    assert {"kWh", "co2e_kg", "rows"} <= actual.keys()


def test_runs_mean_nothing_beside_the_lecture(harken):
    output = harken("cost", "runs/my", "--lecture")
    assert (output.code, output.out) == (2, "")
    assert "with --lecture, [RUN ...] means nothing" in output.err
