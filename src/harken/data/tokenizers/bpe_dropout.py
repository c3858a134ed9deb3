"""BPE-dropout (Provilkov et al. 2020): merges are left out by chance while learning, so a word has many spellings."""

import json
import random
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import tokenizers

from .pairs import Ids, Side, newline
from .tokenizer import Tokenizer

BLOCK = 4096  # sentences cut into words at once
BREAK = "\u010a"  # a line's end as byte pairs write it


class Splitter:
    """The sentences of one side, split anew in each epoch; within an epoch a word is split the same way everywhere."""

    def __init__(self, tokenizer: Tokenizer, side: Side, share: float, *, seed: int, longest: int) -> None:
        spec = json.loads(tokenizer.json)["model"]
        self.side, self.share, self.seed, self.longest = side, share, seed, longest
        self.ids: dict[str, int] = spec["vocab"]
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(spec["merges"])}
        self.words: dict[str, int] = {BREAK: 0}  # each different one with its number
        found = [(np.empty(0, np.uint32), np.zeros(1, np.int64)), *self._cut(tokenizer)]
        words, lengths = (np.concatenate(part) for part in zip(*found, strict=True))
        self.sentences = Side(words, np.cumsum(lengths), side.edge)
        self._epoch: tuple[int, Side] = (-1, self.sentences)

    def _cut(self, tokenizer: Tokenizer) -> Iterator[tuple[Ids, Ids]]:
        """The words of the sentences by their numbers, block by block, and how many each sentence has."""
        cut, starts = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str, self.side.starts
        for a in range(0, len(self.side), BLOCK):
            ends = starts[a + 1 : a + 1 + BLOCK]
            ids = np.insert(self.side.ids[starts[a] : ends[-1]], ends - starts[a], newline(tokenizer))
            words = [word for word, _ in cut(tokenizer.decode(ids))]
            numbers = np.fromiter((self.words.setdefault(word, len(self.words)) for word in words), np.uint32)
            yield numbers[numbers > 0], np.diff(np.flatnonzero(numbers == 0), prepend=-1) - 1

    def gather(self, picks: Ids, epoch: int) -> tuple[Ids, Ids]:
        """The ids of some sentences as this epoch splits them; one that would become too long stays as it is."""
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._spelled(random.Random(f"{self.seed} {epoch}")))
        words, counts = self.sentences.gather(picks)
        ids, sizes = self._epoch[1].gather(words)
        lengths = np.add.reduceat(sizes, np.cumsum(counts) - counts)
        if (long := lengths > self.longest).any():
            parts = np.split(ids, np.cumsum(lengths)[:-1])
            parts = [self.side[n] if whole else part for n, whole, part in zip(picks, long, parts, strict=True)]
            ids, lengths = np.concatenate(parts), np.array([len(part) for part in parts])
        return ids, lengths

    def _spelled(self, chance: random.Random) -> Side:
        """The ids of every word, in the order of their numbers."""
        found = [self._split(word, chance) for word in self.words]
        starts = np.cumsum([0, *map(len, found)])
        return Side(
            np.fromiter((i for ids in found for i in ids), self.side.ids.dtype, starts[-1]), starts, self.side.edge
        )

    def _split(self, word: str, chance: random.Random) -> list[int]:
        """Merge the best pair that chance leaves until it leaves none: chance is asked again after each merge."""
        parts, ranks = list(word), self.ranks
        while len(parts) > 1:
            found = [(ranks[pair], n) for n, pair in enumerate(pairwise(parts)) if pair in ranks]
            kept = [merge for merge in found if chance.random() >= self.share]
            if not kept:
                break
            n = min(kept)[1]
            parts[n : n + 2] = [parts[n] + parts[n + 1]]
        return [self.ids[part] for part in parts]
