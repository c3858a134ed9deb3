"""How long work tells whoever listens what it does. The library speaks in facts; only `cli` turns them into words."""

from collections.abc import Callable
from typing import Any

# listen("encode", done=3, total=10, unit="bytes"): the name of what happened, then its facts
Listener = Callable[..., None]


def silent(event: str, /, **facts: Any) -> None:
    """The listener of a program that does not want to hear."""
