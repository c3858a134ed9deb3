"""harken translate RUN [TEXT...]"""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import click

from harken.console import Teller, blocks, piped, typed

from . import as_json, as_precision, show
from .files import COLUMNS, check_files, own_column, through_files, work_through

AT_ONCE = 64  # texts of a file or of stdin that are translated together
TABBED = "a tab is part of the source here; of a table, translate a column: --in FILE --column NAME --out FILE"


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@click.option(
    "--beam",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Follow the N best texts at a time; 1 is greedy.  [default: 4 (mathematics: 1), or as --alternatives]",
)
@click.option("--alternatives", type=click.IntRange(1), metavar="N", help="The N best targets, with their scores.")
@click.option(
    "--length-penalty",
    type=click.FloatRange(0, 10),
    metavar="X",
    help="A score is the sum of ln p / length^X: 0 likes short targets.  [default: 1]",
)
@click.option("--prefix", metavar="TEXT", help="How each target begins; the model goes on from there.")
@click.option("--no-repeat", type=click.IntRange(0), metavar="N", help="Never write the same N tokens twice.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Most tokens of a target.  [default: the run's task.max_new_tokens]",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    metavar="X",
    help="Draw targets by chance, as many as --alternatives, instead of the likeliest; 0.8 is a good start.",
)
@click.option("--top-k", type=click.IntRange(1), metavar="N", help="Draw from the N likeliest tokens only.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), metavar="X", help="Draw from this share only.")
@click.option("--seed", type=int, metavar="N", help="Another seed draws others.  [default: 0]")
@through_files
@as_precision
@as_json
def translate(run: str, texts: tuple[str, ...], json_: bool, precision: str, **options: Any) -> None:
    """The target of each source TEXT. With -, or piped, each line of stdin is a source: one answer a line."""
    in_, out_, column = (options.pop(name) for name in ("in_", "out_", "column"))
    if not texts and in_ is None and not piped():
        raise click.UsageError("give a text, or - to read texts from stdin, one a line")
    check_files(in_, out_)
    from harken.decode.beam import Search
    from harken.inference.run import load

    prefix = options.pop("prefix") or ""
    given = {name: value for name, value in options.items() if value is not None}
    Search.of(given)  # refuses what does not fit together, before the first line is waited for
    model = load(run, precision=precision)
    model.must("translate")
    with Teller(aside=True) as teller:
        given |= {"listen": teller, "prefix": prefix}
        if in_ is not None:
            where = {"column": column, "columns": _columns(model), "listen": teller}
            count = work_through(in_, out_, partial(_answers, model, given), **where)
            show({"answers": count, "out": out_}) if json_ else click.echo(f"{count} answers in {out_}")
            return
        stdin = texts in ((), ("-",))
        found = _each(model, blocks(AT_ONCE, must=not texts) if stdin else [list(map(typed, texts))], given)
        if json_:
            show({"translations": [{"source": source, **answer} for source, answer in found]})
        else:
            _tell((answer for _, answer in found), "\t" if stdin else "\n")


def _tell(answers: Iterable[dict[str, Any]], between: str) -> None:
    for answer in answers:
        every = [f"{best['score']:.4f} {best['text']}" for best in answer.get("alternatives", ()) if best["text"]]
        click.echo(between.join(every) or answer["text"])


def _columns(model: Any) -> list[int | str]:
    """Where a table has its sources: under the name that they had when the run learned, or a common one; or first."""
    return [*own_column(getattr(model.recipe.data, "source", None)), "source", *COLUMNS, 1]


def _answers(model: Any, given: dict[str, Any], texts: Iterator[str]) -> Iterator[dict[str, Any]]:
    return (answer for _, answer in _each(model, iter(lambda: list(islice(texts, AT_ONCE)), []), given))


def _each(model: Any, some: Iterable[list[str]], given: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each source of these blocks and its answer; with all the best ones if `alternatives` were asked for."""
    index, tabs = 0, False  # the index: so that no two blocks draw the same
    for sources in some:
        if not tabs and (tabs := any("\t" in source for source in sources)):
            given["listen"]("notice", text=TABBED)
        for source, best in zip(sources, model.alternatives(sources, index=index, **given), strict=True):
            yield source, best[0] | ({"alternatives": best} if "alternatives" in given else {})
        index += len(sources)
