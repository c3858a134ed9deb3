"""A first, bounded look at a file: its bytes, its text, its rows. Nothing is unpickled, unpacked or read whole."""

import codecs
import csv
import errno
import io
import math
import os
import shlex
import stat
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from harken.errors import BadInput, did_you_mean

HEAD = 1 << 20  # bytes read from the start of a file
SAMPLE = 1 << 16  # bytes read at each of four later places
FAR = 1 << 28  # a bad byte beyond this is told by its offset: counting lines up to it would take too long
CELLS = 200_000  # cells split per table, so that memory stays small whatever the file

PICTURE = "give a folder of pictures, one subfolder for each label"
UNPACK = "unpack it first"
PLAIN = "save it as plain UTF-8 text"
ROWS = "write it out as CSV"
PICKLES = {".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".joblib"}
# where, the first bytes, what that is, the way out. Magic made of letters alone counts only beside a NUL byte.
MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "one PNG picture", PICTURE),
    (0, b"\xff\xd8\xff", "one JPEG picture", PICTURE),
    (0, b"GIF87a", "one GIF picture", PICTURE),
    (0, b"GIF89a", "one GIF picture", PICTURE),
    (0, b"BM", "one BMP picture", PICTURE),
    (0, b"PK\x03\x04", "a zip archive", UNPACK),
    (0, b"PK\x05\x06", "an empty zip archive", UNPACK),
    (0, b"\x1f\x8b", "a gzip file", "unpack it first: gunzip -k {name}"),
    (0, b"BZh", "a bzip2 file", UNPACK),
    (0, b"\xfd7zXZ\x00", "an xz file", UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file", UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (0, b"Rar!\x1a", "a rar archive", UNPACK),
    (257, b"ustar", "a tar archive", UNPACK),
    (0, b"%PDF-", "a PDF", "take its text out: pdftotext {name}"),
    (0, b"{\\rtf", "a Rich Text document", PLAIN),
    (0, b"\xd0\xcf\x11\xe0", "an old Office document", PLAIN),
    (0, b"SQLite format 3\x00", "an SQLite database", ROWS),
    (0, b"PAR1", "a Parquet file", ROWS),
    (0, b"ARROW1", "an Arrow file", ROWS),
    (0, b"\x89HDF", "an HDF5 file", "save the arrays as .npz"),
    (0, b"\x93NUMPY", "a single NumPy array", "save x and y, or edges, together with numpy.savez"),
    (0, b"\x7fELF", "a program (ELF)", "give the data, not the program"),
    (0, b"GGUF", "model weights (GGUF)", "weights are read by harken import"),
    (0, b"RIFF", "sound or video (RIFF)", "harken does not read sound"),
    (0, b"OggS", "sound (Ogg)", "harken does not read sound"),
    (0, b"ID3", "sound (MP3)", "harken does not read sound"),
)
ACCEPTED = "plain UTF-8 text, tables, SQuAD JSON, .npz, idx files and folders of pictures are accepted"


def shown(text: str | Path) -> str:
    """Text that is safe in a one-line message: control characters and undecodable bytes are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def bad(place: str | Path, given: str, accepted: str, do: str) -> BadInput:
    """The error for a file, in the house's one-line form."""
    return BadInput(shown(f"{place}: {given}; {accepted}; {do}"))


