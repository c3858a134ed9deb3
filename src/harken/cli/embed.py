"""harken embed RUN TEXT..."""

from functools import partial
from pathlib import Path
from typing import Any

import click

from harken.console import ConsoleListener, decode_argument
from harken.files import atomic_file

from . import json_option, load_run, overflow_option, print_json, reject_options
from .answers import Answer, answer_texts, null_line, parallel_lists
from .inputs import FILE_OPTIONS, OUT_HELP, Inputs, file_options, refuse_file_names

BATCH_SIZE = 256  # texts per batch
POOLS, POOL_HELP = ("mean", "cls", "last"), "Pooling of the hidden states: mean, first token, or last token."
pool_option = click.option("--pool", type=click.Choice(POOLS), default="mean", help=POOL_HELP)
LAYER_HELP = "Hidden states after N layers; 0 is the token embedding.  [default: the last]"
layer_option = click.option("--layer", type=click.IntRange(0), metavar="N", help=LAYER_HELP)


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@pool_option
@layer_option
@overflow_option
@click.option("--raw", is_flag=True, help="Do not normalize the vectors to length 1.")
@click.option("--nearest", metavar="WORD", help="Print the words with the embeddings nearest to WORD.")
@click.option("-k", type=click.IntRange(1), default=10, help="Number of words, with --nearest.")
@partial(file_options, out_help=f"{OUT_HELP} Or .npy: the vectors alone, one row per text (also without --in).")
@json_option
def embed(run: str, texts: tuple[str, ...], json_: bool, **settings: object) -> None:
    """Compute the embedding of each TEXT and print one per line.

    With - or piped input, each line of stdin is a text.
    """
    options: dict[str, Any] = settings
    if options["nearest"] is not None:
        reject_options("with --nearest", "texts", "pool", "layer", "overflow", "raw", *FILE_OPTIONS)
        neighbors = load_run(run, "embed").nearest(decode_argument(options["nearest"]), options["k"])
        lines = [f"{neighbor['similarity']:8.4f}  {neighbor['word']!r}" for neighbor in neighbors]
        return print_json({"nearest": neighbors}) if json_ else click.echo("\n".join(lines))
    reject_options("without --nearest", "k")
    inputs = Inputs.from_options(texts, options, other_endings=[".npy"])
    refuse_file_names(texts)
    model = load_run(run, "embed")
    inputs.use_encoding(model.recipe.data.file_encoding)
    arguments = {name: options[name] for name in ("pool", "layer", "overflow")} | {"normalize": not options["raw"]}
    with ConsoleListener(to_stderr=True) as listener:

        def predict(batch: list[str], _: int) -> list[Answer]:
            return [{"vector": row.tolist()} for row in model.embed(batch, listen=listener, **arguments)]

        null = {"vector": None}
        answers = (answer for _, answer in answer_texts(model, inputs.batches(BATCH_SIZE), predict, null, listener))
        if inputs.out.suffix.lower() == ".npy":
            _write_array(
                inputs.out, [answer["vector"] for answer in answers], model.backbone.embed.embedding_dim, json_
            )
        elif inputs.in_:
            inputs.write(answers, ("vector",), json_=json_, listen=listener)
        elif json_:
            rows = list(answers)
            print_json({"vectors": [row["vector"] for row in rows], **parallel_lists(rows)})
        else:
            for answer in answers:
                vector = answer["vector"]
                click.echo(null_line(answer) if vector is None else " ".join(f"{x:.6g}" for x in vector))


def _write_array(out: Path, rows: list[list[float] | None], width: int, json_: bool) -> None:
    """Write one row per text to a NumPy file; that of an empty text is NaN."""
    import numpy as np

    vectors = np.array([[np.nan] * width if row is None else row for row in rows], np.float32).reshape(-1, width)
    with atomic_file(out) as temporary, temporary.open("wb") as file:
        np.save(file, vectors, allow_pickle=False)
    shape = list(vectors.shape)
    print_json({"out": str(out), "shape": shape}) if json_ else click.echo(f"{len(vectors)} vectors in {out}")
