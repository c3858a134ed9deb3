"""harken data: list the data catalogue, or fetch one of its sets."""

from typing import Any

import click

from harken.console import Teller, size, table

from . import as_json, show

READ = {"weights": "import"}  # what is not trained on, and the verb that reads it


@click.command()
@click.argument("name", required=False)
@as_json
def data(name: str | None, json_: bool) -> None:
    """List the data catalogue, or fetch the set NAME into the cache and say where it is.

    A fetched set is checked against its hash; a cached one is checked and used again.
    """
    from harken.data import catalogue

    if name is None:
        _list(json_)
        return
    with Teller(aside=json_) as teller:
        got = catalogue.fetch(name, listen=teller)
    facts = {"sha256": got.sha256, "licence": got.licence, "attribution": got.attribution}
    if json_:
        show({"name": name, "path": got.path, **facts})
        return
    click.echo(f"{name}: {got.path}")
    for key, value in facts.items():
        click.echo(f"  {key:<11}  {value}")
    kind = catalogue.ENTRIES[name].kind
    click.echo(f"  next         harken {READ.get(kind, 'train')} {name}")


def _list(json_: bool) -> None:
    """What there is to fetch; `bytes` is what travels."""
    from harken.data import catalogue

    sets: list[dict[str, Any]] = [
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
    if json_:
        show({"sets": sets})
        return
    heads = ("name", "kind", "size", "what", "licence", "cached")
    shown = [{**one, "size": size(one["bytes"]), "cached": "yes" if one["cached"] else "no"} for one in sets]
    table(heads, [[str(one[head]) for head in heads] for one in shown])
    click.echo("\nharken data NAME fetches one")
