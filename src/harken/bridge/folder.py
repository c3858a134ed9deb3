"""An untrusted folder in Hugging Face layout: config.json, safetensors (also sharded), tokenizer.json.

Nothing in it is executed. Sizes, names, offsets and shapes are checked before anything is allocated; weights are read
one tensor at a time. A file that could contain code is refused, not ignored.
"""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from safetensors.torch import load_file
from torch import Tensor

from harken.data.tables.untrusted import parse_json_object, read_json
from harken.data.tokenizers.tokenizer import MAX_FILE_BYTES
from harken.errors import BadInput
from harken.files import sha256_of
from harken.suggestions import similar_path

MAX_CONFIG_BYTES, MAX_HEADER_BYTES = 1 << 20, 8 << 20  # the header lists the tensors of a file
MAX_TENSORS, MAX_SHARDS, MAX_DIMS = 50_000, 1000, 8
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
IGNORED_DTYPES = {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}  # bytes of dtypes that no weight has
METADATA_FILES = ("config.json", "tokenizer.json", "preprocessor_config.json")  # read if present
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".h5", ".keras", ".msgpack", ".npy", ".npz")
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".7z", ".whl")
CODE = (".py", ".pyc", ".so", ".sh", ".dll", ".exe", ".ipynb")


class ModelFolder:
    """A model folder: its config, and the location of each tensor."""

    def __init__(self, path: Path) -> None:
        self.path, self.location = path, str(path)
        # in the hub's cache, a snapshot folder links to files beside it
        self.root = (path.parent.parent if path.parent.name == "snapshots" else path).resolve()
        _refuse_unsafe_files(path)
        self.config = read_json(self.file("config.json"), MAX_CONFIG_BYTES)
        if "auto_map" in self.config:
            problem = "config auto_map names code, which harken never executes"
            raise BadInput(f"{path}: {problem}; import a model without it")
        self.parts: dict[str, tuple[Path, int, str]] = {}  # tensor: file, offset, dtype
        self.shapes: dict[str, tuple[int, ...]] = {}
        for shard, listed in self._shards().items():
            self._open(self.file(shard), listed)

    def file(self, name: str) -> Path:
        """A file of this folder; a link out of the folder is refused."""
        path = self.path / name
        if not path.is_file():
            raise BadInput(f"{path}: is missing; a model folder has config.json, safetensors and tokenizer.json")
        if not path.resolve().is_relative_to(self.root):
            raise BadInput(f"{path}: is a link out of its folder; replace it with the file itself")
        return path

    def tokenizer(self) -> dict[str, object]:
        return read_json(self.file("tokenizer.json"), MAX_FILE_BYTES)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        library = tokenizers.Tokenizer.from_file(str(self.file("tokenizer.json")))
        library.no_truncation()
        library.no_padding()
        return [library.encode(text).ids for text in texts]

    def tensors(self) -> dict[str, Tensor]:
        shards = {path for path, _, _ in self.parts.values()}
        return {name: tensor for shard in shards for name, tensor in load_file(shard).items()}

    def digest(self) -> str:
        """A hash of all files that are read."""
        shards = {path.name for path, _, _ in self.parts.values()}
        names = sorted(shards | {name for name in METADATA_FILES if (self.path / name).exists()})
        hashes = "".join(f"{name} {sha256_of(self.file(name))}\n" for name in names)
        return hashlib.sha256(hashes.encode()).hexdigest()

    def read(self, name: str) -> Tensor:
        path, start, kind = self.parts[name]
        if kind not in DTYPES:
            raise BadInput(f"{self.location}: {name} has dtype {kind}; accepted: F32, F16, BF16 or F64")
        size = DTYPES[kind].itemsize * math.prod(self.shapes[name])
        raw = torch.from_numpy(np.fromfile(path, np.uint8, size, offset=start))  # a memory map would count as ours
        return raw.view(DTYPES[kind]).view(self.shapes[name]).float()

    def _shards(self) -> Mapping[str, set[str] | None]:
        """The weight files, with the tensors that the index assigns to each."""
        if not (self.path / "model.safetensors.index.json").exists():
            return {"model.safetensors": None}
        index = self.file("model.safetensors.index.json")
        listed = read_json(index, MAX_HEADER_BYTES).get("weight_map")
        if not isinstance(listed, dict) or not listed or len(listed) > MAX_TENSORS:
            raise BadInput(f"{index}: weight_map must map tensors to files; fetch the folder again")
        shards: dict[str, set[str]] = {}
        for name, shard in listed.items():
            if not isinstance(shard, str) or not re.fullmatch(r"\w[\w.-]{0,200}\.safetensors", shard, re.ASCII):
                raise BadInput(f"{index}: {str(shard)[:80]!r} is not the name of a safetensors file in this folder")
            shards.setdefault(shard, set()).add(name)
        if len(shards) > MAX_SHARDS:
            raise BadInput(f"{index}: has {len(shards)} weight files; at most {MAX_SHARDS} are accepted")
        return shards

    def _open(self, path: Path, listed: set[str] | None) -> None:
        """Read the header: its tensors must fill the file without gaps, and shapes must fit their bytes."""
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(MAX_HEADER_BYTES, size - 8):
                sizes = f"header of {length} bytes in a file of {size} bytes"
                raise BadInput(f"{path}: {sizes}; at most 8 MiB are accepted")
            header: dict[str, Any] = parse_json_object(file.read(length), str(path))
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise BadInput(f"{path}: metadata must map strings to strings; this is not a valid safetensors file")
        if len(header) > MAX_TENSORS:
            raise BadInput(f"{path}: has {len(header)} tensors; at most {MAX_TENSORS} are accepted")
        if listed is not None and listed != header.keys():
            mismatch = sorted(listed ^ header.keys())[0]
            raise BadInput(f"{path}: {mismatch[:80]!r} is not in both the index and the file; fetch the folder again")
        ranges = sorted(_byte_range(path, name, entry) for name, entry in header.items())
        position = 0
        for start, end, name in ranges:
            if start != position:
                raise BadInput(f"{path}: tensor {name[:80]!r} does not start where the previous one ends")
            position = end
            if name in self.shapes:
                raise BadInput(f"{path}: tensor {name[:80]!r} is in two files")
            entry = header[name]
            self.shapes[name], self.parts[name] = tuple(entry["shape"]), (path, 8 + length + start, entry["dtype"])
        if 8 + length + position != size:
            raise BadInput(f"{path}: has {size} bytes, but its tensors end at {8 + length + position}; fetch it again")


