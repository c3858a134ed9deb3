"""From files to ids: texts are read in blocks, and their ids are kept on disk as one memory-mapped array.

A text is UTF-8; a byte order mark at its start is skipped and CRLF is read as a newline. Blocks are cut where no
tokenizer notices, so their ids are those of the whole text. (Only in a word of a million characters do they differ.)
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
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from harken.data.detect.preview import not_utf8
from harken.errors import BadInput
from harken.events import Listener, silent

if TYPE_CHECKING:
    from harken.data.tokenizers.tokenizer import Tokenizer

    from .documents import Layout

BLOCK = 1 << 20  # bytes read at once
FORMAT = 1  # grows when the same text would be kept as something else
# Unicode's white space, at which `tokenizers` splits; Python's own idea of it has \x1c to \x1f more
SPACE = r"\t-\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
WORD = re.compile(rf"[^{SPACE}]+")
# GPT-2's pre-tokens neither cross from a non-space to white space nor look back, so a cut between the two is not seen;
# nor is one after a newline that stands alone between two non-spaces
_GAP, _LAST_GAP = re.compile(r"\S(?=[ \n\t])"), re.compile(r"(?s).*\S(?=[ \n\t])")
_LAST_LINE = re.compile(r"(?s).*\S\n(?=\S)")


@dataclass(frozen=True)
class Span:
    """The bytes of a file from start to stop (None: its end). Both lie between characters, best between lines."""

    path: Path
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class Encoded:
    """The ids of some files, where each document starts, how much text it was, and the SHA-256 of what was read."""

    tokens: npt.NDArray[Any]
    documents: npt.NDArray[np.int64]
    characters: int
    words: int
    bytes: int
    sha256: str


def split_words(text: str) -> list[str]:
    """The words between white space."""
    return WORD.findall(text) if any(control in text for control in "\x1c\x1d\x1e\x1f") else text.split()


def count_words(text: str) -> int:
    """How many there are."""
    if len(text) < 256 or not text.isascii():
        return len(split_words(text))
    codes = np.frombuffer(text.encode(), np.uint8)
    space = (codes == 32) | (codes - 9 < 5)  # below 9 the difference wraps around
    return int(np.count_nonzero(space[:-1] > space[1:])) + (not space[0])


def pieces(text: str, size: int) -> Iterator[str]:
    """The text in pieces of about `size` characters, cut only where no tokenizer notices."""
    start = 0
    while len(text) - start > size and (gap := _GAP.search(text, start + size)):
        yield text[start : gap.end()]
        start = gap.end()
    yield text[start:]


def read_blocks(span: Span) -> Iterator[str]:
    """The text of a span in blocks of about 1 MiB that end with a line if they can."""
    return (text for _, file in _opened([span]) for text in _blocks(span, file))


def _opened(spans: Iterable[Span]) -> Iterator[tuple[Span, IO[bytes]]]:
    """Each span with its file. Spans of one file that follow each other, such as its lines, share one opening."""
    for path, group in groupby(spans, lambda span: span.path):
        try:
            if not path.is_file():
                raise BadInput(f"{path}: no such file; a regular text file is needed; give its path")
            with path.open("rb") as file:
                yield from ((span, file) for span in group)
        except OSError as error:
            raise _unreadable(path, error) from None


def _blocks(span: Span, file: IO[bytes], digest: Any = None) -> Iterator[str]:
    """The text of a span, block by block; a digest is fed the bytes."""
    text, held, place = "", b"", span.start  # text not yet given; bytes not yet read as text, and where they stand
    for raw, last in _chunks(span, file, digest):
        held += raw
        try:
            more, used = codecs.utf_8_decode(held, "strict", last)
        except UnicodeDecodeError as error:
            raise not_utf8(span.path, place + error.start) from None
        if "\r" in more:
            used -= (ends := not last and more.endswith("\r"))
            more = more[: len(more) - ends].replace("\r\n", "\n")
        text += more.removeprefix("\ufeff") if place == 0 else more
        held, place = held[used:], place + used
        found = None if last else _LAST_LINE.match(text, max(0, len(text) - (BLOCK >> 5))) or _LAST_GAP.match(text)
        cut = found.end() if found else len(text) if last or len(text) >= BLOCK else 0
        if cut:
            yield text[:cut]
        text = text[cut:]


def _chunks(span: Span, file: IO[bytes], digest: Any) -> Iterator[tuple[bytes, bool]]:
    """The bytes of a span, and whether they are its last."""
    stop = os.fstat(file.fileno()).st_size if span.stop is None else span.stop
    file.seek(span.start)
    for at in range(span.start, max(stop, span.start + 1), BLOCK):
        try:
            raw = file.read(max(0, min(BLOCK, stop - at)))
        except OSError as error:
            raise _unreadable(span.path, error) from None
        if digest:
            digest.update(raw)
        yield raw, at + BLOCK >= stop


def _unreadable(path: Path, error: OSError) -> BadInput:
    return BadInput(f"{path}: cannot be read ({error.strerror}); a readable text file is needed")


def _ids(texts: Iterable[str], tokenizer: Tokenizer, documents: bool | Layout, tally: Counter[str]) -> Iterator[Any]:
    """The ids of a span, block by block. A last line without a newline is a line too: with words it gets its <eos>."""
    end, begun = np.array([tokenizer.end or 0], tokenizer.dtype), False  # begun: a line with words, not yet ended
    for text in texts:
        tally.update(characters=len(text), words=count_words(text), bytes=len(text.encode()))
        if tokenizer.kind == "word":
            word = WORD.search(text)
            if begun and "\n" in text[: word.start() if word else None]:
                yield end
            begun = WORD.search(text, text.rfind("\n") + 1) is not None or (begun and "\n" not in text)
        yield tokenizer.encode(text if isinstance(documents, bool) else documents.marked(text))
    if not isinstance(documents, bool):
        yield tokenizer.encode(documents.END)
    if begun or (documents and tokenizer.kind == "bpe" and tokenizer.end is not None):
        yield end


def encode_files(
    files: Sequence[Path | Span],
    tokenizer: Tokenizer,
    out_folder: Path,
    *,
    documents: bool | Layout,
    listen: Listener = silent,
) -> Encoded:
    """The ids of the files, one after the other, kept under out_folder and found there the next time.

    With `documents` each file or span is a document: its start is noted, and bpe ends it with <|endoftext|>.
    With a layout the ends of sentences and documents are marked in it.
    """
    spans, content = [file if isinstance(file, Span) else Span(file) for file in files], hashlib.sha256()
    sizes = [sum(len(raw) for raw, _ in _chunks(span, file, content)) for span, file in _opened(spans)]
    key = json.dumps(
        [
            FORMAT,
            documents if isinstance(documents, bool) else documents.key,
            sizes,
            content.hexdigest(),
            tokenizer.json.decode(),
        ]
    )
    place = out_folder / hashlib.sha256(key.encode()).hexdigest()
    if found := _open(place, tokenizer.dtype):
        return found
    try:
        out_folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=out_folder, ignore_cleanup_errors=True) as name:
            if _write(Path(name), spans, tokenizer, documents, sum(sizes), listen) != content.hexdigest():
                raise BadInput(f"{spans[0].path}: changed while it was read; it must stay as it is; try again")
            for end in (".bin", ".json"):  # another writer of the same entry writes the same
                os.replace(Path(name, end), place.with_suffix(end))
    except OSError as error:
        raise BadInput(f"{out_folder}: cannot keep the ids of a text ({error.strerror}); make room there") from None
    if found := _open(place, tokenizer.dtype):
        return found
    raise BadInput(f"{', '.join(str(span.path) for span in spans[:3])}: no text in it; at least one token is needed")


def _write(
    folder: Path, spans: list[Span], tokenizer: Tokenizer, documents: bool | Layout, total: int, listen: Listener
) -> str:
    """Put the ids and the facts into a folder; answer the SHA-256 of what was read."""
    tally, digest = Counter(tokens=0, characters=0, words=0, bytes=0), hashlib.sha256()
    starts: list[int] = []
    with (folder / ".bin").open("wb") as file:
        for span, source in _opened(spans):
            starts += [tally["tokens"]] if documents or not starts else []
            for ids in _ids(_blocks(span, source, digest), tokenizer, documents, tally):
                file.write(ids.data)
                tally["tokens"] += len(ids)
                listen("encode", done=min(tally["bytes"], total), total=total, unit="bytes")
        file.flush()
        os.fsync(file.fileno())  # the facts are small: half of them is no JSON, and the ids are then written anew
    (folder / ".json").write_text(json.dumps({**tally, "documents": starts, "sha256": digest.hexdigest()}))
    listen("encode", done=total, total=total, unit="bytes")
    return digest.hexdigest()


def _open(place: Path, dtype: np.dtype[Any]) -> Encoded | None:
    """What is kept under a name, if it is whole. (No ids at all cannot be mapped: a ValueError.)"""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        facts = json.loads(place.with_suffix(".json").read_text())
        tokens, starts = np.memmap(place.with_suffix(".bin"), dtype, "r"), np.array(facts.pop("documents"), np.int64)
        if len(tokens) == facts.pop("tokens"):
            return Encoded(tokens, starts, **facts)
    return None
