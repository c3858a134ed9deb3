"""harken data [NAME]"""

from typing import Any

import click

from harken.console import ConsoleListener, download_size, table

from . import json_option, print_json

COMMANDS_BY_KIND = {"weights": "import"}  # entries that are not training data, and the command that reads them


@click.command()
@click.argument("name", required=False)
@json_option
def data(name: str | None, json_: bool) -> None:
    """List the data catalogue, or download the data set NAME into the cache and print its path.

    Every download is checked against its SHA-256; a cached data set is checked and reused.
    """
    from harken.data import catalogue

    if name is None:
        _print_catalogue(json_)
        return
    with ConsoleListener(to_stderr=json_) as listener:
        dataset = catalogue.fetch(name, listen=listener)
    facts = {"sha256": dataset.sha256, "licence": dataset.license, "attribution": dataset.attribution}
    if json_:
        print_json({"name": name, "path": dataset.path, **facts})
        return
    click.echo(f"{name}: {dataset.path}")
    for key, value in facts.items():
        click.echo(f"  {key:<11}  {value}")
    kind = catalogue.ENTRIES[name].kind
    click.echo(f"  next         harken {COMMANDS_BY_KIND.get(kind, 'train')} {name}")


def _print_catalogue(json_: bool) -> None:
    """Print all data sets; `bytes` is the download size."""
    from harken.data import catalogue

    sets: list[dict[str, Any]] = [
        {
            "name": name,
            "kind": entry.kind,
            "bytes": entry.package.bytes if entry.package else 0,
            "what": entry.description,
            "licence": entry.license,
            "attribution": entry.attribution,
            "cached": catalogue.is_cached(name),
        }
        for name, entry in catalogue.ENTRIES.items()
    ]
    if json_:
        print_json({"sets": sets})
        return
    heads = ("name", "kind", "size", "what", "licence", "cached")
    shown = [{**one, "size": download_size(one["bytes"]), "cached": "yes" if one["cached"] else "no"} for one in sets]
    table(heads, [[str(one[head]) for head in heads] for one in shown])
    click.echo("\nharken data NAME downloads one")
