"""The command line in this process: `harken("train", "my.txt")` returns exit code, stdout and stderr."""

import io
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TINY = [
    "model.d=16",
    "model.layers=1",
    "model.heads=2",
    "model.context=16",
    "train.steps=2",
    "train.batch=4",
    "train.eval_every=2",
]


@dataclass(frozen=True)
class CommandOutput:
    code: int
    out: str
    err: str


class SilentTerminal(io.StringIO):
    """A terminal without input."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def harken(monkeypatch, capsys, tmp_path):
    """Run harken in an empty folder."""
    from harken.cli import main
    from harken.experiments import estimate

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimate, "PROBE_SECONDS", 0.01)
    monkeypatch.delenv("HARKEN_DEBUG", raising=False)
    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)

    def call(*args: object, stdin: bytes | None = None) -> CommandOutput:
        monkeypatch.setattr(sys, "argv", ["harken", *map(str, args)])
        stream = SilentTerminal() if stdin is None else io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
        monkeypatch.setattr(sys, "stdin", stream)
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return CommandOutput(end.value.code or 0, out, err)

    return call


@pytest.fixture
def text(tales, tmp_path) -> str:
    """The name of a text file in the current folder."""
    shutil.copy(tales, tmp_path / "my.txt")
    return "my.txt"


@pytest.fixture(scope="session")
def run(tmp_path_factory, tales) -> Path:
    """The folder of a finished run. Tests only read it."""
    from harken.experiments import train
    from harken.recipe import parse_override

    home = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        patch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)
        train.train(tales, out=home / "tales", settings=dict(map(parse_override, TINY)))
    return home / "tales"
