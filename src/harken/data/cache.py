"""The cache of fetched and generated data. It can be deleted at any time."""

import os
from pathlib import Path

from harken.errors import HarkenError


def cache_folder(*parts: str) -> Path:
    """A folder in the cache, created if missing: under HARKEN_CACHE, else under the XDG cache folder."""
    root = os.environ.get("HARKEN_CACHE")
    base = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harken"
    folder = base.expanduser().absolute().joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be created ({error.strerror})"
        raise HarkenError(f"cache {folder}: {problem}; set HARKEN_CACHE to a writable folder") from None
    return folder
