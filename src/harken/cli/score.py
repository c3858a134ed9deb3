"""harken score RUN TEXT"""

from typing import TYPE_CHECKING

import click

from harken.console import ConsoleListener
from harken.errors import BadInput
from harken.experiments.report.formatting import format_number

from . import json_option, load_run, print_json
from .answers import Answer, answer_texts, null_line, parallel_lists
from .inputs import Inputs, file_options, refuse_file_names

if TYPE_CHECKING:
    from harken.inference.run import Run

NULL = {"words": None, "perplexity": None, "tokens": 0}


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="TEXT...")
@file_options
@json_option
def score(run: str, texts: tuple[str, ...], json_: bool, **options: object) -> None:
    """Compute the log-probability of each word of TEXT, and the perplexity of TEXT.

    With - or piped input, each line of stdin is a text.
    """
    inputs = Inputs.from_options(texts, options)
    refuse_file_names(texts)
    model = load_run(run, "generate")
    inputs.use_encoding(model.recipe.data.file_encoding)
    is_single = len(texts) == 1 and not inputs.stdin

    def predict(batch: list[str], _: int) -> list[Answer]:
        if is_single:  # a text that is too short is an error
            return [dict(model.score(batch[0]))]
        return [_score_or_null(model, text) for text in batch]

    with ConsoleListener(to_stderr=True) as listener:
        answers = answer_texts(model, inputs.batches(1), predict, NULL, listener)
        if inputs.in_:
            keys = ("perplexity", "tokens", "unknown")
            return inputs.write((answer for _, answer in answers), keys, json_=json_, listen=listener)
        rows = list[Answer]()
        for text, answer in answers:
            rows.append(answer)
            if not json_:
                _print_words(model, answer) if is_single else click.echo(f"{_perplexity(answer)}: {text!r}")
    if json_:
        print_json(rows[0] if is_single else parallel_lists(rows, "words", "perplexity", "tokens"))


def _print_words(model: "Run", answer: Answer) -> None:
    for word in answer["words"] or ():
        log = "(no context)" if word["logprob"] is None else f"{word['logprob']:12.4f}"
        click.echo(f"{log}  {word['word']!r}")
    click.echo(_perplexity(answer))
    if answer.get("unknown"):
        click.echo(f"({answer['unknown']} tokens are unknown and scored as <unk>)")
    if answer["words"] and model.tokenizer.end_id is None:
        click.echo("(the first token has no context and is not counted)")


def _perplexity(answer: Answer) -> str:
    if answer["perplexity"] is None:
        return null_line(answer)
    return f"perplexity {format_number(answer['perplexity'], 6)} over {answer['tokens']} tokens"


def _score_or_null(model: "Run", text: str) -> Answer:
    try:
        return dict(model.score(text))
    except BadInput:
        return {**NULL, "reason": "the text is too short to be scored"}
