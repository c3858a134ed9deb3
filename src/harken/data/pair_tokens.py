"""The tokens of pairs: those of both sides, signs as words of their own, and words split by chance."""

import json
import random
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from harken.data.pair_files import clean
from harken.data.tokens import Tokenizer

FILES = ("tokenizer.json", "tokenizer.target.json")
Ids = npt.NDArray[Any]

GLUE = "\uffed"  # on the side of a sign on which no space stood
_SIGN = "".join(
    re.escape(c)
    for c in map(chr, (*range(0x600), *range(0x2010, 0x2070), *range(0x3000, 0x3040), *range(0xFF00, 0xFF66)))
    if unicodedata.category(c)[0] in "PS"
)
_BEHIND, _BEFORE = re.compile(rf"(?<=\S)([{_SIGN}])"), re.compile(rf"([{_SIGN}])(?=[^\s{_SIGN}{GLUE}])")


def apart(text: str) -> str:
    """Signs as words of their own; `together` undoes it, because a glue says where no space stood."""
    return _BEFORE.sub(rf"\1{GLUE} ", _BEHIND.sub(rf" {GLUE}\1", text))


def together(text: str) -> str:
    return text.replace(f" {GLUE}", "").replace(f"{GLUE} ", "")


@dataclass(frozen=True, eq=False)
class Tokenizers:
    """The tokens of both sides; one and the same object where they share a vocabulary.

    A side has one id more than its tokenizer, the edge: it ends a source, and begins and ends a target.
    """

    source: Tokenizer
    target: Tokenizer

    @property
    def both(self) -> tuple[Tokenizer, Tokenizer]:
        return self.source, self.target

    @property
    def vocab(self) -> tuple[int, int]:
        return self.source.vocab + 1, self.target.vocab + 1

    def encode_source(self, text: str) -> Ids:
        """The ids of a sentence and the edge behind them."""
        ids, _ = encode_lines(self.source, [clean(text)])
        return np.append(ids.astype(np.int64), self.source.vocab)

    def encode_target(self, text: str) -> Ids:
        """The ids of a sentence, without edges."""
        return encode_lines(self.target, [clean(text)])[0].astype(np.int64)

    def decode_source(self, ids: Iterable[int]) -> str:
        return _decode(self.source, ids)

    def decode_target(self, ids: Iterable[int]) -> str:
        """The text of the ids up to the first edge."""
        return _decode(self.target, ids)

    def files(self) -> dict[str, bytes]:
        """What a run folder keeps, by name."""
        both = dict(zip(FILES, (tokenizer.json for tokenizer in self.both), strict=True))
        return both if self.source is not self.target else {FILES[0]: self.source.json}

    @classmethod
    def load(cls, folder: Path) -> "Tokenizers":
        source = Tokenizer.load(folder / FILES[0])
        return cls(source, Tokenizer.load(folder / FILES[1]) if (folder / FILES[1]).exists() else source)


def _decode(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    found = [int(i) for i in ids]
    text = tokenizer.decode(found[: found.index(tokenizer.vocab)] if tokenizer.vocab in found else found)
    return together(text) if tokenizer.kind == "word" else text


def encode_lines(tokenizer: Tokenizer, lines: Iterable[str]) -> tuple[Ids, Ids]:
    """The ids of clean sentences, one after the other, and how many each has. Encoded at once: that is far faster."""
    made = (apart(line) for line in lines) if tokenizer.kind == "word" else lines
    ids = tokenizer.encode("".join(f"{line}\n" for line in made))
    end = ids == tokenizer.encode("a\n")[-1]  # a token of its own in every kind, and in no clean sentence
    return ids[~end], np.diff(np.flatnonzero(end), prepend=-1) - 1


class Splitter:
    """BPE-dropout (Provilkov et al. 2020): each merge of a word is left out by chance, so a word has many spellings.

    Chance is a function of (seed, epoch, word): within an epoch a word is split the same way everywhere.
    """

    def __init__(self, tokenizer: Tokenizer, share: float, seed: int) -> None:
        spec = json.loads(tokenizer.json)["model"]
        self.share, self.seed, self.decode = share, seed, tokenizer.decode
        self.ids: dict[str, int] = spec["vocab"]
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(spec["merges"])}
        self.cut = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
        self._epoch: tuple[int, dict[str, list[int]]] = (-1, {})

    def encode(self, text: str, epoch: int) -> list[int]:
        """The ids of a text as this epoch splits it."""
        if self._epoch[0] != epoch:
            self._epoch = (epoch, {})
        known, found = self._epoch[1], []
        for word, _ in self.cut(text):
            if word not in known:
                known[word] = self._split(word, random.Random(f"{self.seed} {epoch} {word}"))
            found += known[word]
        return found

    def _split(self, word: str, chance: random.Random) -> list[int]:
        parts = list(word)
        while True:
            merges = [
                (rank, n)
                for n in range(len(parts) - 1)
                if (rank := self.ranks.get((parts[n], parts[n + 1]))) is not None
            ]
            kept = [merge for merge in merges if chance.random() >= self.share]
            if not kept:
                return [self.ids[part] for part in parts]
            n = min(kept)[1]
            parts[n : n + 2] = [parts[n] + parts[n + 1]]
