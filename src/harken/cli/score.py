"""harken score RUN TEXT"""

from typing import Any

import click

from harken.console import lines, piped, typed
from harken.experiments.report.line_chart import figure

from . import as_json, show
from .files import check_files, through_files, work_through


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="TEXT...")
@through_files
@as_json
def score(run: str, texts: tuple[str, ...], json_: bool, in_: str | None, out_: str | None, column: str | None) -> None:
    """The log-probability of each word of TEXT, and its perplexity. With -, or piped, one text a line of stdin."""
    if not texts and in_ is None and not piped():
        raise click.UsageError("give a text, or - to read texts from stdin, one a line")
    check_files(in_, out_)
    from harken.inference.run import load

    model = load(run)
    model.must("generate")
    texts = tuple(map(typed, texts))
    if in_ is not None and out_ is not None:
        count = work_through(in_, out_, lambda asked: (_or_nothing(model, text) for text in asked), column=column)
        show({"answers": count, "out": out_}) if json_ else click.echo(f"{count} answers in {out_}")
        return
    if len(texts) == 1 and texts != ("-",):
        result = model.score(texts[0])
        if json_:
            show(result)
            return
        for word in result["words"]:
            log = "(no context)" if word["logprob"] is None else f"{word['logprob']:12.4f}"
            click.echo(f"{log}  {word['word']!r}")
        click.echo(f"perplexity {figure(result['perplexity'], 6)} over {result['tokens']} tokens")
        if result["unknown"]:
            click.echo(f"({result['unknown']} tokens are unknown to this run, and scored as <unk>)")
        if model.tokenizer.end is None:
            click.echo("(nothing stands before the first token: it is not counted)")
        return
    listed: dict[str, list[Any]] = {"words": [], "perplexity": [], "tokens": []}
    for text in lines(must=not texts) if texts in ((), ("-",)) else texts:
        result = _or_nothing(model, text)
        if json_:
            for key, values in listed.items():
                values.append(result[key])
        elif result["perplexity"] is None:
            click.echo()
        else:
            click.echo(f"perplexity {figure(result['perplexity'], 6)} over {result['tokens']} tokens: {text!r}")
    if json_:
        show(listed)


def _or_nothing(model: Any, text: str) -> dict[str, Any]:
    """The score of one of many lines; one that is too short gets an empty answer and keeps its place."""
    from harken.errors import BadInput

    try:
        found: dict[str, Any] = model.score(text)
        return found
    except BadInput:
        return {"words": [], "perplexity": None, "tokens": 0}
