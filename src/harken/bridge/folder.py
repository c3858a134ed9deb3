"""A folder in Hugging Face layout, read without trust: config.json, safetensors (in shards too), tokenizer.json.

Nothing of it is ever executed. Sizes, names, offsets and shapes are checked before anything is allocated; weights are
read one tensor at a time. What could hold code is refused, not passed over.
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

from harken.data.tables.untrusted import parse, read_json
from harken.data.tokenizers.tokenizer import FILE_CAP
from harken.errors import BadInput, near_name
from harken.run_folder import sha256

SMALL, HEADER = 1 << 20, 8 << 20  # bytes: of a config, of the list of a file's tensors
TENSORS, SHARDS, DIMS = 50_000, 1000, 8
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
OTHERS = {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}  # of what holds nothing learned
BESIDE = ("config.json", "tokenizer.json", "preprocessor_config.json")  # what is read, where it is there
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".h5", ".keras", ".msgpack", ".npy", ".npz")
PACKED = (".zip", ".tar", ".gz", ".tgz", ".7z", ".whl")
CODE = (".py", ".pyc", ".so", ".sh", ".dll", ".exe", ".ipynb")


class Folder:
    """A model folder: its config, and what tensors lie where."""

    def __init__(self, path: Path) -> None:
        self.path, self.place = path, str(path)
        # the hub's own cache keeps a folder of links beside the files they name
        self.home = (path.parent.parent if path.parent.name == "snapshots" else path).resolve()
        _refuse_what_runs(path)
        self.config = read_json(self.file("config.json"), SMALL)
        if "auto_map" in self.config:
            raise BadInput(f"{path}: config auto_map names code to run; harken runs none; ask for a plain model")
        self.parts: dict[str, tuple[Path, int, str]] = {}  # name: its file, where it begins there, its dtype
        self.shapes: dict[str, tuple[int, ...]] = {}
        for shard, listed in self._shards().items():
            self._open(self.file(shard), listed)

    def file(self, name: str) -> Path:
        """A file of this folder; one that is a link to elsewhere is refused."""
        path = self.path / name
        if not path.is_file():
            raise BadInput(
                f"{path}: is missing, or no file; a model folder has config.json, safetensors, tokenizer.json"
            )
        if not path.resolve().is_relative_to(self.home):
            raise BadInput(f"{path}: is a link out of its folder; put the file itself there")
        return path

    def tokenizer(self) -> dict[str, Any]:
        return read_json(self.file("tokenizer.json"), FILE_CAP)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        library = tokenizers.Tokenizer.from_file(str(self.file("tokenizer.json")))
        library.no_truncation()
        library.no_padding()
        return [library.encode(text).ids for text in texts]

    def tensors(self) -> dict[str, Tensor]:
        shards = {path for path, _, _ in self.parts.values()}
        return {name: tensor for shard in shards for name, tensor in load_file(shard).items()}

    def sha256(self) -> str:
        """Of all that is read here."""
        shards = {path.name for path, _, _ in self.parts.values()}
        names = sorted(shards | {name for name in BESIDE if (self.path / name).exists()})
        hashes = "".join(f"{name} {sha256(self.file(name))}\n" for name in names)
        return hashlib.sha256(hashes.encode()).hexdigest()

    def read(self, name: str) -> Tensor:
        path, start, kind = self.parts[name]
        if kind not in DTYPES:
            raise BadInput(f"{self.place}: {name} holds {kind}; weights are F32, F16, BF16 or F64")
        size = DTYPES[kind].itemsize * math.prod(self.shapes[name])
        data = torch.from_numpy(np.fromfile(path, np.uint8, size, offset=start))  # mapped pages would count as ours
        return data.view(DTYPES[kind]).view(self.shapes[name]).float()

    def _shards(self) -> dict[str, set[str] | None]:
        """The files of weights, and what each is said to hold."""
        if not (self.path / "model.safetensors.index.json").exists():
            return {"model.safetensors": None}
        place = self.file("model.safetensors.index.json")
        listed = read_json(place, HEADER).get("weight_map")
        if not isinstance(listed, dict) or not listed or len(listed) > TENSORS:
            raise BadInput(f"{place}: weight_map is no table of tensors and files; fetch the folder again")
        shards: dict[str, set[str] | None] = {}
        for name, shard in listed.items():
            if not isinstance(shard, str) or not re.fullmatch(r"\w[\w.-]{0,200}\.safetensors", shard, re.ASCII):
                raise BadInput(f"{place}: {str(shard)[:80]!r} is no name of a safetensors file in this folder")
            held = shards.setdefault(shard, set())
            assert held is not None
            held.add(name)
        if len(shards) > SHARDS:
            raise BadInput(f"{place}: names {len(shards)} files of weights; at most {SHARDS} are read")
        return shards

    def _open(self, path: Path, listed: set[str] | None) -> None:
        """Look at the list of a file's tensors: they fill the file without a hole, and shapes fit their bytes."""
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(HEADER, size - 8):
                raise BadInput(f"{path}: says that its header has {length} bytes; it has {size}, and 8 MiB are read")
            header = parse(file.read(length), str(path))
        _metadata(header.pop("__metadata__", {}), path)
        if len(header) > TENSORS:
            raise BadInput(f"{path}: lists {len(header)} tensors; at most {TENSORS} are read")
        if listed is not None and listed != header.keys():
            odd = sorted(listed ^ header.keys())[0]
            raise BadInput(f"{path}: {odd[:80]!r} is in the index or in the file, not in both; fetch the folder again")
        ends = sorted(_span(path, name, entry) for name, entry in header.items())
        at = 0
        for begin, end, name in ends:
            if begin != at:
                raise BadInput(f"{path}: tensor {name[:80]!r} does not begin where the one before ends")
            at = end
            if name in self.shapes:
                raise BadInput(f"{path}: tensor {name[:80]!r} is in two files")
            entry = header[name]
            self.shapes[name], self.parts[name] = tuple(entry["shape"]), (path, 8 + length + begin, entry["dtype"])
        if 8 + length + at != size:
            raise BadInput(f"{path}: has {size} bytes, and its tensors end at {8 + length + at}; fetch it again")


