"""What texts are, by a run that was trained on labels: the labels with their probabilities, or a number."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import Tensor

from harken.data.labelled.batch import Texts
from harken.data.labelled.source import TextLabels
from harken.errors import BadInput
from harken.tasks.classify import answers

if TYPE_CHECKING:
    from harken.inference.run import Run

Given = str | Sequence[str]  # a text; where two were learned, both, or one with a tab between


def label_texts(run: "Run", texts: Sequence[Given]) -> list[list[dict[str, Any]]]:
    """For each text its labels, the likeliest first; of several at once each by itself; of a number its value."""
    if not texts:
        return []
    words = cast(TextLabels, run.tokenizer)
    side, second, _ = words.texts(
        [parted(text, pair=words.pair, told="this run was trained on") for text in texts], run.recipe.data.max_length
    )
    y = answers(run.model, Texts(side, second, np.zeros(len(side), np.int64)))
    return said(words, y)


def said(words: Any, y: Tensor) -> list[list[dict[str, Any]]]:  # N C
    """What these outputs say: labels, the likeliest first; of several at once each by itself; of a number its value."""
    answer = getattr(words, "target_type", "label")
    if answer == "number":
        return [[{"label": words.labels[0], "value": value * words.spread + words.mean}] for value in y[:, 0].tolist()]
    return ranked(words.labels, y.softmax(-1) if answer == "label" else y.sigmoid())


def ranked(labels: Sequence[str], p: Tensor) -> list[list[dict[str, Any]]]:  # N C
    rows = (zip(labels, each, strict=True) for each in p.tolist())
    return [[{"label": label, "probability": q} for label, q in sorted(row, key=lambda said: -said[1])] for row in rows]


def parted(text: Given, *, pair: bool, told: str) -> tuple[str, ...]:
    """The one text that is asked about, or both; `told` says whoever asks, should it be another number."""
    parts = tuple(text.split("\t") if pair else [text]) if isinstance(text, str) else tuple(text)
    if len(parts) != 1 + pair or not all(isinstance(part, str) for part in parts):
        accepted = "two texts, with a tab between them," if pair else "one text"
        raise BadInput(f"{text!r}: {told} {'pairs' if pair else 'single texts'}; {accepted} is accepted")
    return parts
