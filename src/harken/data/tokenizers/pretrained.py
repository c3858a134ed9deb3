"""Pretrained BPE tokenizers: the tokenizer.json of GPT, Llama and Gemma, from an untrusted source.

Every component of the file must be listed here, including the split patterns: an arbitrary regular expression could run
for hours. All printable ASCII bytes have a token; bytes without one are dropped.
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

from .spec import BYTE_OF_CHARACTER, MAX_VOCAB, check_merges, require
from .tokenizer import MAX_FILE_BYTES, UTF8_CONTINUATION, Tokenizer, replace_surrogates

MAX_ADDED_TOKENS, MAX_ADDED_TOKEN_LENGTH, MAX_PARTS, MAX_MERGES = 10_000, 200, 8, 1_000_000
SPACE_PIECE = "▁"  # a space in SentencePiece vocabularies
REQUIRED_BYTES = {*b"\n", *range(32, 127)}  # printable ASCII must have tokens
EOS_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
MASK = "<mask>"  # RoBERTa
_LETTER_CASES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLIT_PATTERNS = {  # accepted split patterns by their name in GGUF files
    "llama-bpe": rf"{_LETTER_CASES}|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_LETTER_CASES}|\p{{N}}|{_REST}",
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}
_ANY = [True, False]
Fields = dict[str, list[Any]]  # accepted values by field
_BYTE_LEVEL: Fields = {"add_prefix_space": [False], "trim_offsets": _ANY, "use_regex": _ANY}
_METASPACE: Fields = {"replacement": [SPACE_PIECE], "prepend_scheme": ["first", "always", "never"], "split": _ANY}
ACCEPTED: dict[str, dict[str, Fields]] = {  # by component and type
    "normalizer": {
        "Prepend": {"prepend": [SPACE_PIECE]},
        "Replace": {"pattern": [{"String": " "}], "content": [SPACE_PIECE]},
        "NFC": {},
    },
    "pre_tokenizer": {
        "ByteLevel": _BYTE_LEVEL,
        "Digits": {"individual_digits": _ANY},
        "Split": {
            "pattern": [{"String": " "}, *({"Regex": pattern} for pattern in SPLIT_PATTERNS.values())],
            "behavior": ["Isolated", "MergedWithPrevious"],
            "invert": [False],
        },
        "Metaspace": _METASPACE,
    },
    "decoder": {
        "ByteLevel": {**_BYTE_LEVEL, "add_prefix_space": _ANY},
        "Replace": {"pattern": [{"String": SPACE_PIECE}], "content": [" "]},
        "ByteFallback": {},
        "Fuse": {},
        "Strip": {"content": [" "], "start": [0, 1], "stop": [0]},
        "Metaspace": _METASPACE,
    },
}
_LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
_UNUSED: Fields = {"dropout": [None, 0.0], "continuing_subword_prefix": [None, ""], "end_of_word_suffix": [None, ""]}
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class PretrainedTokenizer(Tokenizer):
    """A BPE tokenizer from another project. `prefix_ids`: ids before every text."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """From the content of a tokenizer.json; a ValueError says which part is not supported."""
        self.kind, checked = "bpe", _checked_spec(spec)
        self.json = (json.dumps(checked, ensure_ascii=False) + "\n").encode()
        self._library = tokenizers.Tokenizer.from_buffer(self.json)
        self._special = {token["content"]: token["id"] for token in checked["added_tokens"]}
        self._ids: dict[str, int] = checked["model"]["vocab"] | self._special
        self.vocab = 1 + max(self._ids.values())
        before, after = _surrounding_ids(checked["post_processor"], self._ids)
        self.prefix_ids, self.pad_id, self.unk_id, self.mask_id = tuple(before), None, None, self._special.get(MASK)
        self.cls_id, self.sep_id = (before[0], after[0]) if before and after else (None, None)
        self.end_id = next((self._ids[name] for name in EOS_TOKENS if name in self._ids), None)
        self.dtype = np.dtype("<u2" if self.vocab <= 1 << 16 else "<u4")
        self._bytes = [b""] * self.vocab
        byte_level = not checked["model"]["byte_fallback"]
        for token, i in self._ids.items():
            self._bytes[i] = token.encode() if token in self._special else _token_bytes(token, byte_level)
        self._spaced_bytes = self._bytes
        special = [token["id"] for token in checked["added_tokens"] if token["special"]]
        self.special_ids = sorted({*special, *range(self.vocab)} - {*self._ids.values()} | {*special})
        self.char_counts = np.array([len(text.translate(None, UTF8_CONTINUATION)) for text in self._bytes])
        self.char_counts[self.special_ids] = 0
        adds_space = SPACE_PIECE in self._ids and not byte_level
        self._adds_space = self._library.decode([self._ids[SPACE_PIECE]]) == "" if adds_space else False

    @classmethod
    def from_spec(cls, spec: dict[str, Any], place: str) -> Tokenizer:
        """The tokenizer of a tokenizer.json, harken's own or a pretrained one; BadInput if it is not supported."""
        try:
            return Tokenizer(spec)
        except Exception as error:  # the library raises plain Exception
            own_error = error
        try:
            return cls(spec)
        except Exception as error:
            is_bpe = isinstance(spec.get("model"), dict) and spec["model"].get("type") == "BPE"
            reason = str(error if is_bpe else own_error).partition("\n")[0][:200]
        raise BadInput(f"{place}: unsupported tokenizer.json: {reason}; accepted: byte-level BPE and WordPiece")

    def encode(self, text: str) -> npt.NDArray[Any]:
        return np.array(self._library.encode(replace_surrogates(text), add_special_tokens=False).ids, self.dtype)

    def decode(self, ids: Iterable[int]) -> str:
        text = super().decode(ids)
        return text[1:] if self._adds_space and text.startswith(" ") else text


