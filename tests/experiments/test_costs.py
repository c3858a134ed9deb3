"""What runs cost together, and the lecture's table computed again."""

import json

import pytest

from harken import run_folder
from harken.experiments.costs import SUMMED, TABLE, lecture, together
from harken.training.cost import Reading, cost

COMPUTED = [n for n, row in enumerate(TABLE) if row.watts]


def made(folder, seconds=60.0, **changed):
    """A finished run of which only the cost is there."""
    folder.mkdir()
    found = cost(Reading(seconds, 20 * seconds, "estimated: 2 cores x 10 W"), tokens=500, flops_per_token=6.0)
    run_folder.write_json(folder / "cost.json", {k: v for k, v in (found | changed).items() if v != "gone"})
    run_folder.finish(folder, {})
    return folder


# --- together ---------------------------------------------------------------------------------------------------------


def test_the_sum_is_that_of_its_rows(tmp_path):
    found = together([made(tmp_path / "a", 60.0), made(tmp_path / "b", 30.0)])
    assert (found["seconds"], found["tokens"], found["flops"]) == (90, 1000, 6000)
    assert found["kwh"] == pytest.approx(20 * 90 / 3.6e6 * 1.58)
    assert all(found[name] == sum(row[name] for row in found["rows"]) for name in SUMMED)
    assert {row["energy_source"] for row in found["rows"]} == {"estimated: 2 cores x 10 W"}


def test_nothing_costs_nothing():
    assert together([]) == {"seconds": 0, "kwh": 0, "co2e_kg": 0, "tokens": 0, "flops": 0, "rows": []}


def test_the_first_runs_did_not_write_their_tokens_down(tmp_path):
    assert together([made(tmp_path / "a", tokens="gone")])["tokens"] == 500


def test_a_run_that_is_not_whole_is_named_and_the_others_are_summed(tmp_path):
    whole, half, odd = (made(tmp_path / name) for name in ("whole", "half", "odd"))
    free = made(tmp_path / "free", kwh="much")
    (half / "harken.json").unlink()
    (half / "recipe.toml").write_text("")
    (odd / "cost.json").write_text("{}")
    found = together([whole, half, odd, free])
    problems = {row["run"]: row["problem"] for row in found["rows"] if "problem" in row}
    assert found["seconds"] == 60
    assert problems[str(half)] == f"{half}: this run is not finished; go on with: harken train {half} --resume"
    assert problems[str(odd)].startswith(f"{odd / 'cost.json'}: is not the file this run was finished with")
    assert problems[str(free)] == f"{free / 'cost.json'}: does not hold the cost of a run"


# --- the lecture ------------------------------------------------------------------------------------------------------


def test_every_row_with_power_and_hours_is_computed():
    assert len(COMPUTED) == 5
    assert [n for n, row in enumerate(lecture()["rows"]) if row["kwh"] is not None] == COMPUTED


@pytest.mark.parametrize("n", COMPUTED)
def test_a_computed_row_is_the_printed_one_within_half_a_percent_or_its_rounding(n):
    row = lecture()["rows"][n]
    assert row["agrees"]
    for mine, printed in ((row["kwh"], row["printed_kwh"]), (row["co2e_lb"], row["printed_co2e_lb"])):
        assert mine == pytest.approx(printed, rel=0.005, abs=0.5)


def test_a_wrong_row_would_not_agree(monkeypatch):
    from harken.experiments import costs as costs

    monkeypatch.setattr(costs, "TABLE", (TABLE[3]._replace(hours=80), TABLE[3]._replace(lb=1400)))
    assert [row["agrees"] for row in lecture()["rows"]] == [False, False]


def test_hours_that_were_rounded_are_named():
    remarks = {row.model + row.hardware: found["remark"] for row, found in zip(TABLE, lecture()["rows"], strict=True)}
    assert remarks["BERT (base)V100x64"] == "79 hours are rounded: 79.2 make what is printed"
    assert remarks["Transformer (big)P100x8"] == ""


@pytest.mark.parametrize("n", [n for n in range(len(TABLE)) if n not in COMPUTED])
def test_a_row_that_cannot_be_computed_says_why(n):
    row = lecture()["rows"][n]
    assert row["kwh"] is row["co2e_lb"] is row["agrees"] is None
    assert row["remark"].startswith("no power is printed" if row["hours"] else "neither power nor hours")


def test_the_table_is_plain_json():
    assert json.loads(json.dumps(lecture())) == lecture()
