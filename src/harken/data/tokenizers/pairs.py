"""Tokenizers of sentence pairs: one per side or a shared one, with detached punctuation or symbols as written."""

import json
import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers

from harken.data.pairs.files import normalize_text
from harken.events import Listener
from harken.settings import PairVocab

from . import pretrained
from .spec import UNK
from .tokenizer import Tokenizer, train_or_load_tokenizer

FILES = ("tokenizer.json", "tokenizer.target.json")
DEFAULT_VOCAB_SIZE = {"char": 0, "word": 10_000, "bpe": 8000, "wordpiece": 8000, "symbol": 10_000}
Array = npt.NDArray[Any]
PairBlocks = Callable[[], Iterable[Sequence[tuple[str, str]]]]

BLOCK_SENTENCES = 4096  # sentences split into words at once
NEWLINE_PIECE = "\u010a"  # a newline in byte-level BPE
JOINER = "\uffed"  # marks the side of a punctuation mark that had no space
_CODES = (*range(0x600), *range(0x2010, 0x2070), *range(0x3000, 0x3040), *range(0xFF00, 0xFF66))
_PUNCTUATION = "".join(re.escape(c) for c in map(chr, _CODES) if unicodedata.category(c)[0] in "PS")
_AFTER_TEXT = re.compile(rf"(?<=\S)([{_PUNCTUATION}])")
_BEFORE_TEXT = re.compile(rf"([{_PUNCTUATION}])(?=[^\s{_PUNCTUATION}{JOINER}])")


def detach_punctuation(text: str) -> str:
    """Punctuation marks as separate words; joiners let `attach_punctuation` restore the text."""
    return _BEFORE_TEXT.sub(rf"\1{JOINER} ", _AFTER_TEXT.sub(rf" {JOINER}\1", text))


def attach_punctuation(text: str) -> str:
    """Undo `detach_punctuation`; joiners that a model generates elsewhere are removed."""
    return re.sub(f" {JOINER}|{JOINER} ?", "", text)


class SymbolTokenizer(Tokenizer):
    """Words between white space including punctuation, such as "(NP"; its tokenizer.json is that of words."""


