"""The tokenizer.json of each tokenizer kind: its components, and the check of a file from an untrusted source."""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from harken.data.text.encode import WHITESPACE

UNK, EOS, END_OF_TEXT = "<unk>", "<eos>", "<|endoftext|>"
SPECIAL_TOKENS = PAD, WORDPIECE_UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"  # wordpiece
MAX_VOCAB, MAX_ADDED_TOKENS = 300_000, 1_000
# characters with stable Unicode classes: Latin, Greek, Cyrillic, Armenian and typographic punctuation
_KNOWN_CHARACTERS = "".join(map(chr, (*range(0x590), *range(0x2010, 0x2028), 0x20AC)))
_LETTERS, _NUMBERS = ("".join(c for c in _KNOWN_CHARACTERS if unicodedata.category(c)[0] == first) for first in "LN")
KNOWN_TEXT = re.compile(f"[{re.escape(_KNOWN_CHARACTERS)}]*")
PRE_TOKEN = re.compile(  # GPT-2's
    rf"'(?:[sdmt]|ll|ve|re)| ?[{_LETTERS}]+| ?[{_NUMBERS}]+| ?[^{WHITESPACE}{_LETTERS}{_NUMBERS}]+"
    rf"|[{WHITESPACE}]+(?![^{WHITESPACE}])|[{WHITESPACE}]+"
)
# GPT-2's printable character for each byte: itself if printable, otherwise the next one from U+0100
_UNPRINTABLE = [byte for byte in range(256) if byte == ord(" ") or not chr(byte).isprintable()]
BYTE_OF_CHARACTER = {chr(256 + _UNPRINTABLE.index(b) if b in _UNPRINTABLE else b): b for b in range(256)}
SPECS = json.loads(files(__package__).joinpath("kinds.json").read_text("utf-8"))  # by kind, with an empty vocabulary
TOKENIZER_KINDS = tuple(SPECS)
BERT_NORMALIZER, BYTE_LEVEL_REGEX = SPECS["wordpiece"]["normalizer"], SPECS["bpe"]["pre_tokenizer"]
CASED_NORMALIZER = {  # of a learned wordpiece tokenizer that keeps case: composed and decomposed accents are equal
    "type": "Sequence",
    "normalizers": [{"type": "NFC"}, BERT_NORMALIZER | {"lowercase": False}],
}
ADDED_TOKEN_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
Rows = Sequence[object]


class CheckedSpec(NamedTuple):
    """The content of a supported tokenizer.json in canonical form, and its vocabulary."""

    kind: str
    content: dict[str, object]
    vocab: dict[str, int]  # without added tokens
    added: dict[str, int]
    special_ids: list[int]  # added tokens that are not text


def build_spec(
    kind: str, vocab: Mapping[str, int], merges: Rows = (), added: Rows = (), bert_normalizer: object = BERT_NORMALIZER
) -> dict[str, object]:
    """Content of a tokenizer.json with the keys in the order that `tokenizers` writes."""
    model = SPECS[kind]["model"] | {"vocab": vocab} | ({"merges": list(merges)} if kind in ("byte", "bpe") else {})
    spec: dict[str, object] = SPECS[kind] | {"added_tokens": list(added), "model": model}
    return spec | {"normalizer": bert_normalizer} if kind == "wordpiece" else spec


def require(condition: bool, reason: str) -> None:
    """Raise a ValueError with the reason unless the condition holds."""
    if not condition:
        raise ValueError(reason)


