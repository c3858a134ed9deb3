"""harken fill RUN TEXT..."""

import click

from harken.console import Teller, lines, piped, typed

from . import as_json, show


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="TEXT...")
@click.option("-k", type=click.IntRange(1), default=5, show_default=True, help="How many words for each [MASK].")
@as_json
def fill(run: str, texts: tuple[str, ...], k: int, json_: bool) -> None:
    """The likeliest words for each [MASK] of TEXT, with their probabilities. With -, or piped, one text a line."""
    if not texts and not piped():
        raise click.UsageError('give a text with a hidden word: "The [MASK] sat."; or - to read texts from stdin')
    from harken.inference.run import load

    model = load(run)
    model.must("fill")
    asked = list(lines(must=not texts)) if texts in ((), ("-",)) else list(map(typed, texts))
    with Teller(aside=True) as teller:
        found = [model.fill(text, k, listen=teller) for text in asked]
    if json_:
        show({"words": found})
        return
    for text, places in zip(asked, found, strict=True):
        click.echo(text) if len(asked) > 1 else None
        for n, words in enumerate(places):
            click.echo(f"[MASK] {n + 1}") if len(places) > 1 else None
            for each in words:
                click.echo(f"{each['probability']:8.4f}  {each['word']}")
