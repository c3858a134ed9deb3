"""harken search RUN CORPUS QUERY..."""

import click

from harken.console import ConsoleListener, decode_argument, stdin_is_piped, stdin_lines

from . import json_option, print_json
from .embed import pool_option


@click.command()
@click.argument("run")
@click.argument("corpus")
@click.argument("queries", nargs=-1, metavar="[QUERY...]")
@click.option("-k", type=click.IntRange(1), default=5, show_default=True, help="Number of lines to print.")
@pool_option
@json_option
def search(run: str, corpus: str, queries: tuple[str, ...], k: int, pool: str, json_: bool) -> None:
    """Find the lines of the text file CORPUS nearest to QUERY. With -, or piped, each line of stdin is a query.

    The search is exact. Embeddings are computed once and cached until the file or the run changes.
    """
    if not queries and not stdin_is_piped():
        raise click.UsageError("give a query, or - to read queries from stdin, one per line")
    from harken.inference.answers import SearchHit
    from harken.inference.run import load

    model = load(run)
    model.require("embed")
    stdin = queries in ((), ("-",))
    with ConsoleListener(to_stderr=True) as listener:
        file = model.corpus(corpus, pool=pool, listen=listener)
        hits: list[list[SearchHit]] = []
        for query in stdin_lines(required=not queries) if stdin else map(decode_argument, queries):
            hits.append(file.search(query, k))
            if not json_:
                click.echo("\n" * (len(hits) > 1), nl=False)
                for hit in hits[-1]:
                    click.echo(f"{hit['score']:7.4f}  {hit['line']:>6}  {hit['text']}")
    if json_:
        print_json({"hits": hits if stdin or len(queries) > 1 else hits[0]})
