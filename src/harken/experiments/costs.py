"""The total cost of several runs; and the cost tables of CS5242, lecture 7, recomputed from power, hours and prices."""

import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import JsonValue

from harken import run_folder
from harken.errors import BadInput, BadRun
from harken.training.cost import TRANSFORMER_BIG_LB, emissions
from harken.training.settings import KG_PER_LB, LB_PER_KWH, LECTURE, PUE

SUMMED = ("seconds", "kwh", "co2e_kg", "tokens", "flops")
TOLERANCE = 0.005  # relative difference to a number of the lecture, if it does not round to it


def total_cost(folders: Iterable[Path]) -> dict[str, JsonValue]:
    """The cost of each run and the sum; a damaged or unfinished run has a "problem" instead."""
    rows: list[Any] = [_row(folder) for folder in folders]
    complete = [row for row in rows if "problem" not in row]
    prices = [row["price_usd"] for row in complete if row["price_usd"] is not None]
    sums = {name: sum(row[name] for row in complete) for name in SUMMED}
    return {**sums, "price_usd": sum(prices) if prices else None, "rows": rows}


def _row(folder: Path) -> dict[str, Any]:
    row, path = {"run": str(folder)}, folder / "cost.json"
    try:
        if "imported" in run_folder.read_manifest(folder, "cost.json"):  # trained elsewhere, at an unknown cost
            return row | dict.fromkeys(SUMMED, 0.0) | {"energy_source": "imported: not trained here", "price_usd": None}
        cost: dict[str, Any] = run_folder.read_json(path)
        cost.setdefault("tokens", cost["flops"] / (cost["flops_per_token"] or 1))  # missing in old runs
        price = None if cost.get("price_usd") is None else float(cost["price_usd"])
        sources = {"energy_source": str(cost["energy_source"]), "price_usd": price}
        return row | {name: float(cost[name]) for name in SUMMED} | sources
    except BadRun as error:
        return row | {"problem": str(error)}
    except BadInput:  # no such folder
        raise
    except (KeyError, TypeError, ValueError):
        return row | {"problem": f"{path}: not a cost file of harken"}


class LectureRow(NamedTuple):
    """A row of the lecture: watts, hours, kWh with PUE, pounds of CO2e, the lowest and the highest cloud cost."""

    model: str
    hardware: str  # a device and the number of devices: P100x8
    watts: float | None
    hours: float | None
    kwh: float | None
    lb: float | None
    usd: tuple[float, float] | None


_TABLES = json.loads((files(__package__) / "lecture_costs.json").read_text("utf-8"))
LECTURE_TABLE = [LectureRow(**row) for row in _TABLES["training"]]
CONSUMPTION: list[dict[str, Any]] = _TABLES["consumption"]  # pounds of CO2e as printed, and the model, if in the table
PRICES: dict[str, tuple[float, float]] = _TABLES["prices"]  # USD per hour of a device
PRICE_SOURCE = (
    "USD per hour of a device, preemptible to on-demand (Google Cloud, US, 2019); the lecture prints no price per hour:"
    " these are its costs by hours and devices"
)


def lecture_costs() -> dict[str, JsonValue]:
    """Every row of both tables with the numbers computed from power and hours, or why they cannot be computed."""
    rows: list[Any] = [_recompute(row) | _cloud_cost(row) for row in LECTURE_TABLE]
    totals = {name: sum(row[name] or 0 for row in rows) for name in ("kwh", "co2e_kg")}
    factors = {"pue": PUE, "lb_per_kwh": LB_PER_KWH, "source": LECTURE}
    prices: Any = {"prices": PRICES, "price_source": PRICE_SOURCE}
    consumption: list[Any] = [_compare(row, rows) for row in CONSUMPTION]
    return {**totals, **factors, **prices, "rows": rows, "consumption": consumption}


def _compare(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A row of the first table in kg, in trainings of Transformer (big), and computed where the model has its power."""
    computed = next((r["co2e_lb"] for r in rows if r["model"] == row["model"] and r["co2e_lb"]), None)
    printed = {"consumption": row["consumption"], "printed_co2e_lb": row["lb"], "co2e_lb": computed}
    return {**printed, "co2e_kg": row["lb"] * KG_PER_LB, "transformer_big": row["lb"] / TRANSFORMER_BIG_LB}


def _cloud_cost(row: LectureRow) -> dict[str, Any]:
    """The lowest and the highest cloud cost: hours x devices x price per hour."""
    if row.hours is None or row.usd is None:
        return {"printed_usd": None, "usd": None, "usd_agrees": None, "usd_remark": ""}
    device, _, count = row.hardware.rpartition("x")
    prices = [int(count) * price for price in PRICES[device]]  # of all devices
    usd = [row.hours * price for price in prices]
    pairs = list(zip(usd, row.usd, strict=True))
    rounds = all(round(x) == printed for x, printed in pairs)
    near = all(abs(x / printed - 1) <= TOLERANCE for x, printed in pairs)
    hours = [printed / price for printed, price in zip(row.usd, prices, strict=True)]
    remark = f"{row.hours:,} hours are rounded: {hours[0]:,.1f} give the printed costs"
    if abs(hours[0] / hours[1] - 1) > TOLERANCE:
        rounded = round(hours[0])
        remark = f"misprint: {rounded:,} hours give {row.usd[0]:,} and {rounded * prices[1]:,.0f}"
    costs = {"printed_usd": list(row.usd), "usd": usd, "usd_agrees": rounds or near}
    return {**costs, "usd_remark": "" if rounds else remark}


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
