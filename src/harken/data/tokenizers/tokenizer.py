"""Tokenizers of five kinds.

char       one token per character of the training text, sorted by code point; other characters are <unk>, the last id
byte       256 tokens, the id is the byte value; nothing is unknown
word       the most frequent words between white space ("hat." is not "hat"), others are <unk>; <eos> ends each line,
           except blank lines
bpe        byte-level BPE as in GPT-2; nothing is unknown; <|endoftext|> ends a document
wordpiece  words and punctuation, rare words in pieces (play ##ing), as in BERT; case and accents (in NFC) remain unless
           `lowercase` is set; white space is lost, unknown characters are [UNK]; [CLS] starts a text, [SEP] ends one,
           [MASK] replaces a masked token, [PAD] is padding

Each is saved as a tokenizer.json of the `tokenizers` library, which yields the same ids; the code here is faster.
A lone surrogate is encoded as U+FFFD.
"""

import codecs
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from harken.data.cache import cache_folder
from harken.data.tables.untrusted import read_json
from harken.data.text.encode import WHITESPACE, count_words, split_text, split_words
from harken.errors import BadInput, BadRun, BadSetting
from harken.events import Listener, silent
from harken.files import write_atomic
from harken.suggestions import did_you_mean

from . import spec
from .spec import BYTE_OF_CHARACTER, CLS, EOS, MASK, SEP, UNK

Array = npt.NDArray[Any]
Texts = Callable[[], Iterable[str]]  # blocks of text; may be called several times
TEXTS_PER_BLOCK = 4096  # texts that are encoded at once
MAX_FILE_BYTES = 64 << 20  # of a tokenizer.json
CHUNK_CHARACTERS, CACHE_SIZE = 8 << 10, 100_000  # characters encoded at once; pre-tokens with cached byte pairs
MAX_RUN = 256  # longest word used to train bpe: the time grows with its square
SAMPLE_BYTES = 64 << 20  # text used to train bpe and wordpiece: more costs minutes and changes little
ALPHABET_SIZE = 1000  # most frequent characters of wordpiece; rarer ones are [UNK]
MAX_COUNTED_WORDS = 2_000_000  # distinct words counted at once; beyond it words seen once are dropped
UTF8_CONTINUATION = bytes(range(0x80, 0xC0))
_LINE_ENDS, _INDENT = re.compile(rf"\n[{WHITESPACE}]*"), re.compile(rf"[{WHITESPACE}]*")


def replace_surrogates(text: str) -> str:
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _words_with_eos(text: str) -> list[str]:
    """The words of a text with an <eos> for each line end."""
    return split_words(_LINE_ENDS.sub(f" {EOS} ", _INDENT.sub("", text, count=1)))


