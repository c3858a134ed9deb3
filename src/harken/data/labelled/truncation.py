"""Texts that are too long for a row: how many tokens of each text of an input are kept, and windows of a text."""

from collections.abc import Sequence

from harken.data.tokenizers.pairs import Array
from harken.data.tokenizers.tokenizer import window_starts


def text_widths(lengths: Sequence[int], room: int) -> list[int]:
    """The tokens of each text that are kept if `room` tokens fit: the longest texts lose tokens first."""
    if sum(lengths) <= room:
        return list(lengths)
    left, limit, n_longer = room, 0, len(lengths)
    for length in sorted(lengths):  # a text is kept whole if it needs no more than its even share
        limit = left // n_longer
        if length > limit:
            break
        left, n_longer = left - length, n_longer - 1
    longer = [n for n, length in enumerate(lengths) if length > limit]
    extra = longer[: left - limit * n_longer]
    return [min(length, limit + (n in extra)) for n, length in enumerate(lengths)]


def text_windows(ids: Array, width: int) -> list[Array]:
    """Windows that overlap by half; the last one ends with the text."""
    return [ids[start : start + width] for start in window_starts(len(ids), width)]
