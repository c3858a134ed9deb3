"""What every test starts from: the same random numbers, the usual precision and threads, and a cache of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def the_same_start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """torch is seeded where it is there already: a test that never needs it does not wait for its import."""
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "cache"))
    if "torch" not in sys.modules and "core" not in request.path.parts:
        yield
        return
    import torch

    torch.manual_seed(0)
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    yield
    torch.set_default_dtype(dtype)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
