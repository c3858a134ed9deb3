"""harken embed RUN TEXT..."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harken.console import ConsoleListener, decode_argument
from harken.errors import BadInput
from harken.events import Listener
from harken.files import atomic_file

from . import json_option, load_run, overflow_option, print_json, reject_options
from .answers import Answer, answer_texts, null_line, parallel_lists
from .inputs import (
    FILE_OPTIONS,
    IMAGE_COLUMNS,
    OUT_HELP,
    TEXT_COLUMNS,
    Inputs,
    file_options,
    input_choices,
    locate_image,
    refuse_file_names,
)
from .selection import BATCH_SIZE, selected_batches

if TYPE_CHECKING:
    from harken.inference.run import Run

POOLS, POOL_HELP = ("mean", "cls", "last"), "Pooling of the hidden states: mean, first token (cls), or last token."
pool_option = click.option(
    "--pool", type=click.Choice(POOLS), help=f"{POOL_HELP}  [default: mean; images: as the head]"
)
LAYER_HELP = "Hidden states after N layers; 0 is the token embedding.  [default: the last]"
layer_option = click.option("--layer", type=click.IntRange(0), metavar="N", help=LAYER_HELP)
WORD_HELP = "The vector of WORD in the context of each TEXT: the mean over its pieces and its occurrences."
OCCURRENCE_HELP = "With --word: its N-th occurrence alone."
SETTINGS = ("pool", "layer", "overflow", "word", "occurrence")


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@pool_option
@layer_option
@click.option("--word", metavar="WORD", help=WORD_HELP)
@click.option("--occurrence", type=click.IntRange(1), metavar="N", help=OCCURRENCE_HELP)
@overflow_option
@click.option("--raw", is_flag=True, help="Do not normalize the vectors to length 1.")
@click.option("--nearest", metavar="WORD", help="Print the words with the embeddings nearest to WORD.")
@click.option("-k", type=click.IntRange(1), default=10, help="Number of words, with --nearest.")
@partial(file_options, out_help=f"{OUT_HELP} Or .npy: the vectors alone, one row per text (also without --in).")
@json_option
def embed(run: str, texts: tuple[str, ...], json_: bool, **settings: object) -> None:
    """Compute the embedding of each TEXT and print one per line.

    For a RUN on images or captions, TEXT is an image file or a folder of images; for a RUN on sets, a table of sets;
    for a RUN on graphs, the name of a node or a graph; for a RUN on pairs, a source; for a RUN on stories, a line.
    For a RUN on several columns, TEXT has a tab between them; without one it is a single text.

    With - or piped input, each line of stdin is a text.
    """
    options: dict[str, Any] = settings
    if options["nearest"] is not None:
        reject_options("with --nearest", "texts", "raw", *SETTINGS, *FILE_OPTIONS)
        return _print_nearest(load_run(run, "embed"), decode_argument(options["nearest"]), options["k"], json_)
    reject_options("without --nearest", "k")
    inputs = Inputs.from_options(texts, options, other_endings=[".npy"])
    model = load_run(run, "embed")
    if model.embedder.reader is None:
        refuse_file_names(texts)
    inputs.use_encoding(model.recipe.data.file_encoding)
    arguments: dict[str, Any] = {name: options[name] for name in SETTINGS} | {"normalize": not options["raw"]}
    reads_at_once = model.embedder.reader is not None and model.embedder.reader.one_batch
    # invalid options are refused before the first text; names of nodes are one batch, and may be in a file alone
    width = 0 if reads_at_once else model.embed([], **arguments).shape[-1]
    with ConsoleListener(to_stderr=True) as listener:

        def predict(batch: list[str], _: int) -> list[Answer]:
            if options["word"] is None or not inputs.in_:
                return [{"vector": row.tolist()} for row in model.embed(batch, listen=listener, **arguments)]
            return [_word_vector(model, text, listener, arguments) for text in batch]

        names, batches = _named_batches(model, inputs, listener)
        if names and reads_at_once:  # an input may select many nodes
            answers = (answer for batch in batches for answer in predict(list(batch), 0))
        else:
            answers = (answer for _, answer in answer_texts(model, batches, predict, {"vector": None}, listener))
        if inputs.out.suffix.lower() == ".npy":
            _write_array(inputs.out, [answer["vector"] for answer in answers], width, json_)
        elif inputs.in_:
            inputs.write(answers, ("vector",), json_=json_, listen=listener)
        elif json_:
            rows = list(answers)
            named = {model.embedder.reader.name: names} if model.embedder.reader and names else {}
            print_json({"vectors": [row["vector"] for row in rows], **parallel_lists(rows), **named})
        else:
            for answer in answers:
                vector = answer["vector"]
                click.echo(null_line(answer) if vector is None else " ".join(f"{x:.6g}" for x in vector))


def _print_nearest(model: "Run", word: str, k: int, json_: bool) -> None:
    """Print the words with the embeddings nearest to a word."""
    neighbors = model.nearest(word, k)
    lines = [f"{neighbor['similarity']:8.4f}  {neighbor['word']!r}" for neighbor in neighbors]
    return print_json({"nearest": neighbors}) if json_ else click.echo("\n".join(lines))


def _word_vector(model: "Run", text: str, listen: Listener, arguments: dict[str, Any]) -> Answer:
    """The vector of a word in the text of a row, or why there is none."""
    try:
        return {"vector": model.embed(text, listen=listen, **arguments).tolist()}
    except BadInput as error:
        return {"vector": None, "reason": str(error)}


def _named_batches(model: "Run", inputs: Inputs, listen: Listener) -> tuple[list[str], Iterable[Sequence[Any]]]:
    """The inputs in batches; of arguments that are not texts also the name of each input."""
    reader = model.embedder.reader
    if reader and reader.is_table and inputs.in_:
        reject_options(f"for {reader.name}", "column")
        return selected_batches(model, reader, [inputs.in_], inputs, listen)
    if reader is None or inputs.in_:
        is_image = reader is not None and reader.name == "files"
        columns = [*input_choices(model.recipe.data.input_column), *(IMAGE_COLUMNS if is_image else TEXT_COLUMNS)]
        return [], inputs.batches(BATCH_SIZE, columns, convert=locate_image if is_image else None)
    selected = [name for batch in inputs.batches(BATCH_SIZE) for name in batch]
    return selected_batches(model, reader, selected, inputs, listen)


def _write_array(out: Path, rows: list[list[float] | None], width: int, json_: bool) -> None:
    """Write one row per text to a NumPy file; that of an empty text is NaN."""
    import numpy as np

    vectors = np.array([[np.nan] * width if row is None else row for row in rows], np.float32)
    vectors = vectors.reshape(len(rows), -1 if rows else width)
    with atomic_file(out) as temporary, temporary.open("wb") as file:
        np.save(file, vectors, allow_pickle=False)
    shape = list(vectors.shape)
    print_json({"out": str(out), "shape": shape}) if json_ else click.echo(f"{len(vectors)} vectors in {out}")
