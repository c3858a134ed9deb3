"""harken embed RUN TEXT..."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from harken.console import Teller, blocks, piped, typed
from harken.errors import BadInput

from . import as_json, refuse, show

AT_ONCE = 256  # texts of stdin that are read together


def as_pool(verb: Any) -> Any:
    """The option of verbs that make one vector of a text."""
    text = "What stands for a text: the mean of its states, that of its first token, or of its last."
    return click.option(
        "--pool", type=click.Choice(["mean", "cls", "last"]), default="mean", show_default=True, help=text
    )(verb)


def as_layer(verb: Any) -> Any:
    """The option of verbs that look inside a model."""
    text = "The states behind so many layers, 0: before the first. Default: the last, as the model gives them."
    return click.option("--layer", type=click.IntRange(0), metavar="N", help=text)(verb)


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@as_pool
@as_layer
@click.option("--raw", is_flag=True, help="Vectors as they are; without it each has length 1.")
@click.option("--out", metavar="FILE", help="Write the vectors into a NumPy file, a row each: FILE.npy.")
@click.option("--nearest", metavar="WORD", help="Instead: the words whose vectors are nearest to this word's.")
@click.option("-k", type=click.IntRange(1), default=10, show_default=True, help="How many words, with --nearest.")
@as_json
def embed(run: str, texts: tuple[str, ...], json_: bool, **options: Any) -> None:
    """The vector of each TEXT, one a line. With -, or piped, each line of stdin is a text."""
    if options["nearest"] is not None:
        refuse("with --nearest", "texts", "pool", "layer", "raw", "out")
        _nearest(run, typed(options["nearest"]), options["k"], json_)
        return
    refuse("without --nearest", "k")
    if not texts and not piped():
        raise click.UsageError("give a text, or - to read texts from stdin, one a line")
    if options["out"] is not None:
        _check(Path(options["out"]))
    from harken.inference.run import load

    model = load(run)
    model.must("embed")
    some = blocks(AT_ONCE, must=not texts) if texts in ((), ("-",)) else [list(map(typed, texts))]
    how = {"pool": options["pool"], "layer": options["layer"], "normalised": not options["raw"]}
    with Teller(aside=True) as teller:
        found: Iterator[Any] = (row for group in some for row in model.embed(group, listen=teller, **how))
        if options["out"] is not None:
            _write(Path(options["out"]), list(found), json_)
        elif json_:
            show({"vectors": [row.tolist() for row in found]})
        else:
            for row in found:
                click.echo(" ".join(f"{x:.6g}" for x in row.tolist()))


def _check(out: Path) -> None:
    if out.suffix != ".npy":
        raise BadInput(f"--out {out}: vectors are written as a NumPy file; give it a name that ends with .npy")
    if out.exists():
        raise BadInput(f"--out {out}: there is such a file; choose another name")


def _write(out: Path, rows: list[Any], json_: bool) -> None:
    import numpy as np

    made = np.array(rows, np.float32)
    with out.open("wb") as file:
        np.save(file, made, allow_pickle=False)
    show({"out": out, "shape": list(made.shape)}) if json_ else click.echo(f"{len(made)} vectors in {out}")


def _nearest(run: str, word: str, k: int, json_: bool) -> None:
    from harken.inference.run import load

    found = load(run).nearest(word, k)
    if json_:
        show({"nearest": found})
        return
    for one in found:
        click.echo(f"{one['similarity']:8.4f}  {one['word']!r}")
