"""harken chat RUN [MESSAGE]"""

from collections.abc import Iterator
from typing import Any

import click

from harken.console import decode_argument, stdin_is_piped, stdin_lines

from . import json_option, precision_option, print_json, seed_option


@click.command()
@click.argument("run")
@click.argument("message", required=False)
@click.option("--system", metavar="TEXT", help="System message; '' for none.")
@click.option(
    "--tokens",
    "max_new_tokens",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="Maximum tokens of an answer.",
)
@click.option(
    "--temperature", type=click.FloatRange(0), default=0.6, show_default=True, help="Sampling temperature; 0 is greedy."
)
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="P",
    help="Nucleus sampling: smallest set of tokens with probability P.",
)
@seed_option("answers.")
@precision_option
@json_option
def chat(run: str, message: str | None, precision: str, system: str | None, json_: bool, **options: Any) -> None:
    """Chat with an instruct model. With MESSAGE it answers once; with -, or piped, each line of stdin is a message.

    On a terminal an empty line, or Ctrl-D, ends the conversation.
    """
    from harken.inference.run import load

    system_option: dict[str, Any] = {} if system is None else {"system": decode_argument(system) or None}
    conversation = load(run, precision=precision).chat(**system_option, **options)
    for user_message in [decode_argument(message)] if message not in (None, "-") else _turns(required=message is None):
        pieces = conversation.send(user_message)
        if json_:
            list(pieces)
        elif stdin_is_piped() and message in (None, "-"):
            click.echo("".join(pieces).strip().replace("\n", "\\n"))
        else:
            for piece in pieces:
                click.echo(piece, nl=False)
            click.echo()
    if json_:
        print_json({"messages": [{"role": who, "text": text} for who, text in conversation.messages]})


def _turns(*, required: bool) -> Iterator[str]:
    """The messages of the user, line by line."""
    if stdin_is_piped():
        yield from stdin_lines(required=required)
        return
    while user_message := click.prompt("you", prompt_suffix="> ", default="", show_default=False).strip():
        yield user_message
