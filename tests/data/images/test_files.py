"""Pictures out of files: equal to what Pillow says, and what is broken, huge or no picture is refused in one line."""

import gzip
import io
import struct
import sys
import zlib

import numpy as np
import pytest
import torch

from harken.data.images import files, png
from harken.data.images.files import coloured, decoded, fitted, read_idx, read_npz, stacked
from harken.errors import BadInput, MissingExtra

Image = pytest.importorskip("PIL.Image")


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def smooth(high: int, wide: int) -> np.ndarray:
    """A picture that Pillow writes with all kinds of filters."""
    rows, columns = np.mgrid[:high, :wide]
    return np.stack([rows * 3 + columns, rows * columns // 7, 255 - columns * 2], -1).astype(np.uint8)


def written(picture, **how) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG", **how)
    return file.getvalue()


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "LA", "RGBA", "I;16"])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (33, 20)])
def test_our_reader_of_png_says_what_pillow_says(mode, size):
    picture = Image.fromarray(smooth(*size)).convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(picture).astype(np.uint16) * 257)
    raw = written(picture)
    if mode == "I;16":
        expected = np.asarray(picture) >> 8
    else:
        expected = np.asarray(picture.convert("L" if mode in ("1", "L", "LA") else "RGB"))
    found = png.read(raw)
    assert found.shape == (*size, 1 if mode in ("1", "L", "LA", "I;16") else 3)
    assert np.array_equal(found.squeeze(-1) if found.shape[2] == 1 else found, expected)


def test_every_filter_of_png_is_undone():
    """A picture written line by line in all five ways, by hand."""
    pixels, lines, above = noise(5, 6, 3).astype(int), [], np.zeros((6, 3), int)
    for kind, line in enumerate(pixels):
        left, corner = (np.concatenate([np.zeros((1, 3), int), x[:-1]]) for x in (line, above))
        near = np.stack([left, above, corner])
        guess = left + above - corner
        likeliest = np.take_along_axis(near, np.abs(near - guess).argmin(0)[None], 0)[0]
        guesses = [0, left, above, (left + above) // 2, likeliest]
        lines.append(bytes([kind]) + ((line - guesses[kind]) % 256).astype(np.uint8).tobytes())
        above = line
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in (
            (b"IHDR", struct.pack(">IIBBBBB", 6, 5, 8, 2, 0, 0, 0)),
            (b"IDAT", zlib.compress(b"".join(lines))),
        )
    )
    assert np.array_equal(png.read(png.MARK + body), pixels)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 1), (3, 4, 3)])
def test_what_we_write_pillow_and_we_read_again(shape):
    pixels = noise(*shape)
    with Image.open(io.BytesIO(png.write(pixels))) as picture:
        assert np.array_equal(np.asarray(picture), pixels.squeeze())
    assert np.array_equal(png.read(png.write(pixels)).squeeze(), pixels.squeeze())


@pytest.fixture(params=["pillow", "alone"])
def reader(request, monkeypatch):
    """With Pillow, and as if it were not installed."""
    if request.param == "alone":
        monkeypatch.setitem(sys.modules, "PIL", None)
    return request.param


def broken(kind: str) -> bytes:
    whole = png.write(noise(40, 40, 3))
    huge = b"".join(struct.pack(">I", n) for n in (60_000, 60_000))
    return {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "no picture": b"Once upon a time there was a picture.",
        "huge": whole[:16]
        + huge
        + whole[24:29]
        + struct.pack(">I", zlib.crc32(whole[12:16] + huge + whole[24:29]))
        + whole[33:],
        "odd": whole[:60] + b"\xff" * 200 + whole[260:],
    }[kind]


@pytest.mark.parametrize("kind", ["cut", "empty", "no picture", "huge", "odd"])
def test_a_broken_picture_is_refused_by_its_path_in_one_line(reader, kind, tmp_path):
    path = tmp_path / "bad.png"
    path.write_bytes(broken(kind))
    with pytest.raises((BadInput, MissingExtra)) as told:
        decoded(path)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)
    if kind == "huge":
        assert "pixels" in str(told.value)


def test_a_bomb_is_refused_before_its_pixels_are_decoded(reader, tmp_path, monkeypatch):
    path = tmp_path / "bomb.png"
    path.write_bytes(png.write(np.zeros((100, 200), np.uint8)))
    monkeypatch.setattr(files, "MOST", 19_999)
    monkeypatch.setattr(png, "read", None)  # whoever decodes it fails in another way
    with pytest.raises(BadInput, match="200 x 100 pixels"):
        decoded(path)


