"""harken translate RUN [TEXT...]"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from harken.console import ConsoleListener

from . import json_option, load_run, precision_option, print_json, search_options
from .inputs import FILE_OPTIONS, TEXT_COLUMNS, Inputs, file_options, training_column

if TYPE_CHECKING:
    from harken.inference.run import Run

BATCH_SIZE = 64  # texts per batch
TAB_NOTICE = "a tab is part of the source; to translate a column of a table: --in FILE --column NAME --out FILE"


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@search_options()
@file_options
@precision_option
@json_option
def translate(run: str, texts: tuple[str, ...], json_: bool, precision: str, **options: object) -> None:
    """Generate the target of each source TEXT. With - or piped input, each line of stdin is a source."""
    search: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    inputs = Inputs(texts, **{name: search.pop(name, None) for name in FILE_OPTIONS})
    from harken.decode.beam import SearchSettings

    prefix = search.pop("prefix", "")
    SearchSettings.from_options(search)  # validates the options before the model is loaded
    model = load_run(run, "translate", precision)
    columns = [*training_column(model.recipe.data.input_column), "source", *TEXT_COLUMNS, 1]
    with ConsoleListener(to_stderr=True) as listener:
        search |= {"listen": listener, "prefix": prefix}
        answers = _translate(model, inputs.batches(BATCH_SIZE, columns), search)
        if inputs.in_:
            inputs.write((answer for _, answer in answers), json_=json_, listen=listener)
        elif json_:
            print_json({"translations": [{"source": source, **answer} for source, answer in answers]})
        else:
            for _, answer in answers:
                candidates = [f"{c['score']:.4f} {c['text']}" for c in answer.get("alternatives", ()) if c["text"]]
                click.echo(("\t" if inputs.stdin else "\n").join(candidates) or answer["text"])


def _translate(
    model: "Run", batches: Iterable[list[str]], search: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each source and its answer, with all candidates if `alternatives` is set."""
    index, tabs = 0, False  # index: no two batches share random draws
    for sources in batches:
        if not tabs and (tabs := any("\t" in source for source in sources)):
            search["listen"]("notice", text=TAB_NOTICE)
        for source, best in zip(sources, model.alternatives(sources, index=index, **search), strict=True):
            yield source, best[0] | ({"alternatives": best} if "alternatives" in search else {})
        index += len(sources)
