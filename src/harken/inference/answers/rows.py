"""Predictions for the rows of a DataFrame, with a run trained on a table of texts."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

from harken.data.labelled.examples import has_input
from harken.data.labelled.source import TextLabelProcessor
from harken.data.tables.frame import Frame, column_cells, column_names, refuse_lazy, typed_value
from harken.errors import BadInput
from harken.events import Listener
from harken.inference.loaded_model import LoadedModel
from harken.suggestions import reject_unknown_options

from . import LabelScore, OverflowMode
from .unknown import unseen_columns, unseen_labels

Prediction = str | float | list[str] | None  # a label or a text, a number, several labels; None: the text is empty


class RowOptions(TypedDict, total=False):
    """Options of `classify` that `predict` passes on."""

    min_probability: float
    overflow: OverflowMode


DEFAULT_SEPARATOR = ";"  # of several labels in a cell, if the training data has none
Answerer = Callable[[list[tuple[str, ...]]], list[Prediction]]


def input_texts(run: LoadedModel, frame: object) -> list[tuple[str, ...]]:
    """The texts of each row: one, two of a run on pairs, or those of several columns; empty without an input."""
    refuse_lazy(frame)
    if not isinstance(frame, Frame):
        raise BadInput(f"{type(frame).__name__}: a DataFrame is accepted; use run.{run.verb} for texts")
    place = run.recipe.data.input_column
    if place is None:
        hint = f"use run.{run.verb} for one column of it"
        raise BadInput(f"{run.path}: this run {run.ability} and was not trained on columns of a table; {hint}")
    names, refs = column_names(frame), place if isinstance(place, list) else [place]
    for ref in refs:
        if isinstance(ref, int) and ref > len(names):
            raise BadInput(f"{type(frame).__name__}: no column {ref}; it has {len(names)} columns")
    cells = [column_cells(frame, names[ref - 1] if isinstance(ref, int) else ref) for ref in refs]
    return [row if has_input(row) else () for row in zip(*cells, strict=True)]


def label_column(run: LoadedModel) -> str | None:
    """The column of a table with one label per text, if it has a name."""
    processor, column = run.tokenizer, dict(run.recipe.data).get("label")
    has_labels = isinstance(processor, TextLabelProcessor) and processor.target_type == "label"
    return column if has_labels and isinstance(column, str) else None


def count_labels(run: LoadedModel, frame: Frame) -> Counter[str]:
    """The labels in a DataFrame that has the label column of the training data."""
    column = label_column(run)
    cells = column_cells(frame, column) if column in column_names(frame) else []
    return Counter(label for cell in cells if (label := cell.strip()))


def notice_unseen(run: LoadedModel, columns: Sequence[str], labels: Counter[str], listen: Listener) -> None:
    """Name the columns and the labels of a table that did not occur in training."""
    known = run.facts.get("data", {}).get("columns", [])
    for text in unseen_columns(columns, known), unseen_labels(labels, run.tokenizer.labels if labels else []):
        if text:
            listen("notice", text=text)


def predict_rows(
    run: LoadedModel, frame: Frame, answer: Answerer, listen: Listener, **options: Unpack[RowOptions]
) -> list[Prediction]:
    """The prediction for each row of a DataFrame; None for a row without a text."""
    reject_unknown_options(options, [*RowOptions.__annotations__])
    if options.get("min_probability") and run.verb != "classify":
        raise BadInput("min_probability: only labels have a probability; leave it out")
    if options.get("overflow", "truncate") != "truncate" and run.verb != "classify":
        raise BadInput(f"overflow={options['overflow']!r}: only texts with labels are read in windows; leave it out")
    rows = input_texts(run, frame)
    notice_unseen(run, column_names(frame), count_labels(run, frame), listen)
    predictions = iter(answer([row for row in rows if row]))
    return [next(predictions) if row else None for row in rows]


def best_label(run: LoadedModel, labels: Sequence[LabelScore]) -> Prediction:
    """The most probable label, the value of a regression target, or all labels above their thresholds."""
    if "value" in labels[0]:
        return labels[0]["value"]
    processor = run.tokenizer
    is_multilabel = isinstance(processor, TextLabelProcessor) and processor.target_type == "multilabel"
    if is_multilabel and len(labels) == len(processor.labels):  # else the first one is `unknown`
        return [score["label"] for score in labels if score["predicted"]]
    return labels[0]["label"]


def label_probability(answer: Prediction, labels: Sequence[LabelScore]) -> float | None:
    """The probability of the answer `best_label`; several labels and numbers have none."""
    return None if isinstance(answer, list) else labels[0].get("probability")


def label_cell(run: LoadedModel, answer: Prediction) -> str:
    """An answer as the cell of a table; several labels are joined by the separator of the training data."""
    if isinstance(answer, list):
        return (dict(run.recipe.data).get("separator") or DEFAULT_SEPARATOR).join(answer)
    return "" if answer is None else str(answer)


def typed_prediction(run: LoadedModel, prediction: Prediction) -> Prediction:
    """The prediction as the type of the label column, if the run was trained on a DataFrame of such labels."""
    kind = run.facts.get("data", {}).get("label_type", "")
    return typed_value(prediction, kind) if isinstance(prediction, str) else prediction
