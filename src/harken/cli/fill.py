"""harken fill RUN TEXT..."""

import click

from harken.console import ConsoleListener, decode_argument, stdin_is_piped, stdin_lines

from . import json_option, print_json


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="TEXT...")
@click.option("-k", type=click.IntRange(1), default=5, show_default=True, help="Number of words for each [MASK].")
@json_option
def fill(run: str, texts: tuple[str, ...], k: int, json_: bool) -> None:
    """Predict the most probable words for each [MASK] of TEXT. With -, or piped, each line of stdin is a text."""
    if not texts and not stdin_is_piped():
        raise click.UsageError('give a text with a [MASK]: "The [MASK] sat."; or - to read texts from stdin')
    from harken.inference.run import load

    model = load(run)
    model.require("fill")
    inputs = list(stdin_lines(required=not texts)) if texts in ((), ("-",)) else list(map(decode_argument, texts))
    with ConsoleListener(to_stderr=True) as listener:
        predictions = [model.fill(text, k, listen=listener) for text in inputs]
    if json_:
        print_json({"words": predictions})
        return
    for text, places in zip(inputs, predictions, strict=True):
        click.echo(text) if len(inputs) > 1 else None
        for n, words in enumerate(places):
            click.echo(f"[MASK] {n + 1}") if len(places) > 1 else None
            for each in words:
                click.echo(f"{each['probability']:8.4f}  {each['word']}")
