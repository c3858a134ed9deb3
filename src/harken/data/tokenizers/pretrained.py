"""Byte pairs that others have learned: GPT's, Llama's and Gemma's tokenizer.json, read without trust.

Every part of the file must be one that is listed here, down to the patterns that cut a text into words: a pattern of
a stranger could take hours. The bytes of all texts in plain letters have a token; what has none is left out.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from harken.data.tables.untrusted import read_json
from harken.errors import BadInput

from . import tokenizer
from .tokenizer import FILE_CAP, VOCAB_CAP, Tokenizer

ADDED, LETTERS, PARTS, MERGES = 10_000, 200, 8, 1_000_000  # added tokens, of one, of a sequence, merges at most
SPACE = "▁"  # how a space is written by tokens that are learned of sentences
PLAIN = {*b"\n", *range(32, 127)}  # bytes that have a token of their own, whatever else has none
ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
MASK = "<mask>"  # as RoBERTa writes it
_LETTER_CASES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {  # what may cut a text into words, by the name that GGUF files give it
    "llama-bpe": rf"{_LETTER_CASES}|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_LETTER_CASES}|\p{{N}}|{_REST}",
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}
_ANY = [True, False]
Fields = dict[str, list[Any]]  # what each may be
_BYTE_LEVEL: Fields = {"add_prefix_space": [False], "trim_offsets": _ANY, "use_regex": _ANY}
_SPACED: Fields = {"replacement": [SPACE], "prepend_scheme": ["first", "always", "never"], "split": _ANY}
ACCEPTED: dict[str, dict[str, Fields]] = {  # by part and type
    "normalizer": {
        "Prepend": {"prepend": [SPACE]},
        "Replace": {"pattern": [{"String": " "}], "content": [SPACE]},
        "NFC": {},
    },
    "pre_tokenizer": {
        "ByteLevel": _BYTE_LEVEL,
        "Digits": {"individual_digits": _ANY},
        "Split": {
            "pattern": [{"String": " "}, *({"Regex": pattern} for pattern in PATTERNS.values())],
            "behavior": ["Isolated", "MergedWithPrevious"],
            "invert": [False],
        },
        "Metaspace": _SPACED,
    },
    "decoder": {
        "ByteLevel": {**_BYTE_LEVEL, "add_prefix_space": _ANY},
        "Replace": {"pattern": [{"String": SPACE}], "content": [" "]},
        "ByteFallback": {},
        "Fuse": {},
        "Strip": {"content": [" "], "start": [0, 1], "stop": [0]},
        "Metaspace": _SPACED,
    },
}
_LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
_IDLE: Fields = {"dropout": [None, 0.0], "continuing_subword_prefix": [None, ""], "end_of_word_suffix": [None, ""]}
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class Foreign(Tokenizer):
    """Byte pairs from elsewhere. `begin`: the ids that stand before every text."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """From the content of a tokenizer.json; a ValueError gives the reason if it is not wholly known."""
        self.kind, made = "bpe", _recognise(spec)
        self.json = (json.dumps(made, ensure_ascii=False) + "\n").encode()
        self._library = tokenizers.Tokenizer.from_buffer(self.json)
        self._special = {token["content"]: token["id"] for token in made["added_tokens"]}
        self._ids: dict[str, int] = made["model"]["vocab"] | self._special
        self.vocab = 1 + max(self._ids.values())
        before, behind = _around(made["post_processor"], self._ids)
        self.begin, self.pad, self.unknown, self.mask = tuple(before), None, None, self._special.get(MASK)
        self.cls, self.sep = (before[0], behind[0]) if before and behind else (None, None)
        self.end = next((self._ids[name] for name in ENDS if name in self._ids), None)
        self.dtype = np.dtype("<u2" if self.vocab <= 1 << 16 else "<u4")
        self._bytes = [b""] * self.vocab
        coded = not made["model"]["byte_fallback"]
        for token, i in self._ids.items():
            self._bytes[i] = token.encode() if token in self._special else _spelled(token, coded)
        self._said = self._bytes
        special = [token["id"] for token in made["added_tokens"] if token["special"]]
        self.marks = sorted({*special, *range(self.vocab)} - {*self._ids.values()} | {*special})
        self.letters = np.array([len(text.translate(None, tokenizer._CONTINUED)) for text in self._bytes])
        self.letters[self.marks] = 0
        self._spaced = self._library.decode([self._ids[SPACE]]) == "" if SPACE in self._ids and not coded else False

    @classmethod
    def of(cls, spec: dict[str, Any], place: str) -> Tokenizer:
        """The tokenizer that this file describes, ours or another's; one that is not wholly known is refused."""
        try:
            return Tokenizer(spec)
        except Exception as error:  # the library raises nothing more special
            own = error
        try:
            return cls(spec)
        except Exception as error:
            pairs = isinstance(spec.get("model"), dict) and spec["model"].get("type") == "BPE"
            reason = str(error if pairs else own).partition("\n")[0][:200]
        raise BadInput(
            f"{place}: tokenizer.json is not one to trust: {reason}; plain byte pairs and word pieces are read"
        )

    def encode(self, text: str) -> npt.NDArray[Any]:
        return np.array(self._library.encode(tokenizer._sound(text), add_special_tokens=False).ids, self.dtype)

    def decode(self, ids: Iterable[int]) -> str:
        text = super().decode(ids)
        return text[1:] if self._spaced and text.startswith(" ") else text


