"""Tokenizers of five kinds.

char       one token per character of the training text, sorted by code point; other characters are <unk>, the last id
byte       256 tokens, the id is the byte value; nothing is unknown
word       the most frequent words between white space ("hat." is not "hat"), others are <unk>; <eos> ends each line,
           except blank lines
bpe        byte-level BPE as in GPT-2; nothing is unknown; <|endoftext|> ends a document
wordpiece  words and punctuation, rare words in pieces (play ##ing), as in BERT; white space is lost, unknown characters
           are [UNK]; [CLS] starts a text, [SEP] ends one, [MASK] replaces a masked token, [PAD] is padding

Each is saved as a tokenizer.json of the `tokenizers` library, which yields the same ids; the code here is faster.
A lone surrogate is encoded as U+FFFD.
"""

import codecs
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from harken.data.tables.untrusted import unique_keys
from harken.data.text.encode import WHITESPACE, count_words, split_text, split_words
from harken.errors import BadInput, BadRun, BadSetting
from harken.events import Listener, silent
from harken.suggestions import did_you_mean

from .spec import (
    ADDED_TOKEN_FLAGS,
    BERT_NORMALIZER,
    BYTE_LEVEL_REGEX,
    BYTE_OF_CHARACTER,
    CLS,
    END_OF_TEXT,
    EOS,
    KNOWN_TEXT,
    LINE_END,
    MASK,
    MAX_VOCAB,
    PAD,
    PRE_TOKEN,
    SEP,
    SPECIAL_TOKENS,
    TOKENIZER_KINDS,
    UNK,
    WORDPIECE_UNK,
    build_spec,
    identify_kind,
    require,
)

