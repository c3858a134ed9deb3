"""harken classify RUN [TEXT or IMAGE...]"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harken.console import ConsoleListener, decode_prompt
from harken.errors import BadInput
from harken.events import Listener

from . import json_option, overflow_option, precision_option, print_json, reject_options
from .answers import Answer, answer_texts, min_probability_option, null_line, one_line, parallel_lists
from .inputs import (
    IMAGE_COLUMNS,
    PAIR_COLUMNS,
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

LABELS_SHOWN = 3  # labels printed per text
ALL_HELP = (
    f"Print all labels instead of the {LABELS_SHOWN} most probable; in a table, one probability column per label."
)
PAIR_HELP = "Two texts that belong together; may be repeated. For a BERT: does B follow A? (is-next, not-next)"


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@click.option("--pair", "pairs", nargs=2, multiple=True, metavar="A B", help=PAIR_HELP)
@click.option("--prompt", "prompt", metavar="TEXT", help='Prompt for a language model: "Review: {text} Sentiment:".')
@click.option("--labels", metavar="A,B", help="With --prompt: the candidate labels.")
@click.option("--all", "all_", is_flag=True, help=ALL_HELP)
@min_probability_option
@file_options
@overflow_option
@precision_option
@json_option
def classify(run: str, texts: tuple[str, ...], precision: str, json_: bool, **settings: object) -> None:
    """Predict labels with probabilities, or a number, for each TEXT. Tabs separate the texts of a pair (or use --pair)
    or of several columns. A RUN that fills in masked words predicts whether the second text of a pair follows.

    For a RUN on images, TEXT is an image file or a folder of images; for a RUN on sets, a table of sets; for a RUN on
    graphs, a node name, an edge A--B or a graph name, as in training, optionally after the file of another graph.

    With - or piped input, each line of stdin is a text and gets one output line.

    With --prompt, RUN is a language model.
    """
    options: dict[str, Any] = settings
    prompt, labels = options.pop("prompt"), options.pop("labels")
    if (prompt is None) != (labels is None):
        raise click.UsageError("--prompt and --labels are used together; give both")
    if pairs := options.pop("pairs"):
        reject_options("with --pair", "texts", "prompt", "in_")
        texts = tuple("\t".join(part.replace("\t", " ") for part in pair) for pair in pairs)
    inputs = Inputs.from_options(texts, options)
    from harken.inference.run import load

    model = load(run, precision=precision)
    if pairs:
        _require_pairs(model)
    inputs.use_encoding(model.recipe.data.file_encoding)
    with ConsoleListener(to_stderr=True) as listener:
        arguments: dict[str, Any] = {key: options[key] for key in ("min_probability", "overflow")}
        arguments["listen"] = listener
        if prompt is not None and labels is not None:
            arguments |= {"prompt": decode_prompt(prompt), "labels": [label.strip() for label in labels.split(",")]}
        model.classify([], **arguments)  # invalid options are refused before the first text
        if model.input_reader is None:
            refuse_file_names(texts)
        names, batches = _named_batches(model, inputs, listener)
        answers = _answers(model, names, batches, arguments, listener)
        if inputs.in_:
            known = arguments.get("labels") or model.labels
            columns = {label: f"probability_{label}" for label in known if options["all_"]}
            rows = (_table_row(model, answer, columns) if inputs.writes_table else answer for _, answer in answers)
            inputs.write(rows, ("label", "value", "probability", *columns.values()), json_=json_, listen=listener)
        elif json_:
            named = {model.input_reader.name: names} if model.input_reader and names else {}
            print_json({**parallel_lists([answer for _, answer in answers], "labels"), **named})
        else:
            shown = names or list(map(one_line, texts))
            for n, (_, answer) in enumerate(answers):
                text = _format_labels(answer, None if options["all_"] else LABELS_SHOWN)
                click.echo(f"{text}  {shown[n]}".rstrip() if len(shown) > 1 else text)


def _require_pairs(model: "Run") -> None:
    """Raise unless an input of this run is two texts."""
    if model.n_texts == 1:
        raise BadInput(f"--pair: this run {model.ability} and reads no pairs of texts; give each text alone")
    if model.n_texts > 2:
        reads = f"this run reads {model.n_texts} texts ({', '.join(model.text_names)})"
        raise BadInput(f"--pair: {reads}; give them in this order with tabs between them, or in a file (--in)")


def _answers(
    model: "Run", names: list[str], batches: Iterable[Sequence[Any]], arguments: dict[str, Any], listen: Listener
) -> Iterable[tuple[object, Answer]]:
    """Each input, or its name, with its labels."""

    def predict(batch: list[Any], _: int) -> list[Answer]:
        rows: list[Any] = model.classify(batch, **arguments)
        return [{**_best(model, row), "labels": row} for row in rows]

    if names and model.input_reader and model.input_reader.one_batch:  # an input may select many nodes
        return zip(names, (answer for batch in batches for answer in predict(list(batch), 0)), strict=True)
    return answer_texts(model, batches, predict, {"label": None, "labels": None}, listen, n_texts=model.n_texts)


def _named_batches(model: "Run", inputs: Inputs, listen: Listener) -> tuple[list[str], Iterable[Sequence[Any]]]:
    """The inputs in batches; for a run that reads files or names of nodes also the name of each input."""
    from harken.data.sets.columns import header_names
    from harken.inference.answers.rows import label_column, notice_unseen

    reader = model.input_reader
    if inputs.in_ and reader and reader.is_table:
        reject_options(f"for {reader.name}", "column")
        selected = [inputs.in_]
        notice_unseen(model, header_names(Path(inputs.in_), inputs.encoding), Counter(), listen)
    elif inputs.in_ or not reader:
        is_image = reader is not None and reader.name == "files"
        named = IMAGE_COLUMNS if is_image else {1: TEXT_COLUMNS, 2: PAIR_COLUMNS}.get(model.n_texts, ())
        columns = [*input_choices(model.recipe.data.input_column), *named]
        convert = locate_image if is_image else None
        options: dict[str, Any] = {"keep_tabs": model.n_texts > 1, "convert": convert}
        batches = inputs.batches(BATCH_SIZE, columns, count_values=label_column(model), **options)
        notice_unseen(model, inputs.header, inputs.values, listen)
        return [], batches
    else:
        selected = [name for batch in inputs.batches(BATCH_SIZE) for name in batch]
    return selected_batches(model, reader, selected, inputs, listen)


def _best(model: "Run", labels: list[Any]) -> Answer:
    """The answer from the scores of all labels."""
    from harken.inference.answers.rows import best_label, label_probability

    if "value" in labels[0]:
        return dict(labels[0])
    label = best_label(model, labels)
    return {"label": label, "probability": label_probability(label, labels)}


def _table_row(model: "Run", answer: Answer, columns: dict[str, str]) -> Answer:
    """The answer as cells, with a column for the probability of each label."""
    from harken.inference.answers.rows import label_cell

    if isinstance(answer["label"], list):
        answer = answer | {"label": label_cell(model, answer["label"])}
    scores = [score for score in answer["labels"] or () if score["label"] in columns and "probability" in score]
    return answer | {columns[score["label"]]: score["probability"] for score in scores}


def _format_labels(answer: Answer, count: int | None) -> str:
    """The first labels, and all that are predicted; an asterisk marks those of several labels above their threshold."""
    if answer["labels"] is None:
        return null_line(answer)
    n_predicted = sum(each.get("predicted", False) for each in answer["labels"])
    return "  ".join(
        (f"{each['value']:.4g}" if "value" in each else f"{each['probability']:.3f}")
        + f" {each['label']}{'*' * each.get('predicted', False)}"
        for each in answer["labels"][: count and max(count, n_predicted)]
    )
