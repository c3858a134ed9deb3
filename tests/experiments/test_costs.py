"""The total cost of runs, and the recomputed table of the lecture."""

import json

import pytest

from harken import run_folder
from harken.experiments import costs
from harken.experiments.costs import LECTURE_TABLE, SUMMED, lecture_costs, total_cost
from harken.training.cost import TRANSFORMER_BIG_LB, MeterReading, cost

COMPUTED = [n for n, row in enumerate(LECTURE_TABLE) if row.watts]


def write_run(folder, seconds=60.0, **changed):
    """A finished run with only a cost file."""
    folder.mkdir()
    amounts = cost(MeterReading(seconds, 20 * seconds, "estimated: 2 cores x 10 W"), tokens=500, flops_per_token=6.0)
    run_folder.write_json(folder / "cost.json", {k: v for k, v in (amounts | changed).items() if v != "gone"})
    run_folder.write_manifest(folder, {})
    return folder


# --- total cost -------------------------------------------------------------------------------------------------------


def test_the_total_is_the_sum_of_the_rows(tmp_path):
    totals = total_cost([write_run(tmp_path / "a", 60.0), write_run(tmp_path / "b", 30.0)])
    assert (totals["seconds"], totals["tokens"], totals["flops"]) == (90, 1000, 6000)
    assert totals["kwh"] == pytest.approx(20 * 90 / 3.6e6 * 1.58)
    assert all(totals[name] == sum(row[name] for row in totals["rows"]) for name in SUMMED)
    assert {row["energy_source"] for row in totals["rows"]} == {"estimated: 2 cores x 10 W"}


def test_the_total_of_no_runs_is_zero():
    nothing = dict.fromkeys(("seconds", "kwh", "co2e_kg", "tokens", "flops"), 0)
    assert total_cost([]) == {**nothing, "price_usd": None, "rows": []}


def test_missing_token_counts_of_old_runs_are_derived(tmp_path):
    assert total_cost([write_run(tmp_path / "a", tokens="gone")])["tokens"] == 500


def test_an_incomplete_run_is_reported_and_the_others_are_summed(tmp_path):
    complete, unfinished, modified = (write_run(tmp_path / name) for name in ("whole", "half", "odd"))
    malformed = write_run(tmp_path / "free", kwh="much")
    (unfinished / "harken.json").unlink()
    (unfinished / "recipe.toml").write_text("")
    (modified / "cost.json").write_text("{}")
    totals = total_cost([complete, unfinished, modified, malformed])
    problems = {row["run"]: row["problem"] for row in totals["rows"] if "problem" in row}
    assert totals["seconds"] == 60
    assert (
        problems[str(unfinished)]
        == f"{unfinished}: this run is not finished; resume with: harken train {unfinished} --resume"
    )
    assert problems[str(modified)].startswith(f"{modified / 'cost.json'}: SHA-256 mismatch: the file was modified")
    assert problems[str(malformed)] == f"{malformed / 'cost.json'}: not a cost file of harken"


# --- the lecture ------------------------------------------------------------------------------------------------------


def test_every_row_with_power_and_hours_is_computed():
    assert len(COMPUTED) == 5
    assert LECTURE_TABLE[1].lb == TRANSFORMER_BIG_LB
    assert [n for n, row in enumerate(lecture_costs()["rows"]) if row["kwh"] is not None] == COMPUTED


@pytest.mark.parametrize("n", COMPUTED)
def test_a_computed_row_agrees_within_half_a_percent_or_its_rounding(n):
    row = lecture_costs()["rows"][n]
    assert row["agrees"]
    for computed, printed in ((row["kwh"], row["printed_kwh"]), (row["co2e_lb"], row["printed_co2e_lb"])):
        assert computed == pytest.approx(printed, rel=0.005, abs=0.5)


def test_a_wrong_row_does_not_agree(monkeypatch):
    rows = (LECTURE_TABLE[3]._replace(hours=80), LECTURE_TABLE[3]._replace(lb=1400))
    monkeypatch.setattr(costs, "LECTURE_TABLE", rows)
    assert [row["agrees"] for row in lecture_costs()["rows"]] == [False, False]


def test_rounded_hours_are_remarked():
    remarks = {
        row.model + row.hardware: computed["remark"]
        for row, computed in zip(LECTURE_TABLE, lecture_costs()["rows"], strict=True)
    }
    assert remarks["BERT (base)V100x64"] == "79 hours are rounded: 79.2 give the printed numbers"
    assert remarks["Transformer (big)P100x8"] == ""


@pytest.mark.parametrize("n", [n for n in range(len(LECTURE_TABLE)) if n not in COMPUTED])
def test_a_row_that_cannot_be_computed_has_a_reason(n):
    row = lecture_costs()["rows"][n]
    assert row["kwh"] is row["co2e_lb"] is row["agrees"] is None
    assert row["remark"].startswith("no power is printed" if row["hours"] else "neither power nor hours")


# --- cloud costs and other consumption --------------------------------------------------------------------------------

PRICED = [n for n, row in enumerate(LECTURE_TABLE) if row.usd]


@pytest.mark.parametrize("n", PRICED)
def test_hours_times_devices_times_price_is_the_printed_cloud_cost(n):
    row = lecture_costs()["rows"][n]
    misprinted = row["usd_remark"].startswith("misprint")
    assert row["usd_agrees"] is not misprinted
    assert row["usd"] == pytest.approx(row["printed_usd"], rel=0.0052 if misprinted else 0.005, abs=0.5)


def test_rounded_hours_and_misprinted_costs_are_remarked():
    remarks = {row["model"] + row["hardware"]: row["usd_remark"] for row in lecture_costs()["rows"]}
    assert {name for name, remark in remarks.items() if remark} == {"BERT (base)V100x64", "NASTPUv2x1"}
    assert remarks["BERT (base)V100x64"] == "79 hours are rounded: 79.2 give the printed costs"
    assert remarks["NASTPUv2x1"] == "misprint: 32,633 hours give 44,055 and 146,848"


def test_a_wrong_cloud_cost_does_not_agree(monkeypatch):
    monkeypatch.setattr(costs, "LECTURE_TABLE", [LECTURE_TABLE[1]._replace(usd=(289, 1081))])
    assert lecture_costs()["rows"][0]["usd_agrees"] is False


def test_other_consumption_is_compared_with_trainings():
    rows = {row["consumption"]: row for row in lecture_costs()["consumption"]}
    assert len(rows) == 8
    assert rows["human life, average, 1 year"]["co2e_kg"] == pytest.approx(5000, abs=1)
    assert rows["training Transformer (big)"]["transformer_big"] == 1
    for row in rows.values():
        assert row["co2e_lb"] is None or row["co2e_lb"] == pytest.approx(row["printed_co2e_lb"], rel=0.005)
    assert sum(row["co2e_lb"] is not None for row in rows.values()) == 2


def test_the_table_is_plain_json():
    assert json.loads(json.dumps(lecture_costs())) == lecture_costs()
