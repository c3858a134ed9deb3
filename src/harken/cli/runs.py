"""harken runs"""

from pathlib import Path
from typing import Any

import click

from harken.console import columns, judged, measured, table
from harken.errors import COMPARISON, BadInput, BadRun, near_name
from harken.experiments.report.line_chart import duration, scaled
from harken.experiments.report.page import LESS

from . import as_json, show


@click.command()
@click.argument("folder", required=False, metavar="[DIR]")
@as_json
def runs(folder: str | None, json_: bool) -> None:
    """The run folders in DIR (default: runs), trials of comparisons too: kind, metric, size, date, cost."""
    if folder is not None and Path(folder).is_file():
        raise BadInput(f"{folder}: this is a file; a folder with runs in it, or a run, is accepted")
    if folder is not None and not Path(folder).is_dir():
        raise BadInput(f"{folder}: there is no such folder; check the name{near_name(folder)}")
    folder = folder or "runs"
    rows = [_row(path) for path in folders(folder)]
    if json_:
        show({"runs": rows})
        return
    if not rows:
        click.echo(f"no runs in {folder}; make one with: harken train my.txt")
        return
    whole = [_cells(row) for row in rows if row["state"] == "finished"]
    if whole:
        table(("run", "kind", "weights", "split", "metrics", "date", "cost"), whole)
    odd = [(row["run"], f"{row['state']}: {row['problem']}") for row in rows if row["state"] != "finished"]
    click.echo("\n".join(columns(odd))) if odd else None


def folders(folder: str) -> list[Path]:
    """The runs in a folder, finished or not, with the trials of comparisons; a run stands for itself."""
    places = [Path(folder), *Path(folder).glob("*")]
    trials = [trial for place in places[1:] if (place / COMPARISON).exists() for trial in place.glob("*")]
    return sorted(p for p in (*places, *trials) if (p / "recipe.toml").exists() or (p / "harken.json").exists())


def _row(path: Path) -> dict[str, Any]:
    """The facts of a run, or what is wrong with it."""
    from harken.run_folder import facts, read_json, unfinished

    try:
        found = facts(path, "recipe.toml", "model.safetensors", "tokenizer.json", "cost.json")
        cost = read_json(path / "cost.json")
        row = {"run": str(path), "state": "finished"}
        row |= {name: found[name] for name in ("kind", "parameters", "steps", "date", "metrics")}
        row |= {"seconds": cost["seconds"], "kwh": cost["kwh"]}
        _cells(row)
        return row
    except BadRun as error:
        if not (path / "harken.json").exists():
            return {"run": str(path), "state": "not finished", "problem": unfinished(path)}
        problem = str(error)
    except (KeyError, TypeError, ValueError, AttributeError):
        problem = f"{path / 'harken.json'}: does not hold the facts of a run"
    return {"run": str(path), "state": "damaged", "problem": problem}


def _cells(row: dict[str, Any]) -> list[str]:
    split = judged(row["metrics"])
    metrics = sorted(row["metrics"].get(split, {}).items(), key=lambda found: found[0] in LESS - {"loss"})[:2]
    shown = "  ".join(f"{name} {measured(value):>6}" for name, value in metrics)
    cost = f"{duration(row['seconds'])}, {scaled(row['kwh'], 'energy')}"
    return [row["run"], str(row["kind"]), scaled(row["parameters"], "count"), split, shown, str(row["date"]), cost]
