"""harken search RUN CORPUS QUERY..."""

from typing import TYPE_CHECKING

import click

from harken.console import ConsoleListener

from . import json_option, load_run, overflow_option, print_json
from .embed import pool_option
from .inputs import Inputs

if TYPE_CHECKING:
    from harken.inference.answers import OverflowMode


@click.command()
@click.argument("run")
@click.argument("corpus")
@click.argument("queries", nargs=-1, metavar="[QUERY...]")
@click.option("-k", type=click.IntRange(1), default=5, help="Number of lines to print.")
@pool_option
@overflow_option
@json_option
def search(
    run: str, corpus: str, queries: tuple[str, ...], k: int, pool: str, json_: bool, overflow: "OverflowMode"
) -> None:
    """Find the lines of the text file CORPUS nearest to QUERY. With - or piped input, each line of stdin is a query.

    The search is exact. Embeddings are computed once and cached until the file or the run changes.
    """
    inputs = Inputs(queries, "a query, or - to read queries")
    from harken.inference.answers.embed import SearchHit

    model = load_run(run, "embed")
    hits: list[list[SearchHit]] = []
    with ConsoleListener(to_stderr=True) as listener:
        file = model.corpus(corpus, pool=pool, overflow=overflow, listen=listener)
        for query in inputs.lines():
            hits.append(file.search(query, k))
            if not json_:
                click.echo("\n" * (len(hits) > 1), nl=False)
                for hit in hits[-1]:
                    click.echo(f"{hit['score']:7.4f}  {hit['line']:>6}  {hit['text']}")
        if json_:
            print_json({"hits": hits if inputs.stdin or len(queries) > 1 else hits[0]})