def _spelled(token: str, coded: bool) -> bytes:
    """The bytes that a token stands for."""
    if coded:
        return bytes(tokenizer._BYTES[c] for c in token) if tokenizer._BYTES.keys() >= set(token) else token.encode()
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace(SPACE, " ").encode()


def load(path: Path) -> Tokenizer:
    """The tokenizer.json of a run: one of ours, or one that came with other people's weights."""
    try:
        return Foreign.of(read_json(path, FILE_CAP), str(path))
    except (BadInput, OSError):
        return Tokenizer.load(path)  # which says in its own words what is wrong


# --- what is known ----------------------------------------------------------------------------------------------------


def _need(good: bool, reason: str) -> None:
    if not good:
        raise ValueError(reason)


def _known(part: str, node: Any) -> Any:
    """A part of the file, if it and all in it are listed above; fields that are not listed are left out."""
    if node is None:
        return None
    _need(isinstance(node, Mapping), f"its {part} is odd")
    kind, several = node.get("type"), _LISTS[part]
    if kind == "Sequence":
        inner = node.get(several)
        _need(isinstance(inner, list) and len(inner) <= PARTS, f"its {part} is odd")
        _need(all(isinstance(one, Mapping) and one.get("type") != "Sequence" for one in inner), f"its {part} is odd")
        return {"type": kind, several: [_known(part, one) for one in inner]}
    fields = ACCEPTED[part].get(str(kind))
    _need(fields is not None, f"its {part} {str(kind)[:40]!r} is not known")
    for name, may in (fields or {}).items():
        _need(name not in node or node[name] in may, f"its {part} {kind} has {name} = {repr(node.get(name))[:60]}")
    return {"type": kind, **{name: node[name] for name in fields or () if name in node}}


