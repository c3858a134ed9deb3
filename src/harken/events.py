"""How long work tells whoever listens what it does. The library speaks in facts; only `cli` turns them into words."""

import math
from collections.abc import Callable
from typing import Any

# listen("encode", done=3, total=10, unit="bytes"): the name of what happened, then its facts
Listener = Callable[..., None]


def silent(event: str, /, **facts: Any) -> None:
    """The listener of a program that does not want to hear."""


def plain(fact: Any) -> Any:
    """A fact as JSON has it: a number that is not finite is null."""
    if isinstance(fact, dict):
        return {str(name): plain(value) for name, value in fact.items()}
    if isinstance(fact, list | tuple):
        return [plain(value) for value in fact]
    if isinstance(fact, float) and not math.isfinite(fact):
        return None
    return fact if isinstance(fact, str | int | float | bool | None) else str(fact)
