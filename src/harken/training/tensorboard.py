"""TensorBoard event files of a run, written from the lines of log.jsonl. harken never reads them.

TensorBoard's own writer (and PyTorch's) runs in a thread and prints a traceback when the disk is full. The records are
therefore written here, together with the lines of the log.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harken import run_folder
from harken.errors import MissingExtra
from harken.events import to_json_value

FOLDER = "tensorboard"  # in the run folder
WriteEvent = Callable[[Mapping[str, Any]], None]


def import_tensorboard() -> tuple[Any, Any, Any]:
    """TensorBoard's Event, Summary and RecordWriter; raises MissingExtra if it is not installed."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise MissingExtra("train.tensorboard=true", "track") from None
    return Event, Summary, RecordWriter


@contextmanager
def event_writer(folder: Path | None) -> Iterator[WriteEvent]:
    """A function that writes a log line as an event; without a folder it does nothing.

    A resumed run writes all events again from the log, which has every step once even after a crash.
    """
    if folder is None:
        yield lambda line: None
        return
    Event, Summary, RecordWriter = import_tensorboard()
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    (folder / FOLDER).mkdir(exist_ok=True)
    with (folder / FOLDER / f"events.out.tfevents.{time.time_ns()}").open("wb") as file:
        records = RecordWriter(file)

        def write_record(**event: Any) -> None:
            records.write(Event(wall_time=time.time(), **event).SerializeToString())
            file.flush()

        def write_event(line: Mapping[str, Any]) -> None:
            values = {**line, **{f"parts/{name}": loss for name, loss in line.get("parts", {}).items()}}
            skipped = ("step", "parts", "seeds")
            scalars = {n: x for n, x in to_json_value(values).items() if n not in skipped and x is not None}
            summaries = [Summary.Value(tag=n, simple_value=x) for n, x in scalars.items()]
            write_record(step=line["step"], summary=Summary(value=summaries))

        write_record(file_version="brain.Event:2")
        for line in run_folder.read_log(folder):
            write_event(line)
        yield write_event
