"""BPE-dropout (Provilkov et al. 2020): random merges are skipped during training, so a word has many segmentations."""

import json
import random
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import tokenizers

from .pairs import Array, RaggedTokens, newline_id
from .tokenizer import Tokenizer

BLOCK_SENTENCES = 4096  # sentences split into words at once
NEWLINE_PIECE = "\u010a"  # a newline in byte-level BPE


class BPEDropout:
    """The sentences of one side, segmented anew in each epoch; within an epoch a word has one segmentation."""

    def __init__(
        self, tokenizer: Tokenizer, texts: RaggedTokens, dropout: float, *, seed: int, max_length: int
    ) -> None:
        spec = json.loads(tokenizer.json)["model"]
        self.texts, self.dropout, self.seed, self.max_length = texts, dropout, seed, max_length
        self.ids: dict[str, int] = spec["vocab"]
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(spec["merges"])}
        self.word_index: dict[str, int] = {NEWLINE_PIECE: 0}
        blocks = [(np.empty(0, np.uint32), np.zeros(1, np.int64)), *self._split_words(tokenizer)]
        words, lengths = (np.concatenate(part) for part in zip(*blocks, strict=True))
        self.sentences = RaggedTokens(words, np.cumsum(lengths), texts.edge)  # word indices
        self._epoch: tuple[int, RaggedTokens] = (-1, self.sentences)

    def _split_words(self, tokenizer: Tokenizer) -> Iterator[tuple[Array, Array]]:
        """Word indices of the sentences, block by block, and the number of words in each sentence."""
        split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
        starts, index = self.texts.starts, self.word_index
        for a in range(0, len(self.texts), BLOCK_SENTENCES):
            ends = starts[a + 1 : a + 1 + BLOCK_SENTENCES]
            ids = np.insert(self.texts.ids[starts[a] : ends[-1]], ends - starts[a], newline_id(tokenizer))
            words = [word for word, _ in split(tokenizer.decode(ids))]
            numbers = np.fromiter((index.setdefault(word, len(index)) for word in words), np.uint32)
            yield numbers[numbers > 0], np.diff(np.flatnonzero(numbers == 0), prepend=-1) - 1

    def gather(self, picks: Array, epoch: int) -> tuple[Array, Array]:
        """Ids of the picked sentences in this epoch and their lengths; a sentence over max_length stays undropped."""
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._segment_words(random.Random(f"{self.seed} {epoch}")))
        words, counts = self.sentences.gather(picks)
        ids, sizes = self._epoch[1].gather(words)
        lengths = np.add.reduceat(sizes, np.cumsum(counts) - counts)
        if (too_long := lengths > self.max_length).any():
            parts = np.split(ids, np.cumsum(lengths)[:-1])
            parts = [self.texts[n] if long else part for n, long, part in zip(picks, too_long, parts, strict=True)]
            ids, lengths = np.concatenate(parts), np.array([len(part) for part in parts])
        return ids, lengths

    def _segment_words(self, rng: random.Random) -> RaggedTokens:
        """Ids of every word in the order of the word index."""
        words = [self._segment(word, rng) for word in self.word_index]
        starts = np.cumsum([0, *map(len, words)])
        ids = np.fromiter((i for word in words for i in word), self.texts.ids.dtype, starts[-1])
        return RaggedTokens(ids, starts, self.texts.edge)

    def _segment(self, word: str, rng: random.Random) -> list[int]:
        """Apply the best merge that is not dropped until none is left; dropout is drawn again after each merge."""
        parts, ranks = list(word), self.ranks
        while len(parts) > 1:
            merges = [(ranks[pair], n) for n, pair in enumerate(pairwise(parts)) if pair in ranks]
            remaining = [merge for merge in merges if rng.random() >= self.dropout]
            if not remaining:
                break
            n = min(remaining)[1]
            parts[n : n + 2] = [parts[n] + parts[n + 1]]
        return [self.ids[part] for part in parts]
