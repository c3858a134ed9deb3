"""harken report."""

import json
import shutil
import webbrowser
from pathlib import Path

import pytest


@pytest.fixture
def copy(run, tmp_path) -> str:
    """The name of a run in the current folder."""
    shutil.copytree(run, tmp_path / "runs" / "my")
    (tmp_path / "runs" / "my" / "report.html").unlink()
    return "runs/my"


def test_the_path_of_the_report_is_printed(harken, copy, tmp_path):
    output = harken("report", copy)
    assert (output.code, output.out, output.err) == (0, "runs/my/report.html\n", "")
    assert (tmp_path / "runs" / "my" / "report.html").read_text().startswith("<!doctype html>")
    assert json.loads(harken("report", copy, "--json").out) == {"path": "runs/my/report.html"}


@pytest.mark.parametrize("starts", [True, False])
def test_open_opens_the_file_in_the_web_browser(harken, copy, tmp_path, monkeypatch, starts):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or starts)
    output = harken("report", copy, "--open")
    file = Path(tmp_path / "runs" / "my" / "report.html").absolute()
    assert opened == [file.as_uri()]
    assert output.err == ("" if starts else f"no web browser can be started; open {file} yourself\n")


def test_an_unfinished_run_has_no_report(harken, copy, tmp_path):
    (tmp_path / "runs" / "my" / "harken.json").unlink()
    output = harken("report", copy)
    assert (output.code, output.out) == (1, "")
    assert output.err.startswith("harken: runs/my: this run is not finished; resume with: ")


def test_samples_can_be_left_out_and_no_other_setting_changed(harken, copy, tmp_path):
    page = tmp_path / "runs" / "my" / "report.html"
    assert harken("report", copy).code == 0
    assert "This page shows samples" in page.read_text()
    assert harken("report", copy, "report.samples=0").code == 0
    assert "This page shows samples" not in page.read_text()
    output = harken("report", copy, "train.steps=3")
    assert output.code == 2
    assert output.err.startswith("harken: train.steps: a finished run cannot be changed; only settings of the report")
