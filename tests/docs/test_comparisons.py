"""benchmarks/lectures.py: every comparison it lists runs, here as a quick look at a small text."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HOME = Path(__file__).resolve().parents[2]
ROWS = {"heads": 3, "norms": 6, "residual": 4, "batch": 4, "positions": 4, "families": 3}


@pytest.fixture(scope="module")
def lectures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lecture_comparisons", HOME / "benchmarks" / "lectures.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def compared(lectures, tmp_path_factory) -> Iterator[Any]:
    """What a comparison found; each is made once."""
    from harken.data.synthetic.tales import tales

    home, known = tmp_path_factory.mktemp("lectures"), {}
    (home / "my.txt").write_text("\n".join(tales(30)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 2)
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        patch.chdir(home)

        def call(name: str) -> dict[str, Any]:
            if name not in known:
                lectures.main(
                    ["my.txt", "--quick", "--only", name, "--seeds", "1", "--out", "out", "train.weight_decay=0.2"]
                )
                known[name] = json.loads((home / "out" / name / "compare.json").read_text())
            return known[name]

        yield call


def test_every_documented_comparison_is_tested(lectures):
    assert ROWS.keys() == lectures.CLAIMS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_the_comparison_runs(compared, name):
    rows = compared(name)["rows"]
    assert len(rows) == ROWS[name]
    assert [row["failed"] for row in rows if row["failed"]] == []


def test_heads_are_compared_at_equal_parameters(compared):
    assert len({row["parameters"] for row in compared("heads")["rows"]}) == 1


def test_only_learned_positions_are_limited_to_the_training_length(compared):
    for row in compared("positions")["rows"]:
        learned = row["settings"]["model.positions"] == "learned"
        assert [bool(requests["failed"]) for requests in row["evals"]] == [False, learned, learned]


def test_a_shared_setting_applies_to_every_row(compared):
    assert compared("heads")["settings"] == {"train.steps": 4, "model.size": "tiny", "train.weight_decay": 0.2}
