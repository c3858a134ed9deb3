"""harken embed RUN TEXT..."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harken.console import ConsoleListener, decode_argument
from harken.errors import BadInput

from . import json_option, load_run, overflow_option, print_json, reject_options
from .inputs import Inputs

if TYPE_CHECKING:
    from harken.inference.answers.embed import Vectors

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
@click.option("--out", metavar="FILE", help="Write the vectors to a NumPy file (name.npy), one row per text.")
@click.option("--nearest", metavar="WORD", help="Print the words with the embeddings nearest to WORD.")
@click.option("-k", type=click.IntRange(1), default=10, help="Number of words, with --nearest.")
@json_option
def embed(run: str, texts: tuple[str, ...], json_: bool, out: str | None, **settings: object) -> None:
    """Compute the embedding of each TEXT and print one per line.

    With - or piped input, each line of stdin is a text.
    """
    options: dict[str, Any] = settings
    if options["nearest"] is not None:
        reject_options("with --nearest", "texts", "pool", "layer", "overflow", "raw", "out")
        neighbors = load_run(run, "embed").nearest(decode_argument(options["nearest"]), options["k"])
        lines = [f"{neighbor['similarity']:8.4f}  {neighbor['word']!r}" for neighbor in neighbors]
        return print_json({"nearest": neighbors}) if json_ else click.echo("\n".join(lines))
    reject_options("without --nearest", "k")
    inputs = Inputs(texts)
    if out and not out.endswith(".npy"):
        raise BadInput(f"--out {out}: vectors are written as a NumPy file; use a name that ends with .npy")
    if out and Path(out).exists():
        raise BadInput(f"--out {out}: the file exists; choose another name")
    model = load_run(run, "embed")
    arguments = {name: options[name] for name in ("pool", "layer", "overflow")} | {"normalize": not options["raw"]}
    with ConsoleListener(to_stderr=True) as listener:
        batches = (model.embed(batch, listen=listener, **arguments) for batch in inputs.batches(BATCH_SIZE))
        rows = (row for batch in batches for row in batch)
        if out:
            _write(Path(out), list(rows), json_)
        elif json_:
            print_json({"vectors": [row.tolist() for row in rows]})
        else:
            for row in rows:
                click.echo(" ".join(f"{x:.6g}" for x in row.tolist()))


def _write(out: Path, rows: list["Vectors"], json_: bool) -> None:
    import numpy as np

    vectors = np.array(rows, np.float32)
    with out.open("wb") as file:
        np.save(file, vectors, allow_pickle=False)
    print_json({"out": out, "shape": list(vectors.shape)}) if json_ else click.echo(f"{len(vectors)} vectors in {out}")
