"""harken classify RUN [TEXT or IMAGE...]"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harken.console import ConsoleListener, decode_prompt
from harken.events import Listener

from . import json_option, precision_option, print_json, reject_options
from .answers import Answer, answer_texts, min_probability_option, null_line, one_line, parallel_lists
from .inputs import (
    FILE_OPTIONS,
    IMAGE_COLUMNS,
    TEXT_COLUMNS,
    InputRow,
    Inputs,
    file_options,
    input_choices,
    locate_image,
)
from .outputs import DELIMITERS

if TYPE_CHECKING:
    from harken.inference.run import Run

BATCH_SIZE = 256  # texts per batch
LABELS_SHOWN = 3  # labels printed per text
ALL_HELP = (
    f"Print all labels instead of the {LABELS_SHOWN} most probable; in a table, one probability column per label."
)


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@click.option("--prompt", "prompt", metavar="TEXT", help='Prompt for a language model: "Review: {text} Sentiment:".')
@click.option("--labels", metavar="A,B", help="With --prompt: the candidate labels.")
@click.option("--all", "all_", is_flag=True, help=ALL_HELP)
@min_probability_option
@file_options
@precision_option
@json_option
def classify(run: str, texts: tuple[str, ...], precision: str, json_: bool, **options: Any) -> None:
    """Predict labels with probabilities, or a number, for each TEXT. A tab separates the two texts of a pair.

    For a RUN on images, TEXT is an image file or a folder of images; for a RUN on sets, a table of sets; for a RUN on
    graphs, a node name, an edge A--B or a graph name, as in training, optionally after the file of another graph.

    With - or piped input, each line of stdin is a text and gets one output line.

    With --prompt, RUN is a language model.
    """
    prompt, labels = options.pop("prompt"), options.pop("labels")
    if (prompt is None) != (labels is None):
        raise click.UsageError("--prompt and --labels are used together; give both")
    inputs = Inputs(texts, **{name: options.pop(name) for name in FILE_OPTIONS})
    from harken.inference.answers.rows import best_label
    from harken.inference.run import load

    model = load(run, precision=precision)
    is_table = inputs.out.suffix.lower() in DELIMITERS
    with ConsoleListener(to_stderr=True) as listener:
        arguments: dict[str, Any] = {"min_probability": options["min_probability"], "listen": listener}
        if prompt is not None and labels is not None:
            arguments |= {"prompt": decode_prompt(prompt), "labels": labels.split(",")}
        model.classify([], **arguments)  # invalid options are refused before the first text

        def predict(batch: list[Any], _: int) -> list[Answer]:
            rows: list[Any] = model.classify(batch, **arguments)
            answers = [{**row[0], "label": best_label(model, row), "labels": row} for row in rows]
            if is_table and options["all_"]:
                answers = [answer | _probabilities(answer["labels"]) for answer in answers]
            return answers

        names, batches = _named_batches(model, inputs, listener)
        null = {"label": None, "labels": None}
        answers = answer_texts(model, batches, predict, null, listener, is_pair=_reads_pairs(model))
        if inputs.in_:
            known = labels.split(",") if labels else model.tokenizer.labels
            keys = ("label", "value", "probability", *(f"probability_{label.strip()}" for label in known))
            inputs.write((answer for _, answer in answers), keys, json_=json_, listen=listener)
        elif json_:
            named = {model.input_reader.name: names} if model.input_reader and names else {}
            print_json({**parallel_lists([answer for _, answer in answers], "labels"), **named})
        else:
            shown = names if len(names) > 1 else list(map(one_line, texts)) if len(texts) > 1 else []
            for n, (_, answer) in enumerate(answers):
                text = _format_labels(answer, None if options["all_"] else LABELS_SHOWN)
                click.echo(f"{text}  {shown[n]}" if shown else text)


def _named_batches(model: "Run", inputs: Inputs, listen: Listener) -> tuple[list[str], Iterable[Sequence[Any]]]:
    """The inputs in batches; for a run that reads files or names of nodes also the name of each input."""
    from harken.data.sets.columns import header_names
    from harken.inference.answers.rows import label_column, notice_unseen

    reader = model.input_reader
    if inputs.in_ and reader and reader.is_table:
        reject_options(f"for {reader.name}", "column")
        selected = [inputs.in_]
        notice_unseen(model, header_names(Path(inputs.in_)), Counter(), listen)
    elif inputs.in_ or not reader:
        is_image = reader is not None and reader.name == "files"
        named = IMAGE_COLUMNS if is_image else TEXT_COLUMNS
        columns = [*input_choices(model.recipe.data.input_column), *named]
        convert = locate_image if is_image else None
        options: dict[str, Any] = {"keep_tabs": _reads_pairs(model), "convert": convert}
        batches = inputs.batches(BATCH_SIZE, columns, count_values=label_column(model), **options)
        notice_unseen(model, inputs.names, inputs.values, listen)
        return [], batches
    else:
        selected = [name for batch in inputs.batches(BATCH_SIZE) for name in batch]
    names, items = reader.select(model, selected, listen)
    if inputs.in_:
        inputs.set_rows([InputRow(None, {"set": name}, name) for name in names])
    size = max(1, len(items)) if reader.one_batch else BATCH_SIZE
    return names, [items[n : n + size] for n in range(0, len(items), size)]


def _reads_pairs(model: "Run") -> bool:
    from harken.data.labelled.source import TextLabelProcessor

    return isinstance(model.tokenizer, TextLabelProcessor) and model.tokenizer.pair


def _probabilities(labels: Sequence[dict[str, Any]]) -> Answer:
    """A column for the probability of each label."""
    return {f"probability_{each['label']}": each["probability"] for each in labels if "probability" in each}


def _format_labels(answer: Answer, count: int | None) -> str:
    if answer["labels"] is None:
        return null_line(answer)
    return "  ".join(
        f"{each['value']:.4g} {each['label']}" if "value" in each else f"{each['probability']:.3f} {each['label']}"
        for each in answer["labels"][:count]
    )
