"""harken ask RUN CONTEXT_FILE QUESTION..."""

import sys
from pathlib import Path

import click

from harken.data.peek import not_utf8
from harken.errors import BadInput, near_name

from . import as_json, as_precision, show
from .say import typed


@click.command()
@click.argument("run")
@click.argument("context_file")
@click.argument("questions", nargs=-1, required=True, metavar="QUESTION...")
@as_precision
@as_json
def ask(run: str, context_file: str, questions: tuple[str, ...], precision: str, json_: bool) -> None:
    """The answer to each QUESTION that stands in the text of CONTEXT_FILE (-: stdin), and where it stands there."""
    context = _text(context_file)
    from harken.use.model import load

    model = load(run, precision=precision)
    found = [model.ask(typed(question), context) for question in questions]
    if json_:
        show(found[0] if len(found) == 1 else {"answers": found})
        return
    for best in found:
        place = f"characters {best['start']}-{best['end']}" if best["answer"] else "it is not in the text"
        click.echo(f"{best['answer'] or '(no answer)'}   ({best['score']:.3f}, {place})")


def _text(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    if not Path(name).is_file():
        raise BadInput(f"{name}: there is no such file; the text that holds the answer is needed{near_name(name)}")
    raw = Path(name).read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(Path(name), error.start) from None
