"""harken fill RUN TEXT..."""

import click

from harken.console import ConsoleListener

from . import json_option, load_run, print_json
from .inputs import Inputs


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="TEXT...")
@click.option("-k", type=click.IntRange(1), default=5, help="Number of words for each [MASK].")
@json_option
def fill(run: str, texts: tuple[str, ...], k: int, json_: bool) -> None:
    """Predict the most probable words for each [MASK] of TEXT. With - or piped input, each line of stdin is a text."""
    inputs = Inputs(texts, 'a text with a [MASK]: "The [MASK] sat."; or - to read texts')
    model = load_run(run, "fill")
    masked = list(inputs.lines())
    with ConsoleListener(to_stderr=True) as listener:
        predictions = [model.fill(text, k, listen=listener) for text in masked]
    if json_:
        return print_json({"words": predictions})
    for text, places in zip(masked, predictions, strict=True):
        click.echo(text) if len(masked) > 1 else None
        for n, words in enumerate(places):
            click.echo(f"[MASK] {n + 1}") if len(places) > 1 else None
            for each in words:
                click.echo(f"{each['probability']:8.4f}  {each['word']}")
