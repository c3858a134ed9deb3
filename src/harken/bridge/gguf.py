"""GGUF, the file of llama.cpp, read without trust: facts, tensors in few bits (Q4_0, Q4_1, Q8_0), and the tokenizer.

Its facts become the config.json that a folder would have, and its names those of that folder: then it is read as one.
"""

import math
import os
import re
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from harken.core.positions import frequencies
from harken.data.tokenizers.pretrained import PATTERNS, SPACE
from harken.data.tokenizers.tokenizer import VOCAB_CAP
from harken.errors import BadInput
from harken.models.rope_scaling import llama3

FACTS, TENSORS, NAME, TEXT = 1000, 50_000, 200, 1 << 20  # at most: facts, tensors, letters of a name, bytes of a text
ITEMS, HEAD = 1_500_000, 64 << 20  # of all lists together, and bytes of all facts
LONG, CUTS = 64, 8_000_000  # letters of a token of sentences that is split for its merges, and of all of these
SLOWED = 1024  # turns whose slowness is read
NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))  # as struct calls them
STRING, LIST = 8, 9
SEEN = 1024  # blocks of each tensor that another library unpacks for the certificate
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# --- numbers in few bits ----------------------------------------------------------------------------------------------


def _half(block: Bytes, at: int) -> Floats:  # N 1
    return block[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _nibbles(block: Bytes, at: int) -> npt.NDArray[np.int8]:  # N 32: the low halves of 16 bytes, then the high ones
    return np.concatenate([block[:, at:] & 15, block[:, at:] >> 4], 1).astype(np.int8)


# name, numbers in a block, its bytes, how it is read: by the number GGUF gives it
KINDS: dict[int, tuple[str, int, int, Callable[[Bytes], npt.NDArray[Any]]]] = {
    0: ("F32", 1, 4, lambda block: block.view("<f4")),
    1: ("F16", 1, 2, lambda block: block.view("<f2").astype(np.float32)),
    2: ("Q4_0", 32, 18, lambda block: _half(block, 0) * (_nibbles(block, 2) - 8)),
    3: ("Q4_1", 32, 20, lambda block: _half(block, 0) * _nibbles(block, 4) + _half(block, 2)),
    8: ("Q8_0", 32, 34, lambda block: _half(block, 0) * block[:, 2:].view(np.int8)),
}

# --- names ------------------------------------------------------------------------------------------------------------

FAMILIES = {"llama": "llama", "qwen2": "qwen2"}
TURNS = "rope_freqs.weight"
TURNED = ("llama",)  # q and k are written for turns of neighbours, and here halves are turned
NAMES = {
    r"token_embd\.weight": "model.embed_tokens.weight",
    r"output\.weight": "lm_head.weight",
    r"output_norm\.weight": "model.norm.weight",
    r"blk\.(\d+)\.attn_norm\.weight": r"model.layers.\1.input_layernorm.weight",
    r"blk\.(\d+)\.ffn_norm\.weight": r"model.layers.\1.post_attention_layernorm.weight",
    r"blk\.(\d+)\.attn_([qkv])\.(weight|bias)": r"model.layers.\1.self_attn.\2_proj.\3",
    r"blk\.(\d+)\.attn_output\.weight": r"model.layers.\1.self_attn.o_proj.weight",
    r"blk\.(\d+)\.ffn_(gate|up|down)\.weight": r"model.layers.\1.mlp.\2_proj.weight",
}
CONFIG = {  # their fact, without the name of the family -> the key of a config.json
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}


class Cursor:
    """A place in the file's bytes that only moves on, and never behind the end."""

    def __init__(self, file: BinaryIO, place: str) -> None:
        self.file, self.place = file, place
        self.left, self.items = min(os.fstat(file.fileno()).st_size, HEAD), ITEMS

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise BadInput(f"{self.place}: ends before its facts do, or they are longer than 64 MiB; fetch it again")
        self.left -= size
        return self.file.read(size)

    def number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))[0]

    def text(self, most: int = TEXT) -> str:
        size = self.number("Q")
        if size > most:
            raise BadInput(f"{self.place}: a text of {size} bytes; at most {most} are read")
        return self.take(size).decode("utf-8", "replace")

    def value(self, kind: int, *, inside: bool = False) -> Any:
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind == STRING:
            return self.text()
        if kind != LIST or inside:
            raise BadInput(f"{self.place}: a fact of type {kind}, which GGUF does not have here")
        inner, many = self.number("I"), self.number("Q")
        self.items -= many
        if self.items < 0:
            raise BadInput(f"{self.place}: a list of {many} items; at most {ITEMS} are read in all")
        if inner in NUMBERS:
            numbers = np.dtype(NUMBERS[inner]).newbyteorder("<")
            return np.frombuffer(self.take(many * numbers.itemsize), numbers).tolist()
        return [self.value(inner, inside=True) for _ in range(many)]


