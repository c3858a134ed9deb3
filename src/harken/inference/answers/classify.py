"""Classify texts: labels with their probabilities, or the value of a regression target."""

from collections.abc import Sequence
from typing import cast

import numpy as np
from torch import Tensor

from harken.data.graphs.source import GraphProcessor
from harken.data.labelled.batch import EncodedTexts
from harken.data.labelled.source import TextLabelProcessor
from harken.data.sets.source import SetProcessor
from harken.errors import BadInput
from harken.inference.loaded_model import LoadedModel
from harken.models.heads import ModelWithHead
from harken.tasks.classify import predict

from . import LabelScore

DEFAULT_THRESHOLD = 0.5  # of a label without one that was chosen on the validation split
LabelProcessor = TextLabelProcessor | SetProcessor | GraphProcessor
TextOrPair = str | Sequence[str]  # one text; a pair is two texts, or one string with a tab between them


def classify_texts(run: LoadedModel, texts: Sequence[TextOrPair]) -> list[list[LabelScore]]:
    """The labels of each text, most probable first."""
    if not texts:
        return []
    processor = cast(TextLabelProcessor, run.tokenizer)
    parts = [split_pair(text, pair=processor.pair, subject="this run was trained on") for text in texts]
    side, second, _ = processor.encode_texts(parts, run.recipe.data.max_length)
    y = predict(cast(ModelWithHead, run.model), EncodedTexts(side, second, np.zeros(len(side), np.int64)))
    rows = format_labels(processor, y)
    if processor.target_type == "multilabel":
        thresholds = run.facts.get("thresholds") or {}
        for score in (score for row in rows for score in row):
            score["predicted"] = score["probability"] > thresholds.get(score["label"], DEFAULT_THRESHOLD)
    return rows


def format_labels(processor: LabelProcessor, y: Tensor) -> list[list[LabelScore]]:  # N C
    """Labels by probability (softmax, or sigmoid for multilabel targets), or the value of a regression target."""
    if processor.target_type == "number":
        label = processor.labels[0]
        return [[{"label": label, "value": value * processor.std + processor.mean}] for value in y[:, 0].tolist()]
    return rank_labels(processor.labels, y.softmax(-1) if processor.target_type == "label" else y.sigmoid())


def rank_labels(labels: Sequence[str], p: Tensor) -> list[list[LabelScore]]:  # N C
    """The labels of each row, most probable first."""
    rows = (zip(labels, row, strict=True) for row in p.tolist())
    return [[{"label": label, "probability": q} for label, q in sorted(row, key=lambda pair: -pair[1])] for row in rows]


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