MAX_FILE_BYTES, MAX_JSON_ITEMS = 64 << 20, 1_300_000  # limits for a tokenizer.json
CHUNK_CHARACTERS, CACHE_SIZE = 8 << 10, 100_000  # characters encoded at once; pre-tokens with cached byte pairs
MAX_RUN = 256  # longest word used to train bpe: the time grows with its square
SAMPLE_BYTES = 64 << 20  # text used to train bpe and wordpiece: more costs minutes and changes little
ALPHABET_SIZE = 1000  # most frequent characters of wordpiece; rarer ones are [UNK]
MAX_COUNTED_WORDS = 2_000_000  # distinct words counted at once; beyond it words seen once are dropped
UTF8_CONTINUATION = bytes(range(0x80, 0xC0))
_LINE_ENDS, _INDENT = re.compile(LINE_END), re.compile(rf"[{WHITESPACE}]*")


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
    pad_id, cls_id, sep_id, mask_id: special ids of wordpiece, None for other kinds
    special_ids: ids that are not text and are never generated
    char_counts: number of characters per id, including the white space next to a word; 0 for special ids
    prefix_ids: ids before every text (pretrained tokenizers)
    """

    prefix_ids: tuple[int, ...] = ()

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """From the content of a tokenizer.json; a ValueError says why it is not one of the five kinds."""
        self.kind, spec = identify_kind(spec)
        self.json = (json.dumps(spec, ensure_ascii=False, indent=2) + "\n").encode()  # ValueError for a lone surrogate
        self._special: dict[str, int] = {token["content"]: token["id"] for token in spec["added_tokens"]}
        self._ids: dict[str, int] = spec["model"]["vocab"] | self._special
        self.vocab = len(self._ids)
        wordpiece = self.kind == "wordpiece"
        self.end_id = self._ids.get({"word": EOS, "bpe": END_OF_TEXT, "wordpiece": SEP}.get(self.kind, ""))
        unk = {"char": UNK, "word": UNK, "wordpiece": WORDPIECE_UNK}.get(self.kind)
        self.unk_id = self._ids[unk] if unk else None
        self.pad_id, self.cls_id, self.sep_id, self.mask_id = (
            self._ids[token] if wordpiece else None for token in (PAD, CLS, SEP, MASK)
        )
        special = [token["id"] for token in spec["added_tokens"] if token["special"]]
        self.special_ids: list[int] = special if self.unk_id is None or wordpiece else [self.unk_id]
        self.dtype = np.dtype("<u2" if self.vocab <= 1 << 16 else "<u4")
        self._bytes = [b""] * self.vocab
        for token, i in self._ids.items():
            byte_level = self.kind in ("byte", "bpe") and token not in self._special
            byte_level = byte_level and BYTE_OF_CHARACTER.keys() >= set(token)
            self._bytes[i] = bytes(BYTE_OF_CHARACTER[c] for c in token) if byte_level else token.encode()
        if self.kind in ("bpe", "wordpiece"):
            self._library = tokenizers.Tokenizer.from_buffer(self.json)
        self._spaced_bytes = self._bytes  # inside a text: wordpiece has a space before the start of a word
        if wordpiece:
            self._spaced_bytes = [self._library.decoder.decode(["", token.decode()]).encode() for token in self._bytes]
        words = self.kind == "word"  # <eos> is the white space after the last word of a line
        self.char_counts = np.array([len(b.translate(None, UTF8_CONTINUATION)) + words for b in self._spaced_bytes])
        self.char_counts[[*self.special_ids, self.end_id] if words else self.special_ids] = 0
        if self.kind == "char":
            codes = {ord(token): i for token, i in self._ids.items() if token != UNK}
            self._table = np.full(0x110000, self._ids[UNK], self.dtype)
            self._table[list(codes)] = list(codes.values())
        if self.kind == "bpe":
            self._pairs = lru_cache(CACHE_SIZE)(lambda word: self._library.encode(word, add_special_tokens=False).ids)

    def encode(self, text: str) -> npt.NDArray[Any]:
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
        return np.concatenate([np.fromiter(ids, self.dtype) for ids in self._byte_pairs(chunks)])

    def _byte_pairs(self, texts: list[str]) -> Iterator[Iterable[int]]:
        """Cached per pre-token; the library encodes other scripts, special tokens and long runs."""

        def cacheable(text: str) -> bool:
            short = len(text) <= 2 * CHUNK_CHARACTERS and KNOWN_TEXT.fullmatch(text)
            return bool(short) and not any(token in text for token in self._special)

        cached = [cacheable(text) for text in texts]
        uncached = [text for text, hit in zip(texts, cached, strict=True) if not hit]
        encodings = iter(self._library.encode_batch_fast(uncached, add_special_tokens=False))
        for text, hit in zip(texts, cached, strict=True):
            yield chain.from_iterable(map(self._pairs, PRE_TOKEN.findall(text))) if hit else next(encodings).ids

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

    def unknown_pieces(self, text: str) -> list[str]:
        """The characters or words of a text that are encoded as <unk>, with repetitions."""
        if self.unk_id is None:
            return []
        pieces = zip(self.split(text), self.encode(text).tolist(), strict=True)
        return [piece for piece, i in pieces if i == self.unk_id and piece not in (UNK, WORDPIECE_UNK)]

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

    def save(self, path: Path) -> None:
        """Write tokenizer.json; the same tokens give the same bytes."""
        path.write_bytes(self.json)

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a tokenizer.json from an untrusted source; BadRun for any unsupported content."""
        try:
            require(path.is_file(), "it is not a file")
            with path.open("rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
            require(len(raw) <= MAX_FILE_BYTES, "it is larger than 64 MB")
            require(sum(map(raw.count, (b"[", b"{", b","))) <= MAX_JSON_ITEMS, "it has too many items")
            return cls(json.loads(raw.decode(), object_pairs_hook=unique_keys))
        except Exception as error:  # the library raises plain Exception
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        accepted = "accepted: harken's own tokenizer.json, byte-level BPE as in GPT-2, and BERT's WordPiece"
        raise BadRun(f"{path}: unsupported tokenizer: {reason}; {accepted}; fetch or train it again")

    def _checked(self, ids: Iterable[int]) -> list[int]:
        checked: list[int] = ids.tolist() if isinstance(ids, np.ndarray) else [int(i) for i in ids]
        for i in (min(checked, default=0), max(checked, default=0)):
            if not 0 <= i < self.vocab:
                raise BadInput(
                    f"token {i}: out of range; the ids of this {self.kind} tokenizer are 0 to {self.vocab - 1}"
                )
        return checked


def train_tokenizer(
    kind: str, texts: Callable[[], Iterable[str]], vocab_size: int, *, lowercase: bool = True, listen: Listener = silent
) -> Tokenizer:
    """Train a tokenizer. `texts()` yields blocks of text and may be called twice; memory use does not grow with them.

    `vocab_size` limits word, bpe and wordpiece. Words are sorted by frequency, then by first occurrence. `lowercase`:
    wordpiece lowercases the text and strips accents.
    """
    if kind not in TOKENIZER_KINDS:
        suggestion = did_you_mean(kind, TOKENIZER_KINDS)
        raise BadSetting(
            f"data.tokenizer={kind}: unknown tokenizer; use one of {', '.join(TOKENIZER_KINDS)}.{suggestion}"
        )
    if not (minimum := {"word": 3, "bpe": 257, "wordpiece": 7}.get(kind, 0)) <= vocab_size <= MAX_VOCAB:
        raise BadSetting(f"data.vocab_size={vocab_size}: {kind} tokens need {minimum} to {MAX_VOCAB}")
    if kind in ("byte", "bpe"):
        return Tokenizer(
            build_spec("byte", BYTE_OF_CHARACTER) if kind == "byte" else _train_bpe(texts, vocab_size, listen)
        )
    if kind == "wordpiece":
        return Tokenizer(_train_wordpiece(texts, vocab_size, BERT_NORMALIZER | {"lowercase": lowercase}, listen))
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
    return Tokenizer(build_spec(kind, {token: i for i, token in enumerate(tokens)}))


def _with_progress(texts: Iterable[str], listen: Listener) -> Iterator[str]:
    done = 0
    for text in texts:
        yield replace_surrogates(text)
        done += len(text)
        listen("vocabulary", done=done, unit="characters")
    if not done:
        raise BadInput("the text is empty; a tokenizer needs at least one character of training text")


def _sample(texts: Callable[[], Iterable[str]], separator: str, listen: Listener) -> Iterator[str]:
    """Every n-th block of a long text in short pieces; fewer blocks if words are long, as each is stored separately."""
    sizes = ((len(replace_surrogates(text).encode()), 1 + count_words(text)) for text in texts())
    stride = 1 + sum(size * min(16, 1 + size // (16 * words)) for size, words in sizes) // SAMPLE_BYTES
    blocks = (text for n, text in enumerate(_with_progress(texts(), listen)) if n % stride == 0)
    parts = (part for text in blocks for piece in split_text(text, MAX_RUN // 2) for part in piece.split(separator))
    return (part[i : i + MAX_RUN] for part in parts for i in range(0, len(part), MAX_RUN))


def _train_bpe(texts: Callable[[], Iterable[str]], vocab_size: int, listen: Listener) -> dict[str, Any]:
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=list(BYTE_OF_CHARACTER),
        show_progress=False,
    )
    library.train_from_iterator(_sample(texts, END_OF_TEXT, listen), trainer)
    return {**json.loads(library.to_str()), "decoder": BYTE_LEVEL_REGEX}


def _train_wordpiece(
    texts: Callable[[], Iterable[str]], vocab_size: int, normalizer: Mapping[str, Any], listen: Listener
) -> dict[str, Any]:
    """WordPiece by merging the most frequent pairs of pieces.

    The library numbers characters inside words in no fixed order, so they are passed as special tokens.
    """
    library = tokenizers.Tokenizer.from_str(json.dumps(build_spec("wordpiece", {}, bert_normalizer=normalizer)))
    counts = Counter(chain.from_iterable(map(library.normalizer.normalize_str, _sample(texts, MASK, silent))))
    frequent = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    letters = sorted(frequent[: min(ALPHABET_SIZE, (vocab_size - len(SPECIAL_TOKENS)) // 2)])
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=vocab_size, min_frequency=2, show_progress=False)
    trainer.special_tokens = [tokenizers.AddedToken(t) for t in (*SPECIAL_TOKENS, *(f"##{c}" for c in letters))]
    trainer.initial_alphabet, trainer.limit_alphabet = letters, len(letters)
    library.train_from_iterator(_sample(texts, MASK, listen), trainer)
    ids = library.get_vocab(with_added_tokens=False)
    added = [{"id": ids[token], "content": token, **ADDED_TOKEN_FLAGS, "special": True} for token in SPECIAL_TOKENS]
    return build_spec("wordpiece", ids, added=added, bert_normalizer=normalizer)
