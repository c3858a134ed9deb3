"""Classify texts: labels with their probabilities, or the value of a regression target."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from torch import Tensor

from harken.data.graphs.processor import GraphProcessor
from harken.data.labelled.batch import EncodedTexts
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
TextOrPair = str | Sequence[str]  # one text; a pair is two texts, or one string with a tab between them


def classify_texts(
    run: LoadedModel, texts: Sequence[TextOrPair], listen: Listener = silent, *, overflow: OverflowMode = "truncate"
) -> list[list[LabelScore]]:
    """The labels of each text, most probable first. overflow="windows" averages over the windows of a long text."""
    if not texts:
        return []
    processor, max_length = cast(TextLabelProcessor, run.tokenizer), run.recipe.data.max_length
    parts = split_pairs(texts, pair=processor.pair, subject="this run was trained on")
    encoded = processor.encode_texts(parts, max_length, windows=overflow == "windows")
    if overflow == "truncate":
        report_overflow(listen, replace(encoded.overflow, remedy=f"{USE_WINDOWS}, or train with {MAX_LENGTH}"))
    targets = np.zeros(len(encoded.tokens), np.int64)
    y = predict(cast(ModelWithHead, run.model), EncodedTexts(encoded.tokens, encoded.second_start, targets))
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


def is_pair(texts: object) -> bool:
    """Whether this is one pair as a tuple, and not two strings of which each has a tab between its texts."""
    is_tuple = isinstance(texts, tuple) and len(texts) == 2
    return is_tuple and all(isinstance(text, str) and "\t" not in text for text in cast(tuple[object, ...], texts))


def split_pairs(texts: Sequence[TextOrPair], *, pair: bool, subject: str) -> list[tuple[str, ...]]:
    """The one text, or the two texts of a pair, of each input; an empty or missing one is refused by its index."""
    rows = list[tuple[str, ...]]()
    for n, text in enumerate(texts):
        parts = () if is_missing_value(text) else split_pair(text, pair=pair, subject=subject)
        if not parts or not all(part.strip() for part in parts):
            raise empty_text_error(n, len(texts), "text", "" if parts else text)
        rows.append(parts)
    return rows


def split_pair(text: TextOrPair, *, pair: bool, subject: str) -> tuple[str, ...]:
    """The one text, or the two texts of a pair; `subject` begins the message if the number is wrong."""
    if isinstance(text, str):
        parts = tuple(text.split("\t") if pair else [text])
    else:
        parts = tuple(text) if isinstance(text, Sequence | np.ndarray) else ()  # a missing value of a column
    if len(parts) != 1 + pair or not all(isinstance(part, str) for part in parts):
        accepted = "two texts with a tab between them" if pair else "one text"
        raise BadInput(f"{text!r}: {subject} {'pairs' if pair else 'single texts'}; give {accepted}")
    return parts
