"""Words in pieces: each word is encoded by itself, so that it is known which pieces are its own."""

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np

from harken.data.batch import Tokens

from .tokenizer import Tokenizer

MEMO = 100_000  # words whose pieces are remembered


class WordPieces:
    """The pieces of words by one tokenizer. The first piece of a word stands for it; a space before it does not."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.spaces = tokenizer.kind in ("char", "byte", "bpe")  # of the others no token holds white space
        self.of = lru_cache(MEMO)(self._of)

    def _of(self, word: str, spaced: bool) -> tuple[list[int], int]:
        """The pieces of a word, and which of them stands for it."""
        ids = [int(i) for i in self.tokenizer.encode(" " * (spaced and self.spaces) + word)]
        if not ids:  # white space and control characters that a tokenizer cleans away
            return [self.tokenizer.unknown or 0], 0
        return ids, int(len(ids) > 1 and self.tokenizer.decode(ids[:1]) == " ")

    def __call__(self, words: Iterable[tuple[str, bool]]) -> tuple[Tokens, Tokens, Tokens]:
        """Of words and whether a space stands before each: all pieces, how many each has, which one stands for it."""
        found = [self.of(*word) for word in words]
        ids = np.array([i for pieces, _ in found for i in pieces], np.int64)
        return ids, np.array([len(p) for p, _ in found], np.int64), np.array([first for _, first in found], np.int64)


def windows(lengths: Tokens, room: int, overlap: int = 0) -> Iterator[tuple[int, int]]:
    """From which word up to which: as many as fit into the room, until all have been in one. Two that follow each other
    share as many tokens as they can, `overlap` at most; a word that is longer than the room stands alone."""
    ends = np.cumsum(lengths)
    i, starts = 0, ends - lengths
    while i < len(lengths):
        j = max(i + 1, int(np.searchsorted(ends, starts[i] + room, side="right")))
        yield i, j
        if j == len(lengths):
            return
        i = min(j, max(i + 1, int(np.searchsorted(starts, ends[j - 1] - overlap))))
