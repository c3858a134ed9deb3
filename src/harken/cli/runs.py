"""harken runs"""

from pathlib import Path
from typing import Any

import click

from . import as_json, show
from .say import duration, energy, number


@click.command()
@click.argument("folder", default="runs", metavar="[DIR]")
@as_json
def runs(folder: str, json_: bool) -> None:
    """The run folders in DIR (default: runs): kind, metric, size, date, cost."""
    from harken.errors import BadRun
    from harken.run import facts, read_json

    rows: list[dict[str, Any]] = []
    for path in sorted(p for p in Path(folder).glob("*") if (p / "recipe.toml").exists()):
        try:
            found, cost = facts(path, "cost.json"), read_json(path / "cost.json")
            kept = {name: found[name] for name in ("kind", "parameters", "steps", "date", "metrics")}
            rows.append({"run": str(path), "state": "finished", **kept, "seconds": cost["seconds"], "kwh": cost["kwh"]})
        except (BadRun, KeyError) as error:
            unfinished = isinstance(error, BadRun) and "not finished" in str(error)
            rows.append({"run": str(path), "state": "not finished" if unfinished else f"damaged: {error}"})
    if json_:
        show({"runs": rows})
        return
    for row in rows:
        click.echo(_line(row))
    if not rows:
        click.echo(f"no runs in {folder}; make one with: harken train my.txt")


def _line(row: dict[str, Any]) -> str:
    if row["state"] != "finished":
        return f"{row['run']:<28} {row['state']}"
    split, metrics = next(iter(row["metrics"].items()), ("", {}))
    judged = f"{split} " + "  ".join(f"{name} {value:.4g}" for name, value in list(metrics.items())[:2])
    cost = f"{duration(row['seconds'])}, {energy(row['kwh'])}"
    size = f"{number(row['parameters'])} weights"
    return f"{row['run']:<28} {row['kind']:<6} {size:>16}   {judged:<36} {row['date']}   {cost}"
