"""A bounded preview of a file: its bytes, text, rows and columns, for kinds.py. No file is read completely."""

import codecs
import math
import os
import re
import shlex
import stat
import tomllib
import unicodedata
import zipfile
import zlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from harken.data.tables.numbers import is_missing
from harken.data.tables.read import input_error, parse_json
from harken.data.tables.text_file import text_file
from harken.errors import BadInput
from harken.suggestions import similar_path

CONVERSION = ", or convert it: "  # followed by a command
HEAD_BYTES = 1 << 20  # read from the start of a file
SAMPLE_BYTES = 1 << 16  # read at each of four later offsets
MAX_COUNTED_OFFSET = 1 << 28  # up to here an invalid byte is reported with its line; counting further takes too long
MAX_CELLS = 200_000  # cells per table, to bound the memory
MAX_COLUMNS = 1000

ACCEPTED, GIVE = "harken reads UTF-8 text", "give a text file"
PICKLE = "a pickle, which is refused because reading a pickle can run code"
TABLES = tomllib.loads(resources.files(__package__).joinpath("formats.toml").read_text("utf-8"))
MAGIC = {  # first bytes of refused formats; those of letters and digits alone count only in a file with a NUL byte
    "image": (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a"),
    "archive": (b"BZh", b"\xfd7zXZ\0", b"(\xb5/\xfd", b"7z\xbc\xaf", b"Rar!\x1a", b"PK\5\6"),
    "gzip": (b"\x1f\x8b",),
    "ole": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",),
    "pdf": (b"%PDF-",),
    "sqlite": (b"SQLite format 3\0",),
    "parquet": (b"PAR1",),
    "numpy": (b"\x93NUMPY",),
    "elf": (b"\x7fELF",),
    "gguf": (b"GGUF",),
}
LANGUAGE_NAME, LABEL_NAME, TEXT_NAME = (re.compile(TABLES["header_names"][k]) for k in ("language", "label", "text"))
NUMBER_TARGET_NAME, QUESTION_NAME, ANSWER_NAME = (
    re.compile(TABLES["header_names"][k]) for k in ("number_target", "question", "answer")
)
SOURCE_NAME, TARGET_NAME, ID_NAME, COMMON_NAME, PERSON_NAME = (
    re.compile(TABLES["header_names"][k]) for k in ("source", "target", "identifier", "common", "person")
)
NUMBER = re.compile(r"[+-]?(\d[\d.,']*|[.,]\d+)(e[+-]?\d+)?%?", re.I)
DECIMAL = re.compile(r"[+-]?\d*[.,]\d+")
CODE = re.compile(r"(?=\D*\d)[\w./:-]+", re.ASCII)
CREDIT = re.compile(r"https?://|cc[- ]by|cc0|©", re.I)


def is_folder(path: Path) -> bool:
    """Whether this is a folder, not a file. Checked before opening, because opening a pipe blocks."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        problem, fix = "no such file or folder", f"check the name{similar_path(path)}"
        if path.is_symlink():
            problem, fix = f"a broken link to {os.readlink(path)}", "fix the link"
        raise input_error(path, problem, "a file or folder is needed", fix) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise input_error(path, reason, "a readable file or folder is needed", "check the path") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        what = "a pipe" if stat.S_ISFIFO(mode) else "a socket or a device"
        fix = "save the data to a file, or pipe it in and give -"
        raise input_error(path, what, "a file or a folder is accepted", fix)
    return stat.S_ISDIR(mode)


@dataclass(frozen=True)
class FileHead:
    """The first bytes of a file, as UTF-8 if it is text, and later samples as (offset, bytes)."""

    path: Path
    size: int
    head: bytes
    samples: tuple[tuple[int, bytes], ...]
    suffix: str = ""  # of its format: .csv for news.csv.gz


def read_head(path: Path, length: int = HEAD_BYTES, encoding: str | None = None) -> FileHead:
    """The first bytes of a file and, at the default length, four samples of the rest, the last at its end."""
    samples = []
    try:
        content = text_file(path, encoding)
        size = os.stat(content.path).st_size
        with content.path.open("rb") as file:
            head = file.read(length)
            for k in range(1, 5) if size > length == HEAD_BYTES else ():
                offset = file.seek(max(HEAD_BYTES, HEAD_BYTES + (size - HEAD_BYTES - SAMPLE_BYTES) * k // 4))
                samples.append((offset, file.read(SAMPLE_BYTES)))
    except OSError as error:
        raise input_error(path, str(error.strerror), "a readable file is needed", "check its permissions") from None
    if not head:
        raise input_error(path, "an empty file", "a file with data is needed", "check that it was written completely")
    return FileHead(path, size, head, tuple(samples), content.suffix)


def is_image(path: Path) -> bool:
    """Whether the first bytes are those of a PNG, JPEG, GIF or BMP file."""
    head = read_head(path, 16).head
    return head.startswith(MAGIC["image"]) or (head.startswith(b"BM") and head[6:10] == b"\0\0\0\0")


def data_files(path: Path) -> list[Path]:
    """The data files below a folder, about 2000 at most; hidden and empty files, licenses and readmes are skipped."""
    files: list[Path] = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if len(files) < 2000 else []
        names = sorted(name for name in names if not re.match(r"\.|readme|licen[sc]e|attribution", name, re.I))[:2000]
        files += [file for name in names if (file := Path(folder, name)).is_file() and file.stat().st_size]
    if not files:
        raise input_error(path, "a folder without data files", "files or images are needed in it", "check the path")
    return files


def aligned_files(files: list[Path]) -> list[Path]:
    """Two files with one name and language codes as suffixes, such as train.en and train.de."""
    stems: dict[str, list[Path]] = {}
    for file in files:
        if len(file.suffix) == 3 and LANGUAGE_NAME.fullmatch(file.suffix[1:]):
            stems.setdefault(file.stem, []).append(file)
    paired = sorted((stem for stem in stems if len(stems[stem]) > 1), key=lambda stem: "train" not in stem)
    return sorted(stems[paired[0]], key=lambda file: file.suffix != ".en")[:2] if paired else []


def idx_header(start: FileHead) -> tuple[tuple[int, ...], str] | None:
    """The shape and dtype of an idx file (also inside gzip), or None for other files."""
    head = start.head[:4096]
    compressed = head.startswith(b"\x1f\x8b")
    try:
        head = zlib.decompressobj(31).decompress(head, 64) if compressed else head
    except zlib.error:
        return None
    dtypes = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}  # by type code
    if len(head) < 8 or head[:2] != b"\0\0" or head[2] not in dtypes or not 1 <= head[3] <= 4:
        return None
    shape = tuple(int.from_bytes(head[4 + 4 * k : 8 + 4 * k], "big") for k in range(head[3]))
    n_bytes = 4 + 4 * len(shape) + int(dtypes[head[2]][2]) * math.prod(shape)
    if not compressed and n_bytes != start.size:
        problem = f"an idx file of shape {shape} with {start.size} bytes"
        raise input_error(start.path, problem, f"{n_bytes} bytes are needed", "fetch it again")
    return shape, dtypes[head[2]]


def zip_names(start: FileHead) -> list[str]:
    """The names in a zip file from its directory; nothing is unpacked."""
    end = (start.samples[-1][1] if start.samples else start.head).rpartition(b"PK\5\6")[2]
    try:
        if int.from_bytes(end[8:12], "little") > HEAD_BYTES:
            raise zipfile.BadZipFile("too many files")
        with zipfile.ZipFile(start.path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):
        problem = "an incomplete zip archive, or one with too many files"
        raise input_error(start.path, problem, "a complete .npz is accepted", "write or fetch it again") from None


def refuse_binary(start: FileHead) -> None:
    """Raise for a file that is not text, with its format and a fix."""
    path, head = start.path, start.head
    has_nul = b"\0" in head[:4096]
    if path.suffix.lower() in TABLES["pickle_suffixes"] or (head[0] == 0x80 and 2 <= head[min(1, len(head) - 1)] <= 5):
        raise input_error(path, PICKLE, ACCEPTED, "export its text to a file")
    for name, first in MAGIC.items():
        if any(head.startswith(magic) and (has_nul or not magic.isalnum()) for magic in first):
            refused = TABLES["refused"][name]
            raise input_error(path, refused["what"], ACCEPTED, refused["fix"].format(name=shlex.quote(str(path))))
    if encoding := _wide_encoding(head):
        raise input_error(path, f"{encoding.upper()} text", "harken reads UTF-8", _convert_command(path, encoding))
    if has_nul and head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < start.size:
        raise input_error(path, "model weights (safetensors)", ACCEPTED, GIVE)
    if error := _binary_error(path, head):
        raise error


def _binary_error(path: Path, head: bytes) -> BadInput | None:
    """The error for a file with bytes that no text has, or None."""
    n_control = sum(byte < 32 and byte not in b"\t\n\r\f\b\x1b" for byte in head[:4096])
    line = f":{head[: head.index(0)].count(10) + 1}" if b"\0" in head else ""
    is_binary = line or n_control * 20 > len(head[:4096])
    return input_error(f"{path}{line}", "a binary file", ACCEPTED, GIVE) if is_binary else None


def _wide_encoding(head: bytes) -> str:
    """UTF-16 or UTF-32 by the byte order mark or the pattern of NUL bytes; empty for other text."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    columns = [head[k:4096:4] for k in range(4)]
    nuls = "".join(".0"[column.count(0) > 0.6 * len(column)] for column in columns)
    return {".000": "utf-32le", "000.": "utf-32be", ".0.0": "utf-16le", "0.0.": "utf-16be"}.get(nuls, "")


def _convert_command(path: Path, encoding: str) -> str:
    new = path.with_name(f"{path.stem}.utf8{path.suffix}")
    command = f"iconv -f {encoding} -t utf-8 {shlex.quote(str(path))} > {shlex.quote(str(new))}"
    return f"set data.encoding={encoding}{CONVERSION}{command}"


@dataclass(frozen=True)
class TextPreview:
    """The text of a file's start with normalized newlines; `later` holds complete lines from the samples."""

    path: Path
    suffix: str
    size_ratio: float  # size of the file / size of the preview; 1.0 if the preview is complete
    text: str
    lines: list[str]
    later: tuple[str, ...]


def preview_text(start: FileHead) -> TextPreview:
    """The start of a file as text; an error with the first byte that is not UTF-8."""
    refuse_binary(start)
    parts = []
    for offset, raw in ((0, start.head), *start.samples):
        skip = 0
        while offset and skip < min(3, len(raw)) and 0x80 <= raw[skip] < 0xC0:
            skip += 1  # a sample may start inside a character
        final = offset + len(raw) >= start.size
        try:
            part = codecs.getincrementaldecoder("utf-8")().decode(raw[skip:], final)
        except UnicodeDecodeError as error:
            raise not_utf8_error(start.path, offset + skip + error.start) from None
        parts.append(part.replace("\r\n", "\n"))
    if not any(part.strip("\ufeff \t\n\f\v\u00a0") for part in parts):
        raise input_error(start.path, "only white space", "a file with data is needed", "check how it was written")
    text, suffix = parts[0].removeprefix("\ufeff"), start.suffix or start.path.suffix.lower()
    lines = text.split("\n")
    if len(lines) > 1 and (start.size > HEAD_BYTES or not lines[-1]):
        lines.pop()  # truncated, or empty after the last newline
    later = tuple(part.partition("\n")[2].rpartition("\n")[0] for part in parts[1:])
    return TextPreview(start.path, suffix, max(1.0, start.size / HEAD_BYTES), text, lines, later)


def without_conversion(error: BadInput) -> BadInput:
    """The error of a file in a folder of data, in which a converted copy would be read too."""
    message, conversion, _ = str(error).partition(CONVERSION)
    return BadInput(message) if conversion else error


def not_utf8_error(path: Path, offset: int) -> BadInput:
    """The error for the byte at this offset, with its line and its column in characters."""
    line, before, remaining, head = 1, b"", offset, read_head(path, 1 << 16).head
    if not (wide := _wide_encoding(head)) and (error := _binary_error(path, head)):
        return error
    newline = b"\n" if b"\n" in head else b"\r"
    with text_file(path, plain=True).path.open("rb") as file:
        while 0 < remaining <= MAX_COUNTED_OFFSET and (block := file.read(min(HEAD_BYTES, remaining))):
            remaining -= len(block)
            line += block.count(newline)
            before = block.rpartition(newline)[2] if newline in block else (before + block)[-HEAD_BYTES:]
        file.seek(offset)
        byte = file.read(1)[0]
    column = len(before.decode("utf-8-sig", "replace")) + 1
    counted = offset <= MAX_COUNTED_OFFSET
    place, where = (f"{path}:{line}", f"column {column}") if counted else (path, f"offset {offset}")
    encoding, name = (wide, wide.upper()) if wide else ("cp1252", "Windows-1252")  # a superset of Latin-1
    problem = f"byte 0x{byte:02x} at {where} is not UTF-8 (probably {name})"
    return input_error(place, problem, "harken reads UTF-8", _convert_command(path, encoding))


def read_utf8(path: Path, encoding: str | None = None) -> str:
    """The whole text of a file."""
    return decode_utf8(text_file(path, encoding, plain=True).path.read_bytes(), path)


def decode_utf8(raw: bytes, path: Path) -> str:
    """The bytes of a file as text; a UTF-8 error names the file and the position."""
    try:
        return raw.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise not_utf8_error(path, error.start) from None


@dataclass(frozen=True)
class TablePreview:
    """Rows with the same number of cells, without the header."""

    header: list[str]  # empty if there is none
    rows: list[list[str]]
    delimiter: str = ""
    quoted: bool = False
    agreement: float = 1.0  # fraction of the file's rows with this width
    is_regular: bool = True  # at least two rows, nearly all of this width
    bad_quotes: int = 0  # rows with an unclosed quote
    skip: int = 0  # lines before the table: blank, sep=; or a comment


def padded(row: list[str], width: int) -> list[str]:
    """The cells of a row of a sheet below the first ones, with the empty ones at its end; nothing of a blank row."""
    return row and (row + [""] * (width - len(row)))[:width]


def preview_json_lines(text: TextPreview) -> TablePreview:
    """The table of a file with one JSON object per line."""
    objects: list[dict[str, Any]] = []
    keys: dict[str, Any] = {}
    for number, line in enumerate(text.lines, 1):
        if line.strip() and len(objects) * (len(keys) + 10) < MAX_CELLS:
            place = f"{text.path}:{number}"
            value = parse_json(place, line)
            if not isinstance(value, dict) or len(keys := keys | value) > MAX_COLUMNS:
                problem = f"not a JSON object of at most {MAX_COLUMNS} keys"
                accepted = 'lines such as {"text": "...", "label": "..."} are accepted'
                raise input_error(place, problem, accepted, "fix the line")
            objects.append(value)
    cells = [[row.get(key, "") for key in keys] for row in objects]
    rows = [[str(cell) if isinstance(cell, (str, bool)) else "" for cell in row] for row in cells]
    return TablePreview(list(keys), rows)


@dataclass(frozen=True)
class ColumnStats:
    """Statistics of a column. Fractions and means are over the cells that are not empty."""

    index: int
    ref: int | str  # name, or number from 1
    name: str
    n_filled: int
    filled_fraction: float  # of all cells
    n_values: int  # distinct
    number_fraction: float
    has_decimals: bool
    text_fraction: float
    mean_words: float
    is_identifier: bool  # identifies or credits the row: neither text nor label

    def __str__(self) -> str:
        return f"column {self.ref!r}"


def column_stats(table: TablePreview) -> list[ColumnStats]:
    """Statistics of each column; an empty or duplicate header name is replaced by the number."""
    columns = []
    for index, column in enumerate(zip(*table.rows, strict=True)):
        title = table.header[index].strip() if table.header else ""
        ref = table.header[index] if title and table.header.count(table.header[index]) == 1 else index + 1
        cells = [cell for cell in column if cell.strip()]
        sample = [cell.strip()[:200] for cell in cells[:1000]] or [""]
        present = [cell for cell in sample if not is_missing(cell)] or sample
        numbers = sum(bool(NUMBER.fullmatch(cell)) for cell in present) / len(present)
        decimals = any(map(DECIMAL.fullmatch, present))
        texts = sum(any(map(str.isalpha, cell)) and not CODE.fullmatch(cell) for cell in sample) / len(sample)
        words = sum(len(cell.split()) for cell in sample) / len(sample)
        is_identifier = bool(ID_NAME.search(normalize_name(title)) or all(map(CREDIT.match, sample)))
        counts = len(cells), len(cells) / len(column), len({*map(str.strip, set(cells))})
        columns.append(
            ColumnStats(index, ref, normalize_name(title), *counts, numbers, decimals, texts, words, is_identifier)
        )
    return columns


def normalize_name(title: str) -> str:
    """A header name in lowercase without counters and marks: 'Sentence1' and '#1 Sentence' are both 'sentence'."""
    return unicodedata.normalize("NFC", title).lower().strip(" #_0123456789")
