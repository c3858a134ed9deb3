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


def text_rows(texts: Sequence[Array], room: int, *, windows: bool) -> list[list[Array]]:
    """The texts of an input in rows of at most `room` tokens: truncated in one row, or split into windows.

    Windows overlap by half, and the last one ends with the text. A row has a window of each text; a text with fewer
    windows repeats some.
    """
    widths = text_widths([len(text) for text in texts], room)
    starts = [window_starts(len(text), width) if windows else [0] for text, width in zip(texts, widths, strict=True)]
    count, sides = max(map(len, starts)), [*zip(texts, starts, widths, strict=True)]
    firsts = [[own[k * len(own) // count] for _, own, _ in sides] for k in range(count)]
    return [[text[a : a + width] for a, (text, _, width) in zip(row, sides, strict=True)] for row in firsts]
