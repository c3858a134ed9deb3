"""harken data: list the data catalogue, or fetch one of its sets."""

import json
from typing import Any

import click


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def data(name: str | None, as_json: bool) -> None:
    """List the data catalogue, or fetch the set NAME into the cache and say where it is.

    A fetched set is checked against its hash; a cached one is checked and used again.
    """
    if name is None:
        sets = _sets()
        if as_json:
            click.echo(json.dumps({"sets": sets}))
        else:
            _show(sets)
        return

    from harken.data import catalogue

    got = catalogue.fetch(name, listen=_progress)
    if as_json:
        facts = {"path": str(got.path), "sha256": got.sha256, "licence": got.licence, "attribution": got.attribution}
        click.echo(json.dumps({"name": name, **facts}))
        return
    click.echo(f"{name}: {got.path}")
    click.echo(f"  sha256       {got.sha256}")
    click.echo(f"  licence      {got.licence}")
    click.echo(f"  attribution  {got.attribution}")


def _sets() -> list[dict[str, Any]]:
    """What there is to fetch, one dictionary a set; `bytes` is what travels."""
    from harken.data import catalogue

    return [
        {
            "name": name,
            "kind": entry.kind,
            "bytes": entry.package.bytes if entry.package else 0,
            "what": entry.what,
            "licence": entry.licence,
            "attribution": entry.attribution,
            "cached": catalogue.is_cached(name),
        }
        for name, entry in catalogue.ENTRIES.items()
    ]


def _show(sets: list[dict[str, Any]]) -> None:
    """A table on a terminal, aligned plain lines elsewhere."""
    from rich.console import Console
    from rich.table import Table

    heads = ["name", "kind", "size", "what", "licence", "cached"]
    rows = [
        [one["name"], one["kind"], _size(one["bytes"]), one["what"], one["licence"], "yes" if one["cached"] else "no"]
        for one in sets
    ]
    console = Console()
    if console.is_terminal:
        table = Table(*heads, box=None, header_style="bold", pad_edge=False)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print("\nharken data NAME fetches one", highlight=False)
        return
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count else "made here"


def _progress(event: str, /, **facts: Any) -> None:
    """Say on stderr that something travels: stdout is for the result."""
    if event == "fetch" and facts["done"] == 0:
        click.echo(f"fetching {facts['name']}, {_size(facts['total'])} ...", err=True)
