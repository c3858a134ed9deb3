"""Simulated kills right before and right after each call that changes the disk."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir")  # Path and shutil.rmtree call them too


def die_at(operation: float, die: Callable[[], None], *, put: Callable[..., None] = setattr) -> list[str]:
    """Call `die` at the n-th disk operation and at all later ones; return the names of the operations so far.

    Data that was not synced may be lost: a kill before a sync truncates the file to half, and a file must be synced
    before it replaces another.
    """
    passed: list[str] = []
    synced: set[int] = set()

    def record(name: str, *args: Any) -> None:
        if name == "before replace" and Path(args[0]).name.startswith(".tmp-"):
            assert os.stat(args[0]).st_ino in synced, f"{args[1]}: replaced before the new file was synced"
        if name == "before fsync":
            synced.add(os.fstat(args[0]).st_ino)
        passed.append(name)
        if len(passed) >= operation:
            if name == "before fsync":
                _truncate(args[0])
            die()

    def wrap(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            record(f"before {name}", *args)
            value = call(*args, **kwargs)
            record(f"after {name}")
            return value

        return wrapper

    for name in CALLS:
        put(os, name, wrap(name, getattr(os, name)))
    return passed


def _truncate(handle: int) -> None:
    path = Path(f"/proc/self/fd/{handle}").resolve()
    if path.is_file() and path.name != "log.jsonl":  # only the last lines of a log are not synced
        os.truncate(path, path.stat().st_size // 2)
