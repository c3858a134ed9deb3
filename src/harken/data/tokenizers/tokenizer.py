"""Tokens: text to numbers and back, in five kinds.

char   every character of the text is a token, in the order of code points; any other character is <unk>, the last id
byte   256 tokens, the id is the byte: nothing is unknown
word   the most frequent words between white space ("hat." is not "hat"), the rest is <unk>; one <eos> ends each line,
       blank lines give none
bpe    frequent runs of bytes, learned from the text as GPT-2 does: nothing is unknown; <|endoftext|> ends a document
wordpiece  words and signs, rare ones in pieces (play ##ing), as BERT does; white space is lost, other characters are
       [UNK]; [CLS] begins a text, [SEP] ends one, [MASK] stands for a hidden word, [PAD] for none

Each is saved as a tokenizer.json of the `tokenizers` library, which alone gives the same ids: the code here is only
faster. A lone surrogate is no character and is read as U+FFFD.
"""

import codecs
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from harken.data.text.encode import SPACE, count_words, pieces, split_words
from harken.errors import BadInput, BadRun, BadSetting, did_you_mean
from harken.events import Listener, silent

UNK, EOS, END = "<unk>", "<eos>", "<|endoftext|>"
MARKS = PAD, UNKNOWN, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"  # of wordpiece
KINDS = ("char", "byte", "word", "bpe", "wordpiece")
VOCAB_CAP, FILE_CAP, ITEM_CAP, ADDED_CAP = 300_000, 64 << 20, 1_300_000, 1_000  # the last three: of a tokenizer.json
PIECE, MEMO = 8 << 10, 100_000  # characters split into byte pairs at once; pre-tokens whose byte pairs are remembered
RUN = 256  # characters of the longest word from which byte pairs are learned: time grows with its square
SAMPLE = 64 << 20  # bytes from which byte pairs are learned: more costs minutes and changes little
ALPHABET = 1000  # characters of which wordpiece makes words; rarer ones are [UNK]
WORDS_KEPT = 2_000_000  # different words counted at once; beyond it those seen once are forgotten
_LINE_END = rf"\n[{SPACE}]*"
_LINE_ENDS, _INDENT = re.compile(_LINE_END), re.compile(rf"[{SPACE}]*")
_CONTINUED = bytes(range(0x80, 0xC0))  # bytes inside a character of UTF-8
# Letters whose Unicode classes are settled (Latin, Greek, Cyrillic, Armenian) and typographic signs
_KNOWN = "".join(map(chr, (*range(0x590), *range(0x2010, 0x2028), 0x20AC)))
_LETTERS, _NUMBERS = ("".join(c for c in _KNOWN if unicodedata.category(c)[0] == first) for first in "LN")
_SETTLED = re.compile(f"[{re.escape(_KNOWN)}]*")
_PRE_TOKEN = re.compile(  # GPT-2's
    rf"'(?:[sdmt]|ll|ve|re)| ?[{_LETTERS}]+| ?[{_NUMBERS}]+| ?[^{SPACE}{_LETTERS}{_NUMBERS}]+"
    rf"|[{SPACE}]+(?![^{SPACE}])|[{SPACE}]+"
)
# GPT-2's printable character for each byte: itself if it prints, else the next one from U+0100 on
_HIDDEN = [byte for byte in range(256) if byte == ord(" ") or not chr(byte).isprintable()]
_BYTES = {chr(256 + _HIDDEN.index(byte) if byte in _HIDDEN else byte): byte for byte in range(256)}


def _sound(text: str) -> str:
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _lined(text: str) -> list[str]:
    """The words of a text, and an <eos> for the end of each line."""
    return split_words(_LINE_ENDS.sub(f" {EOS} ", _INDENT.sub("", text, count=1)))


