"""What a run does not know: words, columns and labels that did not occur in training; answers of low probability."""

from collections import Counter
from collections.abc import Sequence
from numbers import Real

from harken.data.labelled.examples import TokenLabelProcessor
from harken.data.tokenizers.pairs import PairTokenizers
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadInput

from . import LabelScore

UNKNOWN = "unknown"  # the answer below min_probability
MAX_SHOWN = 5  # names in a notice


def unknown_pieces(processor: object, text: str) -> list[str]:
    """The words of a text, with some tokenizers its characters, that are not in the vocabulary."""
    if isinstance(processor, TokenLabelProcessor):
        return processor.unknown_words(text)
    return processor.unknown_pieces(text) if isinstance(processor, Tokenizer | PairTokenizers) else []


def check_probability(min_probability: float) -> None:
    """Refuse a value that is not a probability."""
    if not isinstance(min_probability, Real) or not 0 <= min_probability <= 1:
        raise BadInput(f"min_probability={min_probability!r}: must be between 0 and 1")


def mark_unknown(rows: list[list[LabelScore]], min_probability: float) -> list[list[LabelScore]]:
    """The labels of each input; if none has the probability, the first is `unknown`, with that of the best."""
    check_probability(min_probability)
    if not min_probability:
        return rows
    if any("value" in row[0] for row in rows):
        raise BadInput("min_probability: this run predicts a number, which has no probability; leave it out")
    best: list[LabelScore] = [{"label": UNKNOWN, "probability": row[0]["probability"]} for row in rows]
    is_low = [row[0]["probability"] < float(min_probability) for row in rows]
    return [[first] * low + row for first, low, row in zip(best, is_low, rows, strict=True)]


def unseen_columns(columns: Sequence[str], known: Sequence[str]) -> str:
    """A notice of the columns of a table that the training data did not have, if its columns are known."""
    unseen = [name for name in columns if name not in known] if known else []
    return f"columns that did not occur in training and have no influence: {_join(unseen)}" if unseen else ""


def unseen_labels(labels: Counter[str], known: Sequence[str]) -> str:
    """A notice of the labels of a table that did not occur in training, with their counts."""
    unseen = [f"{label!r} ({count:,})" for label, count in labels.most_common() if label not in known]
    return f"labels that did not occur in training and are never predicted: {_join(unseen)}" if unseen else ""


def _join(names: Sequence[str]) -> str:
    return ", ".join([*names[:MAX_SHOWN], *["..."] * (len(names) > MAX_SHOWN)])