class Tokenizer:
    """Text to ids and back; created by `train_tokenizer` or `load`.

    kind: char, byte, word, bpe or wordpiece
    vocab: number of ids
    end_id: id that ends a line (word), a document (bpe) or a text (wordpiece), if any
    unk_id: id of <unk> (char and word) or [UNK] (wordpiece)
    lowercase: whether wordpiece lowercases the text
    pad_id, cls_id, sep_id, mask_id: special ids of wordpiece, None for other kinds
    special_ids: ids that are not text and are never generated
    char_counts: number of characters per id, including the white space next to a word; 0 for special ids
    prefix_ids: ids before every text (pretrained tokenizers)
    """

    prefix_ids: tuple[int, ...] = ()
    lowercase = False

    def __init__(self, content: object) -> None:
        """From the content of a tokenizer.json; a ValueError says why it is not one of the five kinds."""
        checked = spec.check_spec(content)
        self.json = (json.dumps(checked.content, ensure_ascii=False, indent=2) + "\n").encode()  # or ValueError
        self._set_vocabulary(checked)
        wordpiece, words = self.kind == "wordpiece", self.kind == "word"
        self.end_id = self._ids.get({"word": EOS, "bpe": spec.END_OF_TEXT, "wordpiece": SEP}.get(self.kind, ""))
        unk = {"char": UNK, "word": UNK, "wordpiece": spec.WORDPIECE_UNK}.get(self.kind)
        self.unk_id = self._ids[unk] if unk else None
        self.lowercase = wordpiece and spec.lowercases(checked.content["normalizer"])
        ids = (self._ids[token] if wordpiece else None for token in (spec.PAD, CLS, SEP, MASK))
        self.pad_id, self.cls_id, self.sep_id, self.mask_id = ids
        self.special_ids = checked.special_ids if self.unk_id is None or wordpiece else [self.unk_id]
        if self.kind in ("bpe", "wordpiece"):
            self._library = tokenizers.Tokenizer.from_buffer(self.json)
        self._spaced_bytes = self._bytes  # inside a text: wordpiece has a space before the start of a word
        if wordpiece:
            self._spaced_bytes = [self._library.decoder.decode(["", token.decode()]).encode() for token in self._bytes]
        self.char_counts = self._count_characters() + words  # <eos> is the white space after the last word of a line
        self.char_counts[[*self.special_ids, self._ids[EOS]] if words else self.special_ids] = 0
        if self.kind == "char":
            codes = {ord(token): i for token, i in self._ids.items() if token != UNK}
            self._table = np.full(0x110000, self._ids[UNK], self.dtype)
            self._table[list(codes)] = list(codes.values())
        if self.kind == "bpe":
            self._pairs = lru_cache(CACHE_SIZE)(self._encode_pre_token)

    def _set_vocabulary(self, checked: spec.CheckedSpec) -> None:
        """Set the kind, the ids, and the bytes of each id."""
        self.kind, self._special, self._ids = checked.kind, checked.added, checked.vocab | checked.added
        self.vocab = 1 + max(self._ids.values())
        self.dtype = np.dtype("<u2" if self.vocab <= 1 << 16 else "<u4")
        self._bytes = [b""] * self.vocab
        for token, i in self._ids.items():
            self._bytes[i] = token.encode() if token in self._special else self._token_bytes(token)

    def _token_bytes(self, token: str) -> bytes:
        byte_level = self.kind in ("byte", "bpe") and BYTE_OF_CHARACTER.keys() >= set(token)
        return bytes(BYTE_OF_CHARACTER[c] for c in token) if byte_level else token.encode()

    def _count_characters(self) -> Array:
        return np.array([len(token.translate(None, UTF8_CONTINUATION)) for token in self._spaced_bytes])

    def encode(self, text: str) -> Array:
        """Token ids of a text, 16 bits wide if the vocabulary allows it, else 32."""
        text = replace_surrogates(text)
        if self.kind == "char":
            return self._table.take(np.frombuffer(text.encode("utf-32-le"), "<u4"), mode="clip")
        if self.kind == "byte":
            return np.frombuffer(text.encode(), np.uint8).astype(self.dtype)
        if self.kind == "word":
            words = _words_with_eos(text)
            return np.fromiter(map(self._ids.get, words, repeat(self._ids[UNK])), self.dtype, len(words))
        chunks = list(split_text(text, CHUNK_CHARACTERS))
        if self.kind == "wordpiece":
            encodings = self._library.encode_batch_fast(chunks, add_special_tokens=False)
            return np.concatenate([np.array(encoding.ids, self.dtype) for encoding in encodings])
        return np.frombuffer(bytearray().join(self._byte_pairs(chunks)), self.dtype)

    def encode_word_pieces(self, texts: Sequence[str]) -> list[Array]:
        """Token ids of each text. The library splits a block of texts among threads."""
        rows = list[Array]()
        for n in range(0, len(texts), TEXTS_PER_BLOCK):
            block = texts[n : n + TEXTS_PER_BLOCK]
            chunks = [list(split_text(replace_surrogates(text), CHUNK_CHARACTERS)) for text in block]
            encodings = iter(self._library.encode_batch_fast([*chain.from_iterable(chunks)], add_special_tokens=False))
            ids = (chain.from_iterable(next(encodings).ids for _ in parts) for parts in chunks)
            rows += [np.fromiter(row, self.dtype) for row in ids]
        return rows

    def _encode_pre_token(self, word: str) -> bytes:
        return np.array(self._library.encode(word, add_special_tokens=False).ids, self.dtype).tobytes()

    def _byte_pairs(self, texts: list[str]) -> Iterator[bytes]:
        """The ids of each text as bytes, which are joined faster than numbers.

        They are cached per pre-token; the library encodes other scripts, special tokens and long runs.
        """

        def cacheable(text: str) -> bool:
            short = len(text) <= 2 * CHUNK_CHARACTERS and spec.KNOWN_TEXT.fullmatch(text)
            return bool(short) and not any(token in text for token in self._special)

        cached = [cacheable(text) for text in texts]
        uncached = [text for text, hit in zip(texts, cached, strict=True) if not hit]
        encodings = iter(self._library.encode_batch_fast(uncached, add_special_tokens=False))
        for text, hit in zip(texts, cached, strict=True):
            if hit:
                yield b"".join(map(self._pairs, spec.PRE_TOKEN.findall(text)))
            else:
                yield np.array(next(encodings).ids, self.dtype).tobytes()

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids. Words are joined by spaces, lines by newlines; an incomplete character is U+FFFD."""
        if self.kind == "word":
            return "".join(map(self.stream_decoder(), self._checked(ids)))
        if self.kind == "wordpiece":
            return str(self._library.decode(self._checked(ids), skip_special_tokens=False))
        return b"".join([self._bytes[i] for i in self._checked(ids)]).decode("utf-8", "replace")

    def token_texts(self, ids: Iterable[int]) -> list[str]:
        """Text of each token; bytes of incomplete characters are shown as <0xE2>."""
        texts = [self._bytes[i].decode("utf-8", "surrogateescape") for i in self._checked(ids)]
        return [re.sub("[\udc80-\udcff]", lambda byte: f"<0x{ord(byte[0]) & 0xFF:02X}>", text) for text in texts]

    def split(self, text: str) -> list[str]:
        """The piece of the text behind each token, as written, known or not."""
        if self.unk_id is None:
            return self.token_texts(self.encode(text))
        text = replace_surrogates(text)
        if self.kind == "wordpiece":
            return [text[a:b] for a, b in self._library.encode(text, add_special_tokens=False).offsets]
        return list(text) if self.kind == "char" else _words_with_eos(text)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The characters of the text behind each token: start and end."""
        return list(self._offset_library.encode(text, add_special_tokens=False).offsets)

    @cached_property
    def _offset_library(self) -> tokenizers.Tokenizer:
        return self._library if self.kind in ("bpe", "wordpiece") else tokenizers.Tokenizer.from_buffer(self.json)

    def unknown_pieces(self, text: str) -> list[str]:
        """The characters or words of a text that are encoded as <unk>, with repetitions."""
        if self.unk_id is None:
            return []
        pieces = zip(self.split(text), self.encode(text).tolist(), strict=True)
        return [piece for piece, i in pieces if i == self.unk_id and piece not in (UNK, spec.WORDPIECE_UNK)]

    def stream_decoder(self) -> Callable[[int], str]:
        """A function from one id to the text that is complete so far, never a partial character."""
        decoder, separator, started = codecs.getincrementaldecoder("utf-8")("replace"), "", False

        def next_text(i: int) -> str:
            nonlocal separator, started
            text = decoder.decode((self._spaced_bytes if started else self._bytes)[self._checked([i])[0]])
            started = True
            if self.kind == "word":
                text, separator = ("\n", "") if i == self.end_id else (separator + text, " ")
            return text

        return next_text

    def files(self) -> dict[str, bytes]:
        """Files of a run folder by name."""
        return {"tokenizer.json": self.json}

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a tokenizer.json from an untrusted source; BadRun for any unsupported content."""
        try:
            spec.require(path.is_file(), "it is not a file")
            return cls(read_json(path, MAX_FILE_BYTES))
        except Exception as error:  # the library raises plain Exception
            reason = (getattr(error, "strerror", None) or str(error).partition("\n")[0]).removeprefix(f"{path}: ")
        accepted = "accepted: harken's own tokenizer.json, byte-level BPE as in GPT-2, and BERT's WordPiece"
        raise BadRun(f"{path}: unsupported tokenizer: {reason}; {accepted}; fetch or train it again")

    def _checked(self, ids: Iterable[int]) -> list[int]:
        checked: list[int] = ids.tolist() if isinstance(ids, np.ndarray) else [int(i) for i in ids]
        for i in (min(checked, default=0), max(checked, default=0)):
            if not 0 <= i < self.vocab:
                accepted = f"the ids of this {self.kind} tokenizer are 0 to {self.vocab - 1}"
                raise BadInput(f"token {i}: out of range; {accepted}")
        return checked


def train_or_load_tokenizer(
    kind: str, vocab_size: int, texts: Texts, *, lowercase: bool = False, listen: Listener = silent
) -> Tokenizer:
    """The tokenizer of the training text; bpe and wordpiece, which train slowly, are cached by the text's hash."""
    if kind not in ("bpe", "wordpiece"):
        return train_tokenizer(kind, texts, vocab_size, listen=listen)
    digest = hashlib.sha256(f"{kind} {vocab_size} {lowercase} 2".encode())
    for block in texts():
        digest.update(block.encode())
    path = cache_folder("text") / f"tokenizer-{digest.hexdigest()[:32]}.json"
    with suppress(BadRun, OSError):  # not cached yet, or incomplete
        return Tokenizer.load(path)
    tokenizer = train_tokenizer(kind, texts, vocab_size, lowercase=lowercase, listen=listen)
    write_atomic(path, tokenizer.json)
    return tokenizer


