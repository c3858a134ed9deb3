"""Input files as UTF-8 text: the one place where encodings, compression and other file formats are read.

UTF-8 text is read where it is. Text in another encoding, a gzip file, an Excel workbook, a Parquet file and a JSON list
are converted once, in bounded memory, to a UTF-8 file in the cache. Its line numbers are those of the text, the row
numbers of the sheet, or the row numbers of the Parquet file.
"""

import codecs
import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from harken.data.cache import cache_folder
from harken.events import Listener
from harken.files import atomic_folder, sha256_of

from .json_list import json_list_lines
from .read import NOT_UTF8, OnSkip, input_error

CACHE_FORMAT = 2  # increase when the conversion of the same file changes
CHUNK_BYTES = 1 << 20
SNIFFED_BYTES = 1 << 16  # read to recognize a format
MAX_UNPACKED = 4 << 30  # bytes of an unpacked file
EXCEL_SUFFIXES = (".xlsx", ".xlsm")
PARQUET_SUFFIXES = (".parquet", ".pq")
BINARY_TABLES = (*EXCEL_SUFFIXES, *PARQUET_SUFFIXES)  # tables that are no text
ROWS_SUFFIX = ".xlsx"  # of text whose lines are JSON lists of cells
FRAME_SUFFIX = ".rows"  # of a saved DataFrame, whose lines are JSON lists too; the first has the names of the columns
TABLE_SUFFIXES = (".csv", ".tsv", ".tab", ".psv", ROWS_SUFFIX)
JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
TEXT_SUFFIXES = (".txt", ".text", ".md", ".conll", ".conllu", ".iob", ".bio", ".mrg", *TABLE_SUFFIXES, *JSON_SUFFIXES)
BOMS = {  # UTF-32 first: its little-endian mark starts with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
ESCAPE = "surrogateescape"  # keeps invalid bytes as they are
Write = Callable[[str], object]


def check_encoding(name: str | None) -> str | None:
    """Raise ValueError unless this is None or the name of a text encoding."""
    try:
        if name is not None:
            "a".encode(name)  # a codec that is not for text, such as hex, is a LookupError too
            codecs.getincrementaldecoder(name)().decode(b"", True)
    except (LookupError, TypeError, ValueError):
        raise ValueError(f"{name!r} is no text encoding; cp1252, latin1, shift_jis or gb18030 are examples") from None
    return name


class TextFile(NamedTuple):
    """A file of UTF-8 text."""

    path: Path  # the file itself, or its conversion in the cache
    suffix: str  # of its format: .csv for news.csv.gz, .jsonl for Parquet and JSON lists
    notice: str = ""  # for the user: what was not read


def json_layout(path: Path) -> str:
    """What a file is that is read as JSON lines."""
    suffix = path.suffix.lower()
    names = {".json": "a JSON list of objects", **dict.fromkeys(PARQUET_SUFFIXES, "a Parquet table")}
    return names.get(suffix, "JSON with one object per line")


def text_file(path: Path, encoding: str | None = None, *, plain: bool = False) -> TextFile:
    """The file as UTF-8 text. `plain`: a JSON list stays a text, and tables of other formats are refused."""
    with path.open("rb") as file:
        head = file.read(SNIFFED_BYTES)
        if b"\r" in head and b"\n" not in head:
            head += file.read(CHUNK_BYTES)
    suffix, stat, key = path.suffix.lower(), path.stat(), ""
    if suffix == FRAME_SUFFIX:
        return TextFile(path, ROWS_SUFFIX)
    if suffix in EXCEL_SUFFIXES:
        suffix, key = ROWS_SUFFIX, "excel"
    elif suffix in PARQUET_SUFFIXES:
        suffix, key = ".jsonl", "parquet"
    if key and plain:
        raise input_error(path, "a table, not plain text", "a text file is needed", "write its text to a .txt file")
    if not key:
        packed = head.startswith(b"\x1f\x8b") and Path(path.stem).suffix.lower() in TEXT_SUFFIXES
        if packed:
            suffix, head = Path(path.stem).suffix.lower(), next(_unpack(path), b"")
        elif suffix == ".gz" and Path(path.stem).suffix.lower() in TEXT_SUFFIXES:  # unpacked already
            suffix = Path(path.stem).suffix.lower()
        codec = _codec(head, encoding, path.absolute(), packed, stat.st_mtime_ns, stat.st_size)
        text = head.decode(codec or "utf-8", "replace") if codec or suffix == ".json" else ""
        is_list = suffix == ".json" and not plain and text.lstrip("\ufeff \t\r\n").startswith("[")
        old_mac = not codec and b"\r" in head and not (b"\n" in head or b"\0" in head)
        if not (packed or codec or is_list or old_mac):
            return TextFile(path, suffix)
        suffix = ".jsonl" if is_list else suffix
        key = f"{'packed ' * packed}text|{codec}|{'list' * is_list}"
    arguments = (path.absolute(), key, stat.st_mtime_ns, stat.st_size)
    if not (converted := _convert(*arguments)).exists():  # the cache was deleted
        _convert.cache_clear()
        converted = _convert(*arguments)
    notice = (converted / "notice").read_text("utf-8")
    return TextFile(converted / "text", suffix, notice and f"{path}: {notice}")


def notify_unread(paths: Iterable[Path], encoding: str | None, listen: Listener) -> None:
    """Report the parts of these files that are not read, such as other sheets of a workbook."""
    for path in paths:
        if path.is_file() and (notice := text_file(path, encoding).notice):
            listen("notice", text=notice)


def iter_lines(path: Path, on_skip: OnSkip, encoding: str | None = None) -> Iterator[tuple[int, str | None]]:
    """Each line with its number; None for a line that is not UTF-8, which is reported as skipped."""
    with text_file(path, encoding).path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                on_skip(path, number, f"byte 0x{raw[error.start]:02x} {NOT_UTF8}")
                yield number, None


def read_text(path: Path, encoding: str | None = None) -> str:
    """The text of one of many small files, without a copy in the cache. UnicodeDecodeError if it is not UTF-8."""
    raw, stat = path.read_bytes(), path.stat()
    codec = _codec(raw, encoding, path.absolute(), False, stat.st_mtime_ns, stat.st_size)
    text = "".join(_decode(path, iter([raw]), codec)) if codec else raw.decode()
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


@lru_cache(64)
def _convert(path: Path, key: str, *version: int) -> Path:
    """The folder in the cache with the conversion of a file, which is identified by its content."""
    identity = f"{CACHE_FORMAT} {key} {sha256_of(path)}"
    folder = cache_folder("converted") / hashlib.sha256(identity.encode()).hexdigest()[:32]
    if folder.exists():
        return folder
    convert = {"excel": _write_excel, "parquet": _write_parquet}.get(key) or partial(_write_text, key=key)
    try:
        with atomic_folder(folder) as partial_folder:
            with (partial_folder / "text").open("w", encoding="utf-8", errors=ESCAPE, newline="") as file:
                notice = convert(path, file.write)
            (partial_folder / "notice").write_text(notice, "utf-8")
    except OSError as error:
        if not folder.exists():  # another process may have been faster
            problem = f"cannot be converted to UTF-8 text ({error.strerror or error})"
            raise input_error(path, problem, "the cache needs room for it", "free disk space") from None
    return folder


def _write_excel(path: Path, write: Write) -> str:
    from .workbook import write_excel

    return write_excel(path, write, MAX_UNPACKED)


def _write_parquet(path: Path, write: Write) -> str:
    from .workbook import write_parquet

    return write_parquet(path, write)


# --- encodings and compression ----------------------------------------------------------------------------------------


def _codec(head: bytes, encoding: str | None, *file: Any) -> str:
    """The encoding of a text by its byte order mark or the setting; empty if it is UTF-8."""
    if mark := next((mark for mark in BOMS if head.startswith(mark)), None):
        return BOMS[mark]
    is_utf8 = encoding is None or codecs.lookup(encoding).name.startswith("utf-8") or _is_utf8(*file)
    return "" if is_utf8 else str(encoding)


@lru_cache(64)
def _is_utf8(path: Path, packed: bool, *version: int) -> bool:
    """Whether this is UTF-8 beyond ASCII; some other encodings use ASCII bytes only."""
    decoder, is_ascii = codecs.getincrementaldecoder("utf-8")(), True
    try:
        for chunk in _unpack(path) if packed else _chunks(path):
            is_ascii = is_ascii and chunk.isascii()
            decoder.decode(chunk)
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        return False
    return not is_ascii


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _unpack(path: Path) -> Iterator[bytes]:
    """The content of a gzip file, at most MAX_UNPACKED bytes."""
    n_bytes = 0
    try:
        with gzip.open(path) as file:
            while chunk := file.read(CHUNK_BYTES):
                n_bytes += len(chunk)
                if n_bytes > MAX_UNPACKED:
                    accepted = f"at most {MAX_UNPACKED >> 20:,} MiB are unpacked"
                    raise input_error(path, "a larger gzip file", accepted, "unpack it yourself: gunzip -k")
                yield chunk
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        problem = f"a damaged gzip file ({error})"
        raise input_error(path, problem, "a complete file is needed", "write or fetch it again") from None


def _write_text(path: Path, write: Write, *, key: str) -> str:
    """Unpack and decode a text; a file without line feeds (old Mac) gets them, a JSON list one line per value."""
    source, codec, is_list = key.split("|")
    texts = _decode(path, _unpack(path) if source == "packed text" else _chunks(path), codec)
    for part in json_list_lines(path, texts) if is_list else _with_line_feeds(texts):
        write(part)
    return ""


def _decode(path: Path, chunks: Iterator[bytes], codec: str) -> Iterator[str]:
    """The text of the chunks without its byte order mark; BadInput with the line of an undecodable byte.

    Invalid UTF-8 is left to the readers.
    """
    decoder = codecs.getincrementaldecoder(codec)() if codec else codecs.getincrementaldecoder("utf-8")(ESCAPE)
    line, started = 1, False
    for chunk in chain(chunks, [b""]):
        try:
            text = decoder.decode(chunk, not chunk)
        except UnicodeDecodeError as error:
            line += error.object[: error.start].decode(codec or "utf-8", "replace").count("\n")
            problem = f"byte 0x{error.object[error.start]:02x} is not {codec} ({error.reason})"
            fix = "set data.encoding to the encoding of the file"
            raise input_error(f"{path}:{line}", problem, "every byte must be a character", fix) from None
        line += text.count("\n")
        yield text if started else text.removeprefix("\ufeff")
        started = started or bool(text)


def _with_line_feeds(texts: Iterator[str]) -> Iterator[str]:
    """The texts, with \\n for each \\r if the first has no \\n."""
    replace = None
    for text in texts:
        replace = "\r" in text and "\n" not in text if replace is None else replace
        yield text.replace("\r", "\n") if replace else text
