"""harken score RUN TEXT"""

import sys

import click

from . import as_json, show


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="TEXT")
@as_json
def score(run: str, texts: tuple[str, ...], json_: bool) -> None:
    """The log-probability of each word of TEXT, and its perplexity. With -, or piped, one text a line of stdin."""
    from harken.use.model import load

    model = load(run)
    lines = list(texts) if texts and texts != ("-",) else [line.rstrip("\n") for line in sys.stdin]
    results = [model.score(line) if line else {"words": [], "perplexity": None, "tokens": 0} for line in lines]
    if json_:
        show(results[0] if len(results) == 1 else {"results": results})
        return
    for result in results:
        if len(results) == 1:
            for word in result["words"]:
                log = "     (no context)" if word["logprob"] is None else f"{word['logprob']:10.4f}"
                click.echo(f"{log}  {word['word']!r}")
        click.echo(
            ""
            if result["perplexity"] is None
            else f"perplexity {result['perplexity']:.4f} over {result['tokens']} tokens"
        )