def _recognise(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same tokenizer, of known parts only; a ValueError says what is not known."""
    model = spec.get("model")
    _need(isinstance(model, Mapping) and model.get("type", "BPE") == "BPE", "its model is no BPE")
    assert isinstance(model, Mapping)
    vocab, pairs = model.get("vocab"), model.get("merges")
    _need(isinstance(vocab, dict) and isinstance(pairs, list) and len(pairs) <= MERGES, "it has no vocabulary")
    assert isinstance(vocab, dict)
    assert isinstance(pairs, list)
    for name, may in _IDLE.items():
        _need(model.get(name) in may, f"its model has {name}")
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in pairs]
    for pair in merges:
        _need(isinstance(pair, list) and len(pair) == 2 and all(isinstance(p, str) for p in pair), "a merge is no pair")
        _need("".join(pair) in vocab and pair[0] in vocab and pair[1] in vocab, "a merge is not in its vocabulary")
    fallback = model.get("byte_fallback") is True
    each = (
        {f"<0x{byte:02X}>" for byte in range(256)}
        if fallback
        else {c for c, b in tokenizer._BYTES.items() if b in PLAIN}
    )
    _need(each <= vocab.keys(), "a byte has no token")
    unknown = model.get("unk_token")
    _need(unknown is None or (isinstance(unknown, str) and unknown in vocab), "its unk_token is not in its vocabulary")
    added = _added(spec.get("added_tokens"))
    _need(all(vocab.get(t["content"], t["id"]) == t["id"] for t in added), "an added token has two ids")
    ids = vocab | {t["content"]: t["id"] for t in added}
    _need(all(type(i) is int and 0 <= i < VOCAB_CAP for i in ids.values()), "it has odd ids, or too many")
    _need(len(set(ids.values())) == len(ids), "two tokens have one id")
    flags = {name: model.get(name) is True for name in ("fuse_unk", "ignore_merges")}
    made = {"type": "BPE", **dict.fromkeys(_IDLE), "unk_token": unknown, **flags, "byte_fallback": fallback}
    parts = {part: _known(part, spec.get(part)) for part in ("normalizer", "pre_tokenizer")}
    frame = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **parts}
    around = _around(spec.get("post_processor"), ids)
    names = {i: name for name, i in ids.items()}
    before, behind = ([names[i] for i in side] for side in around)
    frame |= {"post_processor": framed(before, behind, ids, segments=1) if before or behind else None}
    frame |= {"decoder": _known("decoder", spec.get("decoder"))}
    return frame | {"model": {**made, "vocab": vocab, "merges": merges}}


def _added(given: Any) -> list[dict[str, Any]]:
    _need(isinstance(given, list) and len(given) <= ADDED, "its added tokens are not a short list")
    for token in given:
        _need(isinstance(token, dict) and type(token.get("id")) is int, "an added token has no id")
        text = token.get("content")
        _need(isinstance(text, str) and 0 < len(text) <= LETTERS, "an added token has no short text")
    return [{"id": t["id"], "content": t["content"], **{f: t.get(f) is True for f in _FLAGS}} for t in given]


def _around(node: Any, ids: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """The ids that are put before and behind a single text."""
    kind = node.get("type") if isinstance(node, Mapping) else None
    if kind == "Sequence":
        _need(isinstance(node["processors"], list) and len(node["processors"]) <= PARTS, "its post_processor is odd")
        each = [_around(one, ids) for one in node["processors"]]
        return [i for before, _ in each for i in before], [i for _, behind in reversed(each) for i in behind]
    if kind in ("RobertaProcessing", "BertProcessing"):
        marks = [[node["cls"][0]], [node["sep"][0]]]
    elif kind == "TemplateProcessing":
        names = [next(iter(piece.items())) for piece in node["single"]]
        at = [name for name, _ in names].index("Sequence")
        marks = [[what["id"] for _, what in side] for side in (names[:at], names[at + 1 :])]
    else:
        _need(node is None or kind == "ByteLevel", f"its post_processor {str(kind)[:40]!r} is not known")
        marks = [[], []]
    _need(all(isinstance(m, str) and m in ids for side in marks for m in side), "a mark around texts has no id")
    return [ids[m] for m in marks[0]], [ids[m] for m in marks[1]]


def framed(before: list[str], behind: list[str], ids: Mapping[str, int], *, segments: int) -> dict[str, Any]:
    """A text between its marks, as a tokenizer.json writes it. Of two texts the second is framed as the first; where
    there are two segments it is segment 1, with the marks behind it and none before."""

    def one(which: str, segment: int, first: list[str]) -> list[dict[str, Any]]:
        start, end = ([{"SpecialToken": {"id": m, "type_id": segment}} for m in side] for side in (first, behind))
        return [*start, {"Sequence": {"id": which, "type_id": segment}}, *end]

    single, last = one("A", 0, before), segments - 1
    known = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (*before, *behind)}
    pair = single + one("B", last, [] if last else before)
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": known}
