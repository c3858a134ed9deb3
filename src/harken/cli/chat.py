"""harken chat RUN [MESSAGE]"""

from collections.abc import Iterator
from typing import Any

import click

from harken.console import ConsoleListener, decode_argument, stdin_is_piped, stdin_lines

from . import json_option, precision_option, print_json, search_options, seed_option


@click.command()
@click.argument("run")
@click.argument("message", required=False)
@click.option("--system", metavar="TEXT", help="System message; '' for none.")
@click.option("--tokens", "max_new_tokens", type=click.IntRange(1), default=512, help="Maximum tokens of an answer.")
@click.option("--temperature", type=click.FloatRange(0), default=0.6, help="Sampling temperature; 0 is greedy.")
@search_options("top-p")
@seed_option("answers.")
@precision_option
@json_option
def chat(run: str, message: str | None, precision: str, system: str | None, json_: bool, **settings: object) -> None:
    """Chat with an instruct model. With MESSAGE it answers once.

    With - or piped input, each line of stdin is a message. On a terminal an empty line, or Ctrl-D, ends the chat.
    """
    from harken.inference.run import load

    options: dict[str, Any] = settings
    if system is not None:
        options["system"] = decode_argument(system) or None
    with ConsoleListener(to_stderr=True) as listener:
        conversation = load(run, precision=precision).chat(**options, listen=listener)
        from_lines = message in (None, "-")
        for user_message in _messages(required=message is None) if from_lines else [decode_argument(message or "")]:
            pieces = conversation.send(user_message)
            if json_:
                list(pieces)
            elif stdin_is_piped() and from_lines:
                click.echo("".join(pieces).strip().replace("\n", "\\n"))
            else:
                for piece in pieces:
                    click.echo(piece, nl=False)
                click.echo()
            listener.report_overflows()
    if json_:
        print_json({"messages": [{"role": who, "text": text} for who, text in conversation.messages]})


def _messages(*, required: bool) -> Iterator[str]:
    """The messages of the user, line by line."""
    if stdin_is_piped():
        yield from stdin_lines(required=required)
        return
    while user_message := click.prompt("you", prompt_suffix="> ", default="", show_default=False).strip():
        yield user_message
