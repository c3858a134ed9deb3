"""harken cost [RUN ...], harken cost --lecture"""

from pathlib import Path
from typing import Any

import click

from harken.console import table
from harken.experiments.report.line_chart import duration, figure, scaled

from . import as_json, refuse, show
from .runs import folders


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN ...]")
@click.option("--lecture", is_flag=True, help="Compute the cost table of CS5242, lecture 7, again instead.")
@as_json
def cost(runs: tuple[str, ...], lecture: bool, json_: bool) -> None:
    """What these runs cost together (default: all in runs; a comparison is its trials): time, energy, CO2e, tokens."""
    from harken.experiments import costs as costs

    if lecture:
        refuse("with --lecture", "runs")
    named = [path for given in runs for path in folders(given) or [Path(given)]]  # what is none is refused by its name
    found = costs.lecture() if lecture else costs.together(named if runs else folders("runs"))
    if json_:
        show({"kWh": found["kwh"], **found})
    elif lecture:
        _lecture(found)
    elif not found["rows"]:
        click.echo("no runs in runs; make one with: harken train my.txt")
    else:
        _together(found)


def _together(found: dict[str, Any]) -> None:
    whole = [row for row in found["rows"] if "problem" not in row]
    rows = [[row["run"], *_cells(row), row["energy_source"]] for row in whole]
    rows += [[f"{len(whole)} together", *_cells(found), ""]] if len(whole) > 1 else []
    if rows:
        table(("run", "time", "energy", "CO2e", "tokens", "arithmetic", "energy is"), rows)
    for row in found["rows"]:
        if "problem" in row:
            click.echo(f"not counted: {row['problem']}")


def _cells(row: dict[str, Any]) -> list[str]:
    energy, mass = scaled(row["kwh"], "energy"), scaled(row["co2e_kg"], "mass")
    return [duration(row["seconds"]), energy, mass, scaled(row["tokens"], "count"), scaled(row["flops"], "flop")]


def _lecture(found: dict[str, Any]) -> None:
    rows = []
    for row in found["rows"]:
        given = ("watts", "hours", "printed_kwh", "printed_co2e_lb")
        watts, hours, kwh, lb = ("" if row[name] is None else f"{row[name]:,}" for name in given)
        numbers = [watts, hours, kwh, figure(row["kwh"], 4), lb, figure(row["co2e_lb"], 4)]
        rows.append([row["model"], row["hardware"], *numbers, row["remark"]])
    click.echo(f"kWh = W x hours / 1000 x PUE {found['pue']}, lb = kWh x {found['lb_per_kwh']} ({found['source']})\n")
    heads = ("model", "hardware", "W", "hours", "kWh printed", "computed", "lb CO2e printed", "computed", "remark")
    table(heads, rows)
    click.echo("\nThe table's prices of a cloud are left out: no price of an hour is printed.")
