"""A first, bounded look at a file: its bytes, text, rows and columns, for sniff.py to judge. Nothing is read whole."""

import codecs
import csv
import io
import json
import math
import os
import re
import shlex
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harken.errors import BadInput, near_name

HEAD = 1 << 20  # bytes read from the start of a file
SAMPLE = 1 << 16  # bytes read at each of four later places
FAR = 1 << 28  # a bad byte beyond this is told by its offset: counting the lines before it would take too long
CELLS = 200_000  # cells split per table, so that memory stays small whatever the file
WIDEST = 1000  # columns

ACCEPTED, GIVE = "harken reads UTF-8 text", "give a file of text"
PICKLE = "a pickle, which is refused because reading a pickle can run code"
PICKLES = {".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".joblib"}
PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")
ARCHIVES = (b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf", b"Rar!\x1a", b"PK\5\6")
# first bytes, what they mean, the way out; magic made of letters alone counts only beside a NUL byte
MAGIC: tuple[tuple[bytes, str, str], ...] = (
    *((magic, "one picture", "give a folder of pictures, or a text") for magic in PICTURES),
    *((magic, "a packed archive", "unpack it first") for magic in ARCHIVES),
    (b"\x1f\x8b", "a gzip file", "unpack it first: gunzip -k {name}"),
    (b"%PDF-", "a PDF", "take its text out: pdftotext {name}"),
    (b"SQLite format 3\0", "an SQLite database", "write its text out into a file"),
    (b"PAR1", "a Parquet file", "write its text out into a file"),
    (b"\x93NUMPY", "a single NumPy array", GIVE),
    (b"\x7fELF", "a program (ELF)", "give the data, not the program"),
    (b"GGUF", "model weights (GGUF)", GIVE),
)

# names in a header
LANGUAGE = re.compile(
    "ar|bg|ca|cs|da|de|el|en|es|et|fa|fi|fr|he|hi|hr|hu|it|ja|ko|lt|lv|nl|no|pl|pt|ro|ru|sk|sl|sr|sv|tr|uk|vi|zh|arabic|"
    "chinese|czech|dutch|english|french|german|greek|hindi|italian|japanese|korean|polish|portuguese|russian|spanish"
)
SOURCE, TARGET = re.compile("source|src"), re.compile("target|tgt|trg")
LABEL = re.compile("(gold_)?labels?|class|category|sentiment|target|y|score|rating|stars|quality|intent|topic")
TEXT = re.compile(
    "text|sentence|review|content|message|title|body|question|answer|premise|hypothesis|string|input|output|prompt|"
    "response|completion|summary|document|article|instruction|description|comment|tweet|caption"
)
IDENTITY = re.compile(r"(^|[\W_])(id|idx|index|uuid|guid|url|date|time|timestamp|licen[sc]e|attribution)$")
NUMBER = re.compile(r"[+-]?(\d[\d.,']*|[.,]\d+)(e[+-]?\d+)?%?", re.I)
CODE = re.compile(r"(?=\D*\d)[\w./:-]+", re.ASCII)
CREDIT = re.compile(r"https?://|cc[- ]by|cc0|©", re.I)


def bad(place: str | Path, given: str, accepted: str, do: str) -> BadInput:
    """The error for a file, in one line: control characters and undecodable bytes are escaped."""
    line = f"{place}: {given}; {accepted}; {do}"
    return BadInput("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line))


def is_folder(path: Path) -> bool:
    """Whether this is a folder, not a file. Asked before opening, because opening a pipe would wait forever."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(path) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise bad(path, why, "a readable file or folder is needed", "check the path") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        what = "a pipe" if stat.S_ISFIFO(mode) else "a socket or a device"
        raise bad(path, what, "a file or a folder is accepted", "save the data to a file, or pipe it in and give -")
    return stat.S_ISDIR(mode)


def _missing(path: Path) -> BadInput:
    if path.is_symlink():
        return bad(path, f"a link to {os.readlink(path)}, which does not exist", "a file is needed", "mend the link")
    return bad(path, "no such file or folder", "a file or folder is needed", f"check the name{near_name(path)}")


@dataclass(frozen=True)
class Start:
    """The first bytes of a file, and a few from later on as (offset, bytes)."""

    path: Path
    size: int
    head: bytes
    samples: tuple[tuple[int, bytes], ...]


def start_of(path: Path, length: int = HEAD) -> Start:
    """The first bytes of a file and, unless fewer are asked for, four samples of the rest, the last at its end."""
    samples = []
    try:
        size = os.stat(path).st_size
        with path.open("rb") as file:
            head = file.read(length)
            for k in range(1, 5) if size > length == HEAD else ():
                offset = file.seek(max(HEAD, HEAD + (size - HEAD - SAMPLE) * k // 4))
                samples.append((offset, file.read(SAMPLE)))
    except OSError as error:
        raise bad(path, str(error.strerror), "a readable file is needed", "check its permissions") from None
    if not head:
        raise bad(path, "an empty file", "a file with data is needed", "check that it was written to the end")
    return Start(path, size, head, tuple(samples))


def picture(path: Path) -> bool:
    """Whether the first bytes are those of a PNG, JPEG, GIF or BMP file."""
    head = start_of(path, 16).head
    return head.startswith(PICTURES) or (head.startswith(b"BM") and head[6:10] == b"\0\0\0\0")


def files_of(path: Path) -> list[Path]:
    """The files below a folder that may be data, about 2000 at most: not hidden, not empty, no licence or read-me."""
    files: list[Path] = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if len(files) < 2000 else []
        names = sorted(name for name in names if not re.match(r"\.|readme|licen[sc]e|attribution", name, re.I))[:2000]
        files += [file for name in names if (file := Path(folder, name)).is_file() and file.stat().st_size]
    if not files:
        raise bad(path, "a folder without data files", "files or pictures are needed in it", "check the path")
    return files


def idx_shape(start: Start) -> tuple[int, ...] | None:
    """The shape an idx file announces (also inside gzip), or None if it is not one."""
    head = start.head[:4096]
    packed = head.startswith(b"\x1f\x8b")
    try:
        head = zlib.decompressobj(31).decompress(head, 64) if packed else head
    except zlib.error:
        return None
    widths = {8: 1, 9: 1, 11: 2, 12: 4, 13: 4, 14: 8}  # bytes per number, by idx type code
    if len(head) < 8 or head[:2] != b"\0\0" or head[2] not in widths or not 1 <= head[3] <= 4:
        return None
    shape = tuple(int.from_bytes(head[4 + 4 * k : 8 + 4 * k], "big") for k in range(head[3]))
    need = 4 + 4 * len(shape) + widths[head[2]] * math.prod(shape)
    if not packed and need != start.size:
        given = f"an idx file of shape {shape}, {start.size} bytes long"
        raise bad(start.path, given, f"{need} bytes are needed", "fetch it again")
    return shape


def zip_names(start: Start) -> list[str]:
    """The names in a zip file, from its listing alone; nothing is unpacked."""
    end = (start.samples[-1][1] if start.samples else start.head).rpartition(b"PK\5\6")[2]
    try:
        if int.from_bytes(end[8:12], "little") > HEAD:
            raise zipfile.BadZipFile("very many files")
        with zipfile.ZipFile(start.path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):
        given = "not a whole zip archive, or one of very many files"
        raise bad(start.path, given, "a whole .npz is accepted", "write or fetch it again") from None


def refuse_binary(start: Start) -> None:
    """Name a file that is not text, and say the way out."""
    path, head = start.path, start.head
    nul = b"\0" in head[:4096]
    if path.suffix.lower() in PICKLES or (head[0] == 0x80 and 2 <= head[min(1, len(head) - 1)] <= 5):
        raise bad(path, PICKLE, ACCEPTED, "write its text out into a file")
    for magic, what, way in MAGIC:
        if head.startswith(magic) and (nul or not magic.isalnum()):
            raise bad(path, what, ACCEPTED, way.format(name=shlex.quote(str(path))))
    if wide := _wide(head):
        raise bad(path, f"{wide.upper()} text", "harken reads UTF-8", _iconv(path, wide))
    if nul and head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < start.size:
        raise bad(path, "model weights (safetensors)", ACCEPTED, GIVE)
    if error := _binary(path, head):
        raise error


def _binary(path: Path, head: bytes) -> BadInput | None:
    """The error for a file with bytes that no text has, or None."""
    controls = sum(byte < 32 and byte not in b"\t\n\r\f\b\x1b" for byte in head[:4096])
    line = f":{head[: head.index(0)].count(10) + 1}" if b"\0" in head else ""
    return bad(f"{path}{line}", "a binary file", ACCEPTED, GIVE) if line or controls * 20 > len(head[:4096]) else None


def _wide(head: bytes) -> str:
    """The wide encoding that the byte order mark or the pattern of NUL bytes tells of, or nothing."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    places = [head[k:4096:4] for k in range(4)]
    nuls = "".join(".0"[place.count(0) > 0.6 * len(place)] for place in places)
    return {".000": "utf-32le", "000.": "utf-32be", ".0.0": "utf-16le", "0.0.": "utf-16be"}.get(nuls, "")


def _iconv(path: Path, encoding: str) -> str:
    new = path.with_name(f"{path.stem}.utf8{path.suffix}")
    return f"convert it: iconv -f {encoding} -t utf-8 {shlex.quote(str(path))} > {shlex.quote(str(new))}"


@dataclass(frozen=True)
class Text:
    """The text of a file's start with all newlines alike; `more` holds whole lines from later on."""

    path: Path
    suffix: str
    grow: float  # how many times as long the whole file is; 1.0 when all of it is here
    text: str
    lines: list[str]
    more: tuple[str, ...]


def text_of(start: Start) -> Text:
    """The start of a file as text, or a line that names the first byte that is not UTF-8."""
    refuse_binary(start)
    parts = []
    for offset, data in ((0, start.head), *start.samples):
        skip = 0
        while offset and skip < min(3, len(data)) and 0x80 <= data[skip] < 0xC0:
            skip += 1  # a sample may begin inside a character
        ends = offset + len(data) >= start.size
        try:
            part = codecs.getincrementaldecoder("utf-8")().decode(data[skip:], ends)
        except UnicodeDecodeError as error:
            raise not_utf8(start.path, offset + skip + error.start) from None
        parts.append(part.replace("\r\n", "\n").replace("\r", "\n"))
    if not any(part.strip("\ufeff \t\n\f\v\u00a0") for part in parts):
        raise bad(start.path, "nothing but white space", "a file with data is needed", "check how it was written")
    text = parts[0].removeprefix("\ufeff")
    lines = text.split("\n")
    if len(lines) > 1 and (start.size > HEAD or not lines[-1]):
        lines.pop()  # cut in two by the bound, or the nothing behind the last newline
    more = tuple(part.partition("\n")[2].rpartition("\n")[0] for part in parts[1:])
    return Text(start.path, start.path.suffix.lower(), max(1.0, start.size / HEAD), text, lines, more)


def not_utf8(path: Path, offset: int) -> BadInput:
    """The error for the byte at this offset, with its line and its column in characters."""
    line, before, left, head = 1, b"", offset, start_of(path, 1 << 16).head
    if not (wide := _wide(head)) and (error := _binary(path, head)):
        return error
    newline = b"\n" if b"\n" in head else b"\r"
    with path.open("rb") as file:
        while 0 < left <= FAR and (block := file.read(min(HEAD, left))):
            left -= len(block)
            line += block.count(newline)
            before = block.rpartition(newline)[2] if newline in block else (before + block)[-HEAD:]
        file.seek(offset)
        byte = file.read(1)[0]
    column = len(before.decode("utf-8-sig", "replace")) + 1
    place, where = (f"{path}:{line}", f"column {column}") if offset <= FAR else (path, f"offset {offset}")
    encoding = wide or ("cp1252" if byte < 0xA0 else "latin1")
    looks = {"cp1252": "Windows-1252", "latin1": "Latin-1"}.get(encoding, encoding.upper())
    given = f"byte 0x{byte:02x} at {where} is not UTF-8 (it looks like {looks})"
    return bad(place, given, "harken reads UTF-8", _iconv(path, encoding))


@dataclass(frozen=True)
class Table:
    """Rows of equally many cells, without the header."""

    header: list[str]  # empty if there is none
    rows: list[list[str]]
    delimiter: str = ""
    quoted: bool = False
    agree: float = 1.0  # the share of the file's rows that have this width
    steady: bool = True  # nearly all have, and there are two rows at least


def split_rows(text: str, delimiter: str, *, quoted: bool) -> list[list[str]]:
    """Rows of cells. `quoted`: Excel's rule, where a cell in double quotes may hold delimiters and newlines."""
    source: Iterable[list[str]] = (line.split(delimiter) for line in text.split("\n"))
    if quoted:
        source = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    rows, cells = [], 0
    limit = csv.field_size_limit(2 * HEAD)  # a cell may be as long as all that was read
    try:
        for row in source:
            rows.append(row)
            cells += len(row) + 1
            if cells > CELLS and len(rows) > 2:
                break
    finally:
        csv.field_size_limit(limit)
    return rows


def table_of(text: Text) -> Table | None:
    """The best reading of the text as rows of cells, steady or not; tab is tried first, comma last."""
    best = None
    for delimiter in "\t;|,":
        if delimiter in text.text and not (best and best.steady):
            ways = [_cut(text, delimiter, quoted=quoted) for quoted in {False, '"' in text.text}]
            table = max(ways, key=lambda way: (way.steady, len(way.rows), way.quoted))
            best = table if best is None or (table.steady, table.agree) > (best.steady, best.agree) else best
    return best


def _cut(text: Text, delimiter: str, *, quoted: bool) -> Table:
    rows = split_rows(text.text.rstrip("\n"), delimiter, quoted=quoted)
    if text.grow > 1 and len(rows) > 1:
        rows.pop()
    width, count = Counter(len(row) if any(row) else 1 for row in rows).most_common(1)[0]
    swallowed = quoted and len(rows) * 50 < min(len(text.lines), CELLS)  # one lone quote took in the rest
    agree = 0.0 if width < 2 or swallowed else count / len(rows)
    kept = [row for row in rows if len(row) == width and any(row)]
    for part in text.more if agree else ():
        later = split_rows(part, delimiter, quoted=quoted)
        fit = [row for row in later if len(row) == width and any(row)]
        kept += fit if len(fit) >= 0.95 * len(later) else []  # a sample may begin inside a quoted cell
    header = kept.pop(0) if len(kept) > 1 and kept[0] == rows[0] and _is_header(kept[0], kept[1:1001]) else []
    return Table(header, kept, delimiter, quoted, agree, agree >= 0.95 and len(rows) > 1)


def _is_header(first: list[str], rows: list[list[str]]) -> bool:
    """Whether the first row holds names: short, no numbers, not values of their columns, and one of them telling."""
    if any(len(cell) > 60 or NUMBER.fullmatch(cell) for cell in first) or not all(first[1:]):
        return False
    names = [plain(cell) for cell in first]
    telling = sum(bool(LANGUAGE.fullmatch(name)) for name in names) > 1  # one alone may be a word: no, it
    telling |= any(form.fullmatch(name) for form in (SOURCE, TARGET, LABEL, TEXT, IDENTITY) for name in names)
    for cell, column in zip(first, zip(*rows, strict=True), strict=True):
        few = len(set(column)) * 5 <= len(column)
        if few and cell in column:
            return False
        telling = telling or (few and len(set(column)) > 1) or all(NUMBER.fullmatch(other[:100]) for other in column)
    return telling


def parsed(place: str | Path, text: str) -> Any:
    """A JSON value; numbers stay as they are written, so that none is too large."""
    try:
        return json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except RecursionError:
        raise bad(place, "JSON nested too deeply", "a flat object is accepted", "flatten it") from None
    except ValueError as error:
        where = re.sub(r" \(char \d+\)$", "", str(error))
        raise bad(place, f"not JSON ({where})", "whole JSON, 1 MiB a line at most, is needed", "mend it") from None


def objects_of(text: Text) -> Table:
    """The table in a file with one JSON object per line."""
    objects: list[dict[str, Any]] = []
    keys: dict[str, Any] = {}
    for number, line in enumerate(text.lines, 1):
        if line.strip() and len(objects) * (len(keys) + 10) < CELLS:
            place = f"{text.path}:{number}"
            objects.append(parsed(place, line))
            if not isinstance(objects[-1], dict) or len(keys := keys | objects[-1]) > WIDEST:
                given = f"not a JSON object of at most {WIDEST} keys"
                raise bad(place, given, 'lines such as {"text": "...", "label": "..."} are accepted', "mend the line")
    cells = [[row.get(key, "") for key in keys] for row in objects]
    return Table(list(keys), [[str(cell) if isinstance(cell, (str, bool)) else "" for cell in row] for row in cells])


@dataclass(frozen=True)
class Column:
    """One column: how it is told (by name, or by number from 1), and what its cells are like. Shares are 0 to 1."""

    index: int
    place: int | str
    name: str
    rows: int  # cells that are not empty
    filled: float  # their share
    values: int  # different ones among them
    number: float
    wordy: float
    words: float  # in a cell, on average
    identity: bool  # names or credits the row: neither text nor label

    def __str__(self) -> str:
        return f"column {self.place!r}"


def columns_of(table: Table) -> list[Column]:
    """What each column is like; a header name that is empty or taken twice is replaced by the number."""
    columns = []
    for index, column in enumerate(zip(*table.rows, strict=True)):
        title = table.header[index].strip() if table.header else ""
        place = title if title and table.header.count(table.header[index]) == 1 else index + 1
        cells = [cell for cell in column if cell.strip()]
        part = [cell.strip()[:200] for cell in cells[:1000]] or [""]
        number = sum(bool(NUMBER.fullmatch(cell)) for cell in part) / len(part)
        wordy = sum(any(map(str.isalpha, cell)) and not CODE.fullmatch(cell) for cell in part) / len(part)
        words = sum(len(cell.split()) for cell in part) / len(part)
        identity = bool(IDENTITY.search(plain(title)) or all(map(CREDIT.match, part)))
        counts = len(cells), len(cells) / len(column), len(set(cells))
        columns.append(Column(index, place, plain(title), *counts, number, wordy, words, identity))
    return columns


def plain(title: str) -> str:
    """A header name without capitals, counters and marks: 'Sentence1' and '#1 Sentence' are both 'sentence'."""
    return title.lower().strip(" #_0123456789")
