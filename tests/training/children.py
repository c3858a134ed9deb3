"""Child processes that run harken's command line, forked from a process that has imported torch, to start fast."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import failpoints

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch._dynamo", "harken.experiments.train", "harken.cli.train"])


class Child:
    """`harken ...` in a child process. It kills itself (-9) at the n-th disk operation (`die_at`), or in the n-th
    micro-batch before the gradients are added (`die_in`)."""

    def __init__(
        self,
        *arguments: Any,
        folder: Path,
        die_at: int | None = None,
        die_in: int | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.output = folder / f"output-{id(self)}.txt"
        argv = [str(a) for a in arguments]
        self.process = _context.Process(target=_harken, args=(argv, self.output, die_at, die_in, env or {}))
        self.process.start()

    def wait(self) -> int:
        """Exit code; negative for a signal."""
        self.process.join(120)
        code = self.process.exitcode
        assert code is not None
        self.process.close()
        return code

    @property
    def text(self) -> str:
        return self.output.read_text()


def _harken(arguments: list[str], output: Path, die_at: int | None, die_in: int | None, env: dict[str, str]) -> None:
    os.environ.update(env)
    with output.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    if die_at is not None:
        failpoints.die_at(die_at, _die)
    if die_in is not None:
        _die_in(die_in)
    from harken.cli import main
    from harken.experiments.report import sections

    sections.SAMPLE_TOKENS = 2
    sys.argv = ["harken", *arguments]
    main()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_in(moment: int) -> None:
    import torch

    backward: Callable[..., None] = torch.Tensor.backward
    count = 0

    def counted(*args: Any, **kwargs: Any) -> None:
        nonlocal count
        count += 1
        if count == moment:
            _die()
        backward(*args, **kwargs)

    torch.Tensor.backward = counted  # type: ignore[method-assign]
