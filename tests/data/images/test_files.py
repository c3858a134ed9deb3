"""Image files are decoded to known pixels; damaged, huge and other files are refused in one line."""

import gzip
import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from harken.data.images import files
from harken.data.images.files import (
    convert_channels,
    decode_image,
    encode_png,
    read_idx,
    read_npz,
    resize_image,
    to_nchw,
)
from harken.errors import BadInput

MAGIC = b"\x89PNG\r\n\x1a\n"


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def gradient(height: int, width: int) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows * 3 + columns, rows * columns // 7, 255 - columns * 2], -1).astype(np.uint8)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(rows: list[bytes], width: int, depth: int, color_type: int, *more: bytes) -> bytes:
    """A PNG file from its unfiltered scanlines, without Pillow."""
    header = struct.pack(">IIBBBBB", width, len(rows), depth, color_type, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return MAGIC + chunk(b"IHDR", header) + b"".join(more) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


PALETTE = bytes([10, 20, 30, 200, 100, 0, 1, 2, 3])
CASES = {  # file, expected pixels
    "8-bit gray": (png([bytes([0, 7, 255]), bytes([1, 128, 9])], 3, 8, 0), [[[0], [7], [255]], [[1], [128], [9]]]),
    "RGB": (png([bytes([1, 2, 3, 250, 0, 9])], 2, 8, 2), [[[1, 2, 3], [250, 0, 9]]]),
    "RGBA": (png([bytes([1, 2, 3, 0, 250, 0, 9, 255])], 2, 8, 6), [[[255, 255, 255], [250, 0, 9]]]),
    "gray with alpha": (png([bytes([7, 0, 9, 255])], 2, 8, 4), [[[255], [9]]]),
    "transparent palette": (
        png([bytes([2, 0])], 2, 8, 3, chunk(b"PLTE", PALETTE), chunk(b"tRNS", bytes([0]))),
        [[[1, 2, 3], [255, 255, 255]]],
    ),
    "palette": (png([bytes([2, 0, 1])], 3, 8, 3, chunk(b"PLTE", PALETTE)), [[[1, 2, 3], [10, 20, 30], [200, 100, 0]]]),
    "16-bit gray": (png([struct.pack(">HHH", 0, 0x12FF, 0xFFFF)], 3, 16, 0), [[[0], [0x12], [255]]]),
    "1-bit": (png([bytes([0b10110000])], 4, 1, 0), [[[255], [0], [255], [255]]]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_png_of_every_type_is_decoded_to_its_pixels(case, tmp_path):
    raw, expected = CASES[case]
    (tmp_path / "a.png").write_bytes(raw)
    pixels = decode_image(tmp_path / "a.png")
    assert pixels.dtype == np.uint8
    assert pixels.tolist() == expected
    assert decode_image(io.BytesIO(raw)).tolist() == expected


@pytest.mark.parametrize(("background", "color"), [("white", (255, 255, 255)), ("#102030", (16, 32, 48))])
def test_half_transparent_pixels_are_mixed_with_the_background(background, color):
    rgba = np.random.default_rng(0).integers(0, 256, (9, 8, 4), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(rgba).save(file, "PNG")
    alpha = rgba[..., 3:] / 255
    expected = rgba[..., :3] * alpha + np.array(color) * (1 - alpha)
    assert np.abs(decode_image(file, background) - expected).max() <= 1


def test_a_gray_image_over_a_colored_background_has_three_channels():
    file = io.BytesIO()
    Image.fromarray(np.array([[[7, 0], [9, 255]]], np.uint8), "LA").save(file, "PNG")
    assert decode_image(file, "#102030").tolist() == [[[16, 32, 48], [9, 9, 9]]]


def test_every_scanline_filter_of_png_is_decoded(tmp_path):
    pixels, lines, above = noise(5, 6, 3).astype(int), [], np.zeros((6, 3), int)
    for filter_type, line in enumerate(pixels):
        left, corner = (np.concatenate([np.zeros((1, 3), int), x[:-1]]) for x in (line, above))
        neighbors = np.stack([left, above, corner])
        nearest = np.abs(neighbors - (left + above - corner)).argmin(0)
        paeth = np.take_along_axis(neighbors, nearest[None], 0)[0]
        predictions = [0, left, above, (left + above) // 2, paeth]
        lines.append(bytes([filter_type]) + ((line - predictions[filter_type]) % 256).astype(np.uint8).tobytes())
        above = line
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 6, 5, 8, 2, 0, 0, 0))
    (tmp_path / "a.png").write_bytes(
        MAGIC + header + chunk(b"IDAT", zlib.compress(b"".join(lines))) + chunk(b"IEND", b"")
    )
    assert np.array_equal(decode_image(tmp_path / "a.png"), pixels)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 1), (3, 4, 3)])
def test_an_encoded_png_is_decoded_to_the_same_pixels(shape):
    pixels = noise(*shape)
    raw = encode_png(pixels)
    assert raw.startswith(MAGIC)
    assert np.array_equal(decode_image(io.BytesIO(raw)), pixels.reshape(3, 4, -1))


