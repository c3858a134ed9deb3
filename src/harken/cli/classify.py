"""harken classify RUN [TEXT or IMAGE...]"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import click

from harken.console import ConsoleListener, decode_argument, decode_prompt, stdin_batches, stdin_is_piped

from . import json_option, precision_option, print_json, reject_options
from .files import TEXT_COLUMNS, file_options, process_file, training_column, validate_files, write_predictions

BATCH_SIZE = 256  # texts per batch
LABELS_SHOWN = 3  # labels printed per text


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@click.option("--prompt", "prompt", metavar="TEXT", help='Prompt for a language model: "Review: {text} Sentiment:".')
@click.option("--labels", metavar="A,B", help="With --prompt: the candidate labels.")
@file_options
@precision_option
@json_option
def classify(
    run: str, texts: tuple[str, ...], prompt: str | None, labels: str | None, precision: str, json_: bool, **files: Any
) -> None:
    """Predict the labels of each TEXT with their probabilities, or its number. Two texts are separated by a tab.

    For a RUN on images each TEXT is an image file or a folder of images; for a RUN on sets a table of sets; for a RUN
    on graphs a node name, optionally after the file of another graph.

    With -, or piped, each line of stdin is a text and gets one line. With --prompt a language model is used.
    """
    in_, out_ = files["in_"], files["out_"]
    if (prompt is None) != (labels is None):
        raise click.UsageError("--prompt and --labels are used together; give both")
    if not texts and in_ is None and not stdin_is_piped():
        raise click.UsageError("give a text, or - to read texts from stdin, one per line")
    validate_files(in_, out_)
    from harken.inference.abilities import INPUT_READERS
    from harken.inference.run import load

    model = load(run, precision=precision)
    how: dict[str, Any] = {"listen": ConsoleListener(to_stderr=True)}
    if prompt is not None and labels is not None:
        how |= {"prompt": decode_prompt(prompt), "labels": labels.split(",")}
    model.classify([], **how)  # invalid options are refused before the first text
    input_name, read_inputs = INPUT_READERS.get(model.recipe.task.kind, ("", None))
    reader_options = {"listen": how["listen"]} if input_name in ("sets", "files") else {}  # skipped inputs are reported
    if in_ is not None and out_ is not None:
        columns = [*training_column(model.recipe.data.input_column), *TEXT_COLUMNS]
        where = {"column": files["column"], "columns": columns, "keep_tabs": getattr(model.tokenizer, "pair", False)}
        with ConsoleListener(to_stderr=True) as listener:
            if read_inputs and input_name == "sets":
                reject_options("for sets", "column")
                names, sets = read_inputs(model, [in_], **reader_options)
                count = write_predictions(out_, names, _predictions(model, iter(sets), how), len(sets), listener)
            else:
                count = process_file(in_, out_, lambda texts: _predictions(model, texts, how), listen=listener, **where)
        print_json({"answers": count, "out": out_}) if json_ else click.echo(f"{count} answers in {out_}")
        return
    stdin = texts in ((), ("-",))
    batches = stdin_batches(BATCH_SIZE, required=not texts) if stdin else [list(map(decode_argument, texts))]
    names = list[str]()
    if read_inputs:
        names, inputs = read_inputs(model, [name for block in batches for name in block], **reader_options)
        one_batch = input_name == "names"  # all nodes of a graph are computed in one pass
        batches = [inputs] if one_batch else [inputs[n : n + BATCH_SIZE] for n in range(0, len(inputs), BATCH_SIZE)]
    if json_:
        print_json({"labels": list(_classify_batches(model, batches, how)), **({input_name: names} if names else {})})
        return
    for n, predictions in enumerate(_classify_batches(model, batches, how)):
        text = "  ".join(f"{_format_label(label)} {label['label']}" for label in predictions[:LABELS_SHOWN])
        click.echo(f"{text}  {names[n]}" if len(names) > 1 else text)


def _format_label(label: dict[str, Any]) -> str:
    return f"{label['value']:.4g}" if "value" in label else f"{label['probability']:.3f}"


def _predictions(model: Any, inputs: Iterator[Any], how: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for labels in _classify_batches(model, iter(lambda: list(islice(inputs, BATCH_SIZE)), []), how):
        yield {**labels[0], "labels": labels}


def _classify_batches(model: Any, batches: Iterable[list[Any]], how: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    for texts in batches:
        yield from model.classify(texts, **how)
