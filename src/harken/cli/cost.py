"""harken cost [RUN ...], harken cost --lecture"""

from pathlib import Path
from typing import Any

import click

from harken.console import table
from harken.errors import BadInput
from harken.experiments.report.formatting import format_duration, format_number, format_price, format_quantity

from . import json_option, print_json, reject_options
from .runs import run_folders

COMPARED = ("co2e_lb", "co2e_kg", "transformer_big")


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN ...]")
@click.option("--lecture", is_flag=True, help="Recompute the cost tables printed in CS5242, lecture 7.")
@json_option
def cost(runs: tuple[str, ...], lecture: bool, json_: bool) -> None:
    """Sum the time, energy, CO2e and tokens of runs and trials of comparisons (default: all in the folder runs).

    The settings of the section cost of a recipe set the PUE, the carbon intensity of the grid and the price per hour.
    """
    from harken.experiments.costs import lecture_costs, total_cost

    if lecture:
        reject_options("with --lecture", "runs")
    if setting := next((run for run in runs if run.startswith("cost.") and "=" in run), None):
        fix = "give it to harken train or harken compare; the cost of a finished run is not computed again"
        raise BadInput(f"{setting}: is a setting of a training; {fix}")
    folders = [path for folder in runs for path in run_folders(folder) or [Path(folder)]]  # refused later if not a run
    totals = lecture_costs() if lecture else total_cost(folders if runs else run_folders("runs"))
    if json_:
        print_json({"kWh": totals["kwh"], **totals})
    elif lecture:
        _print_lecture_table(totals)
    elif not totals["rows"]:
        click.echo("no runs in runs; train one: harken train my.txt")
    else:
        _print_costs(totals)


def _print_costs(totals: dict[str, Any]) -> None:
    complete = [row for row in totals["rows"] if "problem" not in row]
    priced = totals["price_usd"] is not None
    rows = [[row["run"], *_cost_cells(row, priced), row["energy_source"]] for row in complete]
    rows += [[f"{len(complete)} together", *_cost_cells(totals, priced), ""]] if len(complete) > 1 else []
    if rows:
        heads = ("run", "time", "energy", "CO2e", "tokens", "FLOPs", *["price"] * priced, "energy source")
        table(heads, rows)
    for row in totals["rows"]:
        if "problem" in row:
            click.echo(f"not counted: {row['problem']}")


def _cost_cells(row: dict[str, Any], priced: bool) -> list[str]:
    units = {"kwh": "energy", "co2e_kg": "mass", "tokens": "count", "flops": "flop"}
    cells = [format_duration(row["seconds"]), *(format_quantity(row[name], unit) for name, unit in units.items())]
    return cells + [format_price(row["price_usd"])] * priced


def _print_lecture_table(totals: dict[str, Any]) -> None:
    rows = []
    for row in totals["rows"]:
        fields = ("watts", "hours", "printed_kwh", "printed_co2e_lb")
        watts, hours, kwh, lb = ("" if row[name] is None else f"{row[name]:,}" for name in fields)
        numbers = [watts, hours, kwh, format_number(row["kwh"], 4), lb, format_number(row["co2e_lb"], 4)]
        rows.append([row["model"], row["hardware"], *numbers, row["remark"]])
    rule = f"kWh = W x hours / 1000 x PUE {totals['pue']}, lb = kWh x {totals['lb_per_kwh']}"
    click.echo(f"{rule} ({totals['source']})\n")
    heads = ("model", "hardware", "W", "hours", "kWh printed", "computed", "lb CO2e printed", "computed", "remark")
    table(heads, rows)
    click.echo(f"\nCloud cost = hours x devices x price ({totals['price_source']})\n")
    table(("model", "hardware", "hours", "USD per hour", "USD printed", "computed", "remark"), _cloud_rows(totals))
    click.echo("\nTrainings next to other consumption\n")
    compared = [
        [row["consumption"], f"{row['printed_co2e_lb']:,}", *(format_number(row[name], 4) for name in COMPARED)]
        for row in totals["consumption"]
    ]
    table(("consumption", "lb CO2e printed", "computed", "kg", "trainings of Transformer (big)"), compared)


def _cloud_rows(totals: dict[str, Any]) -> list[list[str]]:
    rows = []
    for row in totals["rows"]:
        if row["usd"]:
            prices = totals["prices"][row["hardware"].rpartition("x")[0]]
            ranges = (
                f"{prices[0]:.2f} to {prices[1]:.2f}",
                *(f"{a:,.0f} to {b:,.0f}" for a, b in (row["printed_usd"], row["usd"])),
            )
            rows.append([row["model"], row["hardware"], f"{row['hours']:,}", *ranges, row["usd_remark"]])
    return rows
