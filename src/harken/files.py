"""Atomic writes and file hashes.

A file or folder is written under a temporary name beside its path, synced to the disk and renamed. After a crash the
path has either the old or the new content, never a part of it.
"""

import errno
import glob
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import BadInput

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def check_path(name: str, path: object) -> None:
    """Refuse an argument that is not a path, by its name."""
    if not isinstance(path, str | Path):
        raise BadInput(f"{name}={path!r:.80}: must be a path, as a string or a pathlib.Path")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file atomically; text is encoded as UTF-8."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def wait_for_lock(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold an exclusive lock on this file, which stays; `waiting` is called if another process holds it."""
    import fcntl

    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: the last writer wins, and renaming is atomic
            pass
        yield


def remove_leftovers(path: Path) -> None:
    """Delete the temporary files of this path whose process has been killed."""
    for temporary in path.parent.glob(f".tmp-*-{glob.escape(path.name)}"):
        process = temporary.name.removeprefix(".tmp-").removesuffix(f"-{path.name}")
        if process.isdecimal() and not _is_running(int(process)):
            temporary.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path to write a file to; it replaces `path` at the end and is deleted on an error."""
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)  # safetensors creates files that only the owner can read
        replace_atomic(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to write files to; it is renamed to `path` at the end and deleted on an error."""
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        yield temporary
        replace_atomic(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def replace_atomic(temporary: Path, path: Path) -> None:
    """Sync a file or folder and rename it to `path`, in the same folder or at least on the same file system."""
    for child in temporary.rglob("*") if temporary.is_dir() else ():
        sync(child)
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
