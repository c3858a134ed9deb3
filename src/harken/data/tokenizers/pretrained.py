"""Pretrained BPE tokenizers: the tokenizer.json of GPT, Llama and Gemma, from an untrusted source.

Every component of the file must be listed in pretrained.toml, including the split patterns: an arbitrary regular
expression could run for hours. All printable ASCII bytes have a token; bytes without one are dropped.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from harken.data.tables.untrusted import read_json
from harken.errors import BadInput

from .spec import BYTE_OF_CHARACTER, MAX_VOCAB, CheckedSpec, check_merges, require
from .tokenizer import MAX_FILE_BYTES, Array, Tokenizer, replace_surrogates

MAX_ADDED_TOKENS, MAX_ADDED_TOKEN_LENGTH, MAX_PARTS, MAX_MERGES = 10_000, 200, 8, 1_000_000
SPACE_PIECE = "▁"  # a space in SentencePiece vocabularies
REQUIRED_BYTES = {*b"\n", *range(32, 127)}  # printable ASCII must have tokens
EOS_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
MASK = "<mask>"  # RoBERTa
_TABLES = tomllib.loads(files(__package__).joinpath("pretrained.toml").read_text("utf-8"))
SPLIT_PATTERNS: dict[str, str] = _TABLES["split_patterns"]  # by their name in GGUF files
_PRE = _TABLES["accepted"]["pre_tokenizer"]
_SPLIT = {**_PRE["Split"], "pattern": [*_PRE["Split"]["pattern"], *({"Regex": p} for p in SPLIT_PATTERNS.values())]}
ACCEPTED = {**_TABLES["accepted"], "pre_tokenizer": {**_PRE, "Split": _SPLIT}}  # component: type: field: values
_LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
_UNUSED: dict[str, tuple[object, ...]] = {"dropout": (None, 0.0)}  # fields of a model, and values without an effect
_UNUSED |= dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"), (None, ""))
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class PretrainedTokenizer(Tokenizer):
    """A BPE tokenizer from another project. `prefix_ids`: ids before every text."""

    def __init__(self, content: Mapping[str, object]) -> None:
        """From the content of a tokenizer.json; a ValueError says which part is not supported."""
        checked, self._byte_fallback = _checked_spec(content)
        self.json = (json.dumps(checked.content, ensure_ascii=False) + "\n").encode()
        self._library = tokenizers.Tokenizer.from_buffer(self.json)
        self._set_vocabulary(checked)
        before, after = _surrounding_ids(checked.content["post_processor"], self._ids)
        self.prefix_ids, self.pad_id, self.unk_id, self.mask_id = tuple(before), None, None, self._special.get(MASK)
        self.cls_id, self.sep_id = (before[0], after[0]) if before and after else (None, None)
        self.end_id = next((self._ids[name] for name in EOS_TOKENS if name in self._ids), None)
        self._spaced_bytes = self._bytes
        self.special_ids = sorted({*range(self.vocab)} - {*self._ids.values()} | {*checked.special_ids})
        self.char_counts = self._count_characters()
        self.char_counts[self.special_ids] = 0
        may_add_space = SPACE_PIECE in self._ids and self._byte_fallback
        self._adds_space = may_add_space and self._library.decode([self._ids[SPACE_PIECE]]) == ""

    @classmethod
    def from_spec(cls, spec: Mapping[str, object], place: str) -> Tokenizer:
        """The tokenizer of a tokenizer.json, harken's own or a pretrained one; BadInput if it is not supported."""
        try:
            return Tokenizer(spec)
        except Exception as error:  # the library raises plain Exception
            own_error = error
        try:
            return cls(spec)
        except Exception as error:
            is_bpe = isinstance(model := spec.get("model"), dict) and model.get("type") == "BPE"
            reason = str(error if is_bpe else own_error).partition("\n")[0][:200]
        raise BadInput(f"{place}: unsupported tokenizer.json: {reason}; accepted: byte-level BPE and WordPiece")

    def encode(self, text: str) -> Array:
        return np.array(self._library.encode(replace_surrogates(text), add_special_tokens=False).ids, self.dtype)

    def decode(self, ids: Iterable[int]) -> str:
        text = super().decode(ids)
        return text[1:] if self._adds_space and text.startswith(" ") else text

    def _token_bytes(self, token: str) -> bytes:
        if not self._byte_fallback:
            return super()._token_bytes(token)
        is_byte = len(token) == 6 and token.startswith("<0x") and token.endswith(">")
        return bytes.fromhex(token[3:5]) if is_byte else token.replace(SPACE_PIECE, " ").encode()


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer.json of a run: trained by harken, or imported with pretrained weights."""
    try:
        return PretrainedTokenizer.from_spec(read_json(path, MAX_FILE_BYTES), str(path))
    except (BadInput, OSError):
        return Tokenizer.load(path)  # raises BadRun with the reason


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


def _checked_spec(spec: Mapping[str, Any]) -> tuple[CheckedSpec, bool]:
    """The same tokenizer from supported components only, and whether it has a token for each byte (byte_fallback)."""
    model = spec.get("model")
    if not isinstance(model, Mapping) or model.get("type", "BPE") != "BPE":
        raise ValueError("its model is not BPE")
    vocab, pairs = model.get("vocab"), model.get("merges")
    if not isinstance(vocab, dict) or not isinstance(pairs, list) or len(pairs) > MAX_MERGES:
        raise ValueError("it has no vocabulary")
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
    added_ids = {t["content"]: t["id"] for t in added}
    ids = vocab | added_ids
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
    checked["model"] = {**checked_model, "vocab": vocab, "merges": merges}
    return CheckedSpec("bpe", checked, vocab, added_ids, [t["id"] for t in added if t["special"]]), fallback


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
) -> dict[str, object]:
    """A TemplateProcessing post-processor. A second text is framed like the first; with two segments it is segment 1
    and has only the tokens after it."""

    def frame(sequence: str, segment: int, first: list[str]) -> list[dict[str, Any]]:
        start, end = ([{"SpecialToken": {"id": t, "type_id": segment}} for t in side] for side in (first, after))
        return [*start, {"Sequence": {"id": sequence, "type_id": segment}}, *end]

    single, last = frame("A", 0, before), segments - 1
    special = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (*before, *after)}
    pair = single + frame("B", last, [] if last else before)
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
