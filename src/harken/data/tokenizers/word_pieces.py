"""Tokenization of separate words: each word is encoded on its own, so its pieces are known."""

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np

from harken.data.batch import Array

from .tokenizer import Tokenizer

CACHE_SIZE = 100_000  # words with cached pieces


class WordPieces:
    """The pieces of words. The first piece of a word represents it, unless it is only the space before the word."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.spaces = tokenizer.kind in ("char", "byte", "bpe")  # tokens of other kinds contain no white space
        self.encode_word = lru_cache(CACHE_SIZE)(self._encode_word)

    def _encode_word(self, word: str, spaced: bool) -> tuple[list[int], int]:
        """The pieces of a word and the index of the piece that represents it."""
        ids = [int(i) for i in self.tokenizer.encode(" " * (spaced and self.spaces) + word)]
        if not ids:  # the normalizer removed white space and control characters
            return [self.tokenizer.unk_id or 0], 0
        return ids, int(len(ids) > 1 and self.tokenizer.decode(ids[:1]) == " ")

    def __call__(self, words: Iterable[tuple[str, bool]]) -> tuple[Array, Array, Array]:
        """For (word, space before it): all pieces, the number per word, and the representing piece of each word."""
        encoded = [self.encode_word(*word) for word in words]
        ids = np.array([i for pieces, _ in encoded for i in pieces], np.int64)
        lengths = np.array([len(pieces) for pieces, _ in encoded], np.int64)
        return ids, lengths, np.array([first for _, first in encoded], np.int64)


def word_windows(lengths: Array, max_tokens: int, overlap: int = 0) -> Iterator[tuple[int, int]]:
    """Ranges of words that fit into max_tokens and cover all words. Consecutive windows share at most `overlap`
    tokens; a word longer than max_tokens has its own window."""
    ends = np.cumsum(lengths)
    i, starts = 0, ends - lengths
    while i < len(lengths):
        j = max(i + 1, int(np.searchsorted(ends, starts[i] + max_tokens, side="right")))
        yield i, j
        if j == len(lengths):
            return
        i = min(j, max(i + 1, int(np.searchsorted(starts, ends[j - 1] - overlap))))
