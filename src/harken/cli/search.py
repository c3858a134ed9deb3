"""harken search RUN CORPUS QUERY..."""

from typing import Any

import click

from harken.console import Teller, lines, piped, typed

from . import as_json, show
from .embed import as_pool


@click.command()
@click.argument("run")
@click.argument("corpus")
@click.argument("queries", nargs=-1, metavar="[QUERY...]")
@click.option("-k", type=click.IntRange(1), default=5, show_default=True, help="How many lines are shown.")
@as_pool
@as_json
def search(run: str, corpus: str, queries: tuple[str, ...], k: int, pool: str, json_: bool) -> None:
    """The lines of the text file CORPUS that are nearest to QUERY. With -, or piped, each line of stdin is a query.

    Every line is compared. Its vector is made once and kept in the cache, until the file or the run changes.
    """
    if not queries and not piped():
        raise click.UsageError("give a query, or - to read queries from stdin, one a line")
    from harken.inference.run import load

    model = load(run)
    model.must("embed")
    stdin = queries in ((), ("-",))
    with Teller(aside=True) as teller:
        file = model.corpus(corpus, pool=pool, listen=teller)
        found: list[list[dict[str, Any]]] = []
        for query in lines(must=not queries) if stdin else map(typed, queries):
            found.append(file.search(query, k))
            if not json_:
                click.echo("\n" * (len(found) > 1), nl=False)
                for hit in found[-1]:
                    click.echo(f"{hit['score']:7.4f}  {hit['line']:>6}  {hit['text']}")
    if json_:
        show({"hits": found if stdin or len(queries) > 1 else found[0]})
