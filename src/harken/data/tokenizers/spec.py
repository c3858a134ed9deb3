"""The tokenizer.json of each tokenizer kind: its components, and the check of a file from an untrusted source."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from harken.data.text.encode import WHITESPACE

UNK, EOS, END_OF_TEXT = "<unk>", "<eos>", "<|endoftext|>"
SPECIAL_TOKENS = PAD, WORDPIECE_UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"  # wordpiece
TOKENIZER_KINDS = ("char", "byte", "word", "bpe", "wordpiece")
MAX_VOCAB, MAX_ADDED_TOKENS = 300_000, 1_000
LINE_END = rf"\n[{WHITESPACE}]*"
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


def _component(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


_BYTE_LEVEL = _component("ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)
BYTE_LEVEL_REGEX = _BYTE_LEVEL | {"use_regex": True}
_NEWLINE_TO_EOS = _component("Replace", pattern={"Regex": LINE_END}, content=f" {EOS} ")
_SPACE_BEFORE_WORDS = _component("WordPiece", prefix=" ", cleanup=False)  # no word starts with the prefix
_EOS_TO_NEWLINE = _component("Replace", pattern={"Regex": rf" ?(?<!\S){EOS}(?!\S) ?"}, content="\n")
BERT_NORMALIZER = _component(
    "BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True
)
_NORMALIZER_OPTIONS = BERT_NORMALIZER.keys() - {"type"}
_COMPONENTS: dict[str, tuple[Any, Any, Any]] = {  # normalizer, pre-tokenizer, decoder
    "char": (
        None,
        _component("Split", pattern={"Regex": r"[\s\S]"}, behavior="Isolated", invert=False),
        _component("Fuse"),
    ),
    "byte": (None, _BYTE_LEVEL, BYTE_LEVEL_REGEX),
    "word": (
        _component("Sequence", normalizers=[_component("Strip", strip_left=True, strip_right=False), _NEWLINE_TO_EOS]),
        _component("WhitespaceSplit"),
        _component("Sequence", decoders=[_SPACE_BEFORE_WORDS, _component("Fuse"), _EOS_TO_NEWLINE]),
    ),
    "bpe": (None, BYTE_LEVEL_REGEX, BYTE_LEVEL_REGEX),
    "wordpiece": (BERT_NORMALIZER, _component("BertPreTokenizer"), _component("WordPiece", prefix="##", cleanup=True)),
}
_UNUSED = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
_BPE = _component("BPE", **_UNUSED, fuse_unk=False, byte_fallback=False, ignore_merges=False)
_WORDPIECE = _component(
    "WordPiece", unk_token=WORDPIECE_UNK, continuing_subword_prefix="##", max_input_chars_per_word=100
)
ADDED_TOKEN_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def build_spec(
    kind: str, vocab: Mapping[str, int], merges: Any = (), added: Any = (), bert_normalizer: Any = BERT_NORMALIZER
) -> Any:
    """Content of a tokenizer.json with the keys in the order that `tokenizers` writes."""
    normalizer, pre_tokenizer, decoder = _COMPONENTS[kind]
    model = _component("WordLevel", vocab=vocab, unk_token=UNK)
    if kind in ("byte", "bpe"):
        model = {**_BPE, "vocab": vocab, "merges": list(merges)}
    elif kind == "wordpiece":
        model, normalizer = {**_WORDPIECE, "vocab": vocab}, bert_normalizer
    spec = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added)}
    spec |= {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": None}
    return spec | {"decoder": decoder, "model": model}


def require(condition: bool, reason: str) -> None:
    """Raise a ValueError with the reason unless the condition holds."""
    if not condition:
        raise ValueError(reason)


def _without_vocab(spec: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json without its vocabulary, with GPT-2's older spellings normalized."""
    frame = {**spec, "added_tokens": [], "model": {**spec["model"], "vocab": {}}}
    if "merges" in spec["model"]:  # every byte has a token, so unk_token is unused
        options = {name: value for name, value in spec["model"].items() if value or name == "type"}
        frame["model"] = {**_BPE, **options, "unk_token": None, "vocab": {}, "merges": []}
    if spec["model"].get("type") == "WordPiece":  # framing and truncation of texts are not used
        frame |= dict.fromkeys(("truncation", "padding", "post_processor"))
        normalizer, decoder = spec.get("normalizer"), _COMPONENTS["wordpiece"][2]
        unset = dict.fromkeys(_NORMALIZER_OPTIONS)
        if isinstance(normalizer, dict) and {**normalizer, **unset} == BERT_NORMALIZER | unset:
            values = [normalizer[name] for name in _NORMALIZER_OPTIONS]
            require(all(value in (True, False, None) for value in values), "its normalizer has an unsupported option")
            frame["normalizer"] = BERT_NORMALIZER
        if spec.get("decoder") == decoder | {"cleanup": False}:
            frame["decoder"] = decoder
    for part in ("pre_tokenizer", "post_processor", "decoder"):
        value = spec.get(part)
        if isinstance(value, dict) and value.get("type") == "ByteLevel" and value.keys() <= _BYTE_LEVEL.keys():
            if part != "pre_tokenizer":  # here the flags only move offsets
                frame[part] = BYTE_LEVEL_REGEX if part == "decoder" else None
            elif value.get("add_prefix_space") is False:
                frame[part] = _BYTE_LEVEL if value.get("use_regex") is False else BYTE_LEVEL_REGEX
    return frame


