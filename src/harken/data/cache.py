"""The cache of fetched and generated data. It can be deleted at any time."""

import os
from pathlib import Path

from harken.errors import HarkenError


def cache_root() -> Path:
    """The folder of the cache: HARKEN_CACHE, else below the XDG cache folder."""
    root = os.environ.get("HARKEN_CACHE")
    base = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harken"
    return base.expanduser().absolute()


def cache_folder(*parts: str) -> Path:
    """A folder in the cache, created if missing."""
    folder = cache_root().joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be created ({error.strerror})"
        raise HarkenError(f"cache {folder}: {problem}; set HARKEN_CACHE to a writable folder") from None
    return folder