def stat_of(path: Path) -> os.stat_result:
    """What the path points at; it is asked before anything is opened, because opening a pipe would wait forever."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(path) from None
    except OSError as error:
        why = "a link that leads back to itself" if error.errno == errno.ELOOP else str(error.strerror)
        raise bad(path, why, "a readable file or folder is needed", "check the path") from None
    except ValueError:
        raise bad(path, "not a path (it holds a NUL character)", "a file or folder is needed", "retype it") from None
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        what = "a pipe" if stat.S_ISFIFO(found.st_mode) else "a socket or a device"
        raise bad(path, what, "a file or a folder is accepted", "save the data to a file, or pipe it in and give -")
    return found


def _missing(path: Path) -> BadInput:
    if path.is_symlink():
        return bad(path, f"a link to {os.readlink(path)}, which does not exist", "a file is needed", "mend the link")
    folder = path.parent
    if not folder.is_dir():
        return bad(path, f"no such file, and {folder} is no folder", "a file or folder is needed", "check the path")
    try:
        with os.scandir(folder) as entries:
            near = did_you_mean(path.name, [entry.name for entry in islice(entries, 1000)])
    except OSError:
        near = ""
    return bad(path, "no such file or folder", "a file or folder is needed", f"check the name.{near}")


@dataclass(frozen=True)
class Start:
    """The first bytes of a file, and a few from later on as (offset, bytes)."""

    path: Path
    size: int
    head: bytes
    samples: tuple[tuple[int, bytes], ...]


def start_of(path: Path, head: int = HEAD) -> Start:
    """The first bytes of a regular file and four samples of the rest, the last of them at its end."""
    size = stat_of(path).st_size
    samples: list[tuple[int, bytes]] = []
    try:
        with path.open("rb") as file:
            first = file.read(head)
            if size > head == HEAD:
                for offset in sorted({max(HEAD, HEAD + (size - HEAD - SAMPLE) * k // 4) for k in range(1, 5)}):
                    file.seek(offset)
                    samples.append((offset, file.read(SAMPLE)))
    except OSError as error:
        raise bad(path, str(error.strerror), "a readable file is needed", "check its permissions") from None
    if not first:
        raise bad(path, "an empty file", "a file with data is needed", "check that it was written to the end")
    return Start(path, size, first, tuple(samples))


def picture(head: bytes) -> bool:
    """Whether these are the first bytes of a PNG, JPEG, GIF or BMP file."""
    if head.startswith(b"BM"):
        return head[6:10] == b"\0\0\0\0"
    return head.startswith(tuple(magic for _, magic, _, way in MAGIC if way == PICTURE))


def idx_shape(start: Start) -> tuple[int, ...] | None:
    """The shape an idx file announces (also inside gzip), or None if it is not one."""
    head = start.head[:4096]
    packed = head.startswith(b"\x1f\x8b")
    if packed:
        try:
            head = zlib.decompressobj(31).decompress(head, 64)
        except zlib.error:
            return None
    widths = {8: 1, 9: 1, 11: 2, 12: 4, 13: 4, 14: 8}  # bytes per number, by idx type code
    if len(head) < 8 or head[:2] != b"\0\0" or head[2] not in widths or not 1 <= head[3] <= 4:
        return None
    shape = tuple(int.from_bytes(head[4 + 4 * k : 8 + 4 * k], "big") for k in range(head[3]))
    need = 4 + 4 * len(shape) + widths[head[2]] * math.prod(shape)
    if not packed and need != start.size:
        given = f"an idx file of shape {shape} needs {need} bytes and has {start.size}"
        raise bad(start.path, given, "a whole file is needed", "fetch it again")
    return shape


def zip_names(start: Start) -> list[str]:
    """The names in a zip file, from its listing alone; nothing is unpacked."""
    end = (start.samples[-1][1] if start.samples else start.head).rpartition(b"PK\5\6")[2]
    if int.from_bytes(end[8:12], "little") > HEAD:
        raise bad(start.path, "a zip archive of very many files", ACCEPTED, UNPACK)
    try:
        with zipfile.ZipFile(start.path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):
        raise bad(start.path, "a damaged zip archive", "a whole .npz is accepted", "write or fetch it again") from None


def refuse_binary(start: Start) -> None:
    """Name a file that is not text, and say the way out."""
    path, head = start.path, start.head
    name = shlex.quote(str(path))
    nul = b"\0" in head[:4096]
    if path.suffix.lower() in PICKLES or (head[:1] == b"\x80" and 2 <= head[1] <= 5):
        given = "a pickle; reading a pickle can run code, so harken never does"
        raise bad(path, given, ACCEPTED, "save the data as CSV, JSONL or .npz")
    for offset, magic, what, way in MAGIC:
        if head.startswith(magic, offset) and (nul or not magic.isalnum()):
            raise bad(path, what, ACCEPTED, way.format(name=name))
    wide = _wide(head)
    if wide:
        given = f"{wide.upper()} text" + ("" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else " without a byte order mark")
        raise bad(path, given, "harken reads UTF-8", _iconv(path, wide))
    if nul and head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < start.size:
        raise bad(path, "model weights (safetensors)", ACCEPTED, "weights are read by harken import")
    controls = sum(byte < 32 and byte not in b"\t\n\r\f\b\x1b" for byte in head[:4096])
    if nul or controls * 20 > len(head[:4096]):
        raise bad(path, "a binary file that is not known here", ACCEPTED, PLAIN)


def _wide(head: bytes) -> str:
    """The wide encoding that the byte order mark or the pattern of NUL bytes tells of, or nothing."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    part = head[: len(head[:4096]) // 4 * 4]
    zeros = [part[k::4].count(0) * 4 / max(len(part), 1) for k in range(4)]  # share of NULs at each place in four
    for wide, full in {"utf-32le": (1, 2, 3), "utf-32be": (0, 1, 2), "utf-16le": (1, 3), "utf-16be": (0, 2)}.items():
        if all((zeros[k] > 0.6) == (k in full) for k in range(4)):
            return wide
    return ""


