"""harken import and harken chat."""

import json
from pathlib import Path

import pytest

from harken.data import catalogue

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_folder_becomes_a_run_that_generates(harken, small: Path, tmp_path: Path) -> None:
    output = harken("import", small, "--json")
    assert output.code == 0, output.err
    built = json.loads(output.out)
    assert built["run"] == "runs/small"
    assert built["certificate"]["passed"] is True
    assert built["audit"]["passed"] is True
    assert harken("generate", "runs/small", "Once", "--tokens", 4).code == 0
    assert "runs/small" in harken("runs").out
    again = harken("import", small)
    assert again.out.startswith("runs/small-2: ")
    assert "tokenizer: equal" in again.out


def test_an_output_folder_that_is_not_empty_is_refused_before_reading(harken, small: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    output = harken("import", small, "--out", "out")
    assert (output.code, output.err) == (2, "harken: out: the folder is not empty; choose another\n")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_damaged_model_is_refused_in_one_line(harken, small: Path) -> None:
    (small / "model.safetensors").write_bytes(b"")
    output = harken("import", small)
    assert output.code == 2
    assert output.err.count("\n") == 1
    assert "Traceback" not in output.err


def test_chat_refuses_a_model_without_a_chat_template(harken, small: Path) -> None:
    harken("import", small)
    output = harken("chat", "runs/small", "Hello")
    assert output.code == 2
    assert "chat needs an instruct model" in output.err


def test_the_catalogue_contains_weights() -> None:
    assert {name for name, entry in catalogue.ENTRIES.items() if entry.kind == "weights"} == {"smollm2", "minilm"}


@pytest.mark.net
@pytest.mark.slow
def test_smollm2_answers_paris(harken) -> None:
    assert harken("import", "smollm2").code == 0
    assert "Paris" in harken("generate", "runs/smollm2", "The capital of France is", "--tokens", 8).out
    output = harken("chat", "runs/smollm2", "What is the capital of France?", "--temperature", 0, "--json")
    assert "Paris" in json.loads(output.out)["messages"][-1]["text"]
