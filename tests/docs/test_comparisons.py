"""benchmarks/lectures.py: every comparison runs, here with a small text."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HOME = Path(__file__).resolve().parents[2]
ROWS = {"heads": 3, "norms": 6, "residual": 4, "batch": 4, "positions": 4, "families": 3}
QUICK = ("heads",)  # the others are slow tests


@pytest.fixture(scope="module")
def lectures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lecture_comparisons", HOME / "benchmarks" / "lectures.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run_comparison(lectures, tmp_path_factory) -> Iterator[Any]:
    """The facts of a comparison; each runs once."""
    from harken.data.synthetic.tales import tales

    home, finished = tmp_path_factory.mktemp("lectures"), {}
    (home / "my.txt").write_text("\n".join(tales(30)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 2)
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        patch.chdir(home)

        def call(name: str) -> dict[str, Any]:
            if name not in finished:
                lectures.main(
                    ["my.txt", "--quick", "--only", name, "--seeds", "1", "--out", "out", "train.weight_decay=0.2"]
                )
                finished[name] = json.loads((home / "out" / name / "compare.json").read_text())
            return finished[name]

        yield call


def test_every_documented_comparison_is_tested(lectures):
    assert ROWS.keys() == lectures.CLAIMS.keys()


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ROWS]
)
def test_the_comparison_runs(run_comparison, name):
    rows = run_comparison(name)["rows"]
    assert len(rows) == ROWS[name]
    assert [row["failed"] for row in rows if row["failed"]] == []


def test_heads_are_compared_at_equal_parameters(run_comparison):
    assert len({row["parameters"] for row in run_comparison("heads")["rows"]}) == 1


def test_only_learned_positions_are_limited_to_the_training_length(run_comparison):
    for row in run_comparison("positions")["rows"]:
        learned = row["settings"]["model.positions"] == "learned"
        assert [bool(evaluation["failed"]) for evaluation in row["evals"]] == [False, learned, learned]


def test_a_shared_setting_applies_to_every_row(run_comparison):
    assert run_comparison("heads")["settings"] == {"train.steps": 4, "model.size": "tiny", "train.weight_decay": 0.2}
