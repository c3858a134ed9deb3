"""TensorBoard event files of a run, written from the lines of log.jsonl. harken never reads them.

TensorBoard's own writer (and PyTorch's) runs in a thread and prints a traceback when the disk is full. The records are
therefore written here, together with the lines of the log.
"""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harken import run_folder
from harken.errors import MissingExtra

FOLDER = "tensorboard"  # in the run folder
WriteEvent = Callable[[Mapping[str, object]], None]


def require_tensorboard() -> None:
    """Raise MissingExtra if TensorBoard cannot be imported."""
    try:
        import tensorboard.compat.proto.event_pb2
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError:
        raise MissingExtra("train.tensorboard=true", "track") from None


@contextmanager
def event_writer(folder: Path | None) -> Iterator[WriteEvent]:
    """A function that writes a log line as an event. A resumed run writes those of its log again. None: no events."""
    if folder is None:
        yield lambda line: None
        return
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    (folder / FOLDER).mkdir(exist_ok=True)
    with (folder / FOLDER / f"events.out.tfevents.{time.time_ns()}").open("wb") as file:
        records = RecordWriter(file)

        def write_record(**event: Any) -> None:
            records.write(Event(wall_time=time.time(), **event).SerializeToString())
            file.flush()

        def write_event(line: Mapping[str, object]) -> None:
            parts = line.get("parts")
            named = {f"parts/{name}": loss for name, loss in parts.items()} if isinstance(parts, dict) else {}
            numbers = [(n, x) for n, x in {**line, **named}.items() if isinstance(x, int | float) and math.isfinite(x)]
            scalars = [Summary.Value(tag=n, simple_value=x) for n, x in numbers if n != "step"]
            write_record(step=line["step"], summary=Summary(value=scalars))

        write_record(file_version="brain.Event:2")
        for line in run_folder.read_log(folder):
            write_event(line)
        yield write_event