class EncodedPairs(NamedTuple):
    """Concatenated ids of sentences and their lengths, of both sides; and the temporary words of each pair, if any."""

    source: tuple[Array, Array]
    target: tuple[Array, Array]
    words: list[tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class PairTokenizers:
    """The tokenizers of source and target; the same object if they share a vocabulary.

    Each side has one more id than its tokenizer, the boundary token: it ends a source, and starts and ends a target.
    A WordPiece source has the special tokens of BERT before it: [CLS] source [SEP].

    The `n_temporary` ids before the boundary token stand for the temporary words of a pair: the words of its source
    that are not in the vocabulary, in the order of their first occurrence. Both sides then share a vocabulary.
    """

    source: Tokenizer
    target: Tokenizer
    n_temporary: int = field(default=0, kw_only=True)

    @property
    def sides(self) -> tuple[Tokenizer, Tokenizer]:
        return self.source, self.target

    @property
    def vocab(self) -> PairVocab:
        n = self.n_temporary
        return PairVocab(self.source.vocab + n + 1, self.target.vocab + n + 1, n)

    def encode_source(self, text: str) -> Array:
        """Ids of a sentence with the boundary token appended."""
        line = normalize_text(text)
        ids, _ = self._with_temporary_ids([line], self.encode_sources([line]), [self.temporary_words(line)])
        return np.append(ids.astype(np.int64), self.vocab[0] - 1)

    def temporary_words(self, line: str) -> tuple[str, ...]:
        """The words of a normalized source that have a temporary id."""
        return tuple(islice(dict.fromkeys(self._unknown_words(line)), self.n_temporary)) if self.n_temporary else ()

    def _unknown_words(self, line: str) -> list[str]:
        """The words of a line that the vocabulary does not have, in order, with repetitions."""
        (line,) = _pretokenized(self.source, [line])
        pieces = zip(self.source.split(line), self.source.encode(line).tolist(), strict=True)
        return [piece for piece, i in pieces if i == self.source.unk_id]

    def _with_temporary_ids(
        self, lines: Sequence[str], block: tuple[Array, Array], words: Sequence[Sequence[str]]
    ) -> tuple[Array, Array]:
        """The ids of these lines, with the temporary id of each unknown word that is among the words of its line."""
        ids, lengths = block
        if not any(words):
            return block
        ids, ends = ids.astype(np.uint32), np.cumsum(lengths)
        unknown = np.flatnonzero(ids == self.source.unk_id)
        rows = np.searchsorted(ends, unknown, side="right")
        for row in np.unique(rows).tolist():
            numbers = {word: self.source.vocab + n for n, word in enumerate(words[row])}
            words_here = self._unknown_words(lines[row])
            ids[unknown[rows == row]] = [numbers.get(word, self.source.unk_id) for word in words_here]
        return ids, lengths

    def encode_sources(self, lines: Iterable[str]) -> tuple[Array, Array]:
        """Concatenated ids of normalized sources without boundary tokens, and their lengths."""
        ids, lengths = encode_lines(self.source, lines)
        if self.source.kind != "wordpiece":
            return ids, lengths
        ends = np.cumsum(lengths)
        special = np.repeat([[self.source.cls_id], [self.source.sep_id]], len(lengths), 1).T.flatten()
        return np.insert(ids, np.stack([ends - lengths, ends], 1).flatten(), special), lengths + 2

    def encode_pairs(self, sources: Sequence[str], targets: Sequence[str]) -> EncodedPairs:
        """Normalized sentences, without boundary tokens."""
        source, target = self.encode_sources(sources), encode_lines(self.target, targets)
        if not self.n_temporary:
            return EncodedPairs(source, target, [])
        words = [self.temporary_words(line) for line in sources]
        encode = self._with_temporary_ids
        return EncodedPairs(encode(sources, source, words), encode(targets, target, words), words)

    def ragged(self, *sides: Iterable[tuple[Array, Array]]) -> list["RaggedTokens"]:
        """The encoded blocks of the source and of the target."""
        pairs = zip(sides, self.sides, strict=True)
        return [RaggedTokens.from_blocks(blocks, tokenizer, self.n_temporary) for blocks, tokenizer in pairs]

    def truncate(self, source: "RaggedTokens", target: "RaggedTokens", max_length: int) -> list["RaggedTokens"]:
        """Both sides truncated to max_length tokens. A temporary id of the target that its source lost is unknown."""
        source, target = source.truncate(max_length), target.truncate(max_length)
        if self.n_temporary:
            rows = (np.repeat(np.arange(len(side)), side.lengths) for side in (source, target))
            keys = [row * self.vocab[0] + side.ids for row, side in zip(rows, (source, target), strict=True)]
            is_lost = (target.ids >= self.target.vocab) & ~np.isin(keys[1], keys[0])
            target = replace(target, ids=np.where(is_lost, target.ids.dtype.type(self.target.unk_id), target.ids))
        return [source, target]

    def source_spans(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """A source as it is encoded, and the characters behind each of its tokens."""
        (line,) = _pretokenized(self.source, [normalize_text(text)])
        return line, self.source.spans(line)

    def unknown_pieces(self, text: str, tokenizer: Tokenizer | None = None) -> list[str]:
        """The unknown pieces of a text for the source (or the given) tokenizer, each once, without temporary words."""
        known = () if tokenizer else self.temporary_words(normalize_text(text))
        tokenizer = tokenizer or self.source
        (line,) = _pretokenized(tokenizer, [normalize_text(text)])
        pieces = (piece for piece in tokenizer.unknown_pieces(line) if piece not in known)
        return list(dict.fromkeys(piece.replace(JOINER, "") for piece in pieces))

    def encode_target(self, text: str, words: Sequence[str] = ()) -> Array:
        """Ids of a sentence without boundary tokens; `words` are the temporary words of its source."""
        line = normalize_text(text)
        return self._with_temporary_ids([line], encode_lines(self.target, [line]), [words])[0].astype(np.int64)

    def decode_source(self, ids: Iterable[int], words: Sequence[str] = ()) -> str:
        """Text of the ids up to the first boundary token; `words` are the temporary words of this source."""
        return self._decode(self.source, ids, words)

    def decode_target(self, ids: Iterable[int], words: Sequence[str] = ()) -> str:
        """Text of the ids up to the first boundary token; `words` are the temporary words of its source."""
        return self._decode(self.target, ids, words)

    def _decode(self, tokenizer: Tokenizer, ids: Iterable[int], words: Sequence[str]) -> str:
        text_ids, edge = [int(i) for i in ids], tokenizer.vocab + self.n_temporary
        text_ids = text_ids[: text_ids.index(edge)] if edge in text_ids else text_ids
        if any(i >= tokenizer.vocab for i in text_ids):  # of words: a tokenizer with temporary ids is one of words
            text = " ".join(self.token_texts(tokenizer, text_ids, words))
        else:
            special = (*tokenizer.prefix_ids, tokenizer.cls_id, tokenizer.sep_id)
            text = tokenizer.decode([i for i in text_ids if i not in special])
        return attach_punctuation(text) if tokenizer.kind == "word" else text

    def token_texts(self, tokenizer: Tokenizer, ids: Iterable[int], words: Sequence[str]) -> list[str]:
        """Text of each token of one side, with the temporary words of its pair; a number without a word is <unk>."""
        numbers = dict(enumerate(words, tokenizer.vocab))
        return [numbers.get(i, UNK) if i >= tokenizer.vocab else tokenizer.token_texts([i])[0] for i in map(int, ids)]

    @classmethod
    def train(
        cls,
        texts: PairBlocks,
        kinds: tuple[str, str],
        vocab_size: int | None,
        *,
        shared_vocab: bool,
        listen: Listener,
        source: Tokenizer | None = None,
        n_temporary: int = 0,
    ) -> "PairTokenizers":
        """Train on blocks of normalized pairs; shared_vocab: one tokenizer if both sides are of one kind.

        A given `source` tokenizer is not trained.
        """

        def train_side(kind: str, *sides: int) -> Tokenizer:
            def blocks() -> Iterator[str]:
                for block in texts():
                    lines = [pair[side] for side in sides for pair in block]
                    yield "".join(f"{line}\n" for line in (map(detach_punctuation, lines) if kind == "word" else lines))

            size, symbols = vocab_size or DEFAULT_VOCAB_SIZE[kind], kind == "symbol"
            tokenizer = train_or_load_tokenizer("word" if symbols else kind, size, blocks, listen=listen)
            return SymbolTokenizer(json.loads(tokenizer.json)) if symbols else tokenizer

        if shared_vocab and kinds[0] == kinds[1]:
            shared = source or train_side(kinds[0], 0, 1)
            return cls(shared, shared, n_temporary=n_temporary)
        return cls(source or train_side(kinds[0], 0), train_side(kinds[1], 1))

    def files(self) -> dict[str, bytes]:
        """Files of a run folder by name."""
        names = FILES if self.source is not self.target else FILES[:1]
        return {name: tokenizer.json for name, tokenizer in zip(names, self.sides, strict=False)}

    @classmethod
    def load(cls, folder: Path, kinds: tuple[str, str] = ("", ""), *, n_temporary: int = 0) -> "PairTokenizers":
        paths = [folder / name for name in FILES if name == FILES[0] or (folder / name).exists()]
        loaders = [SymbolTokenizer.load if kind == "symbol" else pretrained.load_tokenizer for kind in kinds]
        tokenizers = [load(path) for load, path in zip(loaders, paths, strict=False)]
        return cls(tokenizers[0], tokenizers[-1], n_temporary=n_temporary)


def encode_lines(tokenizer: Tokenizer, lines: Iterable[str]) -> tuple[Array, Array]:
    """Concatenated ids of normalized sentences and their lengths. One call for all sentences is much faster."""
    if tokenizer.kind == "wordpiece" or isinstance(tokenizer, pretrained.PretrainedTokenizer):  # not many lines at once
        rows = [np.append(tokenizer.prefix_ids, tokenizer.encode(line)).astype(tokenizer.dtype) for line in lines]
        return np.concatenate([np.empty(0, tokenizer.dtype), *rows]), np.array(list(map(len, rows)), np.int64)
    ids = tokenizer.encode("".join(f"{line}\n" for line in _pretokenized(tokenizer, lines)))
    is_newline = ids == newline_id(tokenizer)
    return ids[~is_newline], np.diff(np.flatnonzero(is_newline), prepend=-1) - 1


def _pretokenized(tokenizer: Tokenizer, lines: Iterable[str]) -> Iterable[str]:
    """Lines in the form on which the tokenizer was trained."""
    words = tokenizer.kind == "word" and not isinstance(tokenizer, SymbolTokenizer)
    return map(detach_punctuation, lines) if words else lines


def newline_id(tokenizer: Tokenizer) -> int:
    """Id of the newline: a separate token in every kind but wordpiece, and in no normalized sentence."""
    return int(tokenizer.encode("a\n")[-1])


@dataclass(frozen=True, eq=False)
class RaggedTokens:
    """Ids of many sentences in one array with their starts; `edge` is the id of the boundary token."""

    ids: Array
    starts: Array  # number of sentences + 1
    edge: int

    @classmethod
    def from_blocks(
        cls, blocks: Iterable[tuple[Array, Array]], tokenizer: Tokenizer, n_temporary: int = 0
    ) -> "RaggedTokens":
        """From blocks of ids and sentence lengths."""
        ids, lengths = zip((np.empty(0, tokenizer.dtype), [0]), *blocks, strict=True)
        starts = np.cumsum(np.concatenate(lengths), dtype=np.int64)
        return cls(np.concatenate(ids), starts, tokenizer.vocab + n_temporary)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, n: int) -> Array:
        return self.ids[self.starts[n] : self.starts[n + 1]]

    @property
    def lengths(self) -> Array:
        return np.diff(self.starts)

    def truncate(self, max_length: int) -> "RaggedTokens":
        """The sentences truncated to max_length tokens."""
        pos = np.arange(len(self.ids)) - np.repeat(self.starts[:-1], self.lengths)
        starts = np.append(0, np.cumsum(np.minimum(self.lengths, max_length)))
        return RaggedTokens(self.ids[pos < max_length], starts, self.edge)

    def gather(self, picks: Array) -> tuple[Array, Array]:
        """Concatenated ids of the picked sentences and their lengths."""
        lengths = self.starts[picks + 1] - self.starts[picks]
        first = np.cumsum(lengths) - lengths
        return self.ids[np.repeat(self.starts[picks] - first, lengths) + np.arange(lengths.sum())], lengths


class BPEDropout:
    """BPE-dropout (Provilkov et al. 2020) of one side: each epoch segments every word anew, skipping random merges."""

    def __init__(self, tokenizer: Tokenizer, texts: RaggedTokens, rate: float, *, seed: int, max_length: int) -> None:
        spec = json.loads(tokenizer.json)["model"]
        self.texts, self.rate, self.seed, self.max_length = texts, rate, seed, max_length
        self.ids: dict[str, int] = spec["vocab"]
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(spec["merges"])}
        self.word_index: dict[str, int] = {NEWLINE_PIECE: 0}
        blocks = [(np.empty(0, np.uint32), np.zeros(1, np.int64)), *self._split_words(tokenizer)]
        words, lengths = (np.concatenate(part) for part in zip(*blocks, strict=True))
        self.sentences = RaggedTokens(words, np.cumsum(lengths), texts.edge)  # word indices
        self.segment_words = lru_cache(1)(self._segment_words)

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
        words, counts = self.sentences.gather(picks)
        ids, sizes = self.segment_words(epoch).gather(words)
        lengths = np.add.reduceat(sizes, np.cumsum(counts) - counts)
        if (too_long := lengths > self.max_length).any():
            parts = np.split(ids, np.cumsum(lengths)[:-1])
            parts = [self.texts[n] if long else part for n, long, part in zip(picks, too_long, parts, strict=True)]
            ids, lengths = np.concatenate(parts), np.array([len(part) for part in parts])
        return ids, lengths

    def _segment_words(self, epoch: int) -> RaggedTokens:
        """Ids of every word in this epoch, in the order of the word index."""
        rng = random.Random(f"{self.seed} {epoch}")
        words = [self._segment(word, rng) for word in self.word_index]
        starts = np.cumsum([0, *map(len, words)])
        ids = np.fromiter((i for word in words for i in word), self.texts.ids.dtype, starts[-1])
        return RaggedTokens(ids, starts, self.texts.edge)

    def _segment(self, word: str, rng: random.Random) -> list[int]:
        """Apply the best merge that is not dropped until none is left; dropout is drawn again after each merge."""
        parts, ranks = list(word), self.ranks
        while len(parts) > 1:
            merges = [(ranks[pair], n) for n, pair in enumerate(pairwise(parts)) if pair in ranks]
            remaining = [merge for merge in merges if rng.random() >= self.rate]
            if not remaining:
                break
            n = min(remaining)[1]
            parts[n : n + 2] = [parts[n] + parts[n + 1]]
        return [self.ids[part] for part in parts]
