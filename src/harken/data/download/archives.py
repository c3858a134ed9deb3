"""Read single members of an archive. No name in an archive decides where a file is written."""

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .http import SourceUnavailable

ZIP, TAR = (".whl", ".zip"), (".tgz", ".tar.gz")
BLOCK = 1 << 20


def members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of the regular files of an archive, or of a file that is no archive; links are skipped."""
    if path.name.endswith(ZIP):
        with zipfile.ZipFile(path) as archive:
            yield from ((member.filename, archive.open(member)) for member in archive.infolist())
    elif path.name.endswith(TAR):
        with tarfile.open(path, "r:gz") as tar:
            for item in tar:
                if item.isfile() and (content := tar.extractfile(item)):
                    yield item.name, content
    else:
        with path.open("rb") as file:
            yield path.name, file


def decompressed(stream: IO[bytes], name: str, zip_member: str, max_bytes: int) -> IO[bytes]:
    """The content of a member; a file in a zip is extracted, a gzip file decompressed."""
    if zip_member:
        return zipfile.ZipFile(io.BytesIO(b"".join(blocks(stream, max_bytes, name)))).open(zip_member)
    return io.BufferedReader(gzip.GzipFile(fileobj=stream)) if name.endswith(".gz") else stream


def blocks(stream: IO[bytes], max_bytes: int, name: str) -> Iterator[bytes]:
    """The content in blocks; raises as soon as it exceeds max_bytes, whatever size the archive declares."""
    while block := stream.read(BLOCK):
        max_bytes -= len(block)
        if max_bytes < 0:
            raise SourceUnavailable(f"{name} is larger than the catalogue allows; it was deleted")
        yield block
