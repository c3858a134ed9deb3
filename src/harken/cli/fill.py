"""harken fill RUN TEXT..."""

import click

from harken.console import ConsoleListener
from harken.events import silent

from . import json_option, load_run, print_json
from .answers import Answer, answer_texts, null_line, parallel_lists
from .inputs import Inputs, refuse_file_names


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="TEXT...")
@click.option("-k", type=click.IntRange(1), default=5, help="Number of words for each [MASK].")
@json_option
def fill(run: str, texts: tuple[str, ...], k: int, json_: bool) -> None:
    """Predict the most probable words for each [MASK] of TEXT. With - or piped input, each line of stdin is a text."""
    inputs = Inputs(texts, 'a text with a [MASK]: "The [MASK] sat."; or - to read texts')
    refuse_file_names(texts, "- < {}")
    model = load_run(run, "fill")
    with ConsoleListener(to_stderr=True) as listener:

        def predict(batch: list[str], _: int) -> list[Answer]:
            return [{"words": model.fill(text, k, listen=listener)} for text in batch]  # names unknown words

        answers = list(answer_texts(model, inputs.batches(1), predict, {"words": None}, silent))
    if json_:
        return print_json(parallel_lists([answer for _, answer in answers], "words"))
    for text, answer in answers:
        click.echo(text) if len(answers) > 1 else None
        if answer["words"] is None:
            click.echo(null_line(answer))
        for n, words in enumerate(answer["words"] or ()):
            click.echo(f"[MASK] {n + 1}") if len(answer["words"]) > 1 else None
            for each in words:
                click.echo(f"{each['probability']:8.4f}  {each['word']}")
