"""harken tag RUN [TEXT...]"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import click

from harken.console import Teller, blocks, piped, typed

from . import as_json, as_precision, show
from .files import check_files, through_files, work_through

AT_ONCE = 256  # texts of a file or of stdin that are tagged together


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@through_files
@as_precision
@as_json
def tag(run: str, texts: tuple[str, ...], precision: str, json_: bool, **files: Any) -> None:
    """The tagged spans of each TEXT: its names, its parts of speech. With -, or piped, each line of stdin is a text."""
    in_, out_ = files["in_"], files["out_"]
    if not texts and in_ is None and not piped():
        raise click.UsageError("give a text, or - to read texts from stdin, one a line")
    check_files(in_, out_)
    from harken.inference.run import load

    model = load(run, precision=precision)
    model.must("tag")
    if in_ is not None and out_ is not None:
        with Teller(aside=True) as teller:
            where = {"column": files["column"], "listen": teller}
            count = work_through(
                in_, out_, lambda asked: ({"spans": spans} for spans in _each(model, _blocks(asked))), **where
            )
        show({"answers": count, "out": out_}) if json_ else click.echo(f"{count} answers in {out_}")
        return
    stdin = texts in ((), ("-",))
    found = _each(model, blocks(AT_ONCE, must=not texts) if stdin else [list(map(typed, texts))])
    if json_:
        show({"spans": list(found)})
        return
    for spans in found:
        lines = [f"{s['label']}\t{s['text']}\t{s['start']}-{s['end']}\t{s['probability']:.3f}" for s in spans]
        click.echo("; ".join(lines).replace("\t", " ") if stdin else "\n".join(lines))


def _blocks(texts: Iterator[str]) -> Iterator[list[str]]:
    return iter(lambda: list(islice(texts, AT_ONCE)), [])


def _each(model: Any, some: Iterable[list[str]]) -> Iterator[list[dict[str, Any]]]:
    for texts in some:
        yield from model.tag(texts)
