"""harken chat RUN [MESSAGE]"""

from collections.abc import Iterator
from typing import Any

import click

from harken.console import lines, piped, typed

from . import as_json, as_precision, as_seed, show


@click.command()
@click.argument("run")
@click.argument("message", required=False)
@click.option("--system", metavar="TEXT", help="What the model is told before; '' for nothing.")
@click.option("--tokens", type=click.IntRange(1), default=512, show_default=True, help="Longest answer, in tokens.")
@click.option("--temperature", type=click.FloatRange(0), default=0.6, show_default=True, help="0 is greedy.")
@click.option(
    "--top-p", type=click.FloatRange(0, 1, min_open=True), metavar="P", help="Choose among the likeliest only."
)
@as_seed("answers.")
@as_precision
@as_json
def chat(run: str, message: str | None, precision: str, system: str | None, json_: bool, **options: Any) -> None:
    """Talk with an instruct model. With MESSAGE it answers once; with -, or piped, each line is a turn of yours.

    On a terminal an empty line, or Ctrl-D, ends the conversation.
    """
    from harken.inference.run import load

    told = {} if system is None else {"system": typed(system) or None}
    talk = load(run, precision=precision).chat(**told, **options)
    for said in [typed(message)] if message not in (None, "-") else _turns(must=message is None):
        pieces = talk.say(said)
        if json_:
            list(pieces)
        elif piped() and message in (None, "-"):
            click.echo("".join(pieces).strip().replace("\n", "\\n"))
        else:
            for piece in pieces:
                click.echo(piece, nl=False)
            click.echo()
    if json_:
        show({"messages": [{"role": who, "text": text} for who, text in talk.messages]})


def _turns(*, must: bool) -> Iterator[str]:
    """What is said, line by line."""
    if piped():
        yield from lines(must=must)
        return
    while said := click.prompt("you", prompt_suffix="> ", default="", show_default=False).strip():
        yield said
