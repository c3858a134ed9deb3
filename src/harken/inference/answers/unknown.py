"""What a run does not know: words, columns and labels that did not occur in training; answers of low probability."""

from collections import Counter
from collections.abc import Sequence

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
    if not 0 <= min_probability <= 1:
        raise BadInput(f"min_probability={min_probability!r}: must be between 0 and 1")


def mark_unknown(labels: list[LabelScore], min_probability: float) -> list[LabelScore]:
    """The labels of an input; if none has the probability, the first is `unknown`, with the probability of the best."""
    if not min_probability:
        return labels
    if "value" in labels[0]:
        raise BadInput("min_probability: this run predicts a number, which has no probability; leave it out")
    best: LabelScore = {"label": UNKNOWN, "probability": labels[0]["probability"]}
    return labels if best["probability"] >= min_probability else [best, *labels]


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
