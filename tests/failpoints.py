"""Moments to die at: right before and right after each call that changes what lies on a disk."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir")  # Path and shutil.rmtree call them too


def die_at(moment: float, die: Callable[[], None], *, put: Callable[..., None] = setattr) -> list[str]:
    """Call `die` at the n-th moment, and at all that follow: the dead write no more. The moments until then, by name.

    What was not synced may be lost: whoever dies before a sync leaves half of the file, and nothing is put in its place
    before it was synced.
    """
    passed: list[str] = []
    synced: set[int] = set()

    def at(what: str, *given: Any) -> None:
        if what == "before replace" and Path(given[0]).name.startswith(".tmp-"):
            assert os.stat(given[0]).st_ino in synced, f"{given[1]}: is put in its place before it was synced"
        if what == "before fsync":
            synced.add(os.fstat(given[0]).st_ino)
        passed.append(what)
        if len(passed) >= moment:
            if what == "before fsync":
                _tear(given[0])
            die()

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watching(*given: Any, **named: Any) -> Any:
            at(f"before {name}", *given)
            answer = call(*given, **named)
            at(f"after {name}")
            return answer

        return watching

    for name in CALLS:
        put(os, name, watched(name, getattr(os, name)))
    return passed


def _tear(handle: int) -> None:
    path = Path(f"/proc/self/fd/{handle}").resolve()
    if path.is_file() and path.name != "log.jsonl":  # of a log only the last lines are not synced
        os.truncate(path, path.stat().st_size // 2)
