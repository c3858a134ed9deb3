"""harken tag RUN [TEXT...]"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import click

from harken.console import ConsoleListener, decode_argument, stdin_batches, stdin_is_piped

from . import json_option, precision_option, print_json
from .files import file_options, process_file, validate_files

BATCH_SIZE = 256  # texts per batch


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@file_options
@precision_option
@json_option
def tag(run: str, texts: tuple[str, ...], precision: str, json_: bool, **files: Any) -> None:
    """Tag the spans of each TEXT, such as names. With -, or piped, each line of stdin is a text."""
    in_, out_ = files["in_"], files["out_"]
    if not texts and in_ is None and not stdin_is_piped():
        raise click.UsageError("give a text, or - to read texts from stdin, one per line")
    validate_files(in_, out_)
    from harken.inference.run import load

    model = load(run, precision=precision)
    model.require("tag")
    if in_ is not None and out_ is not None:
        with ConsoleListener(to_stderr=True) as listener:
            where = {"column": files["column"], "listen": listener}
            count = process_file(
                in_, out_, lambda rows: ({"spans": spans} for spans in _tag_batches(model, _batches(rows))), **where
            )
        print_json({"answers": count, "out": out_}) if json_ else click.echo(f"{count} answers in {out_}")
        return
    stdin = texts in ((), ("-",))
    tagged = _tag_batches(
        model, stdin_batches(BATCH_SIZE, required=not texts) if stdin else [list(map(decode_argument, texts))]
    )
    if json_:
        print_json({"spans": list(tagged)})
        return
    for spans in tagged:
        lines = [f"{s['label']}\t{s['text']}\t{s['start']}-{s['end']}\t{s['probability']:.3f}" for s in spans]
        click.echo("; ".join(lines).replace("\t", " ") if stdin else "\n".join(lines))


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    return iter(lambda: list(islice(texts, BATCH_SIZE)), [])


def _tag_batches(model: Any, batches: Iterable[list[str]]) -> Iterator[list[dict[str, Any]]]:
    for texts in batches:
        yield from model.tag(texts)
