"""The curves of a run for TensorBoard: its event files are drawn from log.jsonl alone, and nothing reads them again.

TensorBoard's own writer (and with it PyTorch's) works in a thread, which meets a full disk with a traceback of its own;
so the records are written here, with the log's lines.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harken import run_folder
from harken.errors import MissingExtra
from harken.events import plain

PLACE = "tensorboard"  # in the run folder
Draw = Callable[[Mapping[str, Any]], None]


def tensorboard() -> tuple[Any, Any, Any]:
    """TensorBoard's event, its summary and its writer of records; what is missing is said."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise MissingExtra("train.tensorboard=true", "track") from None
    return Event, Summary, RecordWriter


@contextmanager
def curves(folder: Path | None) -> Iterator[Draw]:
    """What draws a line of the log, after those that are there; without a folder it draws nothing.

    A run that goes on is drawn anew from its first line: the log has every step once, whatever a killed writer left.
    """
    if folder is None:
        yield lambda facts: None
        return
    Event, Summary, RecordWriter = tensorboard()
    shutil.rmtree(folder / PLACE, ignore_errors=True)
    (folder / PLACE).mkdir(exist_ok=True)
    with (folder / PLACE / f"events.out.tfevents.{time.time_ns()}").open("wb") as file:
        records = RecordWriter(file)

        def write(**event: Any) -> None:
            records.write(Event(wall_time=time.time(), **event).SerializeToString())
            file.flush()

        def draw(facts: Mapping[str, Any]) -> None:
            numbers = {**facts, **{f"parts/{name}": loss for name, loss in facts.get("parts", {}).items()}}
            told = {n: x for n, x in plain(numbers).items() if n not in ("step", "parts", "seeds") and x is not None}
            shown = [Summary.Value(tag=n, simple_value=x) for n, x in told.items()]
            write(step=facts["step"], summary=Summary(value=shown))

        write(file_version="brain.Event:2")
        for line in run_folder.read_log(folder):
            draw(line)
        yield draw
