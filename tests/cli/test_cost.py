"""harken cost."""

import json
import shutil

import pytest


def test_cost_sums_all_runs_or_the_listed_ones(harken, run, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(run, tmp_path / "runs" / name)
    single = json.loads(harken("cost", "runs/one", "--json").out)
    total = json.loads(harken("cost", "--json").out)
    assert {"kWh", "kwh", "co2e_kg", "seconds", "tokens", "flops", "price_usd", "rows"} == single.keys()
    assert single["kWh"] == single["kwh"] == single["rows"][0]["kwh"]
    assert [row["run"] for row in total["rows"]] == ["runs/one", "runs/two"]
    assert total["kWh"] == 2 * single["kWh"] > 0
    assert single["tokens"] == 2 * 4 * 16  # two steps of four rows of 16


def test_the_trials_of_a_comparison_are_counted(harken, run, tmp_path):
    for name in ("my", "c/model.heads=1-seed=0", "c/model.heads=2-seed=0"):
        shutil.copytree(run, tmp_path / "runs" / name)
    (tmp_path / "runs" / "c" / "compare.json").write_text("{}")
    actual = [json.loads(harken("cost", *named, "--json").out) for named in ((), ("runs/c",), ("runs/my",))]
    assert [len(row["rows"]) for row in actual] == [3, 2, 1]
    assert actual[0]["kwh"] == 3 * actual[2]["kwh"] > 0


def test_the_table_ends_with_the_sum(harken, run, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(run, tmp_path / "runs" / name)
    heads, first, second, total = harken("cost").out.splitlines()
    assert heads.split()[:3] == ["run", "time", "energy"]
    assert first.startswith("runs/one ")
    assert "core" in second
    assert total.startswith("2 together ")


def test_an_unfinished_run_is_listed_and_not_counted(harken, run, tmp_path):
    for name in ("half", "complete"):
        shutil.copytree(run, tmp_path / "runs" / name)
    (tmp_path / "runs" / "half" / "harken.json").unlink()
    output = harken("cost")
    assert output.code == 0
    assert output.out.splitlines()[-1].startswith("not counted: runs/half: this run is not finished; resume with: ")
    assert "together" not in output.out


def test_a_missing_folder_is_refused(harken):
    output = harken("cost", "runs/nowhere")
    assert (output.code, output.out) == (2, "")
    assert output.err.startswith("harken: runs/nowhere: no such folder; ")


def test_cost_without_runs_suggests_train(harken):
    assert harken("cost").out == "no runs in runs; train one: harken train my.txt\n"


def test_the_table_of_the_lecture_is_printed_with_the_computed_values(harken):
    out = harken("cost", "--lecture").out
    energy, cloud = [line for line in out.splitlines() if line.startswith("Transformer (big)")]
    assert energy.split()[2:] == ["P100x8", "1,515.43", "84", "201", "201.1", "192", "191.9"]
    assert cloud.split()[2:] == ["P100x8", "84", "0.43", "to", "1.46", "289", "to", "981", "289", "to", "981"]
    (car,) = [line for line in out.splitlines() if line.startswith("car, average with fuel, 1 lifetime")]
    assert car.split()[-3:] == ["126,000", "57,153", "656.2"]
    actual = json.loads(harken("cost", "--lecture", "--json").out)
    assert {"kWh", "co2e_kg", "rows", "consumption", "prices", "price_source"} <= actual.keys()


def test_runs_are_refused_with_lecture(harken):
    output = harken("cost", "runs/my", "--lecture")
    assert (output.code, output.out) == (2, "")
    assert "[RUN ...] has no effect with --lecture" in output.err


def test_an_imported_run_is_counted_and_cost_nothing_to_train(harken, run, small, tmp_path):
    shutil.copytree(run, tmp_path / "runs" / "my")
    trained = json.loads(harken("cost", "--json").out)
    assert harken("import", small, "--out", "runs/imported").code == 0
    total = json.loads(harken("cost", "--json").out)
    assert {name: total[name] for name in ("seconds", "kwh", "tokens", "flops")} == {
        name: trained[name] for name in ("seconds", "kwh", "tokens", "flops")
    }
    (row,) = [row for row in total["rows"] if row["run"] == "runs/imported"]
    assert (row["kwh"], row["tokens"], row["energy_source"]) == (0, 0, "imported: not trained here")
    out = harken("cost").out
    assert "not counted" not in out
    assert "2 together" in out
    (line,) = [line for line in harken("runs").out.splitlines() if line.startswith("runs/imported")]
    assert line.endswith("imported")


def test_the_settings_of_the_section_cost_are_in_the_estimate_and_in_the_sum(harken, tales):
    plain, factors = ["model.size=tiny", "train.steps=2"], ["cost.pue=1.1", "cost.grid_intensity=0.05"]
    estimate = json.loads(harken("check", tales, *plain, *factors, "cost.price_per_hour=3.6", "--json").out)
    assert estimate["recipe"]["cost.pue"] == 1.1
    cost = estimate["estimate"]
    assert cost["co2e_kg"] == pytest.approx(0.05 * cost["kwh"])
    assert cost["price_usd"] == pytest.approx(cost["minutes"] * 60 / 1000)
    assert " CO2e and " in harken("check", tales, *plain, "cost.price_per_hour=3600").out
    for name, price in (("one", ["cost.price_per_hour=3.6"]), ("two", [])):
        assert harken("train", tales, *plain, *factors, *price, "--out", f"runs/{name}").code == 0
    total = json.loads(harken("cost", "--json").out)
    priced, unpriced = total["rows"]
    assert priced["price_usd"] == pytest.approx(priced["seconds"] / 1000) == total["price_usd"]
    assert unpriced["price_usd"] is None
    assert total["co2e_kg"] == pytest.approx(0.05 * total["kwh"])
    heads, first, *_ = harken("cost").out.splitlines()
    assert "price" in heads
    assert " USD" in first


def test_a_setting_of_a_training_is_not_taken_for_a_run(harken, run):
    refused = harken("cost", "cost.grid_intensity=0.056")
    assert refused.code == 2
    assert "is a setting of a training; give it to harken train" in refused.err
