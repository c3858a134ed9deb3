"""harken search RUN CORPUS QUERY..."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from harken.console import ConsoleListener
from harken.errors import BadInput

from . import json_option, load_run, overflow_option, print_json
from .answers import Answer, answer_texts, null_line, parallel_lists
from .embed import pool_option
from .inputs import Inputs

if TYPE_CHECKING:
    from harken.inference.answers import OverflowMode

MAX_SHOWN = 60  # characters of a query in a message


class CorpusOptions(TypedDict):
    """How the texts are read and embedded."""

    column: str | None
    pool: str | None
    overflow: "OverflowMode"


@click.command()
@click.argument("run")
@click.argument("corpus")
@click.argument("queries", nargs=-1, metavar="[QUERY...]")
@click.option("-k", type=click.IntRange(1), default=5, help="Number of lines to print.")
@click.option("--column", metavar="NAME", help="Text column of CORPUS if it is a table, by name or number.")
@pool_option
@overflow_option
@json_option
def search(
    run: str, corpus: str, queries: tuple[str, ...], k: int, json_: bool, **options: Unpack[CorpusOptions]
) -> None:
    """Find the texts of CORPUS nearest to QUERY; print the score, line number and text of each.

    CORPUS is a file with one text per line, or a table with a column of texts. For a RUN on several columns it is a
    table with these columns, and a QUERY has a tab between them.

    For a RUN on images or captions, CORPUS is a folder of images and QUERY an image file; for a RUN on sets, tables of
    sets; for a RUN on graphs, CORPUS is a graph and QUERY the name of a node or a graph in it; for a RUN on stories,
    CORPUS is a story. Without CORPUS such a RUN searches its own data; an image file is always a QUERY.

    With - or piped input, each line of stdin is a query. The search is exact. Embeddings of a text file are computed
    once and cached until the file or the run changes.
    """
    from harken.data.images.files import SUFFIXES  # imports torch

    model = load_run(run, "embed")
    path: str | None = corpus
    is_query = Path(corpus).suffix.lower() in SUFFIXES or not Path(corpus).exists()  # one image is no corpus
    if not model.embedder.reads_lines and is_query:
        path, queries = None, (corpus, *queries)
    if model.embedder.reads_lines and not queries and not Path(corpus).exists():
        query = quote(corpus if len(corpus) < MAX_SHOWN else f"{corpus[:MAX_SHOWN]}...")
        what = "the corpus is a file: one text per line, or a table with a column of texts"
        raise BadInput(f"{corpus}: no such file; {what}; give it before the query: harken search {run} FILE {query}")
    inputs = Inputs(queries, "a query, or - to read queries")
    answers = list[Answer]()
    with ConsoleListener(to_stderr=True) as listener:
        searched = model.corpus(path, **options, listen=listener)

        def predict(batch: list[str], _: int) -> list[Answer]:
            return [{"hits": searched.search(query, k)} for query in batch]

        for query, answer in answer_texts(model, inputs.batches(1), predict, {"hits": None}, listener):
            answers.append({"query": query, **answer})
            if not json_:
                click.echo("\n" * (len(answers) > 1) + f"query: {query}")
                click.echo(null_line(answer)) if answer["hits"] is None else None
                for hit in answer["hits"] or ():
                    click.echo(_hit_line(hit))
    if json_:
        is_single = not inputs.stdin and len(queries) == 1
        print_json(answers[0] if is_single else parallel_lists(answers, "query", "hits"))


def _hit_line(hit: dict[str, Any]) -> str:
    """The score of a hit, and its line and text, or its name and label."""
    if "line" in hit:
        return f"{hit['score']:7.4f}  {hit['line']:>6}  {hit['text']}"
    return f"{hit['score']:7.4f}  {hit['name']}  {hit.get('label', '')}".rstrip()
