"""Label or regression target of an example, for every kind of data."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from harken.errors import BadInput
from harken.events import Listener
from harken.suggestions import did_you_mean

from .tables import numbers as table_numbers
from .tables.numbers import MAX_TYPOS, Decimal, MissingLabels, is_missing
from .tables.text_file import EXCEL_SUFFIXES

MAX_CLASSES = 100  # with more distinct integers the target is a number, not a label
MAX_SHOWN = 12  # labels listed in a message


def infer_target_type(values: Iterable[str]) -> Literal["label", "number"]:
    """Number if the values are numbers, and some have a fraction or there are many; otherwise label.

    Missing values do not count, and a few other texts are errors in a column of numbers.
    """
    counts = {value: n for value, n in Counter(values).items() if not is_missing(value)}
    numbers = {value: table_numbers.parse_number(value) for value in counts}
    n_texts = sum(counts[value] for value, number in numbers.items() if number is None)
    if n_texts > MAX_TYPOS * sum(counts.values()):
        return "label"
    distinct = {number for number in numbers.values() if number is not None}
    return "number" if any(n % 1 for n in distinct) or len(distinct) > MAX_CLASSES else "label"


def normalize_numbers(targets: Sequence[tuple[str, str]], decimal: Decimal, location: str) -> list[str]:
    """The targets, given with their places; numbers get a decimal point. Raises if their format is another one."""
    original, is_workbook = [text for text, _ in targets], location.lower().endswith(EXCEL_SUFFIXES)
    texts = table_numbers.workbook_numbers(original, decimal, location)
    targets = [(text, place) for text, (_, place) in zip(texts, targets, strict=True)]
    if problem := table_numbers.format_problem(texts, decimal):
        if is_workbook and not table_numbers.format_problem(map(table_numbers.with_comma, texts), ","):
            problem += ", or set data.decimal=, (it applies to the cells that hold text)" * (
                "data.decimal" not in problem
            )
        raise BadInput(f"{location}: the target {problem} or, to learn the values as labels, data.target_type=label")
    unread = [(text, place) for text, place in targets if table_numbers.parse_number(text, decimal) is None]
    unread = [(text, place) for text, place in unread if not is_missing(text)]
    if decimal == "." or len(unread) > MAX_TYPOS * len(texts):
        return original
    for text, place in unread:
        fix = "fix the value, or set data.target_type=label"
        raise BadInput(f"{place}: {text!r} is not a number; numbers with a decimal comma are accepted; {fix}")
    return [text.replace(",", ".") for text in texts]


def missing_targets(
    targets: Sequence[str], target_type: str, missing: MissingLabels, location: str, listen: Listener
) -> set[str]:
    """The missing values, such as NA, whose rows are left out: of numbers, and of labels with data.missing=drop."""
    counts = Counter(target for target in targets if target and is_missing(target))
    if not counts:
        return set()
    named = ", ".join(f"{value!r} ({count:,})" for value, count in counts.most_common(MAX_SHOWN))
    if target_type == "number" or missing == "drop":
        rows = f"{(n := counts.total()):,} row{'s' * (n > 1)}"
        listen("notice", text=f"{location}: skipped {rows} with a missing target: {named}", skipped=n)
        return {*counts}
    remedy = "data.missing=drop skips these rows"
    listen("notice", text=f"{location}: labels that look like missing values are kept: {named}; {remedy}")
    return set()


def label_sort_key(label: str) -> tuple[float, str]:
    """Sorts numbers by value, then text alphabetically."""
    number = table_numbers.parse_number(label)
    return math.inf if number is None else number, label


def fit_labels(values: Iterable[str], n_examples: int, unit: str, path: str) -> list[str]:
    """The distinct labels, sorted; raises if there are too few or too many of them for a classification."""
    labels = sorted({*values}, key=label_sort_key)
    if len(labels) < 2:
        only = f"the only label is {labels[0]!r}" if labels else "there is no label"
        raise BadInput(f"{path}: {only}; classification needs at least two labels; add {unit} with others")
    if len(labels) > max(MAX_CLASSES, n_examples / 2):
        problem = f"{len(labels):,} different labels in {n_examples:,} {unit}, such as {labels[0][:40]!r}"
        are_numbers = all(table_numbers.is_number(label) for label in labels)
        fix = "to predict numbers: data.target_type=number; or " * are_numbers
        raise BadInput(f"{path}: {problem}; too many for a label; {fix}name another column: data.label=...")
    return labels


def parse_number(text: str, place: str) -> float:
    """Finite regression target at a place in a file."""
    if (number := table_numbers.parse_number(text)) is None:
        problem = table_numbers.describe_format([text], ".", uses_sign=True)
        problem = problem or f"{text!r} is not a finite number; a number is needed; fix the value"
        raise BadInput(f"{place}: {problem}, or set data.target_type=label")
    return number


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


def unknown_labels_error(unknown: Sequence[tuple[str, str]], labels: Sequence[str], units: str = "rows") -> BadInput:
    """Error for labels, with the place of each, that do not occur in the training data."""
    (label, first), known = unknown[0], _shorten(labels)
    if len(unknown) == 1:
        problem, fix = (f"unknown label {label!r}" if label else "label is empty"), "fix the row"
    else:
        counts = Counter(repr(name) if name else "empty" for name, _ in unknown)
        named = _shorten([f"{name} ({count:,})" for name, count in counts.most_common()])
        problem = f"{len({place for _, place in unknown}):,} {units} have unknown labels: {named}"
        fix = f"remove these {units}, correct their labels, or train again with them"
    return BadInput(f"{first}: {problem}; known labels are {known}; {fix}.{did_you_mean(label, labels)}")


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_SHOWN]) + ", ..." * (len(names) > MAX_SHOWN)
