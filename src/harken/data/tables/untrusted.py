"""JSON and arrays from an untrusted source: size-checked before parsing, and nothing in them can run code.

JSON keys are unique and numbers are finite. An array must have the length in its header and fit into memory.
"""

import json
import math
import zipfile
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from harken.errors import BadInput

Array = npt.NDArray[Any]
ARRAY_KINDS = "biufUS"  # numbers and text
CHUNK_BYTES = 1 << 22  # read at a time
MAX_OBJECTS, MAX_ITEMS = 60_000, 2_500_000  # braces, and brackets with commas, in a file: they bound the memory


def read_json(path: Path, max_bytes: int) -> dict[str, object]:
    """The object of a JSON file of at most max_bytes."""
    with path.open("rb") as file:
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise BadInput(f"{path}: larger than {max_bytes >> 20} MiB, the limit for this file; check the file")
    return parse_json_object(raw, str(path))


def parse_json_object(raw: bytes, place: str) -> dict[str, object]:
    """A JSON object; BadInput for deep nesting, too many items, duplicate keys and non-finite numbers."""
    if raw.count(b"{") > MAX_OBJECTS or raw.count(b"[") + raw.count(b",") > MAX_ITEMS:
        raise BadInput(f"{place}: too many items; check the file")
    try:
        value = json.loads(raw.decode(), object_pairs_hook=unique_keys, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{place}: invalid JSON ({str(error)[:80]})") from None
    if not isinstance(value, dict):
        raise BadInput(f"{place}: not a JSON object")
    return value


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object_pairs_hook that refuses duplicate keys."""
    if len(unique := dict(pairs)) != len(pairs):
        raise ValueError("duplicate key")
    return unique


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")


def read_arrays(path: Path, *names: str) -> dict[str, Array]:
    """The arrays of an .npz file; with names, those of them that exist."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {m.filename[:-4]: m for m in archive.infolist() if m.filename.endswith(".npy")}
            wanted = {name: member for name, member in members.items() if not names or name in names}
            check_memory(sum(member.file_size for member in wanted.values()), str(path))
            arrays = {}
            for name, member in wanted.items():
                with archive.open(member) as file:
                    arrays[name] = _read_npy(file, member.file_size, f"{path}, {name}")
            return arrays
    except BadInput:
        raise
    except Exception as error:  # zipfile and numpy raise many types for a corrupt file
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise BadInput(f"{path}: not a valid .npz file ({reason}); write it with numpy.savez") from None


def _read_npy(file: IO[bytes], size: int, place: str) -> Array:
    """An array in .npy format from an open file of `size` bytes."""
    version = npy.read_magic(file)
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read_header is None:
        raise BadInput(f"{place}: unsupported .npy version {version}; write it with numpy.savez")
    shape, fortran_order, dtype = read_header(file)
    n_bytes = math.prod(shape) * dtype.itemsize
    if dtype.kind not in ARRAY_KINDS or not dtype.itemsize:
        raise BadInput(f"{place}: unsupported dtype {dtype}; write an array of numbers or text")
    if min(shape, default=0) < 0 or file.tell() + n_bytes != size:
        raise BadInput(f"{place}: shape {shape} needs {n_bytes:,} bytes, but the file has {size - file.tell():,}")
    array = read_array(file, tuple(reversed(shape)) if fortran_order else shape, dtype, place)
    return array.T if fortran_order else array


def read_array(file: BufferedIOBase | IO[bytes], shape: tuple[int, ...], dtype: npt.DTypeLike, place: str) -> Array:
    """The rest of a file as an array. Memory pages are allocated as bytes arrive, so a false shape costs nothing."""
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    check_memory(n_bytes, place)
    array = np.empty(shape, dtype)
    n_read, buffer = 0, array.reshape(-1).view(np.uint8)
    while n_read < n_bytes and (chunk := file.read(min(CHUNK_BYTES, n_bytes - n_read))):
        buffer[n_read : n_read + len(chunk)] = np.frombuffer(chunk, np.uint8)
        n_read += len(chunk)
    if n_read < n_bytes or file.read(1):
        available = "more" if n_read == n_bytes else f"{n_read:,}"
        raise BadInput(f"{place}: shape {shape} needs {n_bytes:,} bytes, but the file has {available}; fetch it again")
    return array


def check_memory(n_bytes: int, place: str) -> None:
    """Raise if an array of n_bytes does not fit into the free memory."""
    from harken import machine  # imports torch

    if n_bytes > (free := machine.available_memory()):
        sizes = f"{n_bytes / 2**30:,.1f} GiB of memory, {free / 2**30:,.1f} are free"
        raise BadInput(f"{place}: needs {sizes}; use a part of it")
