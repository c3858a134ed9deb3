"""Other processes that run harken's command line, forked from one that has loaded torch: each begins at once."""

import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch._dynamo", "harken.study.train", "harken.cli.train"])


class Child:
    """`harken ...` in a process of its own. `die_at` kills it (-9) at the n-th moment at which it syncs a file."""

    def __init__(self, *arguments: Any, folder: Path, die_at: int | None = None) -> None:
        self.said = folder / f"said-{id(self)}.txt"
        given = [str(a) for a in arguments]
        self.process = _context.Process(target=_harken, args=(given, self.said, die_at))
        self.process.start()

    def wait(self) -> int:
        """The exit status; minus the signal that ended it."""
        self.process.join(120)
        code = self.process.exitcode
        assert code is not None
        self.process.close()
        return code

    @property
    def text(self) -> str:
        return self.said.read_text()


def _harken(arguments: list[str], said: Path, die_at: int | None) -> None:
    with said.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    if die_at is not None:
        _die_at(die_at)
    from harken.cli import main
    from harken.study import train

    train.SAMPLE_TOKENS = 2
    sys.argv = ["harken", *arguments]
    main()


def _die_at(moment: int) -> None:
    """Every file is synced once before it is put in its place, and its folder once after: each is a moment to die."""
    sync, count = os.fsync, 0

    def fsync(handle: int) -> None:
        nonlocal count
        count += 1
        if count == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(handle)

    os.fsync = fsync
