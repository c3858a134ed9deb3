"""harken classify RUN [TEXT or PICTURE...]"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import click

from harken.console import Teller, as_typed, blocks, piped, typed

from . import as_json, as_precision, refuse, show
from .files import COLUMNS, check_files, own_column, through_files, work_through, write_answers

AT_ONCE = 256  # texts of a file or of stdin that are answered together
SHOWN = 3  # labels of a text


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@click.option("--prompt", "asked", metavar="TEXT", help='Ask a language model: "Review: {text} Sentiment:".')
@click.option("--labels", metavar="A,B", help="With --prompt: the labels, whose text is likely behind it or not.")
@through_files
@as_precision
@as_json
def classify(
    run: str, texts: tuple[str, ...], asked: str | None, labels: str | None, precision: str, json_: bool, **files: Any
) -> None:
    """What each TEXT is: its labels with their probabilities, or its number. Two texts have a tab between them.

    Of a RUN on pictures each TEXT is a picture's file, or a folder of them; of one on sets a table of sets; of one on
    graphs a node's name, behind the file of another graph or not.

    With -, or piped, each line of stdin is a text: one answer a line. With --prompt a RUN that writes text answers.
    """
    in_, out_ = files["in_"], files["out_"]
    if (asked is None) != (labels is None):
        raise click.UsageError(
            '--prompt and --labels go together: --prompt "Review: {text} Sentiment:" --labels good,bad'
        )
    if not texts and in_ is None and not piped():
        raise click.UsageError("give a text, or - to read texts from stdin, one a line")
    check_files(in_, out_)
    from harken.inference.abilities import NAMED
    from harken.inference.run import load

    model = load(run, precision=precision)
    how: dict[str, Any] = {"listen": Teller(aside=True)}
    if asked is not None and labels is not None:
        how |= {"prompt": as_typed(asked), "labels": labels.split(",")}
    model.classify([], **how)  # what cannot be asked is refused before the first text
    what, meant = NAMED.get(model.recipe.task.kind, ("", None))
    heard = {"listen": how["listen"]} if what in ("sets", "files") else {}  # what is left out is told
    if in_ is not None and out_ is not None:
        columns = [*own_column(getattr(model.recipe.data, "text", None)), *COLUMNS]
        where = {"column": files["column"], "columns": columns, "whole": getattr(model.tokenizer, "pair", False)}
        with Teller(aside=True) as teller:
            if meant and what == "sets":
                refuse("for sets", "column")
                names, sets = meant(model, [in_], **heard)
                answered = write_answers(out_, names, _answers(model, iter(sets), how), len(sets), teller)
            else:
                answered = work_through(in_, out_, lambda given: _answers(model, given, how), listen=teller, **where)
        show({"answers": answered, "out": out_}) if json_ else click.echo(f"{answered} answers in {out_}")
        return
    some = blocks(AT_ONCE, must=not texts) if texts in ((), ("-",)) else [list(map(typed, texts))]
    names = list[str]()
    if meant:
        names, things = meant(model, [name for block in some for name in block], **heard)
        whole = what == "names"  # of a graph, whose file stands first and which is computed as a whole
        some = [things] if whole else [things[n : n + AT_ONCE] for n in range(0, len(things), AT_ONCE)]
    if json_:
        show({"labels": list(_each(model, some, how)), **({what: names} if names else {})})
        return
    for n, found in enumerate(_each(model, some, how)):
        said = "  ".join(f"{_amount(label)} {label['label']}" for label in found[:SHOWN])
        click.echo(f"{said}  {names[n]}" if len(names) > 1 else said)


def _amount(label: dict[str, Any]) -> str:
    return f"{label['value']:.4g}" if "value" in label else f"{label['probability']:.3f}"


def _answers(model: Any, given: Iterator[Any], how: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for labels in _each(model, iter(lambda: list(islice(given, AT_ONCE)), []), how):
        yield {**labels[0], "labels": labels}


def _each(model: Any, some: Iterable[list[Any]], how: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    for texts in some:
        yield from model.classify(texts, **how)
