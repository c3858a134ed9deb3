"""Untrusted arrays: read as NumPy does; false headers, corrupt and too large files are refused in one line."""

import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from harken import machine
from harken.data.graphs.source import GraphSource
from harken.data.images.files import read_idx, read_npz, to_nchw
from harken.data.tables.untrusted import read_arrays
from harken.data.tables.vectors import read_vectors
from harken.errors import BadInput
from harken.events import silent


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def false_header(shape: object, kind: str = "<i8") -> bytes:
    """The first bytes of an array of this shape, and three more."""
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + b"123"


def write_npz(path: Path, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, raw in entries.items():
            archive.writestr(f"{name}.npy", raw)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_equal_those_that_numpy_reads(tmp_path, save):
    rng = np.random.default_rng(0)
    saved = {
        "a": rng.normal(size=(3, 4)), "turned": np.asfortranarray(rng.normal(size=(3, 4))), "one": np.array(7),
        "none": np.empty((0, 3), np.float32), "words": np.array(["x", "yz"]), "yes": np.array([True, False]),
        "big": np.arange(5, dtype=">i4"), "bytes": np.array([b"a", b"bc"]),
    }  # fmt: skip
    save(tmp_path / "a.npz", **saved)
    arrays = read_arrays(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as reference:
        assert {*reference} == {*arrays}
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, reference[name], strict=True)
    assert {*read_arrays(tmp_path / "a.npz", "a", "lost")} == {"a"}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (false_header((10**12, 2)), r"needs 16,000,000,000,000 bytes, but the file has 3"),
        (false_header((-1, -3), "|u1"), r"shape \(-1, -3\) needs"),
        (false_header((10**12,), "<U0"), "unsupported dtype <U0"),
        (false_header((3,), "|O"), "unsupported dtype object"),
        (false_header((1,), "<c16"), "unsupported dtype complex128"),
        (false_header("(" * 60), "not a valid .npz file"),
        (b"\x93NUMPY\x03\x00" + bytes(100), "unsupported .npy version"),
        (b"no array", "not a valid .npz file"),
        (npy(np.arange(9))[:-1], "needs 72 bytes, but the file has 71"),
        (npy(np.arange(9)) + b"x", "needs 72 bytes, but the file has 73"),
    ],
)
def test_an_array_with_a_false_header_is_refused_in_one_line(tmp_path, raw, message):
    path = write_npz(tmp_path / "a.npz", x=raw, edges=raw, y=npy(np.arange(3)))
    for read in (read_arrays, read_npz, lambda path: GraphSource(path=str(path)).load_data()):
        with pytest.raises(BadInput, match=message) as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_corrupt_file_is_reported(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", edges=np.arange(4000).reshape(-1, 2))
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    raw[200:400] = b"\xff" * 200
    (tmp_path / "a.npz").write_bytes(raw)
    with pytest.raises(BadInput, match=r"a\.npz: not a valid \.npz file \(.*write it with numpy.savez"):
        GraphSource(path=str(tmp_path / "a.npz")).load_data()


def test_an_array_larger_than_the_free_memory_is_refused_before_reading(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((100, 8, 8), np.uint8), y=np.zeros(100, np.uint8))
    np.save(tmp_path / "a.npy", np.zeros((100, 64)))
    (tmp_path / "idx").write_bytes(gzip.compress(b"\0\0\x08\x01" + (6400).to_bytes(4, "big") + bytes(6400)))
    monkeypatch.setattr(machine, "available_memory", lambda: 6000.0)
    for name, read in {"a.npz": read_npz, "idx": read_idx, "a.npy": lambda path: read_vectors(path, silent)}.items():
        with pytest.raises(BadInput, match=rf"{name}: needs 0.0 GiB of memory, 0.0 are free; use a part of it"):
            read(tmp_path / name)


def test_free_memory_is_that_of_the_kernel_limited_by_the_container(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.available_memory() == float("inf")
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   50 kB\n")
    assert machine.available_memory() == 50 * 1024
    (tmp_path / "memory.max").write_text("30000\n")
    (tmp_path / "memory.stat").write_text("anon 10000\nfile 15000\n")
    assert machine.available_memory() == 20000


def test_contiguous_bytes_are_not_copied(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((5, 1, 4, 4), np.uint8), y=np.arange(5))
    x, _ = read_npz(tmp_path / "a.npz")
    assert to_nchw(x, "a").data_ptr() == x.ctypes.data