def _iconv(path: Path, encoding: str) -> str:
    new = path.with_name(f"{path.stem}.utf8{path.suffix}")
    return f"convert it: iconv -f {encoding} -t utf-8 {shlex.quote(str(path))} > {shlex.quote(str(new))}"


@dataclass(frozen=True)
class Text:
    """The text of a file's start, newlines made equal; `more` holds whole lines from later on."""

    path: Path
    size: int
    text: str
    lines: list[str]
    more: tuple[str, ...]
    encoding: str

    @property
    def whole(self) -> bool:
        """Whether this is all of the file."""
        return self.size <= HEAD

    @property
    def suffix(self) -> str:
        """The end of the name, in small letters."""
        return self.path.suffix.lower()


def text_of(start: Start) -> Text:
    """The start of a file as text, or a line that names the first byte that is not UTF-8."""
    refuse_binary(start)
    parts = []
    for offset, data in ((0, start.head), *start.samples):
        skip = 0
        while offset and skip < 3 and data[skip : skip + 1] and 0x80 <= data[skip] < 0xC0:
            skip += 1  # a sample may begin inside a character
        last = offset + len(data) >= start.size
        try:
            part = codecs.getincrementaldecoder("utf-8")().decode(data[skip:], last)
        except UnicodeDecodeError as error:
            raise _not_utf8(start, offset + skip + error.start, data[skip + error.start]) from None
        parts.append(part.replace("\r\n", "\n").replace("\r", "\n"))
    bom = parts[0].startswith("\ufeff")
    text = parts[0].removeprefix("\ufeff")
    if not text.strip() and not any(part.strip() for part in parts[1:]):
        raise bad(start.path, "nothing but white space", "a file with data is needed", "check how it was written")
    lines = text.split("\n")
    if len(lines) > 1 and (start.size > len(start.head) or not lines[-1]):
        lines.pop()  # cut in the middle by the bound, or the nothing after the last newline
    more = tuple(part.partition("\n")[2].rpartition("\n")[0] for part in parts[1:])
    return Text(start.path, start.size, text, lines, more, "utf-8-sig" if bom else "utf-8")


def _not_utf8(start: Start, offset: int, byte: int) -> BadInput:
    line, begin, seen = 1, 0, 0
    with start.path.open("rb") as file:
        newline = b"\n" if b"\n" in start.head else b"\r"
        while seen < offset <= FAR:
            block = file.read(min(HEAD, offset - seen))
            if not block:
                break
            line += block.count(newline)
            begin = seen + block.rfind(newline) + 1 if newline in block else begin
            seen += len(block)
        file.seek(max(begin, offset - HEAD))
        column = len(file.read(min(HEAD, offset - begin)).decode("utf-8-sig", "replace")) + 1
    place = f"{start.path}:{line}" if offset <= FAR else str(start.path)
    where = f"column {column}" if offset <= FAR else f"offset {offset}"
    high = sum(b > 127 for b in start.head[:65536]) > 0.4 * sum(b > 64 for b in start.head[:65536])
    looks, name = ("Windows-1252", "cp1252") if byte < 0xA0 else ("Latin-1", "latin1")
    if high:
        looks, name = "a national encoding such as Windows-1251 or Shift-JIS", "ENCODING"
    given = f"byte 0x{byte:02x} at {where} is not UTF-8 (it looks like {looks})"
    return bad(place, given, "harken reads UTF-8", _iconv(start.path, name))


@dataclass(frozen=True)
class Table:
    """Rows of equally many cells; `agree` is the share of the file's rows that have this width."""

    delimiter: str
    quoted: bool
    rows: list[list[str]]
    agree: float
    first: bool  # whether the first row of the file is among them


def split_rows(text: str, delimiter: str, *, quoted: bool) -> list[list[str]]:
    """Rows of cells. `quoted`: Excel's rule, where a cell in double quotes may hold delimiters and newlines."""
    if not quoted:
        every = (line.split(delimiter) for line in io.StringIO(text, newline="\n").read().split("\n"))
    limit = csv.field_size_limit(max(HEAD, csv.field_size_limit()))