def _without_vocab(spec: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json without its vocabulary, with GPT-2's older spellings normalized."""
    frame = {**spec, "added_tokens": [], "model": {**spec["model"], "vocab": {}}}
    if "merges" in spec["model"]:  # every byte has a token, so unk_token is unused
        options = {name: value for name, value in spec["model"].items() if value or name == "type"}
        frame["model"] = {**SPECS["bpe"]["model"], **options, "unk_token": None, "vocab": {}, "merges": []}
    if spec["model"].get("type") == "WordPiece":  # framing and truncation of texts are not used
        frame |= dict.fromkeys(("truncation", "padding", "post_processor"))
        normalizer, decoder = _bert_normalizer(spec.get("normalizer")), SPECS["wordpiece"]["decoder"]
        unset = dict.fromkeys(BERT_NORMALIZER.keys() - {"type"})
        if isinstance(normalizer, dict) and {**normalizer, **unset} == BERT_NORMALIZER | unset:
            values = [normalizer[name] for name in unset]
            require(all(value in (True, False, None) for value in values), "its normalizer has an unsupported option")
            frame["normalizer"] = BERT_NORMALIZER
        if spec.get("decoder") == decoder | {"cleanup": False}:
            frame["decoder"] = decoder
    for part in ("pre_tokenizer", "post_processor", "decoder"):
        value = spec.get(part)
        if isinstance(value, dict) and value.get("type") == "ByteLevel" and value.keys() <= BYTE_LEVEL_REGEX.keys():
            if part != "pre_tokenizer":  # here the flags only move offsets
                frame[part] = BYTE_LEVEL_REGEX if part == "decoder" else None
            elif value.get("add_prefix_space") is False:
                frame[part] = SPECS["byte" if value.get("use_regex") is False else "bpe"][part]
    return frame


def _bert_normalizer(normalizer: Any) -> Any:
    """The normalizer without a preceding NFC."""
    is_sequence = isinstance(normalizer, dict) and normalizer.get("type") == "Sequence"
    parts = normalizer.get("normalizers") if is_sequence else None
    is_composed = isinstance(parts, list) and len(parts) == 2 and parts[0] == CASED_NORMALIZER["normalizers"][0]
    return parts[1] if is_composed and parts is not None else normalizer


def lowercases(normalizer: object) -> bool:
    """Whether the checked normalizer of a wordpiece tokenizer lowercases the text."""
    return bool(_bert_normalizer(normalizer)["lowercase"])


def _added_tokens(tokens: Any) -> list[dict[str, Any]]:
    """Tokens that are matched before all others, such as <|endoftext|>."""
    require(isinstance(tokens, list) and len(tokens) <= MAX_ADDED_TOKENS, "its added tokens are not a short list")
    for token in tokens:
        require(isinstance(token, dict) and isinstance(token.get("content"), str), "an added token has no text")
        is_word = bool(re.fullmatch(rf"[^{WHITESPACE}]{{1,99}}", token["content"]))
        require(is_word, "an added token is longer than 99 characters or contains white space")
        plain = not any(token.get(flag) for flag in ("single_word", "lstrip", "rstrip"))
        require(plain, "an added token sets single_word, lstrip or rstrip")
    flags = [ADDED_TOKEN_FLAGS | {"special": bool(token.get("special"))} for token in tokens]
    return [{"id": t.get("id"), "content": t["content"], **more} for t, more in zip(tokens, flags, strict=True)]


def check_merges(merges: object, vocab: Mapping[str, int]) -> list[list[str]]:
    """BPE merges as pairs of vocabulary tokens."""
    if not isinstance(merges, list):
        raise ValueError("its merges are not a list")
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in merges]
    for pair in pairs:
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(isinstance(p, str) for p in pair)
        require(is_pair, "a merge is not a pair of tokens")
        require({*pair, "".join(pair)} <= vocab.keys(), "a merge is not in its vocabulary")
    return pairs


def check_spec(spec: object) -> CheckedSpec:
    """The canonical form of a tokenizer.json of one of the kinds; a ValueError says why it is not supported."""
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise ValueError("it has no model")
    model, frame = spec["model"], _without_vocab(spec)
    require(isinstance(model.get("vocab"), dict), "it has no vocabulary")
    kind = next((kind for kind in TOKENIZER_KINDS if SPECS[kind] == frame), "")
    require(kind != "", "its model, normalizer, pre-tokenizer or decoder (or a pattern in them) is not supported")
    added = _added_tokens(spec.get("added_tokens"))
    added_ids = {token["content"]: token["id"] for token in added}
    tokens = model["vocab"] | added_ids
    valid_ids = len(tokens) <= MAX_VOCAB and all(type(i) is int for i in tokens.values())
    require(valid_ids, f"an id is not an integer, or there are more than {MAX_VOCAB:,}")
    require(sorted(tokens.values()) == list(range(len(tokens))), "its ids are not 0, 1, 2, ... once each")
    require(all(model["vocab"].get(t["content"], t["id"]) == t["id"] for t in added), "an added token has two ids")
    vocab = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    merges = check_merges(model.get("merges", []), vocab)
    require(kind in ("bpe", "wordpiece") or not (added or merges), f"a {kind} tokenizer has merges or added tokens")
    missing = ({*SPECIAL_TOKENS} - added_ids.keys()) | ({str(model.get("unk_token"))} - vocab.keys())
    require(kind != "wordpiece" or not missing, f"{', '.join(sorted(missing))} is missing from its vocabulary")
    require(kind != "bpe" or BYTE_OF_CHARACTER.keys() <= vocab.keys(), "a byte has no token")
    require(kind != "byte" or vocab == BYTE_OF_CHARACTER, "its ids are not the bytes")
    require(kind not in ("char", "word") or UNK in vocab, f"it has no {UNK}")
    require(kind != "char" or all(len(t) == 1 or t == UNK for t in vocab), "a token is not a single character")
    require(kind != "word" or EOS in vocab, f"it has no {EOS}")
    content = build_spec(kind, vocab, merges, added, spec.get("normalizer"))
    return CheckedSpec(kind, content, vocab, added_ids, [token["id"] for token in added if token["special"]])
