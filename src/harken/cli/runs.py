"""harken runs"""

from pathlib import Path
from typing import Any

import click

from . import as_json, show
from .say import duration, energy, figure, judged, number, table


@click.command()
@click.argument("folder", default="runs", metavar="[DIR]")
@as_json
def runs(folder: str, json_: bool) -> None:
    """The run folders in DIR (default: runs): kind, metric, size, date, cost."""
    found = sorted(p for p in Path(folder).glob("*") if (p / "recipe.toml").exists() or (p / "harken.json").exists())
    rows = [_row(path) for path in found]
    if json_:
        show({"runs": rows})
        return
    if not rows:
        click.echo(f"no runs in {folder}; make one with: harken train my.txt")
        return
    whole = [_cells(row) for row in rows if row["state"] == "finished"]
    if whole:
        table(("run", "kind", "weights", "metric", "date", "cost"), whole)
    for row in rows:
        if row["state"] != "finished":
            click.echo(f"{row['run']}  {row['state']}: {row['problem']}")


def _row(path: Path) -> dict[str, Any]:
    """The facts of a run, or what is wrong with it."""
    from harken.errors import BadRun
    from harken.run import facts, read_json

    try:
        found, cost = facts(path, "cost.json", "recipe.toml"), read_json(path / "cost.json")
        row = {"run": str(path), "state": "finished"}
        row |= {name: found[name] for name in ("kind", "parameters", "steps", "date", "metrics")}
        row |= {"seconds": cost["seconds"], "kwh": cost["kwh"]}
        _cells(row)
        return row
    except BadRun as error:
        if not (path / "harken.json").exists():
            return {"run": str(path), "state": "not finished", "problem": f"go on with: harken train {path} --resume"}
        problem = str(error)
    except (KeyError, TypeError, ValueError, AttributeError):
        problem = f"{path / 'harken.json'}: does not hold the facts of a run"
    return {"run": str(path), "state": "damaged", "problem": problem}


def _cells(row: dict[str, Any]) -> list[str]:
    split = judged(row["metrics"])
    metrics = row["metrics"].get(split, {})
    shown = "  ".join([split, *(f"{name} {figure(value)}" for name, value in list(metrics.items())[:2])])
    cost = f"{duration(row['seconds'])}, {energy(row['kwh'])}"
    return [str(row["run"]), str(row["kind"]), number(row["parameters"]), shown, str(row["date"]), cost]