def test_png_needs_no_pillow_and_others_say_what_to_install(tmp_path, monkeypatch):
    pixels = noise(6, 6, 3)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    Image.fromarray(pixels).save(tmp_path / "a.bmp")
    assert np.array_equal(decoded(tmp_path / "a.bmp"), pixels)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert np.array_equal(decoded(tmp_path / "a.png"), pixels)
    with pytest.raises(MissingExtra, match=r"a\.bmp.*harken\[vision\]"):
        decoded(tmp_path / "a.bmp")


def test_a_photograph_that_lies_on_its_side_is_put_upright(tmp_path):
    pixels = smooth(8, 16)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(decoded(tmp_path / "a.png"), np.rot90(pixels, -1))


def test_a_picture_of_another_size_is_squeezed_as_pillow_does_to_within_a_grey_level():
    pixels = smooth(40, 60)
    expected = np.asarray(Image.fromarray(pixels).resize((16, 16), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(fitted(pixels, 16).permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1
    assert torch.equal(fitted(pixels[:16, :16], 16), torch.from_numpy(pixels[:16, :16]).permute(2, 0, 1))


def test_grey_and_colours_are_turned_into_each_other_as_pillow_does():
    pixels = smooth(5, 9)
    grey = coloured(torch.from_numpy(pixels).permute(2, 0, 1), 1)[0].numpy().astype(int)
    assert np.abs(grey - np.asarray(Image.fromarray(pixels).convert("L")).astype(int)).max() <= 1
    assert torch.equal(coloured(torch.ones(2, 1, 3, 3), 3), torch.ones(2, 3, 3, 3))


# --- arrays -----------------------------------------------------------------------------------------------------------


def idx(array: np.ndarray, code: int = 8) -> bytes:
    return bytes([0, 0, code, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


@pytest.mark.parametrize("packed", [False, True])
def test_an_idx_file_is_read_as_it_was_written_and_a_cut_or_longer_one_is_refused(packed, tmp_path):
    array, path = noise(3, 4, 5), tmp_path / "train-images-idx3-ubyte"
    write = gzip.compress if packed else bytes
    path.write_bytes(write(idx(array)))
    assert np.array_equal(read_idx(path), array)
    for odd in (idx(array)[:-1], idx(array) + b"x", b"\0\0\7\1" + bytes(8), b"nothing at all"):
        path.write_bytes(write(odd))
        with pytest.raises(BadInput, match="train-images-idx3-ubyte"):
            read_idx(path)
    path.write_bytes(gzip.compress(idx(array))[:-9])
    with pytest.raises(BadInput, match="fetch it again"):
        read_idx(path)


def test_a_large_array_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(b"\0\0\x08\x03" + b"\x7f\xff\xff\xff" * 3))
    with pytest.raises(BadInput, match="take a part of it"):
        read_idx(path)


def test_an_npz_with_objects_in_it_runs_nothing(tmp_path):
    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    np.savez(tmp_path / "a.npz", x=np.array([Trap()], object), y=np.array([1]))
    with pytest.raises(BadInput, match=r"a\.npz"):
        read_npz(tmp_path / "a.npz")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("shape", [(4, 6, 6), (4, 6, 6, 1), (4, 1, 6, 6), (4, 6, 6, 3), (4, 3, 6, 6)])
def test_arrays_of_all_layouts_become_n_c_h_w(shape):
    array = noise(*shape)
    found = stacked(array, "x")
    grey = 3 not in shape
    assert found.shape == (4, 1 if grey else 3, 6, 6)
    expected = array.reshape(4, 1, 6, 6) if grey else array if shape[1] == 3 else array.transpose(0, 3, 1, 2)
    assert np.array_equal(found.numpy(), expected)


def test_numbers_that_are_no_bytes_are_shares():
    bright = np.array([[[0.0, 0.5], [1.0, 0.25]]])
    for numbers in (bright, bright * 16, (bright * 16).astype(int), bright * 255):
        assert stacked(numbers, "x").flatten().tolist() == [0, 128, 255, 64], numbers.max()
    for dark in (bright * 8, (bright * 8).astype(np.int16)):
        assert stacked(dark, "x", 16).flatten().tolist() == [0, 64, 128, 32]
    assert stacked((bright * 16).astype(np.uint8), "x", 16).max() == 16  # bytes are as they are
    assert stacked(bright * 255, "x", 1).flatten().tolist() == [0, 128, 255, 64]  # brighter than what is known
    assert stacked(bright * 1.04, "x").flatten().tolist() == [0, 133, 255, 66]  # a little over 1 after a squeeze
    with pytest.raises(BadInput, match="below 0"):
        stacked(-bright, "x")
    with pytest.raises(BadInput, match="shape is"):
        stacked(np.zeros((2, 5, 5, 2)), "x")
