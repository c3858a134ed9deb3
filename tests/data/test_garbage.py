"""Reading without pauses of the garbage collector."""

import gc

import pytest

from harken.data.garbage import without_collection
from harken.data.labelled.source import TableSource
from harken.errors import BadInput


def test_the_collector_pauses_while_examples_are_read_and_runs_again_after_an_error(tmp_path, monkeypatch):
    seen = []

    def files(self):
        seen.append(gc.isenabled())
        raise BadInput("no files")

    monkeypatch.setattr(TableSource, "_files", files)
    with pytest.raises(BadInput, match="no files"):
        TableSource(path=str(tmp_path)).load_data()
    assert seen == [False]
    assert gc.isenabled()


def test_a_disabled_collector_stays_disabled():
    gc.disable()
    try:
        with without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
