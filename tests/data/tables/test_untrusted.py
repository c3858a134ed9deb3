"""Arrays from anywhere: read as NumPy wrote them, and what lies, is damaged or too large is refused in one line."""

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


def lying(shape: object, kind: str = "<i8") -> bytes:
    """The first bytes of an array of this shape, and three more."""
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + b"123"


def packed(path: Path, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, raw in entries.items():
            archive.writestr(f"{name}.npy", raw)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_those_that_numpy_reads(tmp_path, save):
    rng = np.random.default_rng(0)
    given = {
        "a": rng.normal(size=(3, 4)), "turned": np.asfortranarray(rng.normal(size=(3, 4))), "one": np.array(7),
        "none": np.empty((0, 3), np.float32), "words": np.array(["x", "yz"]), "yes": np.array([True, False]),
        "big": np.arange(5, dtype=">i4"), "bytes": np.array([b"a", b"bc"]),
    }  # fmt: skip
    save(tmp_path / "a.npz", **given)
    found = read_arrays(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as theirs:
        assert {*theirs} == {*found}
        for name, array in found.items():
            np.testing.assert_array_equal(array, theirs[name], strict=True)
    assert {*read_arrays(tmp_path / "a.npz", "a", "lost")} == {"a"}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (lying((10**12, 2)), r"needs 16,000,000,000,000 bytes, and it has 3"),
        (lying((-1, -3), "|u1"), "its shape"),
        (lying((10**12,), "<U0"), "holds <U0"),
        (lying((3,), "|O"), "holds object"),
        (lying((1,), "<c16"), "holds complex128"),
        (lying("(" * 60), "cannot be read as arrays"),
        (b"\x93NUMPY\x03\x00" + bytes(100), "version"),
        (b"no array", "cannot be read as arrays"),
        (npy(np.arange(9))[:-1], "needs 72 bytes, and it has 71"),
        (npy(np.arange(9)) + b"x", "needs 72 bytes, and it has 73"),
    ],
)
def test_an_array_that_is_not_what_it_says_is_refused_in_one_line(tmp_path, raw, said):
    path = packed(tmp_path / "a.npz", x=raw, edges=raw, y=npy(np.arange(3)))
    for read in (read_arrays, read_npz, lambda path: GraphSource(path=str(path)).load_data()):
        with pytest.raises(BadInput, match=said) as told:
            read(path)
        assert str(path) in str(told.value)
        assert "\n" not in str(told.value)


def test_damage_inside_is_told(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", edges=np.arange(4000).reshape(-1, 2))
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    raw[200:400] = b"\xff" * 200
    (tmp_path / "a.npz").write_bytes(raw)
    with pytest.raises(BadInput, match=r"a\.npz: cannot be read as arrays \(.*write it with numpy.savez"):
        GraphSource(path=str(tmp_path / "a.npz")).load_data()


def test_what_does_not_fit_into_the_free_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((100, 8, 8), np.uint8), y=np.zeros(100, np.uint8))
    np.save(tmp_path / "a.npy", np.zeros((100, 64)))
    (tmp_path / "idx").write_bytes(gzip.compress(b"\0\0\x08\x01" + (6400).to_bytes(4, "big") + bytes(6400)))
    monkeypatch.setattr(machine, "available_memory", lambda: 6000.0)
    for name, read in {"a.npz": read_npz, "idx": read_idx, "a.npy": lambda path: read_vectors(path, silent)}.items():
        with pytest.raises(BadInput, match=rf"{name}: needs 0.0 GiB, and 0.0 are free; take a part of it"):
            read(tmp_path / name)


def test_free_memory_is_what_the_kernel_says_and_no_more_than_a_container_has_left(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.available_memory() == float("inf")
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   50 kB\n")
    assert machine.available_memory() == 50 * 1024
    (tmp_path / "memory.max").write_text("30000\n")
    (tmp_path / "memory.stat").write_text("anon 10000\nfile 15000\n")
    assert machine.available_memory() == 20000


def test_bytes_that_lie_as_they_are_shown_are_not_copied(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((5, 1, 4, 4), np.uint8), y=np.arange(5))
    x, _ = read_npz(tmp_path / "a.npz")
    assert to_nchw(x, "a").data_ptr() == x.ctypes.data
