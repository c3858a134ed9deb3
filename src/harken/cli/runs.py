"""harken runs"""

from pathlib import Path
from typing import Any

import click

from harken.console import columns, format_metric, main_split, table
from harken.errors import BadInput, BadRun
from harken.experiments.report.formatting import LOWER_IS_BETTER, format_duration, format_quantity
from harken.suggestions import COMPARISON_FILE, similar_path

from . import json_option, print_json

REQUIRED = ("recipe.toml", "model.safetensors", "tokenizer.json", "cost.json")
REPORT = "report.html"  # may be edited or deleted: nothing reads it, and harken report builds it again


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
    readable = [_run_cells(row) for row in rows if "metrics" in row]
    if readable:
        table(("run", "state", "kind", "weights", "split", "metrics", "date", "cost"), readable)
    problems = [(row["run"], f"{row['state']}: {row['problem']}") for row in rows if "problem" in row]
    click.echo("\n".join(columns(problems))) if problems else None


def run_folders(folder: str) -> list[Path]:
    """The runs in a folder, finished or not, with the trials of comparisons; a run folder contains itself."""
    places = [Path(folder), *Path(folder).glob("*")]
    trials = [trial for place in places[1:] if (place / COMPARISON_FILE).exists() for trial in place.glob("*")]
    return sorted(p for p in (*places, *trials) if (p / "recipe.toml").exists() or (p / "harken.json").exists())


def _run_row(path: Path) -> dict[str, Any]:
    """The facts of a run, as far as they can be read, and its problem, if it has one."""
    from harken.run_folder import read_json, read_manifest, unfinished_hint

    row: dict[str, Any] = {"run": str(path), "state": "finished"}
    try:
        run_facts = read_manifest(path, "recipe.toml")
        facts = {name: run_facts[name] for name in ("kind", "parameters", "steps", "date", "metrics")}
        facts |= {"imported": "imported" in run_facts, "seconds": None, "kwh": None}
        _run_cells(row | facts)
        row |= facts
        hashes: Any = run_facts["sha256"]
        read_manifest(path, *REQUIRED, *(name for name in hashes if name not in (*REQUIRED, REPORT)))
        cost = read_json(path / "cost.json")
        row |= {"seconds": cost["seconds"], "kwh": cost["kwh"]}
        _run_cells(row)
        return row
    except BadRun as error:
        if not (path / "harken.json").exists():
            return row | {"state": "not finished", "problem": unfinished_hint(path)}
        problem = str(error)
    except (KeyError, TypeError, ValueError, AttributeError):
        problem = f"{path / 'harken.json'}: not written by harken"
    return row | {"state": "damaged", "problem": problem}


def _run_cells(row: dict[str, Any]) -> list[str]:
    split = main_split(row["metrics"])
    metrics = sorted(row["metrics"].get(split, {}).items(), key=lambda item: item[0] in LOWER_IS_BETTER - {"loss"})[:2]
    shown = "  ".join(f"{name} {format_metric(value):>6}" for name, value in metrics)
    weights = format_quantity(row["parameters"], "count")
    if row["imported"]:
        cost = "imported"
    elif row["kwh"] is None:
        cost = ""
    else:
        cost = f"{format_duration(row['seconds'])}, {format_quantity(row['kwh'], 'energy')}"
    return [row["run"], row["state"], str(row["kind"]), weights, split, shown, str(row["date"]), cost]
