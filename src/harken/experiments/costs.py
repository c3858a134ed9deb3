"""The total cost of several runs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harken import run_folder
from harken.errors import BadRun

SUMMED = ("seconds", "kwh", "co2e_kg", "tokens", "flops")


def total_cost(folders: Iterable[Path]) -> dict[str, Any]:
    """The cost of each run and the sum; a damaged or unfinished run has a "problem" instead."""
    rows = [_row(folder) for folder in folders]
    complete = [row for row in rows if "problem" not in row]
    return {**{name: sum(row[name] for row in complete) for name in SUMMED}, "rows": rows}


def _row(folder: Path) -> dict[str, Any]:
    try:
        run_folder.read_manifest(folder, "cost.json")
        return {"run": str(folder), **_amounts(folder / "cost.json")}
    except BadRun as error:
        return {"run": str(folder), "problem": str(error)}


def _amounts(path: Path) -> dict[str, Any]:
    cost = run_folder.read_json(path)
    try:
        cost.setdefault("tokens", cost["flops"] / (cost["flops_per_token"] or 1))  # missing in old runs
        return {**{name: float(cost[name]) for name in SUMMED}, "energy_source": str(cost["energy_source"])}
    except (KeyError, TypeError, ValueError):
        raise BadRun(f"{path}: not a cost file of harken") from None
