"""harken score RUN TEXT"""

from typing import Any

import click

from harken.console import decode_argument, stdin_is_piped, stdin_lines
from harken.experiments.report.formatting import format_number

from . import json_option, print_json
from .files import file_options, process_file, validate_files


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="TEXT...")
@file_options
@json_option
def score(run: str, texts: tuple[str, ...], json_: bool, in_: str | None, out_: str | None, column: str | None) -> None:
    """Compute the log-probability of each word of TEXT and its perplexity. With -, or piped, one text per line."""
    if not texts and in_ is None and not stdin_is_piped():
        raise click.UsageError("give a text, or - to read texts from stdin, one per line")
    validate_files(in_, out_)
    from harken.inference.run import load

    model = load(run)
    model.require("generate")
    texts = tuple(map(decode_argument, texts))
    if in_ is not None and out_ is not None:
        count = process_file(in_, out_, lambda rows: (_score_or_empty(model, text) for text in rows), column=column)
        print_json({"answers": count, "out": out_}) if json_ else click.echo(f"{count} answers in {out_}")
        return
    if len(texts) == 1 and texts != ("-",):
        answer = model.score(texts[0])
        if json_:
            print_json(answer)
            return
        for word in answer["words"]:
            log = "(no context)" if word["logprob"] is None else f"{word['logprob']:12.4f}"
            click.echo(f"{log}  {word['word']!r}")
        click.echo(f"perplexity {format_number(answer['perplexity'], 6)} over {answer['tokens']} tokens")
        if answer["unknown"]:
            click.echo(f"({answer['unknown']} tokens are unknown and scored as <unk>)")
        if model.tokenizer.end_id is None:
            click.echo("(the first token has no context and is not counted)")
        return
    listed: dict[str, list[Any]] = {"words": [], "perplexity": [], "tokens": []}
    for text in stdin_lines(required=not texts) if texts in ((), ("-",)) else texts:
        line = _score_or_empty(model, text)
        if json_:
            for key, values in listed.items():
                values.append(line[key])
        elif line["perplexity"] is None:
            click.echo()
        else:
            click.echo(f"perplexity {format_number(line['perplexity'], 6)} over {line['tokens']} tokens: {text!r}")
    if json_:
        print_json(listed)


def _score_or_empty(model: Any, text: str) -> dict[str, Any]:
    """The score of one line; a line that is too short gets an empty answer."""
    from harken.errors import BadInput

    try:
        return dict(model.score(text))
    except BadInput:
        return {"words": [], "perplexity": None, "tokens": 0}