def _refuse_unsafe_files(path: Path) -> None:
    if not path.is_dir():
        raise BadInput(f"{path}: no such folder; check the name{similar_path(path)}")
    if (model := path / "model.bin").is_file() and _is_ctranslate2(model):
        problem = "a CTranslate2 model cannot be imported: its weights are fused and may be rounded"
        raise BadInput(f"{model}: {problem}; import the model that it was converted from")
    for file in sorted(path.iterdir()):
        suffix = file.suffix.lower()
        reasons = ((PICKLES, "may be a pickle, which executes code"), (ARCHIVES, "is an archive"), (CODE, "is code"))
        if reason := next((reason for suffixes, reason in reasons if suffix in suffixes), None):
            raise BadInput(f"{file}: {reason}; harken reads safetensors only; remove this file or import another model")


def _is_ctranslate2(path: Path) -> bool:
    """Whether a model.bin starts as CTranslate2 writes it: the version, then the name of a specification."""
    with path.open("rb") as file:
        return re.match(rb"[\x01-\x20]\0\0\0.\0\w{1,60}Spec\0", file.read(80), re.DOTALL) is not None


def _byte_range(path: Path, name: str, entry: Any) -> tuple[int, int, str]:
    """Start and end of a tensor, which must agree with its shape."""
    valid = isinstance(entry, Mapping) and entry.keys() == {"dtype", "shape", "data_offsets"}
    kind, shape, offsets = (entry[key] for key in ("dtype", "shape", "data_offsets")) if valid else ("", [], [])
    lists = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2 and len(shape) <= MAX_DIMS
    if not lists or any(type(n) is not int or not 0 <= n < 1 << 48 for n in (*shape, *offsets)):
        raise BadInput(f"{path}: tensor {name[:80]!r} has an invalid safetensors entry")
    if not isinstance(kind, str) or (kind not in DTYPES and kind not in IGNORED_DTYPES):
        raise BadInput(f"{path}: tensor {name[:80]!r} has dtype {str(kind)[:20]!r}; accepted: F32, F16, BF16, F64")
    size = (DTYPES[kind].itemsize if kind in DTYPES else IGNORED_DTYPES[kind]) * math.prod(shape)
    if offsets[1] - offsets[0] != size:
        raise BadInput(f"{path}: tensor {name[:80]!r} of shape {shape} needs {size} bytes; its entry has another size")
    return offsets[0], offsets[1], name
