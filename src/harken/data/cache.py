"""Where harken keeps what it fetched or made and could fetch or make again: safe to delete at any time."""

import os
from pathlib import Path

from harken.errors import HarkenError


def cache_folder(*parts: str) -> Path:
    """A folder in the cache, made if it is not there: HARKEN_CACHE, else harken's place in the XDG cache."""
    root = os.environ.get("HARKEN_CACHE")
    base = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harken"
    folder = base.expanduser().absolute().joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise HarkenError(
            f"cache {folder}: cannot be made ({problem.strerror}); set HARKEN_CACHE to a folder you may write to"
        ) from None
    return folder