def broken(kind: str) -> bytes:
    raw, (palette, _) = encode_png(noise(40, 40, 3)), CASES["palette"]
    huge = b"".join(struct.pack(">I", n) for n in (60_000, 60_000))
    return {
        "truncated": raw[: len(raw) // 2],
        "empty": b"",
        "text": b"Once upon a time there was a picture.",
        "huge": raw[:8] + chunk(b"IHDR", huge + raw[24:29]) + raw[33:],
        "corrupted pixels": raw[:60] + b"\xff" * 200 + raw[260:],
        "corrupted palette": palette.replace(PALETTE, bytes([11]) + PALETTE[1:]),
    }[kind]


@pytest.mark.parametrize("kind", ["truncated", "empty", "text", "huge", "corrupted pixels", "corrupted palette"])
def test_a_broken_image_is_refused_in_one_line_with_its_path(kind, tmp_path):
    path = tmp_path / "bad.png"
    path.write_bytes(broken(kind))
    with pytest.raises(BadInput) as error:
        decode_image(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
    if kind == "huge":
        assert "pixels" in str(error.value)


def test_a_large_image_is_refused_before_its_pixels_are_decoded(tmp_path, monkeypatch):
    path = tmp_path / "bomb.png"
    path.write_bytes(encode_png(np.zeros((100, 200), np.uint8)))
    monkeypatch.setattr(files, "MAX_PIXELS", 19_999)
    monkeypatch.setattr(Image.Image, "load", None)  # decoding fails with another error
    with pytest.raises(BadInput, match="200 x 100 pixels"):
        decode_image(path)


def test_other_formats_are_decoded(tmp_path):
    pixels = noise(6, 6, 3)
    Image.fromarray(pixels).save(tmp_path / "a.bmp")
    assert np.array_equal(decode_image(tmp_path / "a.bmp"), pixels)


def test_an_image_is_rotated_by_its_exif_orientation(tmp_path):
    pixels = gradient(8, 16)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(decode_image(tmp_path / "a.png"), np.rot90(pixels, -1))


def test_resizing_agrees_with_pillow_to_one_gray_level():
    pixels = gradient(40, 60)
    expected = np.asarray(Image.fromarray(pixels).resize((16, 16), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(resize_image(pixels, 16).permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1
    assert torch.equal(resize_image(pixels[:16, :16], 16), torch.from_numpy(pixels[:16, :16]).permute(2, 0, 1))


def test_channel_conversion_agrees_with_pillow():
    pixels = gradient(5, 9)
    gray = convert_channels(torch.from_numpy(pixels).permute(2, 0, 1), 1)[0].numpy().astype(int)
    assert np.abs(gray - np.asarray(Image.fromarray(pixels).convert("L")).astype(int)).max() <= 1
    assert torch.equal(convert_channels(torch.ones(2, 1, 3, 3), 3), torch.ones(2, 3, 3, 3))


# --- arrays -----------------------------------------------------------------------------------------------------------


def idx(array: np.ndarray, code: int = 8) -> bytes:
    return bytes([0, 0, code, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


@pytest.mark.parametrize("gzipped", [False, True])
def test_an_idx_file_is_read_and_one_of_another_length_is_refused(gzipped, tmp_path):
    array, path = noise(3, 4, 5), tmp_path / "train-images-idx3-ubyte"
    compress = gzip.compress if gzipped else bytes
    path.write_bytes(compress(idx(array)))
    assert np.array_equal(read_idx(path), array)
    for invalid in (idx(array)[:-1], idx(array) + b"x", b"\0\0\7\1" + bytes(8), b"nothing at all"):
        path.write_bytes(compress(invalid))
        with pytest.raises(BadInput, match="train-images-idx3-ubyte"):
            read_idx(path)
    path.write_bytes(gzip.compress(idx(array))[:-9])
    with pytest.raises(BadInput, match="download it again"):
        read_idx(path)


def test_a_large_array_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(b"\0\0\x08\x03" + b"\x7f\xff\xff\xff" * 3))
    with pytest.raises(BadInput, match="use a part of it"):
        read_idx(path)


def test_objects_in_an_npz_file_are_not_executed(tmp_path):
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
    images = to_nchw(array, "x")
    gray = 3 not in shape
    assert images.shape == (4, 1 if gray else 3, 6, 6)
    expected = array.reshape(4, 1, 6, 6) if gray else array if shape[1] == 3 else array.transpose(0, 3, 1, 2)
    assert np.array_equal(images.numpy(), expected)


def test_arrays_that_are_not_uint8_are_scaled_by_their_white_level():
    x = np.array([[[0.0, 0.5], [1.0, 0.25]]])
    for scaled in (x, x * 16, (x * 16).astype(int), x * 255):
        assert to_nchw(scaled, "x").flatten().tolist() == [0, 128, 255, 64], scaled.max()
    for dark in (x * 8, (x * 8).astype(np.int16)):
        assert to_nchw(dark, "x", 16).flatten().tolist() == [0, 64, 128, 32]
    assert to_nchw((x * 16).astype(np.uint8), "x", 16).max() == 16  # uint8 is unchanged
    assert to_nchw(x * 255, "x", 1).flatten().tolist() == [0, 128, 255, 64]  # above the known white level
    assert to_nchw(x * 1.04, "x").flatten().tolist() == [0, 133, 255, 66]  # slightly above 1 after resizing
    with pytest.raises(BadInput, match="negative or non-finite values"):
        to_nchw(-x, "x")
    with pytest.raises(BadInput, match="shape is"):
        to_nchw(np.zeros((2, 5, 5, 2)), "x")
