"""JSON that may come from anywhere: bounded before it is read, each key once, and only numbers that are numbers."""

import json
from pathlib import Path
from typing import Any

from harken.errors import BadInput

OBJECTS, ITEMS = 60_000, 2_500_000  # tables {..} in a file, and lists and commas: they cost memory, not bytes


def read_json(path: Path, most: int) -> dict[str, Any]:
    """The object in a JSON file of at most so many bytes."""
    with path.open("rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise BadInput(f"{path}: is larger than {most >> 20} MiB; this is no sound file of its kind")
    return parse(raw, str(path))


def parse(raw: bytes, place: str) -> dict[str, Any]:
    """A JSON object; refused if it is deep or crowded, has a key twice, or a number that is none."""
    if raw.count(b"{") > OBJECTS or raw.count(b"[") + raw.count(b",") > ITEMS:
        raise BadInput(f"{place}: holds too many items; this is no sound file of its kind")
    try:
        found = json.loads(raw.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{place}: is no sound JSON ({str(error)[:80]})") from None
    if not isinstance(found, dict):
        raise BadInput(f"{place}: holds no JSON object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")
