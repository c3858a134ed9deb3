"""harken classify RUN [TEXT or IMAGE...]"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from harken.console import ConsoleListener, decode_prompt
from harken.events import Listener

from . import json_option, precision_option, print_json, reject_options
from .inputs import TEXT_COLUMNS, Inputs, file_options, training_column

if TYPE_CHECKING:
    from harken.inference.run import Run

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
def classify(run: str, texts: tuple[str, ...], precision: str, json_: bool, **options: str | None) -> None:
    """Predict labels with probabilities, or a number, for each TEXT. A tab separates the two texts of a pair.

    For a RUN on images, TEXT is an image file or a folder of images; for a RUN on sets, a table of sets; for a RUN on
    graphs, a node name, an edge A--B or a graph name, as in training, optionally after the file of another graph.

    With - or piped input, each line of stdin is a text and gets one output line.

    With --prompt, RUN is a language model.
    """
    prompt, labels = options.pop("prompt"), options.pop("labels")
    if (prompt is None) != (labels is None):
        raise click.UsageError("--prompt and --labels are used together; give both")
    inputs = Inputs(texts, **options)
    from harken.inference.run import load

    model = load(run, precision=precision)
    with ConsoleListener(to_stderr=True) as listener:
        arguments: dict[str, Any] = {"listen": listener}
        if prompt is not None and labels is not None:
            arguments |= {"prompt": decode_prompt(prompt), "labels": labels.split(",")}
        model.classify([], **arguments)  # invalid options are refused before the first text
        names, batches = _named_batches(model, inputs, listener)
        rows: Iterator[Any] = (row for batch in batches for row in model.classify(batch, **arguments))
        if inputs.in_:
            inputs.write(({**row[0], "labels": row} for row in rows), json_=json_, listen=listener)
        elif json_:
            named = {model.input_reader.name: names} if model.input_reader and names else {}
            print_json({"labels": list(rows), **named})
        else:
            for n, row in enumerate(rows):
                n_shown = max(LABELS_SHOWN, sum(label.get("predicted", False) for label in row))
                text = "  ".join(f"{_format_label(label)} {label['label']}{_mark(label)}" for label in row[:n_shown])
                click.echo(f"{text}  {names[n]}" if len(names) > 1 else text)


def _named_batches(model: "Run", inputs: Inputs, listen: Listener) -> tuple[list[str], Iterable[Sequence[Any]]]:
    """The inputs in batches; for a run that reads files or names of nodes also the name of each input."""
    reader = model.input_reader
    if inputs.in_ and reader and reader.is_table:
        reject_options(f"for {reader.name}", "column")
        selected = [inputs.in_]
    else:
        from harken.data.labelled.source import TextLabelProcessor

        processor, columns = model.tokenizer, [*training_column(model.recipe.data.input_column), *TEXT_COLUMNS]
        is_pair = isinstance(processor, TextLabelProcessor) and processor.pair
        batches = inputs.batches(BATCH_SIZE, columns, keep_tabs=is_pair)
        if not reader or inputs.in_:
            return [], batches
        selected = [name for batch in batches for name in batch]
    names, items = reader.select(model, selected, listen)
    inputs.texts, inputs.total = names, len(names)
    size = max(1, len(items)) if reader.one_batch else BATCH_SIZE
    return names, [items[n : n + size] for n in range(0, len(items), size)]


def _mark(label: dict[str, Any]) -> str:
    """An asterisk at those of several labels that are above their threshold."""
    return "*" * label.get("predicted", False)


def _format_label(label: dict[str, Any]) -> str:
    return f"{label['value']:.4g}" if "value" in label else f"{label['probability']:.3f}"
