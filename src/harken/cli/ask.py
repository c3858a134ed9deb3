"""harken ask RUN CONTEXT_FILE [QUESTION...]"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harken.console import columns, typed
from harken.data.detect.preview import not_utf8
from harken.errors import BadInput, near_name

from . import as_json, as_precision, show

if TYPE_CHECKING:
    from harken.inference.run import Run


@click.command()
@click.argument("run")
@click.argument("context_file")
@click.argument("questions", nargs=-1, metavar="[QUESTION...]")
@as_precision
@as_json
def ask(run: str, context_file: str, questions: tuple[str, ...], precision: str, json_: bool) -> None:
    """The answer to each QUESTION that stands in the text of CONTEXT_FILE (-: stdin), and where it stands there.

    A run of stories answers from what the file tells line by line, and shows which lines each hop read; without a
    QUESTION it answers those of the file.
    """
    context = _text(context_file)
    from harken.inference.run import load

    model = load(run, precision=precision)
    model.must("ask")
    if about := model.recipe.task.kind == "answer":
        found = list(_told(model, context_file, context, questions))
    elif questions:
        found = [model.ask(typed(question), context) for question in questions]
    else:
        raise click.UsageError('give a question about the text, as in: harken ask RUN my.txt "Who had a rope?"')
    if json_:
        show(found[0] if len(found) == 1 else {"answers": found})
        return
    for n, best in enumerate(found):
        if about:
            click.echo("\n" * (n > 0) + "\n".join(_hops(best)))
            continue
        place = f"characters {best['start']}-{best['end']}" if best["answer"] else "it is not in the text"
        click.echo(f"{best['answer'] or '(no answer)'}   ({best['score']:.3f}, {place})")


def _told(model: "Run", file: str, context: str, questions: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The answers to these questions about the story of a file, or to its own."""
    if not context.strip():
        raise BadInput(f"{file}: there is no line of a story in it; tell one, such as: Joe went home.")
    if questions:
        yield from (model.ask(typed(question), context) for question in questions)
        return
    from harken.data.stories.babi import told

    asked = told(Path(file), enumerate(context.splitlines(), 1), lambda *flaw: None)
    if not asked:
        raise BadInput(f'{file}: there is no question in it; ask one, as in: harken ask RUN {file} "Where is Joe?"')
    for each in asked:
        yield model.story(each.lines).ask(each.question) | ({"right": each.answer} if each.answer else {})


def _hops(best: dict[str, Any]) -> Iterator[str]:
    """A line of the story with the weight that each hop gave it; then the question, and its answer."""
    looks = [[f"{weight:.2f}" for weight in hop] for hop in best["hops"]]
    rows = [[str(n), *weights, line] for n, (line, *weights) in enumerate(zip(best["lines"], *looks, strict=True), 1)]
    heads = ["", *(f"hop {n}" for n in range(1, len(looks) + 1)), ""]
    yield from columns([heads, *rows] if looks else rows) if rows else []
    right = f", right is {best['right']}" if "right" in best else ""
    unknown = f", words never seen: {', '.join(best['unknown'])}" if best["unknown"] else ""
    yield f"{best['question']}   {best['answer']}   ({best['score']:.3f}{right}{unknown})"


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
