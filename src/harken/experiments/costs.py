"""The total cost of several runs; and the cost table of CS5242, lecture 7, recomputed from its power and hours."""

import json
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import JsonValue

from harken import run_folder
from harken.errors import BadInput, BadRun
from harken.training.cost import LB_PER_KWH, LECTURE, PUE, emissions

SUMMED = ("seconds", "kwh", "co2e_kg", "tokens", "flops")
TOLERANCE = 0.005  # relative difference to a number of the lecture, if it does not round to it


def total_cost(folders: Iterable[Path]) -> dict[str, JsonValue]:
    """The cost of each run and the sum; a damaged or unfinished run has a "problem" instead."""
    rows: list[Any] = [_row(folder) for folder in folders]
    complete = [row for row in rows if "problem" not in row]
    return {**{name: sum(row[name] for row in complete) for name in SUMMED}, "rows": rows}


def _row(folder: Path) -> dict[str, Any]:
    row, path = {"run": str(folder)}, folder / "cost.json"
    try:
        if "imported" in run_folder.read_manifest(folder, "cost.json"):  # trained elsewhere, at an unknown cost
            return row | dict.fromkeys(SUMMED, 0.0) | {"energy_source": "imported: not trained here"}
        cost: dict[str, Any] = run_folder.read_json(path)
        cost.setdefault("tokens", cost["flops"] / (cost["flops_per_token"] or 1))  # missing in old runs
        return row | {name: float(cost[name]) for name in SUMMED} | {"energy_source": str(cost["energy_source"])}
    except BadRun as error:
        return row | {"problem": str(error)}
    except BadInput:  # no such folder
        raise
    except (KeyError, TypeError, ValueError):
        return row | {"problem": f"{path}: not a cost file of harken"}


class LectureRow(NamedTuple):
    """A row of the lecture: watts, hours, kWh with PUE, pounds of CO2e."""

    model: str
    hardware: str
    watts: float | None
    hours: float | None
    kwh: float | None
    lb: float | None


LECTURE_TABLE = [LectureRow(**r) for r in json.loads((files(__package__) / "lecture_costs.json").read_text("utf-8"))]


def lecture_costs() -> dict[str, JsonValue]:
    """Every row of the table with the numbers computed from its power and hours, or why they cannot be computed."""
    rows: list[Any] = [_recompute(row) for row in LECTURE_TABLE]
    totals = {name: sum(row[name] or 0 for row in rows) for name in ("kwh", "co2e_kg")}
    return {**totals, "pue": PUE, "lb_per_kwh": LB_PER_KWH, "source": LECTURE, "rows": rows}


def _recompute(row: LectureRow) -> dict[str, Any]:
    printed = {"model": row.model, "hardware": row.hardware, "watts": row.watts, "hours": row.hours}
    printed |= {"printed_kwh": row.kwh, "printed_co2e_lb": row.lb}
    if row.watts is None or row.hours is None or row.kwh is None or row.lb is None:
        nothing = row.watts is None and row.hours is None
        remark = "neither power nor hours are printed" if nothing else "no power is printed: none is public for TPUs"
        return {**printed, "kwh": None, "co2e_lb": None, "co2e_kg": None, "agrees": None, "remark": remark}
    computed = emissions(row.watts * row.hours / 1000)
    pairs = ((computed["kwh"], row.kwh), (computed["co2e_lb"], row.lb))
    rounds = all(round(x) == expected for x, expected in pairs)
    near = all(abs(x / expected - 1) <= TOLERANCE for x, expected in pairs)
    hours = row.hours * row.kwh / computed["kwh"]
    remark = "" if rounds else f"{row.hours:,.0f} hours are rounded: {hours:.1f} give the printed numbers"
    numbers = {name: computed[name] for name in ("kwh", "co2e_lb", "co2e_kg")}
    return {**printed, **numbers, "agrees": rounds or near, "remark": remark if near else "equal after rounding"}
