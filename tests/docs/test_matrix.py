"""docs/matrix.md lists the abilities of the families, tested now: train, evaluate, kill and resume."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HOME = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOME / "scripts"))

import harken  # noqa: E402
import matrix  # noqa: E402
from harken import registry  # noqa: E402
from harken.errors import BadInput  # noqa: E402

FAMILIES = matrix.families()


@cache
def tried(family: matrix.Family) -> dict[str, str]:
    return dict(zip(matrix.COLUMNS, matrix.row(family), strict=True))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family).replace(" | ", "-"))
@pytest.mark.parametrize("column", matrix.CHECKS)
def test_every_check_of_a_family_passes(family: matrix.Family, column: str) -> None:
    assert tried(family)[column] == matrix.PASSES


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family).replace(" | ", "-"))
def test_the_family_trains_on_a_gpu_with_default_settings(family: matrix.Family, tmp_path: Path) -> None:
    """Compiled, with CUDA graphs, in bfloat16."""
    there = {"train.device": "cuda", "train.precision": "auto", "train.steps": 8}
    built = harken.train(family.write(tmp_path), out=tmp_path / "run", settings={**family.settings(), **there})
    assert built.facts["metrics"]


def test_the_page_equals_the_checks() -> None:
    """If not: python scripts/matrix.py --write"""
    assert matrix.PAGE.read_text("utf-8") == matrix.page({f: list(tried(f).values()) for f in FAMILIES})


def test_the_page_has_every_model() -> None:
    every = [model for group in ("text", "pairs") for model in registry.MODELS[group]]
    assert [family.model for family in FAMILIES[: len(every)]] == every


def test_every_cell_passes_or_gives_its_reason() -> None:
    for line in matrix.PAGE.read_text("utf-8").splitlines():
        if line.startswith(tuple(f"| {data} |" for data in matrix.DATA)):
            cells = [cell.strip() for cell in line.strip("|").split("|")[2:]]
            assert len(cells) == len(matrix.COLUMNS)
            assert all(cell == matrix.PASSES or len(cell) > 10 for cell in cells)


def test_a_missing_command_is_announced() -> None:
    assert matrix.verb("serve") == "comes with `harken serve`"
    assert matrix.verb("generate") == "not tried here"


def test_a_family_that_fails_gives_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*options: Any) -> str:
        raise BadInput("there is no such model")

    monkeypatch.setitem(matrix.CHECKS, "train", refuse)
    assert matrix.cell("train", matrix.Family("text", "gpt"), tmp_path, tmp_path) == "there is no such model"


def test_a_run_that_starts_anew_does_not_count_as_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting anew gives the same bytes as well: the start step decides."""
    monkeypatch.setattr(matrix, "SETTINGS", {**matrix.SETTINGS, "train.checkpoint_every": 100})
    family = matrix.Family("text", "rnn")
    messages = matrix.check_resume(family, family.write(tmp_path), tmp_path)
    assert messages == "resumed from step 0, not from the last checkpoint"
