"""Files to token ids: texts are read in blocks, and the ids are cached on disk as one memory-mapped array.

A text is UTF-8; a byte order mark at its start is skipped and CRLF is read as a newline. Blocks end where no tokenizer
merges across the boundary, so the ids equal those of the complete text (except inside a word of a million characters).
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from harken.data.detect.preview import not_utf8_error
from harken.data.tables.text_file import text_file
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.files import replace_atomic

if TYPE_CHECKING:
    from harken.data.tokenizers.tokenizer import Tokenizer

    from .documents import DocumentLayout

    Boundaries: TypeAlias = bool | DocumentLayout
BLOCK_BYTES = 1 << 20  # read at once
CACHE_FORMAT = 2  # increase when the cached form of the same text changes
# Unicode white space, at which `tokenizers` splits; str.split() also splits at \x1c to \x1f
WHITESPACE = r"\t-\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
WORD = re.compile(rf"[^{WHITESPACE}]+")
# GPT-2's pre-tokens do not cross from a non-space to white space and do not look back, so a split there changes no ids;
# neither does a split after a single newline between two non-spaces
_WORD_END, _LAST_WORD_END = re.compile(r"\S(?=[ \n\t])"), re.compile(r"(?s).*\S(?=[ \n\t])")
_LAST_LINE_END = re.compile(r"(?s).*\S\n(?=\S)")


@dataclass(frozen=True)
class Span:
    """Bytes of a file as UTF-8 from start to stop (None: its end), between characters, preferably between lines."""

    path: Path
    start: int = 0
    stop: int | None = None
    encoding: str | None = None

    @property
    def file(self) -> Path:
        """The file with the bytes: the path, or its conversion to UTF-8."""
        return text_file(self.path, self.encoding, plain=True).path


@dataclass(frozen=True)
class EncodedText:
    """Token ids of files, document starts, size of the text, and SHA-256 of the bytes."""

    tokens: npt.NDArray[Any]
    documents: npt.NDArray[np.int64]
    n_characters: int
    n_words: int
    n_bytes: int
    sha256: str


def split_words(text: str) -> list[str]:
    """Words between white space."""
    return WORD.findall(text) if any(control in text for control in "\x1c\x1d\x1e\x1f") else text.split()


def count_words(text: str) -> int:
    """Number of words between white space."""
    if len(text) < 256 or not text.isascii():
        return len(split_words(text))
    codes = np.frombuffer(text.encode(), np.uint8)
    space = (codes == 32) | (codes - 9 < 5)  # below 9 the difference wraps around
    return int(np.count_nonzero(space[:-1] > space[1:])) + (not space[0])


def split_text(text: str, size: int) -> Iterator[str]:
    """Pieces of about `size` characters, split only where no tokenizer merges across."""
    start = 0
    while len(text) - start > size and (gap := _WORD_END.search(text, start + size)):
        yield text[start : gap.end()]
        start = gap.end()
    yield text[start:]


def read_blocks(*spans: Span) -> Iterator[str]:
    """Text of the spans in blocks of about 1 MiB, ending at a line end if possible."""
    return (text for span, file in _open_spans(spans) for text in _decode_blocks(span, file))


def _open_spans(spans: Iterable[Span]) -> Iterator[tuple[Span, IO[bytes]]]:
    """Each span with its open file; consecutive spans of one file share one handle."""
    for (path, encoding), group in groupby(spans, lambda span: (span.path, span.encoding)):
        try:
            if not path.is_file():
                raise BadInput(f"{path}: no such file; give the path of a text file")
            with Span(path, encoding=encoding).file.open("rb") as file:
                yield from ((span, file) for span in group)
        except OSError as error:
            raise BadInput(f"{path}: cannot be read ({error.strerror}); check the file and its permissions") from None


def _decode_blocks(span: Span, file: IO[bytes], digest: Any = None) -> Iterator[str]:
    """Text of a span in blocks; updates the digest with the bytes."""
    text, undecoded, offset = "", b"", span.start  # text not yet yielded; bytes not yet decoded, and their offset
    for raw, last in _read_chunks(span, file, digest):
        undecoded += raw
        try:
            decoded, used = codecs.utf_8_decode(undecoded, "strict", last)
        except UnicodeDecodeError as error:
            raise not_utf8_error(span.path, offset + error.start) from None
        if "\r" in decoded:
            used -= (open_cr := not last and decoded.endswith("\r"))
            decoded = decoded[: len(decoded) - open_cr].replace("\r\n", "\n")
        text += decoded.removeprefix("\ufeff") if offset == 0 else decoded
        undecoded, offset = undecoded[used:], offset + used
        tail = max(0, len(text) - (BLOCK_BYTES >> 5))
        boundary = None if last else _LAST_LINE_END.match(text, tail) or _LAST_WORD_END.match(text)
        stop = boundary.end() if boundary else len(text) if last or len(text) >= BLOCK_BYTES else 0
        if stop:
            yield text[:stop]
        text = text[stop:]


def _read_chunks(span: Span, file: IO[bytes], digest: Any) -> Iterator[tuple[bytes, bool]]:
    """Bytes of a span in chunks, and whether a chunk is the last."""
    stop = os.fstat(file.fileno()).st_size if span.stop is None else span.stop
    file.seek(span.start)
    for offset in range(span.start, max(stop, span.start + 1), BLOCK_BYTES):
        try:
            raw = file.read(max(0, min(BLOCK_BYTES, stop - offset)))
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
            raise BadInput(f"{span.path}: {problem}; check the file and its permissions") from None
        if digest:
            digest.update(raw)
        yield raw, offset + BLOCK_BYTES >= stop


def _encode(texts: Iterable[str], tokenizer: Tokenizer, documents: Boundaries, counts: Counter[str]) -> Iterator[Any]:
    """Ids of a span, block by block. A last line without a newline also gets an <eos> if it has words."""
    end, in_line = np.array([tokenizer.end_id or 0], tokenizer.dtype), False  # in_line: a line with words is open
    for text in texts:
        counts.update(n_characters=len(text), n_words=count_words(text), n_bytes=len(text.encode()))
        if tokenizer.kind == "word":
            word = WORD.search(text)
            if in_line and "\n" in text[: word.start() if word else None]:
                yield end
            in_line = WORD.search(text, text.rfind("\n") + 1) is not None or (in_line and "\n" not in text)
        yield tokenizer.encode(text if isinstance(documents, bool) else documents.insert_markers(text))
    if not isinstance(documents, bool):
        yield tokenizer.encode(documents.END)
    if in_line or (documents and tokenizer.kind == "bpe" and tokenizer.end_id is not None):
        yield end


def encode_files(
    files: Sequence[Path | Span], tokenizer: Tokenizer, cache: Path, *, documents: Boundaries, listen: Listener = silent
) -> EncodedText:
    """The concatenated ids of the files, cached in a folder.

    `documents=True`: each file or span is a document with its start recorded, and bpe ends it with <|endoftext|>.
    A layout inserts markers at the ends of sentences and documents.
    """
    spans, content = [file if isinstance(file, Span) else Span(file) for file in files], hashlib.sha256()
    sizes = [sum(len(raw) for raw, _ in _read_chunks(span, file, content)) for span, file in _open_spans(spans)]
    layout_key = documents if isinstance(documents, bool) else [1, documents.documents, documents.lines]
    key = json.dumps([CACHE_FORMAT, layout_key, sizes, content.hexdigest(), tokenizer.json.decode()])
    entry = cache / hashlib.sha256(key.encode()).hexdigest()
    if encoded := _load_cached(entry, tokenizer.dtype):
        return encoded
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=cache, ignore_cleanup_errors=True) as name:
            if _write_cache(Path(name), spans, tokenizer, documents, sum(sizes), listen) != content.hexdigest():
                raise BadInput(f"{spans[0].path}: changed while it was read; try again when nothing writes to it")
            for suffix in (".bin", ".json"):  # concurrent writers of one entry write the same bytes
                replace_atomic(Path(name, suffix), entry.with_suffix(suffix))
    except OSError as error:
        problem = f"cannot write the cached token ids ({error.strerror})"
        raise BadInput(f"{cache}: {problem}; free disk space or set HARKEN_CACHE") from None
    if encoded := _load_cached(entry, tokenizer.dtype):
        return encoded
    raise BadInput(f"{', '.join(str(span.path) for span in spans[:3])}: contains no tokens; give a longer text")


def _write_cache(
    folder: Path, spans: list[Span], tokenizer: Tokenizer, documents: Boundaries, total: int, listen: Listener
) -> str:
    """Write the ids and their metadata into a folder; return the SHA-256 of the bytes read."""
    counts, digest = Counter(tokens=0, n_characters=0, n_words=0, n_bytes=0), hashlib.sha256()
    starts: list[int] = []
    with (folder / ".bin").open("wb") as file:
        for span, source in _open_spans(spans):
            starts += [counts["tokens"]] if documents or not starts else []
            for ids in _encode(_decode_blocks(span, source, digest), tokenizer, documents, counts):
                file.write(ids.data)
                counts["tokens"] += len(ids)
                listen("encode", done=min(counts["n_bytes"], total), total=total, unit="bytes")
    (folder / ".json").write_text(json.dumps({**counts, "documents": starts, "sha256": digest.hexdigest()}))
    listen("encode", done=total, total=total, unit="bytes")
    return digest.hexdigest()


def _load_cached(entry: Path, dtype: np.dtype[Any]) -> EncodedText | None:
    """A cache entry if it is complete (an empty file cannot be mapped: ValueError)."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        metadata = json.loads(entry.with_suffix(".json").read_text())
        tokens, starts = np.memmap(entry.with_suffix(".bin"), dtype, "r"), np.array(metadata.pop("documents"), np.int64)
        if len(tokens) == metadata.pop("tokens"):
            return EncodedText(tokens, starts, **metadata)
    return None
