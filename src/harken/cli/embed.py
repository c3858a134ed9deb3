"""harken embed RUN TEXT..."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from harken.console import ConsoleListener, decode_argument, stdin_batches, stdin_is_piped
from harken.errors import BadInput

from . import json_option, print_json, reject_options

BATCH_SIZE = 256  # texts per batch


def pool_option(verb: Any) -> Any:
    """The option --pool of commands that compute one vector per text."""
    text = "Pooling of the token states: mean, first token, or last token."
    return click.option(
        "--pool", type=click.Choice(["mean", "cls", "last"]), default="mean", show_default=True, help=text
    )(verb)


def layer_option(verb: Any) -> Any:
    """The option --layer of commands that read hidden states."""
    text = "Hidden states after N layers; 0 is the embedding.  [default: the last]"
    return click.option("--layer", type=click.IntRange(0), metavar="N", help=text)(verb)


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@pool_option
@layer_option
@click.option("--raw", is_flag=True, help="Do not normalize the vectors to length 1.")
@click.option("--out", metavar="FILE", help="Write the vectors to a NumPy file, one row each: FILE.npy.")
@click.option("--nearest", metavar="WORD", help="Print the words with the embeddings nearest to WORD.")
@click.option("-k", type=click.IntRange(1), default=10, show_default=True, help="Number of words, with --nearest.")
@json_option
def embed(run: str, texts: tuple[str, ...], json_: bool, **options: Any) -> None:
    """Compute the embedding of each TEXT, one per line. With -, or piped, each line of stdin is a text."""
    if options["nearest"] is not None:
        reject_options("with --nearest", "texts", "pool", "layer", "raw", "out")
        _nearest(run, decode_argument(options["nearest"]), options["k"], json_)
        return
    reject_options("without --nearest", "k")
    if not texts and not stdin_is_piped():
        raise click.UsageError("give a text, or - to read texts from stdin, one per line")
    if options["out"] is not None:
        _check(Path(options["out"]))
    from harken.inference.run import load

    model = load(run)
    model.require("embed")
    batches = (
        stdin_batches(BATCH_SIZE, required=not texts) if texts in ((), ("-",)) else [list(map(decode_argument, texts))]
    )
    how = {"pool": options["pool"], "layer": options["layer"], "normalize": not options["raw"]}
    with ConsoleListener(to_stderr=True) as listener:
        rows: Iterator[Any] = (row for texts_ in batches for row in model.embed(texts_, listen=listener, **how))
        if options["out"] is not None:
            _write(Path(options["out"]), list(rows), json_)
        elif json_:
            print_json({"vectors": [row.tolist() for row in rows]})
        else:
            for row in rows:
                click.echo(" ".join(f"{x:.6g}" for x in row.tolist()))


def _check(out: Path) -> None:
    if out.suffix != ".npy":
        raise BadInput(f"--out {out}: vectors are written as a NumPy file; use a name that ends with .npy")
    if out.exists():
        raise BadInput(f"--out {out}: the file exists; choose another name")


def _write(out: Path, rows: list[Any], json_: bool) -> None:
    import numpy as np

    vectors = np.array(rows, np.float32)
    with out.open("wb") as file:
        np.save(file, vectors, allow_pickle=False)
    print_json({"out": out, "shape": list(vectors.shape)}) if json_ else click.echo(f"{len(vectors)} vectors in {out}")


def _nearest(run: str, word: str, k: int, json_: bool) -> None:
    from harken.inference.run import load

    neighbors = load(run).nearest(word, k)
    if json_:
        print_json({"nearest": neighbors})
        return
    for neighbor in neighbors:
        click.echo(f"{neighbor['similarity']:8.4f}  {neighbor['word']!r}")
