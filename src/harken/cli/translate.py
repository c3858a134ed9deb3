"""harken translate RUN [TEXT...]"""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import click

from harken.console import ConsoleListener, decode_argument, stdin_batches, stdin_is_piped

from . import json_option, precision_option, print_json, search_options
from .files import TEXT_COLUMNS, file_options, process_file, training_column, validate_files

BATCH_SIZE = 64  # texts per batch
TAB_NOTICE = "a tab is part of the source; to translate a column of a table: --in FILE --column NAME --out FILE"


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@search_options()
@file_options
@precision_option
@json_option
def translate(run: str, texts: tuple[str, ...], json_: bool, precision: str, **options: Any) -> None:
    """Generate the target of each source TEXT. With -, or piped, each line of stdin is a source."""
    in_, out_, column = (options.pop(name) for name in ("in_", "out_", "column"))
    if not texts and in_ is None and not stdin_is_piped():
        raise click.UsageError("give a text, or - to read texts from stdin, one per line")
    validate_files(in_, out_)
    from harken.decode.beam import SearchSettings
    from harken.inference.run import load

    prefix = options.pop("prefix") or ""
    search = {name: value for name, value in options.items() if value is not None}
    SearchSettings.from_options(search)  # validates the options before the model is loaded
    model = load(run, precision=precision)
    model.require("translate")
    with ConsoleListener(to_stderr=True) as listener:
        search |= {"listen": listener, "prefix": prefix}
        if in_ is not None:
            where = {"column": column, "columns": _source_columns(model), "listen": listener}
            count = process_file(in_, out_, partial(_predictions, model, search), **where)
            print_json({"answers": count, "out": out_}) if json_ else click.echo(f"{count} answers in {out_}")
            return
        stdin = texts in ((), ("-",))
        answers_ = _translate_batches(
            model,
            stdin_batches(BATCH_SIZE, required=not texts) if stdin else [list(map(decode_argument, texts))],
            search,
        )
        if json_:
            print_json({"translations": [{"source": source, **answer} for source, answer in answers_]})
        else:
            _print_answers((answer for _, answer in answers_), "\t" if stdin else "\n")


def _print_answers(answers: Iterable[dict[str, Any]], between: str) -> None:
    for answer in answers:
        every = [f"{best['score']:.4f} {best['text']}" for best in answer.get("alternatives", ()) if best["text"]]
        click.echo(between.join(every) or answer["text"])


def _source_columns(model: Any) -> list[int | str]:
    """Candidate source columns: the name in the training data, common names, then the first column."""
    return [*training_column(model.recipe.data.input_column), "source", *TEXT_COLUMNS, 1]


def _predictions(model: Any, search: dict[str, Any], texts: Iterator[str]) -> Iterator[dict[str, Any]]:
    return (
        answer for _, answer in _translate_batches(model, iter(lambda: list(islice(texts, BATCH_SIZE)), []), search)
    )


def _translate_batches(
    model: Any, batches: Iterable[list[str]], search: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each source and its answer, with all candidates if `alternatives` is set."""
    index, tabs = 0, False  # index: no two batches share random draws
    for sources in batches:
        if not tabs and (tabs := any("\t" in source for source in sources)):
            search["listen"]("notice", text=TAB_NOTICE)
        for source, best in zip(sources, model.alternatives(sources, index=index, **search), strict=True):
            yield source, best[0] | ({"alternatives": best} if "alternatives" in search else {})
        index += len(sources)
