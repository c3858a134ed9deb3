"""harken runs"""

from pathlib import Path
from typing import Any

import click

from harken.console import columns, format_metric, main_split, table
from harken.errors import BadInput, BadRun
from harken.experiments.report.formatting import LOWER_IS_BETTER, format_duration, format_quantity
from harken.suggestions import COMPARISON_FILE, similar_path

from . import json_option, print_json


@click.command()
@click.argument("folder", required=False, metavar="[DIR]")
@json_option
def runs(folder: str | None, json_: bool) -> None:
    """List the run folders in DIR (default: runs), with the trials of comparisons: kind, metrics, size, date, cost."""
    if folder is not None and Path(folder).is_file():
        raise BadInput(f"{folder}: this is a file; give a run folder or a folder of runs")
    if folder is not None and not Path(folder).is_dir():
        raise BadInput(f"{folder}: no such folder; check the name{similar_path(folder)}")
    folder = folder or "runs"
    rows = [_run_row(path) for path in run_folders(folder)]
    if json_:
        return print_json({"runs": rows})
    if not rows:
        return click.echo(f"no runs in {folder}; train one: harken train my.txt")
    finished = [_run_cells(row) for row in rows if row["state"] == "finished"]
    if finished:
        table(("run", "kind", "weights", "split", "metrics", "date", "cost"), finished)
    unfinished_rows = [(row["run"], f"{row['state']}: {row['problem']}") for row in rows if row["state"] != "finished"]
    click.echo("\n".join(columns(unfinished_rows))) if unfinished_rows else None


def run_folders(folder: str) -> list[Path]:
    """The runs in a folder, finished or not, with the trials of comparisons; a run folder contains itself."""
    places = [Path(folder), *Path(folder).glob("*")]
    trials = [trial for place in places[1:] if (place / COMPARISON_FILE).exists() for trial in place.glob("*")]
    return sorted(p for p in (*places, *trials) if (p / "recipe.toml").exists() or (p / "harken.json").exists())


def _run_row(path: Path) -> dict[str, Any]:
    """The facts of a run, or its problem."""
    from harken.run_folder import read_json, read_manifest, unfinished_hint

    try:
        run_facts = read_manifest(path, "recipe.toml", "model.safetensors", "tokenizer.json", "cost.json")
        cost = read_json(path / "cost.json")
        row: dict[str, Any] = {"run": str(path), "state": "finished"}
        row |= {name: run_facts[name] for name in ("kind", "parameters", "steps", "date", "metrics")}
        row |= {"seconds": cost["seconds"], "kwh": cost["kwh"]}
        _run_cells(row)
        return row
    except BadRun as error:
        if not (path / "harken.json").exists():
            return {"run": str(path), "state": "not finished", "problem": unfinished_hint(path)}
        problem = str(error)
    except (KeyError, TypeError, ValueError, AttributeError):
        problem = f"{path / 'harken.json'}: not written by harken"
    return {"run": str(path), "state": "damaged", "problem": problem}


def _run_cells(row: dict[str, Any]) -> list[str]:
    split = main_split(row["metrics"])
    metrics = sorted(row["metrics"].get(split, {}).items(), key=lambda item: item[0] in LOWER_IS_BETTER - {"loss"})[:2]
    shown = "  ".join(f"{name} {format_metric(value):>6}" for name, value in metrics)
    weights, energy = format_quantity(row["parameters"], "count"), format_quantity(row["kwh"], "energy")
    cost = f"{format_duration(row['seconds'])}, {energy}"
    return [row["run"], str(row["kind"]), weights, split, shown, str(row["date"]), cost]