def train_tokenizer(
    kind: str, texts: Texts, vocab_size: int, *, lowercase: bool = False, listen: Listener = silent
) -> Tokenizer:
    """Train a tokenizer; memory use does not grow with the text. `vocab_size` limits word, bpe and wordpiece.

    Words are sorted by frequency, then by first occurrence. `lowercase`: wordpiece lowercases and strips accents.
    """
    if kind not in spec.TOKENIZER_KINDS:
        accepted = f"use one of {', '.join(spec.TOKENIZER_KINDS)}.{did_you_mean(kind, spec.TOKENIZER_KINDS)}"
        raise BadSetting(f"data.tokenizer={kind}: unknown tokenizer; {accepted}")
    if not (minimum := {"word": 3, "bpe": 257, "wordpiece": 7}.get(kind, 0)) <= vocab_size <= spec.MAX_VOCAB:
        raise BadSetting(f"data.vocab_size={vocab_size}: {kind} tokens need {minimum} to {spec.MAX_VOCAB}")
    if kind == "byte":
        return Tokenizer(spec.build_spec(kind, BYTE_OF_CHARACTER))
    if kind == "bpe":
        return Tokenizer(_train_bpe(texts, vocab_size, listen))
    if kind == "wordpiece":
        normalizer = spec.BERT_NORMALIZER if lowercase else spec.CASED_NORMALIZER
        return Tokenizer(_train_wordpiece(texts, vocab_size, normalizer, listen))
    seen, counts = np.zeros(0x110000, bool), Counter[str]()
    for text in _with_progress(texts(), listen):
        if kind == "char":
            seen[np.frombuffer(text.encode("utf-32-le"), "<u4")] = True
        else:
            counts.update(split_words(text))
        if len(counts) > MAX_COUNTED_WORDS:
            counts = Counter({word: n for word, n in counts.items() if n > 1})
    words = [word for word, _ in counts.most_common(vocab_size) if word not in (UNK, EOS)]
    tokens = [*map(chr, np.flatnonzero(seen)), UNK] if kind == "char" else [UNK, EOS, *words][:vocab_size]
    return Tokenizer(spec.build_spec(kind, {token: i for i, token in enumerate(tokens)}))