def _refuse_what_runs(path: Path) -> None:
    if not path.is_dir():
        raise BadInput(f"{path}: there is no such folder; check the name{near_name(path)}")
    for found in sorted(path.iterdir()):
        kind = found.suffix.lower()
        why = next((w for kinds, w in ((PICKLES, "may hold a pickle, which runs code"), (PACKED, "is an archive"),
                                       (CODE, "is code")) if kind in kinds), None)  # fmt: skip
        if why:
            raise BadInput(
                f"{found}: {why}; harken reads safetensors only; take this file away, or import another model"
            )


def _metadata(found: Any, path: Path) -> None:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise BadInput(f"{path}: its metadata are not texts by name; this is no sound safetensors file")


def _span(path: Path, name: str, entry: Any) -> tuple[int, int, str]:
    """Where a tensor begins and ends, if that is as long as its shape says."""
    sound = isinstance(entry, Mapping) and entry.keys() == {"dtype", "shape", "data_offsets"}
    kind, shape, offsets = (entry[key] for key in ("dtype", "shape", "data_offsets")) if sound else ("", [], [])
    lists = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2 and len(shape) <= DIMS
    if not lists or any(type(n) is not int or not 0 <= n < 1 << 48 for n in (*shape, *offsets)):
        raise BadInput(f"{path}: tensor {name[:80]!r} is not described as safetensors does")
    if not isinstance(kind, str) or (kind not in DTYPES and kind not in OTHERS):
        raise BadInput(f"{path}: tensor {name[:80]!r} has dtype {str(kind)[:20]!r}; F32, F16, BF16 and F64 are read")
    size = (DTYPES[kind].itemsize if kind in DTYPES else OTHERS[kind]) * math.prod(shape)
    if offsets[1] - offsets[0] != size:
        raise BadInput(
            f"{path}: tensor {name[:80]!r} of shape {shape} needs {size} bytes and says it has another number"
        )
    return offsets[0], offsets[1], name
