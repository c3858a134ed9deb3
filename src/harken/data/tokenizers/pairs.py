"""The tokens of pairs: those of both sides, signs as words of their own, symbols as they stand."""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harken.data.cache import cache_folder
from harken.data.pairs.files import clean
from harken.data.text.source import learned
from harken.events import Listener

from . import pretrained
from .tokenizer import Tokenizer

FILES = ("tokenizer.json", "tokenizer.target.json")
VOCAB = {"char": 0, "word": 10_000, "bpe": 8000, "symbol": 10_000}
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
    """A glue that a model writes where there is nothing to be glued is left out too."""
    return re.sub(f" {GLUE}|{GLUE} ?", "", text)


class Symbols(Tokenizer):
    """Words as they stand between white space, signs with them: (NP is one. Their tokenizer.json is that of words."""


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

    def missing(self, text: str, tokenizer: Tokenizer | None = None) -> list[str]:
        """The pieces of a source (or of what this tokenizer reads) that its tokens do not know, each once."""
        by = tokenizer or self.source
        (written,) = _written(by, [clean(text)])
        return list(dict.fromkeys(piece.replace(GLUE, "") for piece in by.missing(written)))

    def encode_target(self, text: str) -> Ids:
        """The ids of a sentence, without edges."""
        return encode_lines(self.target, [clean(text)])[0].astype(np.int64)

    def decode_source(self, ids: Iterable[int]) -> str:
        return _decode(self.source, ids)

    def decode_target(self, ids: Iterable[int]) -> str:
        """The text of the ids up to the first edge."""
        return _decode(self.target, ids)

    @classmethod
    def learned(
        cls,
        texts: Callable[[], Iterable[Sequence[tuple[str, str]]]],
        kinds: tuple[str, str],
        vocab: int | None,
        *,
        joint: bool,
        listen: Listener,
    ) -> "Tokenizers":
        """The tokens of clean pairs, which come in blocks; joint: the same for both sides, if they are of one kind."""

        def made(kind: str, *sides: int) -> Tokenizer:
            def blocks() -> Iterator[str]:
                for block in texts():
                    lines = [pair[side] for side in sides for pair in block]
                    yield "".join(f"{line}\n" for line in (map(apart, lines) if kind == "word" else lines))

            most, symbols = vocab or VOCAB[kind], kind == "symbol"
            found = learned("word" if symbols else kind, most, blocks, cache_folder("text"), listen=listen)
            return Symbols(json.loads(found.json)) if symbols else found

        return (
            cls(both := made(kinds[0], 0, 1), both)
            if joint and kinds[0] == kinds[1]
            else cls(made(kinds[0], 0), made(kinds[1], 1))
        )

    def files(self) -> dict[str, bytes]:
        """What a run folder keeps, by name."""
        both = dict(zip(FILES, (tokenizer.json for tokenizer in self.both), strict=True))
        return both if self.source is not self.target else {FILES[0]: self.source.json}

    @classmethod
    def load(cls, folder: Path, kinds: tuple[str, str] = ("", "")) -> "Tokenizers":
        there = [folder / name for name in FILES if name == FILES[0] or (folder / name).exists()]
        found = [
            Symbols.load(path) if kind == "symbol" else pretrained.load(path)
            for path, kind in zip(there, kinds, strict=False)
        ]
        return cls(found[0], found[-1])


def _decode(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    found = [int(i) for i in ids]
    found = found[: found.index(tokenizer.vocab)] if tokenizer.vocab in found else found
    text = tokenizer.decode([i for i in found if i not in tokenizer.begin])
    return together(text) if tokenizer.kind == "word" else text


def encode_lines(tokenizer: Tokenizer, lines: Iterable[str]) -> tuple[Ids, Ids]:
    """The ids of clean sentences, one after the other, and how many each has. Encoded at once: that is far faster."""
    if isinstance(tokenizer, pretrained.Foreign):  # what stands before a word may change its ids
        each = [np.append(tokenizer.begin, tokenizer.encode(line)).astype(tokenizer.dtype) for line in lines]
        return np.concatenate([np.empty(0, tokenizer.dtype), *each]), np.array(list(map(len, each)), np.int64)
    ids = tokenizer.encode("".join(f"{line}\n" for line in _written(tokenizer, lines)))
    end = ids == newline(tokenizer)
    return ids[~end], np.diff(np.flatnonzero(end), prepend=-1) - 1


def _written(tokenizer: Tokenizer, lines: Iterable[str]) -> Iterable[str]:
    """Lines as this tokenizer has learned to read them."""
    return map(apart, lines) if tokenizer.kind == "word" and not isinstance(tokenizer, Symbols) else lines


def newline(tokenizer: Tokenizer) -> int:
    """The id of a line's end: a token of its own in every kind, and in no clean sentence."""
    return int(tokenizer.encode("a\n")[-1])


@dataclass(frozen=True, eq=False)
class Side:
    """The ids of many sentences as one array, where each one starts, and the edge that they have none of."""

    ids: Ids
    starts: Ids  # one more than sentences
    edge: int

    @classmethod
    def of(cls, parts: Iterable[tuple[Ids, Ids]], tokenizer: Tokenizer) -> "Side":
        """From blocks of ids, each with the lengths of its sentences."""
        ids, lengths = zip((np.empty(0, tokenizer.dtype), [0]), *parts, strict=True)
        return cls(np.concatenate(ids), np.cumsum(np.concatenate(lengths), dtype=np.int64), tokenizer.vocab)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, n: int) -> Ids:
        return self.ids[self.starts[n] : self.starts[n + 1]]

    @property
    def lengths(self) -> Ids:
        return np.diff(self.starts)

    def cut(self, most: int) -> "Side":
        """The same sentences, none of more tokens than this."""
        place = np.arange(len(self.ids)) - np.repeat(self.starts[:-1], self.lengths)
        return Side(self.ids[place < most], np.append(0, np.cumsum(np.minimum(self.lengths, most))), self.edge)

    def gather(self, picks: Ids) -> tuple[Ids, Ids]:
        """The ids of some sentences, one after the other, and how many each has."""
        lengths = self.starts[picks + 1] - self.starts[picks]
        first = np.cumsum(lengths) - lengths
        return self.ids[np.repeat(self.starts[picks] - first, lengths) + np.arange(lengths.sum())], lengths