def _token_bytes(token: str, byte_level: bool) -> bytes:
    """The bytes that a token encodes."""
    if byte_level:
        known = BYTE_OF_CHARACTER.keys() >= set(token)
        return bytes(BYTE_OF_CHARACTER[c] for c in token) if known else token.encode()
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace(SPACE_PIECE, " ").encode()


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer.json of a run: trained by harken, or imported with pretrained weights."""
    try:
        return PretrainedTokenizer.from_spec(read_json(path, MAX_FILE_BYTES), str(path))
    except (BadInput, OSError):
        return Tokenizer.load(path)  # raises BadRun with the reason


# --- check of a specification -----------------------------------------------------------------------------------------


def _checked_component(part: str, node: Any) -> Any:
    """A component if it and everything in it is listed above; unlisted fields are dropped."""
    if node is None:
        return None
    malformed = f"its {part} is malformed"
    require(isinstance(node, Mapping), malformed)
    kind, list_name = node.get("type"), _LISTS[part]
    if kind == "Sequence":
        inner = node.get(list_name)
        require(isinstance(inner, list) and len(inner) <= MAX_PARTS, malformed)
        require(all(isinstance(item, Mapping) and item.get("type") != "Sequence" for item in inner), malformed)
        return {"type": kind, list_name: [_checked_component(part, item) for item in inner]}
    fields = ACCEPTED[part].get(str(kind))
    require(fields is not None, f"its {part} {str(kind)[:40]!r} is not supported")
    for name, accepted in (fields or {}).items():
        value = repr(node.get(name))[:60]
        require(name not in node or node[name] in accepted, f"its {part} {kind} has {name} = {value}")
    return {"type": kind, **{name: node[name] for name in fields or () if name in node}}


def _checked_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same tokenizer from supported components only; a ValueError names the unsupported one."""
    model = spec.get("model")
    require(isinstance(model, Mapping) and model.get("type", "BPE") == "BPE", "its model is not BPE")
    assert isinstance(model, Mapping)
    vocab, pairs = model.get("vocab"), model.get("merges")
    require(isinstance(vocab, dict) and isinstance(pairs, list) and len(pairs) <= MAX_MERGES, "it has no vocabulary")
    assert isinstance(vocab, dict)
    for name, accepted in _UNUSED.items():
        require(model.get(name) in accepted, f"its model sets {name}")
    merges = check_merges(pairs, vocab)
    fallback = model.get("byte_fallback") is True
    hex_bytes = {f"<0x{byte:02X}>" for byte in range(256)}
    byte_tokens = hex_bytes if fallback else {c for c, b in BYTE_OF_CHARACTER.items() if b in REQUIRED_BYTES}
    require(byte_tokens <= vocab.keys(), "a byte has no token")
    unk = model.get("unk_token")
    require(unk is None or (isinstance(unk, str) and unk in vocab), "its unk_token is not in its vocabulary")
    added = _checked_added_tokens(spec.get("added_tokens"))
    require(all(vocab.get(t["content"], t["id"]) == t["id"] for t in added), "an added token has two ids")
    ids = vocab | {t["content"]: t["id"] for t in added}
    valid_ids = all(type(i) is int and 0 <= i < MAX_VOCAB for i in ids.values())
    require(valid_ids, f"an id is not an integer from 0 to {MAX_VOCAB - 1:,}")
    require(len(set(ids.values())) == len(ids), "two tokens have one id")
    flags = {name: model.get(name) is True for name in ("fuse_unk", "ignore_merges")}
    checked_model = {"type": "BPE", **dict.fromkeys(_UNUSED), "unk_token": unk, **flags, "byte_fallback": fallback}
    parts = {part: _checked_component(part, spec.get(part)) for part in ("normalizer", "pre_tokenizer")}
    checked = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **parts}
    names = {i: name for name, i in ids.items()}
    before, after = ([names[i] for i in side] for side in _surrounding_ids(spec.get("post_processor"), ids))
    template = template_processing(before, after, ids, segments=1) if before or after else None
    checked |= {"post_processor": template, "decoder": _checked_component("decoder", spec.get("decoder"))}
    return checked | {"model": {**checked_model, "vocab": vocab, "merges": merges}}


