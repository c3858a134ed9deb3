"""PNG, read and written with the standard library and numpy alone: pictures need no extra package to be tried out."""

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

MARK = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the type of colour: grey, colours, palette, and both with transparency
Numbers = np.ndarray[Any, np.dtype[Any]]


def size(raw: bytes) -> tuple[int, int]:
    """Width and height, as the first bytes say; ValueError if this is no PNG."""
    if not raw.startswith(MARK) or raw[12:16] != b"IHDR" or len(raw) < 33:
        raise ValueError("it is no PNG")
    width, height = struct.unpack(">II", raw[16:24])
    return width, height


def read(raw: bytes) -> Numbers:  # H W C
    """The pixels of a PNG: one channel if it is grey, else three; transparency is left out. ValueError if it is odd."""
    width, height = size(raw)
    depth, colour, _, _, interlaced = raw[24:29]
    if interlaced or colour not in CHANNELS or depth not in (1, 2, 4, 8, 16):
        raise ValueError('it is a PNG of a rare kind; such are read with: pip install "harken[vision]"')
    chunks = list(_chunks(raw))
    bits = CHANNELS[colour] * depth
    line = (width * bits + 7) // 8
    flat = zlib.decompressobj().decompress(
        b"".join(data for name, data in chunks if name == b"IDAT"), height * (1 + line)
    )
    if len(flat) < height * (1 + line):
        raise ValueError("it is truncated")
    rows = _unfiltered(np.frombuffer(flat, np.uint8).reshape(height, 1 + line), max(1, bits // 8))
    if depth == 16:
        rows = rows[:, ::2]  # the upper half of each number is enough
    elif depth < 8:
        places = np.unpackbits(rows, axis=1).reshape(height, -1, depth)
        rows = (places << np.arange(depth)[::-1].astype(np.uint8)).sum(2, dtype=np.uint8)
        rows = rows if colour == 3 else rows * (255 // (2**depth - 1))
    pixels = rows[:, : width * CHANNELS[colour]].reshape(height, width, -1)
    if colour == 3:
        table = np.zeros((256, 3), np.uint8)
        given = np.frombuffer(next((data for name, data in chunks if name == b"PLTE"), b""), np.uint8)[:768]
        table[: len(given) // 3] = given[: len(given) // 3 * 3].reshape(-1, 3)
        return table[pixels[..., 0]]
    return pixels[..., : 3 if colour & 2 else 1]


def _chunks(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 8
    while at + 12 <= len(raw):
        (length,) = struct.unpack(">I", raw[at : at + 4])
        yield raw[at + 4 : at + 8], raw[at + 8 : at + 8 + length]
        at += 12 + length


def _unfiltered(lines: Numbers, step: int) -> Numbers:
    """The lines, which are written as differences to the left, to the line above, to the mean or likeliest of them."""
    out = np.zeros((len(lines) + 1, lines.shape[1] - 1 + step), np.uint8)  # a line above and a pixel to the left of all
    for n, line in enumerate(lines, 1):
        kind, row, above = line[0], out[n, step:], out[n - 1, step:]
        row[:] = line[1:]
        if kind == 1:
            for k in range(step):
                row[k::step] = np.cumsum(row[k::step], dtype=np.uint8)
        elif kind == 2:
            row += above
        elif kind in (3, 4):
            _guessed(out[n], out[n - 1], step, mean=kind == 3)
        elif kind:
            raise ValueError(f"a line of it is written in way {kind}; there are 0 to 4")
    return out[1:, step:]


def _guessed(row: Numbers, above: Numbers, step: int, *, mean: bool) -> None:
    left, up = row.tolist(), above.tolist()  # numbers of Python are faster one by one
    for i in range(step, len(left)):
        a, b, c = left[i - step], up[i], up[i - step]
        if mean:
            guess = (a + b) >> 1
        else:
            pa, pb, pc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
            guess = a if pa <= pb and pa <= pc else b if pb <= pc else c
        left[i] = (left[i] + guess) & 255
    row[:] = left


def write(pixels: Numbers) -> bytes:  # H W, or H W with 1 or 3 channels
    """A PNG of these pixels."""
    pixels = np.ascontiguousarray(pixels.reshape(*pixels.shape[:2], -1), np.uint8)
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], 1)
    packed = zlib.compress(lines.tobytes(), 9)
    return MARK + _chunk(b"IHDR", header) + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
