"""Classify texts: labels with their probabilities, or the value of a regression target."""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Number
from typing import cast

import numpy as np
from torch import Tensor

from harken.data.graphs.processor import GraphProcessor
from harken.data.labelled.batch import EncodedTexts
from harken.data.labelled.examples import has_input
from harken.data.labelled.source import TextLabelProcessor
from harken.data.sets.source import SetProcessor
from harken.data.tokenizers.pairs import Array
from harken.errors import BadInput
from harken.events import Listener, report_overflow, silent
from harken.inference.loaded_model import LoadedModel
from harken.models.heads import ModelWithHead
from harken.tasks.classify import average_windows, predict

from . import LabelScore, OverflowMode, empty_text_error, is_missing_value

DEFAULT_THRESHOLD = 0.5  # of a label without one that was chosen on the validation split
LabelProcessor = TextLabelProcessor | SetProcessor | GraphProcessor
USE_WINDOWS, MAX_LENGTH = 'use --overflow windows (Python: overflow="windows")', "data.max_length={longest}"
TextOrPair = str | Sequence[str]  # one text; of several: these texts, or one string with tabs between them


def classify_texts(
    run: LoadedModel, texts: Sequence[TextOrPair], listen: Listener = silent, *, overflow: OverflowMode = "truncate"
) -> list[list[LabelScore]]:
    """The labels of each text, most probable first. overflow="windows" averages over the windows of a long text."""
    if not texts:
        return []
    processor, max_length = cast(TextLabelProcessor, run.tokenizer), run.recipe.data.max_length
    parts = split_texts(texts, processor.n_texts, subject="this run was trained on", names=run.text_names)
    encoded = processor.encode_texts(parts, max_length, windows=overflow == "windows")
    if overflow == "truncate":
        report_overflow(listen, replace(encoded.overflow, remedy=f"{USE_WINDOWS}, or train with {MAX_LENGTH}"))
    targets = np.zeros(len(encoded.tokens), np.int64)
    y = predict(cast(ModelWithHead, run.model), EncodedTexts(encoded.tokens, encoded.segment_starts, targets))
    rows = format_labels(processor, y, encoded.text_index)
    if processor.target_type == "multilabel":
        thresholds = run.facts.get("thresholds") or {}
        for score in (score for row in rows for score in row):
            score["predicted"] = score["probability"] > thresholds.get(score["label"], DEFAULT_THRESHOLD)
    return rows


def format_labels(processor: LabelProcessor, y: Tensor, text_index: Array | None = None) -> list[list[LabelScore]]:
    """Labels by probability (softmax, or sigmoid for multilabel targets), or the value of a regression target.

    y: N C. With `text_index`, a row is a window of the text with this index, which has the mean over its windows.
    """
    if processor.target_type != "number":
        y = y.softmax(-1) if processor.target_type == "label" else y.sigmoid()
    p = y if text_index is None else average_windows(y, text_index)
    if processor.target_type == "number":
        label = processor.labels[0]
        return [[{"label": label, "value": value * processor.std + processor.mean}] for value in p[:, 0].tolist()]
    return rank_labels(processor.labels, p)


def rank_labels(labels: Sequence[str], p: Tensor) -> list[list[LabelScore]]:  # N C
    """The labels of each row, most probable first."""
    rows = (zip(labels, row, strict=True) for row in p.tolist())
    return [[{"label": label, "probability": q} for label, q in sorted(row, key=lambda pair: -pair[1])] for row in rows]


def is_single_input(texts: object, n_texts: int) -> bool:
    """Whether this is one input as a tuple of its texts, and not strings of which each has tabs between its texts."""
    if n_texts < 2 or not isinstance(texts, tuple) or len(texts) != n_texts:
        return False
    parts = cast(tuple[object, ...], texts)
    are_texts = all(isinstance(text, str | Number) or is_missing_value(text) for text in parts)
    return are_texts and not any("\t" in text for text in parts if isinstance(text, str))


def split_texts(
    inputs: Sequence[TextOrPair], n_texts: int, *, subject: str, names: Sequence[str] = ()
) -> list[tuple[str, ...]]:
    """The texts of each input; an empty or missing input is refused by its index."""
    rows = list[tuple[str, ...]]()
    for n, text in enumerate(inputs):
        parts = () if is_missing_value(text) else _split(text, n_texts, subject, names)
        if not parts or not has_input(parts):
            raise empty_text_error(n, len(inputs), "text", "" if parts else text)
        rows.append(parts)
    return rows


def _split(text: TextOrPair, n_texts: int, subject: str, names: Sequence[str]) -> tuple[str, ...]:
    """The texts of one input; `subject` begins the message if the number is wrong, `names` are the columns."""
    if isinstance(text, str):
        parts = tuple(text.split("\t") if n_texts > 1 else [text])
    else:
        cells = tuple(text) if isinstance(text, Sequence | np.ndarray) else ()  # a missing value of a column
        parts = tuple(_cell_text(cell) for cell in cells)
    if len(parts) != n_texts or not all(isinstance(part, str) for part in parts):
        order = f", in this order: {', '.join(names)}" if names and n_texts > 2 else ""
        kinds = {1: ("single texts", "one text"), 2: ("pairs", "two texts with a tab between them")}
        several = f"{n_texts} texts"
        trained, accepted = kinds.get(n_texts, (several, f"{several} with tabs between them{order}"))
        raise BadInput(f"{text!r}: {subject} {trained}; give {accepted}")
    return parts


def _cell_text(cell: str) -> str:
    """A cell as text: a number by its digits, a missing value as an empty text."""
    return "" if is_missing_value(cell) else str(cell) if isinstance(cell, Number) else cell
