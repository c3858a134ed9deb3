"""Predictions for the rows of a DataFrame, with a run trained on a table of texts."""

from collections.abc import Sequence

from harken.data.labelled.source import TextLabelProcessor
from harken.data.tables.frame import Frame, column_cells, column_names
from harken.errors import BadInput
from harken.inference.loaded_model import LoadedModel

from . import LabelScore

Prediction = str | float | list[str] | None  # a label or a text, a number, several labels; None: the text is empty


def input_texts(run: LoadedModel, frame: object) -> list[tuple[str, ...]]:
    """The input of each row: one text, or two of a run on pairs of texts; empty if one of them is missing."""
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
    return [row if all(text.strip() for text in row) else () for row in zip(*cells, strict=True)]


def best_label(run: LoadedModel, labels: Sequence[LabelScore]) -> Prediction:
    """The most probable label, the value of a regression target, or all labels above their thresholds."""
    if "value" in labels[0]:
        return labels[0]["value"]
    if isinstance(run.tokenizer, TextLabelProcessor) and run.tokenizer.target_type == "multilabel":
        return [score["label"] for score in labels if score["predicted"]]
    return labels[0]["label"]
