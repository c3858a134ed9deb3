"""Label or regression target of an example, for every kind of data."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from harken.errors import BadInput
from harken.suggestions import did_you_mean

MAX_CLASSES = 100  # with more distinct integers the target is a number, not a label
MAX_SHOWN = 12  # labels listed in a message


def infer_target_type(values: Iterable[str]) -> Literal["label", "number"]:
    """Number if all values are finite numbers and some have a fraction or there are many; otherwise label."""
    try:
        numbers = {float(value) for value in values}
    except ValueError:
        return "label"
    is_number = all(map(math.isfinite, numbers)) and (any(v % 1 for v in numbers) or len(numbers) > MAX_CLASSES)
    return "number" if is_number else "label"


def label_sort_key(label: str) -> tuple[float, str]:
    """Sorts numbers by value, then text alphabetically."""
    try:
        return float(label), label
    except ValueError:
        return math.inf, label


def fit_labels(values: Iterable[str], n_examples: int, unit: str, path: str) -> list[str]:
    """The distinct labels, sorted; raises if there are too few or too many of them for a classification."""
    labels = sorted({*values}, key=label_sort_key)
    if len(labels) < 2:
        only = f"the only label is {labels[0]!r}" if labels else "there is no label"
        raise BadInput(f"{path}: {only}; classification needs at least two labels; add {unit} with others")
    if len(labels) > max(MAX_CLASSES, n_examples / 2):
        problem = f"{len(labels):,} different labels in {n_examples:,} {unit}, such as {labels[0][:40]!r}"
        raise BadInput(f"{path}: {problem}; too many for a label; name another column: data.label=...")
    return labels


def is_finite(text: str) -> bool:
    """Whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def parse_number(text: str, place: str) -> float:
    """Finite regression target at a place in a file."""
    if not is_finite(text):
        raise BadInput(f"{place}: {text!r} is not a finite number; fix the value or set data.target_type=label")
    return float(text)


def fit_numbers(targets: Iterable[tuple[str, str]], path: str) -> tuple[float, float]:
    """Mean and standard deviation of regression targets, given as texts with their places."""
    numbers = np.array([parse_number(text, place) for text, place in targets])
    if not (std := float(numbers.std())):
        raise BadInput(f"{path}: every target is {numbers[0]:g}; regression needs different numbers")
    return float(numbers.mean()), std


def standardize_numbers(targets: Iterable[tuple[str, str]], mean: float, std: float) -> npt.NDArray[np.float32]:  # N 1
    """Regression targets with mean 0 and standard deviation 1."""
    numbers = np.array([parse_number(text, place) for text, place in targets], np.float64)
    return ((numbers - mean) / std).astype(np.float32)[:, None]


def unknown_label_error(label: str, labels: Sequence[str], place: str) -> BadInput:
    """Error for a label that does not occur in the training data."""
    known = ", ".join(labels[:MAX_SHOWN]) + ", ..." * (len(labels) > MAX_SHOWN)
    problem = f"unknown label {label!r}" if label else "label is empty"
    return BadInput(f"{place}: {problem}; known labels are {known}; fix the row.{did_you_mean(label, labels)}")