class GGUF:
    """A GGUF file: its facts as a config, and where its tensors lie, under the names of a folder."""

    def __init__(self, path: Path) -> None:
        self.path, self.place = path, str(path)
        if not path.is_file() or path.stat().st_size < 24:
            raise BadInput(f"{path}: is no GGUF file, or an empty one")
        self.parts: dict[str, tuple[int, int]] = {}  # name: its kind, and where it begins
        self.shapes: dict[str, tuple[int, ...]] = {}
        with path.open("rb") as file:
            cursor = Cursor(file, self.place)
            if cursor.take(4) != b"GGUF" or (version := cursor.number("I")) not in (2, 3):
                raise BadInput(f"{path}: is no GGUF file of version 2 or 3")
            tensors, facts = cursor.number("Q"), cursor.number("Q")
            if tensors > TENSORS or facts > FACTS:
                raise BadInput(f"{path}: GGUF {version} with {tensors} tensors and {facts} facts; that is too many")
            self.facts = self._facts(cursor, facts)
            self._tensors(cursor, tensors)
        self.config = self._config()

    def _facts(self, cursor: Cursor, many: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(many):
            name = cursor.text(NAME)
            if name in found:
                raise BadInput(f"{self.place}: the fact {name!r} stands twice")
            found[name] = cursor.value(cursor.number("I"))
        return found

    def _tensors(self, cursor: Cursor, many: int) -> None:
        """Where each tensor lies: inside the file, and no two at one place."""
        spans = []
        for _ in range(many):
            theirs, dims = cursor.text(NAME), cursor.number("I")
            if not 1 <= dims <= 4:
                raise BadInput(f"{self.place}: tensor {theirs!r} has {dims} dimensions; 1 to 4 are read")
            shape = tuple(cursor.number("Q") for _ in range(dims))[::-1]
            kind, offset = cursor.number("I"), cursor.number("Q")
            name = _named(theirs)
            if name in self.shapes:
                raise BadInput(f"{self.place}: tensor {theirs!r} stands twice")
            if kind not in KINDS:
                known = ", ".join(found[0] for found in KINDS.values())
                raise BadInput(
                    f"{self.place}: tensor {theirs!r} is of a kind (number {kind}) that is not read; {known} are"
                )
            _, numbers, size, _ = KINDS[kind]
            if math.prod(shape) >= 1 << 48 or shape[-1] % numbers:
                raise BadInput(
                    f"{self.place}: tensor {theirs!r} has shape {list(shape)}, and its blocks {numbers} numbers"
                )
            spans.append((offset, offset + math.prod(shape) // numbers * size, name))
            self.shapes[name], self.parts[name] = shape, (kind, offset)
        step = self.facts.get("general.alignment", 32)
        if type(step) is not int or not 1 <= step <= 1 << 16:
            raise BadInput(f"{self.place}: general.alignment is {str(step)[:20]!r}; a number up to 65536 is accepted")
        self.start = -(-cursor.file.tell() // step) * step
        size = self.path.stat().st_size
        at = 0
        for begin, end, name in sorted(spans):
            if begin < at or self.start + end > size:
                raise BadInput(
                    f"{self.place}: tensor {name!r} lies over another one, or behind the end; fetch it again"
                )
            at = end

    def _config(self) -> dict[str, Any]:
        kind = self.facts.get("general.architecture")
        if not isinstance(kind, str) or kind not in FAMILIES:
            raise BadInput(f"{self.place}: architecture {str(kind)[:40]!r} is not read; {', '.join(FAMILIES)} are")
        found = {key: self.facts[f"{kind}.{fact}"] for fact, key in CONFIG.items() if f"{kind}.{fact}" in self.facts}
        scaling = self.facts.get(f"{kind}.rope.scaling.type", "none")
        if scaling != "none":
            found["rope_scaling"] = {"type": scaling, "factor": self.facts.get(f"{kind}.rope.scaling.factor")}
        if TURNS in self.shapes:
            found["rope_scaling"] = self._slower(found)
        words = self.shapes.get("model.embed_tokens.weight", (0,))[0]
        tied = "lm_head.weight" not in self.shapes
        return {"model_type": FAMILIES[kind], "vocab_size": words, "tie_word_embeddings": tied, **found}

    def _slower(self, config: dict[str, Any]) -> dict[str, Any]:
        """By how much each turn is slowed is written there, not by which rule; Llama 3's is recognised."""
        shape = self.shapes[TURNS]
        if len(shape) != 1 or shape[0] > SLOWED:
            raise BadInput(f"{self.place}: {TURNS} has shape {list(shape)}; a list of at most {SLOWED} turns is read")
        given, D, base = self.read(TURNS), 2 * self.shapes.pop(TURNS)[0], config.get("rope_theta", 10_000.0)
        del self.parts[TURNS]
        f = frequencies(D, base) if type(base) is float and base > 1 else given
        for factor in (8.0, 32.0):
            if torch.allclose(f / llama3(factor)(f), given, rtol=1e-3):
                rule = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
                return {"rope_type": "llama3", "factor": factor, **rule}
        raise BadInput(f"{self.place}: its turns are slowed by no known rule ({TURNS}); those of Llama 3.1 and 3.2 are")

    def read(self, name: str) -> Tensor:
        return self._halves(name, torch.from_numpy(self._unpacked(name)))

    def _unpacked(self, name: str) -> Floats:
        found: Floats = KINDS[self.parts[name][0]][3](self._block(name)).reshape(self.shapes[name])
        return found

    def _block(self, name: str) -> Bytes:  # N and the bytes of a block
        kind, offset = self.parts[name]
        _, numbers, size, _ = KINDS[kind]
        many = math.prod(self.shapes[name]) // numbers
        return np.fromfile(self.path, np.uint8, many * size, offset=self.start + offset).reshape(many, size)

    def _halves(self, name: str, found: Tensor) -> Tensor:
        """Queries and keys in the order in which halves are turned."""
        asked = re.fullmatch(r".*self_attn\.([qk])_proj\.\w+", name)
        if not asked or self.facts["general.architecture"] not in TURNED:
            return found
        key = "num_attention_heads" if asked[1] == "q" else "num_key_value_heads"
        heads = self.config.get(key, self.config["num_attention_heads"])
        return found.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)

    # --- the oracles --------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """The first numbers of each are unpacked by gguf."""
        from gguf import GGMLQuantizationType, dequantize

        found = {}
        for name, (kind, _) in self.parts.items():
            numbers = self._unpacked(name)
            first = dequantize(self._block(name)[:SEEN], GGMLQuantizationType(kind)).ravel()  # all would take long
            numbers.ravel()[: first.size] = first
            found[name] = self._halves(name, torch.from_numpy(numbers))
        return found

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        import gguf  # noqa: F401
        import transformers

        with tempfile.TemporaryDirectory() as alone:  # what lies beside the file is not to be read
            (Path(alone) / "model.gguf").symlink_to(self.path.resolve())
            library = transformers.AutoTokenizer.from_pretrained(alone, gguf_file="model.gguf", local_files_only=True)
        begin = self._begin(self._tokens(), VOCAB_CAP)  # transformers does not ask for it
        first = [] if begin is None else [begin]
        return [first + library(text, add_special_tokens=False).input_ids for text in texts]

    # --- the tokenizer ------------------------------------------------------------------------------------------------

    def _tokens(self) -> dict[str, Any]:
        return {name.removeprefix("tokenizer.ggml."): value for name, value in self.facts.items()}

    def tokenizer(self) -> dict[str, Any]:
        said = self._tokens()
        tokens, kind = said.get("tokens"), said.get("model")
        if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens) or len(tokens) > VOCAB_CAP:
            raise BadInput(f"{self.place}: tokenizer.ggml.tokens is no list of at most {VOCAB_CAP} texts")
        kinds = said.get("token_type") or [1] * len(tokens)
        if not isinstance(kinds, list) or len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
            raise BadInput(f"{self.place}: its tokens stand twice, or have no type each")
        if kind not in ("gpt2", "llama"):
            raise BadInput(f"{self.place}: tokenizer {str(kind)[:40]!r} is not read; gpt2 and llama are")
        vocab = {token: n for n, token in enumerate(tokens)}
        added = [
            {"id": n, "content": token, "special": kinds[n] == 3, "normalized": False}
            for n, token in enumerate(tokens)
            if kinds[n] in (3, 4)
        ]
        spec = _pairs(said, vocab, self.place) if kind == "gpt2" else _sentences(said, tokens, vocab, self.place)
        begin = self._begin(said, len(tokens))
        first = [] if begin is None else [{"SpecialToken": {"id": tokens[begin], "type_id": 0}}]
        spec["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [*first, {"Sequence": {"id": "A", "type_id": 0}}],
        }
        return {"added_tokens": added, **spec}

    def _begin(self, said: dict[str, Any], many: int) -> int | None:
        """The id that stands before every text."""
        begin = said.get("bos_token_id") if said.get("add_bos_token", said.get("model") == "llama") is True else None
        if begin is not None and (type(begin) is not int or not 0 <= begin < many):
            raise BadInput(f"{self.place}: bos_token_id is {str(begin)[:20]}, and there are {many} tokens")
        return begin


def _named(theirs: str) -> str:
    for pattern, ours in NAMES.items():
        if found := re.fullmatch(pattern, theirs):
            return found.expand(ours)
    return theirs


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _words(name: str) -> dict[str, Any]:
    """How a text is cut into words, by the name of it."""
    if name == "smollm":
        return {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES]}
    if name not in PATTERNS or name == "gpt-2":
        return BYTES
    split = {"type": "Split", "pattern": {"Regex": PATTERNS[name]}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, {**BYTES, "use_regex": False}]}


