"""Progress events. Library functions call a listener with facts; only the console turns them into text."""

import math
import warnings
from collections.abc import Callable

# listen("encode", done=3, total=10, unit="bytes"): the name of the event, then its values
Listener = Callable[..., None]


def silent(event: str, /, **values: object) -> None:
    """A listener that ignores all events."""


def warn(event: str, /, **values: object) -> None:
    """A listener that turns notices into Python warnings."""
    if event == "notice":
        warnings.warn(str(values["text"]), stacklevel=4)


class NoticeRecorder:
    """A listener that records the notices and passes all events on."""

    def __init__(self, listen: Listener) -> None:
        self.listen, self.texts = listen, list[str]()

    def __call__(self, event: str, /, **values: object) -> None:
        if event == "notice":
            self.texts.append(str(values["text"]))
        self.listen(event, **values)


def to_json_value(value: object) -> object:
    """A value that JSON can represent; non-finite numbers become null."""
    if isinstance(value, dict):
        return {str(name): to_json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