def _with_progress(texts: Iterable[str], listen: Listener) -> Iterator[str]:
    done = 0
    for text in texts:
        yield replace_surrogates(text)
        done += len(text)
        listen("vocabulary", done=done, unit="characters")
    if not done:
        raise BadInput("the text is empty; a tokenizer needs at least one character of training text")


def _sample(texts: Texts, separator: str, listen: Listener) -> Iterator[str]:
    """Every n-th block of a long text in short pieces; fewer blocks if words are long, as each is stored separately."""
    sizes = ((len(replace_surrogates(text).encode()), 1 + count_words(text)) for text in texts())
    stride = 1 + sum(size * min(16, 1 + size // (16 * words)) for size, words in sizes) // SAMPLE_BYTES
    blocks = (text for n, text in enumerate(_with_progress(texts(), listen)) if n % stride == 0)
    parts = (part for text in blocks for piece in split_text(text, MAX_RUN // 2) for part in piece.split(separator))
    return (part[i : i + MAX_RUN] for part in parts for i in range(0, len(part), MAX_RUN))


def _train_bpe(texts: Texts, vocab_size: int, listen: Listener) -> dict[str, Any]:
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=2, show_progress=False)
    trainer.special_tokens = [tokenizers.AddedToken(spec.END_OF_TEXT, special=True)]
    trainer.initial_alphabet = list(BYTE_OF_CHARACTER)
    library.train_from_iterator(_sample(texts, spec.END_OF_TEXT, listen), trainer)
    return {**json.loads(library.to_str()), "decoder": spec.BYTE_LEVEL_REGEX}


def _train_wordpiece(texts: Texts, vocab_size: int, normalizer: Mapping[str, object], listen: Listener) -> object:
    """WordPiece by merging the most frequent pairs of pieces. The library numbers characters inside words in no fixed
    order, so they are passed as special tokens."""
    library = tokenizers.Tokenizer.from_str(json.dumps(spec.build_spec("wordpiece", {}, bert_normalizer=normalizer)))
    counts = Counter(chain.from_iterable(map(library.normalizer.normalize_str, _sample(texts, MASK, silent))))
    frequent = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    letters = sorted(frequent[: min(ALPHABET_SIZE, (vocab_size - len(spec.SPECIAL_TOKENS)) // 2)])
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=vocab_size, min_frequency=2, show_progress=False)
    trainer.special_tokens = [tokenizers.AddedToken(t) for t in (*spec.SPECIAL_TOKENS, *(f"##{c}" for c in letters))]
    trainer.initial_alphabet, trainer.limit_alphabet = letters, len(letters)
    library.train_from_iterator(_sample(texts, MASK, listen), trainer)
    ids = library.get_vocab(with_added_tokens=False)
    flags = spec.ADDED_TOKEN_FLAGS | {"special": True}
    added = [{"id": ids[token], "content": token, **flags} for token in spec.SPECIAL_TOKENS]
    return spec.build_spec("wordpiece", ids, added=added, bert_normalizer=normalizer)


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


def window_starts(length: int, width: int) -> list[int]:
    """The starts of windows of `width` tokens that overlap by half and cover a text; the last ends with the text."""
    return [*range(0, length - width, max(1, width // 2)), max(0, length - width)]
