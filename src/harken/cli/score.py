"""harken score RUN TEXT"""

from typing import TYPE_CHECKING, Any

import click

from harken.errors import BadInput
from harken.experiments.report.formatting import format_number

from . import json_option, load_run, print_json
from .inputs import Inputs, file_options

if TYPE_CHECKING:
    from harken.inference.run import Run


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="TEXT...")
@file_options
@json_option
def score(run: str, texts: tuple[str, ...], json_: bool, **files: str | None) -> None:
    """Compute the log-probability of each word of TEXT, and the perplexity of TEXT.

    With - or piped input, each line of stdin is a text.
    """
    inputs = Inputs(texts, **files)
    model = load_run(run, "generate")
    if inputs.in_:
        return inputs.write((_score_or_empty(model, text) for text in inputs.lines()), json_=json_)
    if len(texts) == 1 and not inputs.stdin:
        return _print_words(model, next(inputs.lines()), json_)
    answers: list[dict[str, Any]] = []
    for text in inputs.lines():
        answers.append(answer := _score_or_empty(model, text))
        if not json_:
            click.echo(f"{_perplexity(answer)}: {text!r}" if answer["perplexity"] is not None else "")
    if json_:
        print_json({key: [answer[key] for answer in answers] for key in ("words", "perplexity", "tokens")})


def _print_words(model: "Run", text: str, json_: bool) -> None:
    answer = model.score(text)
    if json_:
        return print_json(answer)
    for word in answer["words"]:
        log = "(no context)" if word["logprob"] is None else f"{word['logprob']:12.4f}"
        click.echo(f"{log}  {word['word']!r}")
    click.echo(_perplexity(dict(answer)))
    if answer["unknown"]:
        click.echo(f"({answer['unknown']} tokens are unknown and scored as <unk>)")
    if model.tokenizer.end_id is None:
        click.echo("(the first token has no context and is not counted)")


def _perplexity(answer: dict[str, Any]) -> str:
    return f"perplexity {format_number(answer['perplexity'], 6)} over {answer['tokens']} tokens"


def _score_or_empty(model: "Run", text: str) -> dict[str, Any]:
    """The score of one line; a line that is too short gets an empty answer."""
    try:
        return dict(model.score(text))
    except BadInput:
        return {"words": [], "perplexity": None, "tokens": 0}
