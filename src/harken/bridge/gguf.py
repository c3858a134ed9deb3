"""An untrusted GGUF file of llama.cpp: metadata, quantized tensors (Q4_0, Q4_1, Q8_0) and the tokenizer.

Metadata and tensor names are translated to those of a Hugging Face folder, so both are imported in the same way.
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

from harken.core import llama3_scaling
from harken.core.positions import frequencies
from harken.data.tokenizers.pretrained import SPACE_PIECE, SPLIT_PATTERNS
from harken.data.tokenizers.spec import MAX_VOCAB
from harken.errors import BadInput

from .weight_mapping import NAMES

MAX_METADATA, MAX_TENSORS, MAX_NAME_LENGTH, MAX_TEXT_BYTES = 1000, 50_000, 200, 1 << 20
MAX_LIST_ITEMS, MAX_HEADER_BYTES = 1_500_000, 64 << 20  # all lists together; all metadata
MAX_SPLIT_LENGTH, MAX_SPLIT_CHARACTERS = 64, 8_000_000  # SentencePiece tokens that are split into merges
MAX_ROPE_FACTORS = 1024
NUMBER_TYPES = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))  # struct format characters
STRING, LIST = 8, 9
CHECKED_BLOCKS = 1024  # of each tensor, dequantized by another library for the certificate
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# --- quantized blocks -------------------------------------------------------------------------------------------------


def _half(block: Bytes, offset: int) -> Floats:  # N 1
    return block[:, offset : offset + 2].copy().view("<f2").astype(np.float32)


def _nibbles(block: Bytes, offset: int) -> npt.NDArray[np.int8]:  # N 32: low halves of 16 bytes, then high halves
    return np.concatenate([block[:, offset:] & 15, block[:, offset:] >> 4], 1).astype(np.int8)


# type number of GGUF: name, values per block, bytes per block, decoder
TENSOR_TYPES: dict[int, tuple[str, int, int, Callable[[Bytes], npt.NDArray[Any]]]] = {
    0: ("F32", 1, 4, lambda block: block.view("<f4")),
    1: ("F16", 1, 2, lambda block: block.view("<f2").astype(np.float32)),
    2: ("Q4_0", 32, 18, lambda block: _half(block, 0) * (_nibbles(block, 2) - 8)),
    3: ("Q4_1", 32, 20, lambda block: _half(block, 0) * _nibbles(block, 4) + _half(block, 2)),
    8: ("Q8_0", 32, 34, lambda block: _half(block, 0) * block[:, 2:].view(np.int8)),
}

ARCHITECTURES = ("llama", "qwen2")
ROPE_FACTORS = "rope_freqs.weight"


class BoundedReader:
    """Reads a file forward only, within limits."""

    def __init__(self, file: BinaryIO, location: str) -> None:
        self.file, self.location = file, location
        self.bytes_left, self.items_left = min(os.fstat(file.fileno()).st_size, MAX_HEADER_BYTES), MAX_LIST_ITEMS

    def read_bytes(self, size: int) -> bytes:
        if not 0 <= size <= self.bytes_left:
            raise BadInput(f"{self.location}: metadata is truncated or larger than 64 MiB; fetch the file again")
        self.bytes_left -= size
        return self.file.read(size)

    def number(self, kind: str) -> int:
        """A number of this struct format."""
        number: int = struct.unpack(f"<{kind}", self.read_bytes(struct.calcsize(f"<{kind}")))[0]
        return number

    def text(self, max_bytes: int = MAX_TEXT_BYTES) -> str:
        size = self.number("Q")
        if size > max_bytes:
            raise BadInput(f"{self.location}: string of {size} bytes; at most {max_bytes} are accepted")
        return self.read_bytes(size).decode("utf-8", "replace")

    def value(self, kind: int, *, nested: bool = False) -> object:
        if kind in NUMBER_TYPES:
            return self.number(NUMBER_TYPES[kind])
        if kind == STRING:
            return self.text()
        if kind != LIST or nested:
            raise BadInput(f"{self.location}: metadata value of invalid type {kind}")
        item_type, n_items = self.number("I"), self.number("Q")
        self.items_left -= n_items
        if self.items_left < 0:
            raise BadInput(f"{self.location}: list of {n_items} items; at most {MAX_LIST_ITEMS} are accepted in total")
        if item_type in NUMBER_TYPES:
            dtype = np.dtype(NUMBER_TYPES[item_type]).newbyteorder("<")
            return np.frombuffer(self.read_bytes(n_items * dtype.itemsize), dtype).tolist()
        return [self.value(item_type, nested=True) for _ in range(n_items)]


class GGUFFile:
    """A GGUF file: its metadata as a config, and the location of its tensors, under Hugging Face names."""

    def __init__(self, path: Path) -> None:
        self.path, self.location = path, str(path)
        if not path.is_file() or path.stat().st_size < 24:
            raise BadInput(f"{path}: is not a GGUF file, or is empty")
        self.parts: dict[str, tuple[int, int]] = {}  # tensor: type, offset
        self.shapes: dict[str, tuple[int, ...]] = {}
        with path.open("rb") as file:
            reader = BoundedReader(file, self.location)
            if reader.read_bytes(4) != b"GGUF" or reader.number("I") not in (2, 3):
                raise BadInput(f"{path}: is not a GGUF file of version 2 or 3")
            n_tensors, n_entries = reader.number("Q"), reader.number("Q")
            if n_tensors > MAX_TENSORS or n_entries > MAX_METADATA:
                limits = f"at most {MAX_TENSORS} and {MAX_METADATA} are accepted"
                raise BadInput(f"{path}: {n_tensors} tensors and {n_entries} metadata entries; {limits}")
            self.metadata = self._read_metadata(reader, n_entries)
            self._read_tensor_list(reader, n_tensors)
        self.config = self._config()

    def _read_metadata(self, reader: BoundedReader, n_entries: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(n_entries):
            name = reader.text(MAX_NAME_LENGTH)
            if name in metadata:
                raise BadInput(f"{self.location}: metadata key {name!r} occurs twice")
            metadata[name] = reader.value(reader.number("I"))
        return metadata

    def _read_tensor_list(self, reader: BoundedReader, n_tensors: int) -> None:
        """Locate the tensors, which must lie inside the file and must not overlap."""
        ranges = []
        for _ in range(n_tensors):
            gguf_name, dims = reader.text(MAX_NAME_LENGTH), reader.number("I")
            if not 1 <= dims <= 4:
                raise BadInput(f"{self.location}: tensor {gguf_name!r} has {dims} dimensions; accepted: 1 to 4")
            shape = tuple(reader.number("Q") for _ in range(dims))[::-1]
            kind, offset = reader.number("I"), reader.number("Q")
            name = _tensor_name(gguf_name)
            if name in self.shapes:
                raise BadInput(f"{self.location}: tensor {gguf_name!r} occurs twice")
            if kind not in TENSOR_TYPES:
                known = ", ".join(entry[0] for entry in TENSOR_TYPES.values())
                raise BadInput(f"{self.location}: tensor {gguf_name!r} has unsupported type {kind}; accepted: {known}")
            _, block_values, block_bytes, _ = TENSOR_TYPES[kind]
            if math.prod(shape) >= 1 << 48 or shape[-1] % block_values:
                limits = f"rows must be multiples of {block_values}, and all values fewer than 2^48"
                raise BadInput(f"{self.location}: tensor {gguf_name!r} has shape {list(shape)}; {limits}")
            ranges.append((offset, offset + math.prod(shape) // block_values * block_bytes, name))
            self.shapes[name], self.parts[name] = shape, (kind, offset)
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= 1 << 16:
            raise BadInput(f"{self.location}: general.alignment is {str(alignment)[:20]!r}; accepted: 1 to 65536")
        self.start = -(-reader.file.tell() // alignment) * alignment
        size = self.path.stat().st_size
        position = 0
        for start, end, name in sorted(ranges):
            if start < position or self.start + end > size:
                raise BadInput(f"{self.location}: tensor {name!r} overlaps another or exceeds the file; fetch it again")
            position = end

    def _config(self) -> dict[str, Any]:
        kind = self.metadata.get("general.architecture")
        if not isinstance(kind, str) or kind not in ARCHITECTURES:
            accepted = f"accepted: {', '.join(ARCHITECTURES)}"
            raise BadInput(f"{self.location}: architecture {str(kind)[:40]!r} is not supported; {accepted}")
        metadata, keys = self.metadata, NAMES["gguf"]["config"]
        fields = {key: metadata[f"{kind}.{name}"] for name, key in keys.items() if f"{kind}.{name}" in metadata}
        scaling = metadata.get(f"{kind}.rope.scaling.type", "none")
        if scaling != "none":
            fields["rope_scaling"] = {"type": scaling, "factor": metadata.get(f"{kind}.rope.scaling.factor")}
        if ROPE_FACTORS in self.shapes:
            fields["rope_scaling"] = self._rope_scaling(fields)
        vocab_size = self.shapes.get("model.embed_tokens.weight", (0,))[0]
        tied = "lm_head.weight" not in self.shapes
        return {"model_type": kind, "vocab_size": vocab_size, "tie_word_embeddings": tied, **fields}

    def _rope_scaling(self, config: dict[str, Any]) -> dict[str, Any]:
        """GGUF stores the factor of each rotary frequency, not the rule; that of Llama 3 is recognized."""
        shape = self.shapes[ROPE_FACTORS]
        if len(shape) != 1 or shape[0] > MAX_ROPE_FACTORS:
            accepted = f"a list of at most {MAX_ROPE_FACTORS} is accepted"
            raise BadInput(f"{self.location}: {ROPE_FACTORS} has shape {list(shape)}; {accepted}")
        factors, base = self.read(ROPE_FACTORS), config.get("rope_theta", 10_000.0)
        del self.parts[ROPE_FACTORS], self.shapes[ROPE_FACTORS]
        f = frequencies(2 * shape[0], base) if type(base) is float and base > 1 else factors
        for factor in (8.0, 32.0):
            if torch.allclose(f / llama3_scaling(factor)(f), factors, rtol=1e-3):
                rule = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
                return {"rope_type": "llama3", "factor": factor, **rule}
        raise BadInput(f"{self.location}: {ROPE_FACTORS} follows no known rule; accepted: Llama 3.1 and 3.2")

    def file(self, name: str) -> Path:
        raise BadInput(f"{self.location}: a GGUF file has no {name}; import the folder of the model")

    def read(self, name: str) -> Tensor:
        return self._split_halves(name, torch.from_numpy(self._dequantized(name)))

    def _dequantized(self, name: str) -> Floats:
        values: Floats = TENSOR_TYPES[self.parts[name][0]][3](self._blocks(name)).reshape(self.shapes[name])
        return values

    def _blocks(self, name: str) -> Bytes:  # blocks, bytes per block
        kind, offset = self.parts[name]
        _, block_values, size, _ = TENSOR_TYPES[kind]
        n_blocks = math.prod(self.shapes[name]) // block_values
        return np.fromfile(self.path, np.uint8, n_blocks * size, offset=self.start + offset).reshape(n_blocks, size)

    def _split_halves(self, name: str, tensor: Tensor) -> Tensor:
        """Reorder queries and keys of llama, which are stored for interleaved rotary pairs; ours are split halves."""
        match = re.fullmatch(r".*self_attn\.([qk])_proj\.\w+", name)
        if not match or self.metadata["general.architecture"] != "llama":
            return tensor
        key = "num_attention_heads" if match[1] == "q" else "num_key_value_heads"
        heads = self.config.get(key, self.config["num_attention_heads"])
        return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)

    # --- references ---------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """All tensors; the first blocks of each are dequantized by the gguf library."""
        from gguf import GGMLQuantizationType, dequantize

        tensors = {}
        for name, (kind, _) in self.parts.items():
            values = self._dequantized(name)
            first = dequantize(self._blocks(name)[:CHECKED_BLOCKS], GGMLQuantizationType(kind)).ravel()  # all: too slow
            values.ravel()[: first.size] = first
            tensors[name] = self._split_halves(name, torch.from_numpy(values))
        return tensors

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        import gguf  # noqa: F401
        import transformers

        with tempfile.TemporaryDirectory() as folder:  # hides the files beside it
            (Path(folder) / "model.gguf").symlink_to(self.path.resolve())
            library = transformers.AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf", local_files_only=True)
        bos = self._bos_id(self._tokenizer_metadata(), MAX_VOCAB)  # transformers does not add it
        first = [] if bos is None else [bos]
        return [first + library(text, add_special_tokens=False).input_ids for text in texts]

    # --- the tokenizer ------------------------------------------------------------------------------------------------

    def _tokenizer_metadata(self) -> dict[str, Any]:
        return {name.removeprefix("tokenizer.ggml."): value for name, value in self.metadata.items()}

    def tokenizer(self) -> dict[str, object]:
        metadata = self._tokenizer_metadata()
        tokens, kind = metadata.get("tokens"), metadata.get("model")
        if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens) or len(tokens) > MAX_VOCAB:
            raise BadInput(f"{self.location}: tokenizer.ggml.tokens must be a list of at most {MAX_VOCAB} strings")
        kinds = metadata.get("token_type") or [1] * len(tokens)
        if not isinstance(kinds, list) or len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
            raise BadInput(f"{self.location}: tokens must be unique and have one type each")
        if kind not in ("gpt2", "llama"):
            raise BadInput(f"{self.location}: tokenizer {str(kind)[:40]!r} is not supported; accepted: gpt2, llama")
        vocab = {token: n for n, token in enumerate(tokens)}
        added = [
            {"id": n, "content": token, "special": kinds[n] == 3, "normalized": False}
            for n, token in enumerate(tokens)
            if kinds[n] in (3, 4)
        ]
        spec = (_byte_level_bpe if kind == "gpt2" else _sentencepiece_bpe)(metadata, vocab, self.location)
        bos = self._bos_id(metadata, len(tokens))
        first = [] if bos is None else [{"SpecialToken": {"id": tokens[bos], "type_id": 0}}]
        template = {"type": "TemplateProcessing", "single": [*first, {"Sequence": {"id": "A", "type_id": 0}}]}
        return {"added_tokens": added, **spec, "post_processor": template}

    def _bos_id(self, metadata: dict[str, Any], n_tokens: int) -> int | None:
        """The id that starts every text, if any."""
        add_bos = metadata.get("add_bos_token", metadata.get("model") == "llama") is True
        bos = metadata.get("bos_token_id") if add_bos else None
        if bos is not None and (type(bos) is not int or not 0 <= bos < n_tokens):
            raise BadInput(f"{self.location}: bos_token_id is {str(bos)[:20]}; there are {n_tokens} tokens")
        return bos


def _tensor_name(gguf_name: str) -> str:
    """The Hugging Face name of a tensor."""
    for pattern, name in NAMES["gguf"]["tensors"].items():
        if match := re.fullmatch(pattern, gguf_name):
            return match.expand(name)
    return gguf_name


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _pre_tokenizer(name: str) -> dict[str, Any]:
    if name == "smollm":
        return {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]}
    if name not in SPLIT_PATTERNS or name == "gpt-2":
        return BYTE_LEVEL
    split = {"type": "Split", "pattern": {"Regex": SPLIT_PATTERNS[name]}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, {**BYTE_LEVEL, "use_regex": False}]}


def _byte_level_bpe(metadata: dict[str, Any], vocab: dict[str, int], location: str) -> dict[str, Any]:
    """Byte-level BPE as in GPT-2."""
    name = metadata.get("pre", "default")
    if name not in ("default", "smollm", *SPLIT_PATTERNS):
        accepted = f"accepted: {', '.join(SPLIT_PATTERNS)}, smollm"
        raise BadInput(f"{location}: tokenizer.ggml.pre {str(name)[:40]!r} is unknown; {accepted}")
    model = {"type": "BPE", "vocab": vocab, "merges": metadata.get("merges"), "ignore_merges": name == "llama-bpe"}
    return {"normalizer": None, "pre_tokenizer": _pre_tokenizer(name), "decoder": BYTE_LEVEL, "model": model}


def _sentencepiece_bpe(metadata: dict[str, Any], vocab: dict[str, int], location: str) -> dict[str, Any]:
    """SentencePiece as BPE: of two neighbors that form a token, the pair with the best score merges first."""
    scores = metadata.get("scores")
    if not isinstance(scores, list) or len(scores) != len(vocab) or not all(type(s) is float for s in scores):
        raise BadInput(f"{location}: tokenizer.ggml.scores must have one number per token")
    if sum(len(token) for token in vocab if len(token) <= MAX_SPLIT_LENGTH) > MAX_SPLIT_CHARACTERS:
        raise BadInput(f"{location}: tokens have more than {MAX_SPLIT_CHARACTERS} characters in total")
    merges = []
    for token, score in zip(vocab, scores, strict=True):
        splits = ((token[:n], token[n:]) for n in range(1, len(token) if len(token) <= MAX_SPLIT_LENGTH else 1))
        known = sorted((vocab[a], vocab[b], a, b) for a, b in splits if a in vocab and b in vocab)
        merges += [(-score, a, b) for _, _, a, b in known]
    merges.sort(key=lambda merge: merge[0])
    add_space = metadata.get("add_space_prefix", True) is True
    scheme = "first" if add_space else "never"
    splitter = {"type": "Metaspace", "replacement": SPACE_PIECE, "prepend_scheme": scheme, "split": False}
    spaces = {"type": "Replace", "pattern": {"String": SPACE_PIECE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if add_space else []
    decoder = {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]}
    pairs = [[a, b] for _, a, b in merges]
    model = {"type": "BPE", "vocab": vocab, "merges": pairs, "byte_fallback": True, "fuse_unk": True}
    return {"normalizer": None, "pre_tokenizer": splitter, "decoder": decoder, "model": model}
