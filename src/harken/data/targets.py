"""Label or regression target of an example, for every kind of data."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

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


def parse_number(text: str, place: str) -> float:
    """Finite regression target at a place in a file."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadInput(f"{place}: {text!r} is not a finite number; fix the value or set data.target_type=label")
    return value


def unknown_label_error(label: str, labels: Sequence[str], place: str) -> BadInput:
    """Error for a label that does not occur in the training data."""
    known = ", ".join(labels[:MAX_SHOWN]) + ", ..." * (len(labels) > MAX_SHOWN)
    problem = f"unknown label {label!r}" if label else "label is empty"
    return BadInput(f"{place}: {problem}; known labels are {known}; fix the row.{did_you_mean(label, labels)}")
