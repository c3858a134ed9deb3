"""JSON and arrays that may come from anywhere: bounded before they are read, and nothing in them can run.

In JSON each key stands once, and numbers are numbers. An array is as long as its first bytes say, and fits into memory.
"""

import json
import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from harken.errors import BadInput

Array = npt.NDArray[Any]
KINDS = "biufUS"  # numbers and words
CHUNK = 1 << 22  # bytes read at a time
OBJECTS, ITEMS = 60_000, 2_500_000  # tables {..} in a file, and lists and commas: they cost memory, not bytes


def read_json(path: Path, most: int) -> dict[str, Any]:
    """The object in a JSON file of at most so many bytes."""
    with path.open("rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise BadInput(f"{path}: is larger than {most >> 20} MiB; this is no sound file of its kind")
    return parse(raw, str(path))


def parse(raw: bytes, place: str) -> dict[str, Any]:
    """A JSON object; refused if it is deep or crowded, has a key twice, or a number that is none."""
    if raw.count(b"{") > OBJECTS or raw.count(b"[") + raw.count(b",") > ITEMS:
        raise BadInput(f"{place}: holds too many items; this is no sound file of its kind")
    try:
        found = json.loads(raw.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{place}: is no sound JSON ({str(error)[:80]})") from None
    if not isinstance(found, dict):
        raise BadInput(f"{place}: holds no JSON object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


# --- arrays -----------------------------------------------------------------------------------------------------------


def read_arrays(path: Path, *names: str) -> dict[str, Array]:
    """The arrays of an .npz file, all or those of these names as far as they are there."""
    try:
        with zipfile.ZipFile(path) as archive:
            every = {info.filename[:-4]: info for info in archive.infolist() if info.filename.endswith(".npy")}
            found = {name: info for name, info in every.items() if not names or name in names}
            refuse_large(sum(info.file_size for info in found.values()), str(path))
            arrays = {}
            for name, info in found.items():
                with archive.open(info) as file:
                    arrays[name] = _array(file, info.file_size, f"{path}, {name}")
            return arrays
    except BadInput:
        raise
    except Exception as error:  # a broken file breaks its reader in any way
        why = " ".join(str(error).split())[:100] or type(error).__name__
        raise BadInput(f"{path}: cannot be read as arrays ({why}); write it with numpy.savez") from None


def _array(file: IO[bytes], size: int, place: str) -> Array:
    """An array of the format .npy, from an open file of so many bytes."""
    version = npy.read_magic(file)
    head = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if head is None:
        raise BadInput(f"{place}: is of version {version} of the format; write it with numpy.savez")
    shape, turned, dtype = head(file)
    need = math.prod(shape) * dtype.itemsize
    if dtype.kind not in KINDS or not dtype.itemsize:
        raise BadInput(f"{place}: cannot be read as arrays of numbers or words, as it holds {dtype}; write such ones")
    if min(shape, default=0) < 0 or file.tell() + need != size:
        raise BadInput(f"{place}: its shape {shape} needs {need:,} bytes, and it has {size - file.tell():,}")
    made = filled(file, tuple(reversed(shape)) if turned else shape, dtype, place)
    return made.T if turned else made


def filled(file: Any, shape: tuple[int, ...], dtype: npt.DTypeLike, place: str) -> Array:
    """The array that the rest of a file is. Memory is taken as bytes come, so a shape that lies costs nothing."""
    need = math.prod(shape) * np.dtype(dtype).itemsize
    refuse_large(need, place)
    made = np.empty(shape, dtype)
    at, room = 0, made.reshape(-1).view(np.uint8)
    while at < need and (some := file.read(min(CHUNK, need - at))):
        room[at : at + len(some)] = np.frombuffer(some, np.uint8)
        at += len(some)
    if at < need or file.read(1):
        more = "more" if at == need else f"{at:,}"
        raise BadInput(f"{place}: its shape {shape} needs {need:,} bytes, and it has {more}; fetch it again")
    return made


def refuse_large(need: int, place: str) -> None:
    from harken import machine  # torch comes with it

    if need > (free := machine.free_memory()):
        raise BadInput(f"{place}: needs {need / 2**30:,.1f} GiB, and {free / 2**30:,.1f} are free; take a part of it")