def _pairs(said: dict[str, Any], vocab: dict[str, int], place: str) -> dict[str, Any]:
    """Pairs of bytes, as GPT-2 has them."""
    name = said.get("pre", "default")
    if name not in ("default", "smollm", *PATTERNS):
        raise BadInput(
            f"{place}: tokenizer.ggml.pre {str(name)[:40]!r} is not known; {', '.join(PATTERNS)}, smollm are"
        )
    model = {"type": "BPE", "vocab": vocab, "merges": said.get("merges"), "ignore_merges": name == "llama-bpe"}
    return {"normalizer": None, "pre_tokenizer": _words(name), "decoder": BYTES, "model": model}


def _sentences(said: dict[str, Any], tokens: list[str], vocab: dict[str, int], place: str) -> dict[str, Any]:
    """Pieces of sentences: of two neighbours that make a token, those with the best score are joined first."""
    scores = said.get("scores")
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(type(s) is float for s in scores):
        raise BadInput(f"{place}: tokenizer.ggml.scores has not one number for each token")
    if sum(len(token) for token in tokens if len(token) <= LONG) > CUTS:
        raise BadInput(f"{place}: its tokens have more than {CUTS} letters together; that is too many")
    found = []
    for token, score in zip(tokens, scores, strict=True):
        cuts = ((token[:n], token[n:]) for n in range(1, len(token) if len(token) <= LONG else 1))
        both = sorted((vocab[a], vocab[b], a, b) for a, b in cuts if a in vocab and b in vocab)
        found += [(-score, a, b) for _, _, a, b in both]
    found.sort(key=lambda merge: merge[0])
    spaced = said.get("add_space_prefix", True) is True
    scheme = "first" if spaced else "never"
    back = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if spaced else []
    model = {"type": "BPE", "vocab": vocab, "merges": [[a, b] for _, a, b in found], "byte_fallback": True}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False},
        "decoder": {"type": "Sequence", "decoders": [*back, *strip]},
        "model": {**model, "fuse_unk": True},
    }