def _checked_added_tokens(tokens: Any) -> list[dict[str, Any]]:
    require(isinstance(tokens, list) and len(tokens) <= MAX_ADDED_TOKENS, "its added tokens are not a short list")
    for token in tokens:
        require(isinstance(token, dict) and type(token.get("id")) is int, "an added token has no id")
        text = token.get("content")
        require(isinstance(text, str) and 0 < len(text) <= MAX_ADDED_TOKEN_LENGTH, "an added token has no short text")
    return [{"id": t["id"], "content": t["content"], **{f: t.get(f) is True for f in _FLAGS}} for t in tokens]


def _surrounding_ids(node: Any, ids: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """The ids before and after a single text."""
    kind = node.get("type") if isinstance(node, Mapping) else None
    if kind == "Sequence":
        processors = node["processors"]
        require(isinstance(processors, list) and len(processors) <= MAX_PARTS, "its post_processor is malformed")
        sides = [_surrounding_ids(item, ids) for item in processors]
        return [i for before, _ in sides for i in before], [i for _, after in reversed(sides) for i in after]
    if kind in ("RobertaProcessing", "BertProcessing"):
        tokens = [[node["cls"][0]], [node["sep"][0]]]
    elif kind == "TemplateProcessing":
        pieces = [next(iter(piece.items())) for piece in node["single"]]
        position = [name for name, _ in pieces].index("Sequence")
        tokens = [[token["id"] for _, token in side] for side in (pieces[:position], pieces[position + 1 :])]
    else:
        require(node is None or kind == "ByteLevel", f"its post_processor {str(kind)[:40]!r} is not supported")
        tokens = [[], []]
    known = all(isinstance(token, str) and token in ids for side in tokens for token in side)
    require(known, "a special token around texts has no id")
    return [ids[token] for token in tokens[0]], [ids[token] for token in tokens[1]]


def template_processing(
    before: list[str], after: list[str], ids: Mapping[str, int], *, segments: int
) -> dict[str, Any]:
    """A TemplateProcessing post-processor. A second text is framed like the first; with two segments it is segment 1
    and has only the tokens after it."""

    def frame(sequence: str, segment: int, first: list[str]) -> list[dict[str, Any]]:
        start, end = ([{"SpecialToken": {"id": t, "type_id": segment}} for t in side] for side in (first, after))
        return [*start, {"Sequence": {"id": sequence, "type_id": segment}}, *end]

    single, last = frame("A", 0, before), segments - 1
    special = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (*before, *after)}
    pair = single + frame("B", last, [] if last else before)
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