def _part(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


_WHOLE = _part("ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)
_PARTED = _WHOLE | {"use_regex": True}
_LINES = _part("Replace", pattern={"Regex": _LINE_END}, content=f" {EOS} ")
_SPACED = _part("WordPiece", prefix=" ", cleanup=False)  # a space before every word, since none begins with its prefix
_BROKEN = _part("Replace", pattern={"Regex": rf" ?(?<!\S){EOS}(?!\S) ?"}, content="\n")
_CLEANED = _part("BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True)
_ASKED = _CLEANED.keys() - {"type"}
_SHAPES: dict[str, tuple[Any, Any, Any]] = {  # normalizer, pre-tokenizer, decoder
    "char": (None, _part("Split", pattern={"Regex": r"[\s\S]"}, behavior="Isolated", invert=False), _part("Fuse")),
    "byte": (None, _WHOLE, _PARTED),
    "word": (
        _part("Sequence", normalizers=[_part("Strip", strip_left=True, strip_right=False), _LINES]),
        _part("WhitespaceSplit"),
        _part("Sequence", decoders=[_SPACED, _part("Fuse"), _BROKEN]),
    ),
    "bpe": (None, _PARTED, _PARTED),
    "wordpiece": (_CLEANED, _part("BertPreTokenizer"), _part("WordPiece", prefix="##", cleanup=True)),
}
_OFF = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
_BPE = _part("BPE", **_OFF, fuse_unk=False, byte_fallback=False, ignore_merges=False)
_PIECED = _part("WordPiece", unk_token=UNKNOWN, continuing_subword_prefix="##", max_input_chars_per_word=100)
_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def _spec(kind: str, vocab: Mapping[str, int], merges: Any = (), added: Any = (), cleaned: Any = _CLEANED) -> Any:
    """The content of a tokenizer.json, its keys in the order in which `tokenizers` writes them."""
    normalizer, splitter, decoder = _SHAPES[kind]
    model = _part("WordLevel", vocab=vocab, unk_token=UNK)
    if kind in ("byte", "bpe"):
        model = {**_BPE, "vocab": vocab, "merges": list(merges)}
    elif kind == "wordpiece":
        model, normalizer = {**_PIECED, "vocab": vocab}, cleaned
    spec = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added)}
    spec |= {"normalizer": normalizer, "pre_tokenizer": splitter, "post_processor": None}
    return spec | {"decoder": decoder, "model": model}


def _need(good: bool, reason: str) -> None:
    if not good:
        raise ValueError(reason)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _need(len(found := dict(pairs)) == len(pairs), "a key stands twice")
    return found


def _frame(spec: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json without its words, GPT-2's older spellings of the same thing written harken's way."""
    frame = {**spec, "added_tokens": [], "model": {**spec["model"], "vocab": {}}}
    if "merges" in spec["model"]:  # no byte is unknown, so its unk_token is idle
        given = {name: value for name, value in spec["model"].items() if value or name == "type"}
        frame["model"] = {**_BPE, **given, "unk_token": None, "vocab": {}, "merges": []}
    if spec["model"].get("type") == "WordPiece":  # how texts are framed and cut to a length is not asked of it
        frame |= dict.fromkeys(("truncation", "padding", "post_processor"))
        cleaned, decoder = spec.get("normalizer"), _SHAPES["wordpiece"][2]
        if isinstance(cleaned, dict) and {**cleaned, **dict.fromkeys(_ASKED)} == _CLEANED | dict.fromkeys(_ASKED):
            _need(all(cleaned[name] in (True, False, None) for name in _ASKED), "its normalizer is odd")
            frame["normalizer"] = _CLEANED
        if spec.get("decoder") == decoder | {"cleanup": False}:
            frame["decoder"] = decoder
    for part in ("pre_tokenizer", "post_processor", "decoder"):
        value = spec.get(part)
        if isinstance(value, dict) and value.get("type") == "ByteLevel" and value.keys() <= _WHOLE.keys():
            if part != "pre_tokenizer":  # there the flags move offsets only
                frame[part] = _PARTED if part == "decoder" else None
            elif value.get("add_prefix_space") is False:
                frame[part] = _WHOLE if value.get("use_regex") is False else _PARTED
    return frame


def _added(given: Any) -> list[dict[str, Any]]:
    """The tokens that are found in a text before anything else, such as <|endoftext|>."""
    _need(isinstance(given, list) and len(given) <= ADDED_CAP, "its added tokens are not a short list")
    for token in given:
        _need(isinstance(token, dict) and isinstance(token.get("content"), str), "an added token has no text")
        _need(bool(re.fullmatch(rf"[^{SPACE}]{{1,99}}", token["content"])), "an added token is no single word")
        _need(not any(token.get(flag) for flag in ("single_word", "lstrip", "rstrip")), "an added token is not plain")
    return [{"id": t.get("id"), "content": t["content"], **_FLAGS, "special": bool(t.get("special"))} for t in given]


def _recognise(spec: Any) -> tuple[str, dict[str, Any]]:
    """The kind and the canonical form of a tokenizer.json; a ValueError says why it is not one of ours."""
    _need(isinstance(spec, dict) and isinstance(spec.get("model"), dict), "it has no model")
    model, frame = spec["model"], _frame(spec)
    _need(isinstance(model.get("vocab"), dict), "it has no vocabulary")
    kind = next((kind for kind in KINDS if _spec(kind, {}) == frame), "")
    _need(kind != "", "its model, normalizer, pre-tokenizer or decoder (or a pattern in them) is not known")
    added = _added(spec.get("added_tokens"))
    tokens = model["vocab"] | {token["content"]: token["id"] for token in added}
    _need(len(tokens) <= VOCAB_CAP and all(type(i) is int for i in tokens.values()), "it has odd ids, or too many")
    _need(sorted(tokens.values()) == list(range(len(tokens))), "its ids are not 0, 1, 2, ... once each")
    _need(all(model["vocab"].get(t["content"], t["id"]) == t["id"] for t in added), "an added token has two ids")
    vocab = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    _need(isinstance(model.get("merges", []), list), "its merges are not a list")
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", [])]
    for pair in merges:
        _need(isinstance(pair, list) and len(pair) == 2 and all(isinstance(p, str) for p in pair), "a merge is no pair")
        _need({*pair, "".join(pair)} <= vocab.keys(), "a merge is not in its vocabulary")
    _need(kind in ("bpe", "wordpiece") or not (added or merges), "it has merges or added tokens")
    missing = {*MARKS} - {token["content"] for token in added}
    _need(kind != "wordpiece" or not missing, f"{', '.join(sorted(missing))} is not among its added tokens")
    _need(kind != "bpe" or _BYTES.keys() <= vocab.keys(), "a byte has no token")
    _need(kind != "byte" or vocab == _BYTES, "its ids are not the bytes")
    _need(kind not in ("char", "word") or UNK in vocab, f"it has no {UNK}")
    _need(kind != "char" or all(len(token) == 1 or token == UNK for token in vocab), "a token is no single character")
    _need(kind != "word" or EOS in vocab, f"it has no {EOS}")
    return kind, _spec(kind, vocab, merges, added, spec.get("normalizer"))


class Tokenizer:
    """Text to ids and back. Made by `train` or `load`.

    kind: char, byte, word, bpe or wordpiece; vocab: how many ids; end: the id that ends a line (word), a document (bpe)
    or a text (wordpiece), if any; unknown: the id of <unk> (char and word) or [UNK]; pad, cls, sep, mask: the ids of
    wordpiece's marks, None of other kinds; marks: the ids that are no text, and so never written; letters: how many
    characters of a text each id stands for, the white space beside a word with it; a mark stands for none; begin: the
    ids that stand before every text (of tokens from elsewhere).
    """

    begin: tuple[int, ...] = ()

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """From the content of a tokenizer.json; a ValueError gives the reason if it is none of the five kinds."""
        self.kind, spec = _recognise(spec)
        self.json = (json.dumps(spec, ensure_ascii=False, indent=2) + "\n").encode()  # ValueError for a lone surrogate
        self._special: dict[str, int] = {token["content"]: token["id"] for token in spec["added_tokens"]}
        self._ids: dict[str, int] = spec["model"]["vocab"] | self._special
        self.vocab = len(self._ids)
        pieced = self.kind == "wordpiece"
        self.end = self._ids.get({"word": EOS, "bpe": END, "wordpiece": SEP}.get(self.kind, ""))
        self.unknown = self._ids[UNKNOWN if pieced else UNK] if self.kind in ("char", "word", "wordpiece") else None
        self.pad, self.cls, self.sep, self.mask = (self._ids[m] if pieced else None for m in (PAD, CLS, SEP, MASK))
        special = [token["id"] for token in spec["added_tokens"] if token["special"]]
        self.marks: list[int] = special if self.unknown is None or pieced else [self.unknown]
        self.dtype = np.dtype("<u2" if self.vocab <= 1 << 16 else "<u4")
        self._bytes = [b""] * self.vocab
        for token, i in self._ids.items():
            coded = self.kind in ("byte", "bpe") and token not in self._special and _BYTES.keys() >= set(token)
            self._bytes[i] = bytes(_BYTES[c] for c in token) if coded else token.encode()
        if self.kind in ("bpe", "wordpiece"):
            self._library = tokenizers.Tokenizer.from_buffer(self.json)
        self._said = self._bytes  # what each one adds to a text: of pieces, a space before it where it begins a word
        if pieced:
            self._said = [self._library.decoder.decode(["", token.decode()]).encode() for token in self._bytes]
        words = self.kind == "word"  # there a line's <eos> is the white space behind its last word
        self.letters = np.array([len(text.translate(None, _CONTINUED)) + words for text in self._said])
        self.letters[[*self.marks, self.end] if words else self.marks] = 0
        if self.kind == "char":
            codes = {ord(token): i for token, i in self._ids.items() if token != UNK}
            self._table = np.full(0x110000, self._ids[UNK], self.dtype)
            self._table[list(codes)] = list(codes.values())
        if self.kind == "bpe":
            self._pairs = lru_cache(MEMO)(lambda word: self._library.encode(word, add_special_tokens=False).ids)

    def encode(self, text: str) -> npt.NDArray[Any]:
        """The ids of a text, in 16 bits if they hold the vocabulary, else in 32."""
        text = _sound(text)
        if self.kind == "char":
            return self._table.take(np.frombuffer(text.encode("utf-32-le"), "<u4"), mode="clip")
        if self.kind == "byte":
            return np.frombuffer(text.encode(), np.uint8).astype(self.dtype)
        if self.kind == "word":
            words = _lined(text)
            return np.fromiter(map(self._ids.get, words, repeat(self._ids[UNK])), self.dtype, len(words))
        if self.kind == "wordpiece":
            answers = self._library.encode_batch_fast(list(pieces(text, PIECE)), add_special_tokens=False)
            return np.concatenate([np.array(answer.ids, self.dtype) for answer in answers])
        return np.concatenate([np.fromiter(ids, self.dtype) for ids in self._byte_pairs(list(pieces(text, PIECE)))])

    def _byte_pairs(self, texts: list[str]) -> Iterator[Iterable[int]]:
        """From memory, pre-token by pre-token; the library itself takes other scripts, special tokens and long runs."""
        easy = [len(t) <= 2 * PIECE and _SETTLED.fullmatch(t) and not any(s in t for s in self._special) for t in texts]
        rest = [text for text, known in zip(texts, easy, strict=True) if not known]
        answers = iter(self._library.encode_batch_fast(rest, add_special_tokens=False))
        for text, known in zip(texts, easy, strict=True):
            yield chain.from_iterable(map(self._pairs, _PRE_TOKEN.findall(text))) if known else next(answers).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids. Words are joined by spaces, lines by newlines; half a character shows as U+FFFD."""
        if self.kind == "word":
            return "".join(map(self.stream_decoder(), self._known(ids)))
        if self.kind == "wordpiece":
            return str(self._library.decode(self._known(ids), skip_special_tokens=False))
        return b"".join([self._bytes[i] for i in self._known(ids)]).decode("utf-8", "replace")

    def words(self, ids: Iterable[int]) -> list[str]:
        """Each token's own text; bytes that are not whole characters are shown like <0xE2>."""
        shown = [self._bytes[i].decode("utf-8", "surrogateescape") for i in self._known(ids)]
        return [re.sub("[\udc80-\udcff]", lambda bad: f"<0x{ord(bad[0]) & 0xFF:02X}>", text) for text in shown]

    def split(self, text: str) -> list[str]:
        """What stands in the text for each of its tokens: the words as they were written, known or not."""
        if self.unknown is None:
            return self.words(self.encode(text))
        if self.kind == "wordpiece":
            return [_sound(text)[a:b] for a, b in self._library.encode(_sound(text), add_special_tokens=False).offsets]
        return list(_sound(text)) if self.kind == "char" else _lined(_sound(text))

    def missing(self, text: str) -> list[str]:
        """The characters or words of a text that are <unk> to this tokenizer, as often as they stand there."""
        if self.unknown is None:
            return []
        both = zip(self.split(text), self.encode(text).tolist(), strict=True)
        return [piece for piece, i in both if i == self.unknown and piece not in (UNK, UNKNOWN)]

    def stream_decoder(self) -> Callable[[int], str]:
        """A function to feed ids one by one; it answers the text that is now certain, never half a character."""
        whole, glue, begun = codecs.getincrementaldecoder("utf-8")("replace"), "", False

        def next_text(i: int) -> str:
            nonlocal glue, begun
            text = whole.decode((self._said if begun else self._bytes)[self._known([i])[0]])
            begun = True
            if self.kind == "word":
                text, glue = ("\n", "") if i == self.end else (glue + text, " ")
            return text

        return next_text

    def files(self) -> dict[str, bytes]:
        """What a run folder keeps, by name."""
        return {"tokenizer.json": self.json}

    def save(self, path: Path) -> None:
        """Write tokenizer.json; the same tokens give the same bytes."""
        path.write_bytes(self.json)

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a tokenizer.json that may come from anywhere: what is not wholly known is refused as BadRun."""
        try:
            _need(path.is_file(), "it is not a file")
            with path.open("rb") as file:
                raw = file.read(FILE_CAP + 1)
            _need(len(raw) <= FILE_CAP, "it is larger than 64 MB")
            _need(sum(map(raw.count, (b"[", b"{", b","))) <= ITEM_CAP, "it has too many items")
            return cls(json.loads(raw.decode(), object_pairs_hook=_once))
        except Exception as error:  # the library raises nothing more special
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        accepted = "accepted are harken's own tokenizer.json, plain byte-level BPE like GPT-2's, BERT's word pieces"
        raise BadRun(f"{path}: not a tokenizer to trust: {reason}; {accepted}; fetch or train it again")

    def _known(self, ids: Iterable[int]) -> list[int]:
        found: list[int] = ids.tolist() if isinstance(ids, np.ndarray) else [int(i) for i in ids]
        for i in (min(found, default=0), max(found, default=0)):
            if not 0 <= i < self.vocab:
                raise BadInput(f"token {i}: not one of this {self.kind} tokenizer; its ids are 0 to {self.vocab - 1}")
        return found


def train(
    kind: str, texts: Callable[[], Iterable[str]], vocab: int, *, lowercase: bool = True, listen: Listener = silent
) -> Tokenizer:
    """Learn the tokens of a text. `texts()` gives its blocks and may be called twice; memory does not grow with them.

    `vocab` is the most that word, bpe and wordpiece may have. Words stand by frequency, equal ones by their first
    appearance. `lower`: wordpiece reads capitals as small letters, and letters without their accents.
    """
    if kind not in KINDS:
        raise BadSetting(
            f"data.tokenizer={kind}: not known; accepted are {', '.join(KINDS)}.{did_you_mean(kind, KINDS)}"
        )
    if not (least := {"word": 3, "bpe": 257, "wordpiece": 7}.get(kind, 0)) <= vocab <= VOCAB_CAP:
        raise BadSetting(f"data.vocab_size={vocab}: not for {kind} tokens; accepted is {least} to {VOCAB_CAP}")
    if kind in ("byte", "bpe"):
        return Tokenizer(_spec("byte", _BYTES) if kind == "byte" else _learn_pairs(texts, vocab, listen))
    if kind == "wordpiece":
        return Tokenizer(_learn_pieces(texts, vocab, _CLEANED | {"lowercase": lowercase}, listen))
    seen, count = np.zeros(0x110000, bool), Counter[str]()
    for text in _told(texts(), listen):
        if kind == "char":
            seen[np.frombuffer(text.encode("utf-32-le"), "<u4")] = True
        else:
            count.update(split_words(text))
        if len(count) > WORDS_KEPT:
            count = Counter({word: times for word, times in count.items() if times > 1})
    words = [word for word, _ in count.most_common(vocab) if word not in (UNK, EOS)]
    tokens = [*map(chr, np.flatnonzero(seen)), UNK] if kind == "char" else [UNK, EOS, *words][:vocab]
    return Tokenizer(_spec(kind, {token: i for i, token in enumerate(tokens)}))


def _told(texts: Iterable[str], listen: Listener) -> Iterator[str]:
    done = 0
    for text in texts:
        yield _sound(text)
        done += len(text)
        listen("vocabulary", done=done, unit="characters")
    if not done:
        raise BadInput("the text is empty; tokens are learned from at least one character; give a text")


def _sample(texts: Callable[[], Iterable[str]], mark: str, listen: Listener) -> Iterator[str]:
    """Every n-th block of a long text in short pieces; fewer where words are long and so each is kept by itself."""
    sizes = ((len(_sound(text).encode()), 1 + count_words(text)) for text in texts())
    every = 1 + sum(size * min(16, 1 + size // (16 * words)) for size, words in sizes) // SAMPLE
    blocks = (text for n, text in enumerate(_told(texts(), listen)) if n % every == 0)
    parts = (part for text in blocks for piece in pieces(text, RUN // 2) for part in piece.split(mark))
    return (part[i : i + RUN] for part in parts for i in range(0, len(part), RUN))


def _learn_pairs(texts: Callable[[], Iterable[str]], vocab: int, listen: Listener) -> dict[str, Any]:
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab, min_frequency=2, special_tokens=[END], initial_alphabet=list(_BYTES), show_progress=False
    )
    library.train_from_iterator(_sample(texts, END, listen), trainer)
    return {**json.loads(library.to_str()), "decoder": _PARTED}


def _learn_pieces(
    texts: Callable[[], Iterable[str]], vocab: int, cleaned: Mapping[str, Any], listen: Listener
) -> dict[str, Any]:
    """Words are made of characters and joined pair by pair, the most frequent pair first.

    The library numbers the characters inside words as it meets them, in no fixed order: so they are given to it.
    """
    library = tokenizers.Tokenizer.from_str(json.dumps(_spec("wordpiece", {}, cleaned=cleaned)))
    count = Counter(chain.from_iterable(map(library.normalizer.normalize_str, _sample(texts, MASK, silent))))
    known = sorted((c for c in count if not c.isspace()), key=lambda c: (-count[c], c))
    letters = sorted(known[: min(ALPHABET, (vocab - len(MARKS)) // 2)])
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=vocab, min_frequency=2, show_progress=False)
    trainer.special_tokens = [tokenizers.AddedToken(t) for t in (*MARKS, *(f"##{c}" for c in letters))]
    trainer.initial_alphabet, trainer.limit_alphabet = letters, len(letters)
    library.train_from_iterator(_sample(texts, MASK, listen), trainer)
    ids = library.get_vocab(with_added_tokens=False)
    added = [{"id": ids[mark], "content": mark, **_FLAGS, "special": True} for mark in MARKS]
    return _spec("wordpiece", ids, added=added, cleaned=cleaned)
