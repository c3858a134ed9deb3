"""What is said of an example, whatever kind of data it is of: one of some labels, or a number."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from harken.errors import BadInput, did_you_mean

KINDS = 100  # different numbers, even whole ones, that are an amount and no label
SHOWN = 12  # labels told in a message


def answer_of(said: Iterable[str]) -> Literal["label", "number"]:
    """Numbers, if all are and some are no whole ones, or if there are many; else labels."""
    try:
        values = {float(one) for one in said}
    except ValueError:
        return "label"
    amount = all(map(math.isfinite, values)) and (any(v % 1 for v in values) or len(values) > KINDS)
    return "number" if amount else "label"


def order(label: str) -> tuple[float, str]:
    """Numbers in their order, then words in theirs."""
    try:
        return float(label), label
    except ValueError:
        return math.inf, label


def amount(said: str, place: str) -> float:
    try:
        value = float(said)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        way = "mend it, or set data.target_type=label"
        raise BadInput(f"{place}: {said!r} is not a number, and numbers are asked for; {way}")
    return value


def unknown(label: str, labels: Sequence[str], place: str) -> BadInput:
    """The error for a label that was not learned."""
    known = ", ".join(labels[:SHOWN]) + ", ..." * (len(labels) > SHOWN)
    told = f"the label {label!r} was not learned" if label else "there is no label"
    told = f"{told}; known are {known}"
    return BadInput(f"{place}: {told}; mend it.{did_you_mean(label, labels)}")
