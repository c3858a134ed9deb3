"""The curves of a run for TensorBoard: its event files are drawn from log.jsonl alone, and nothing reads them again."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harken.errors import MissingExtra

PLACE = "tensorboard"  # in the run folder
FLUSH = 30  # seconds until what is drawn can be seen


def summary_writer() -> Any:
    """TensorBoard's writer; what is missing is said."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("train.tensorboard=true", "track") from None
    return SummaryWriter


@contextmanager
def curves(folder: Path | None) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """What draws a line of the log, after those that are there; without a folder it draws nothing.

    A run that goes on is drawn anew from its first line: the log has every step once, whatever a killed writer left.
    """
    if folder is None:
        yield lambda facts: None
        return
    shutil.rmtree(folder / PLACE, ignore_errors=True)
    # purge_step: a TensorBoard that watches forgets what it has read before
    with summary_writer()(folder / PLACE, purge_step=0, flush_secs=FLUSH) as writer:

        def draw(facts: Mapping[str, Any]) -> None:
            parts = {f"parts/{name}": loss for name, loss in facts.get("parts", {}).items()}
            for name, value in {**facts, **parts}.items():
                if name not in ("step", "parts"):
                    writer.add_scalar(name, value, facts["step"])

        for line in (folder / "log.jsonl").read_text("utf-8").splitlines():
            draw(json.loads(line))
        yield draw