def _added_tokens(tokens: Any) -> list[dict[str, Any]]:
    """Tokens that are matched before all others, such as <|endoftext|>."""
    require(isinstance(tokens, list) and len(tokens) <= MAX_ADDED_TOKENS, "its added tokens are not a short list")
    for token in tokens:
        require(isinstance(token, dict) and isinstance(token.get("content"), str), "an added token has no text")
        is_word = bool(re.fullmatch(rf"[^{WHITESPACE}]{{1,99}}", token["content"]))
        require(is_word, "an added token is longer than 99 characters or contains white space")
        plain = not any(token.get(flag) for flag in ("single_word", "lstrip", "rstrip"))
        require(plain, "an added token sets single_word, lstrip or rstrip")
    return [
        {"id": t.get("id"), "content": t["content"], **ADDED_TOKEN_FLAGS, "special": bool(t.get("special"))}
        for t in tokens
    ]


def check_merges(merges: Any, vocab: Mapping[str, int]) -> list[list[str]]:
    """BPE merges as pairs of vocabulary tokens."""
    require(isinstance(merges, list), "its merges are not a list")
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in merges]
    for pair in pairs:
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(isinstance(p, str) for p in pair)
        require(is_pair, "a merge is not a pair of tokens")
        require({*pair, "".join(pair)} <= vocab.keys(), "a merge is not in its vocabulary")
    return pairs


def identify_kind(spec: Any) -> tuple[str, dict[str, Any]]:
    """The kind and the canonical form of a tokenizer.json; a ValueError says why it is not supported."""
    require(isinstance(spec, dict) and isinstance(spec.get("model"), dict), "it has no model")
    model, frame = spec["model"], _without_vocab(spec)
    require(isinstance(model.get("vocab"), dict), "it has no vocabulary")
    kind = next((kind for kind in TOKENIZER_KINDS if build_spec(kind, {}) == frame), "")
    require(kind != "", "its model, normalizer, pre-tokenizer or decoder (or a pattern in them) is not supported")
    added = _added_tokens(spec.get("added_tokens"))
    tokens = model["vocab"] | {token["content"]: token["id"] for token in added}
    valid_ids = len(tokens) <= MAX_VOCAB and all(type(i) is int for i in tokens.values())
    require(valid_ids, f"an id is not an integer, or there are more than {MAX_VOCAB:,}")
    require(sorted(tokens.values()) == list(range(len(tokens))), "its ids are not 0, 1, 2, ... once each")
    require(all(model["vocab"].get(t["content"], t["id"]) == t["id"] for t in added), "an added token has two ids")
    vocab = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    merges = check_merges(model.get("merges", []), vocab)
    require(kind in ("bpe", "wordpiece") or not (added or merges), f"a {kind} tokenizer has merges or added tokens")
    missing = {*SPECIAL_TOKENS} - {token["content"] for token in added}
    require(kind != "wordpiece" or not missing, f"{', '.join(sorted(missing))} is not among its added tokens")
    require(kind != "bpe" or BYTE_OF_CHARACTER.keys() <= vocab.keys(), "a byte has no token")
    require(kind != "byte" or vocab == BYTE_OF_CHARACTER, "its ids are not the bytes")
    require(kind not in ("char", "word") or UNK in vocab, f"it has no {UNK}")
    require(kind != "char" or all(len(t) == 1 or t == UNK for t in vocab), "a token is not a single character")
    require(kind != "word" or EOS in vocab, f"it has no {EOS}")
    return kind, build_spec(kind, vocab, merges, added, spec.get("normalizer"))
