"""The curves for TensorBoard: the log's numbers, each step once, and nothing else of the run is touched."""

import errno
import json
import os
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from harken import run_folder
from harken.data.synthetic.tales import tales
from harken.errors import HarkenError, MissingExtra
from harken.experiments.train import train
from harken.inference.run import load

TINY = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 16, "train.batch": 4}
TINY |= {"train.steps": 8, "train.checkpoint_every": 3, "train.eval_every": 4, "train.log_every": 1}
DRAWN = {**TINY, "train.tensorboard": True}


@pytest.fixture(autouse=True)
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 2)
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("\n".join(tales(20)))
    return tmp_path / "a.txt"


@pytest.fixture
def drawn():
    """A reader of event files as they are: {name: {step: number}}; a step that stands there twice is an error."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    def read(folder: Path) -> dict[str, dict[int, float]]:
        found: dict[str, dict[int, float]] = defaultdict(dict)
        for path in (folder / "tensorboard").iterdir():
            for event in LegacyEventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    assert event.step not in found[value.tag], (value.tag, event.step)
                    found[value.tag][event.step] = value.simple_value
        return found

    return read


def logged(folder: Path) -> dict[str, dict[int, float]]:
    """The same of log.jsonl, in the numbers that TensorBoard keeps."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for facts in map(json.loads, (folder / "log.jsonl").read_text().splitlines()):
        step, parts = facts.pop("step"), facts.pop("parts", {})
        for name, value in (facts | {f"parts/{name}": loss for name, loss in parts.items()}).items():
            found[name][step] = float(np.float32(value))
    return found


def killed_after(step: int):
    """A listener that ends the training after this step as a kill would: without a checkpoint."""

    def listen(event: str, /, **facts: object) -> None:
        if event == "step" and facts["step"] == step:
            raise SystemExit

    return listen


def broken(text: Path, out: Path, settings: dict) -> Path:
    """A run that was killed after step 5, two steps behind its checkpoint."""
    with pytest.raises(SystemExit):
        train(text, out=out, settings=settings, listen=killed_after(5))
    return out


def test_without_the_package_one_line_says_what_to_install_and_nothing_is_begun(text, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tensorboard.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    wanted = 'train.tensorboard=true needs an extra package; install it with: pip install "harken[track]"'
    with pytest.raises(MissingExtra) as error:
        train(text, out=tmp_path / "r", settings=DRAWN)
    assert str(error.value) == wanted
    assert not (tmp_path / "r").exists()


def test_what_is_drawn_is_what_is_logged(text, tmp_path, drawn):
    train(text, out=tmp_path / "r", settings=DRAWN)
    found = drawn(tmp_path / "r")
    assert found == logged(tmp_path / "r")
    assert found["loss"].keys() == found["lr"].keys() == found["gradient"].keys() == set(range(1, 9))
    assert found["tokens_per_second"].keys() == set(range(1, 9))
    assert found["valid"].keys() == {4, 8}


def test_each_of_mixed_texts_has_its_curve(tmp_path, drawn):
    mix = {str(tmp_path / "a.txt"): 1.0, str(tmp_path / "b.txt"): 1.0}
    train(out=tmp_path / "r", settings={**DRAWN, "data.mix": mix})
    found = drawn(tmp_path / "r")
    assert found == logged(tmp_path / "r")
    assert len([name for name in found if name.startswith("parts/")]) == 2


@pytest.mark.usefixtures("drawn")
def test_drawing_changes_neither_the_weights_nor_the_files_of_the_run(text, tmp_path):
    plain, watched = (train(text, out=tmp_path / n, settings=s).path for n, s in (("p", TINY), ("w", DRAWN)))
    assert run_folder.sha256(watched / "model.safetensors") == run_folder.sha256(plain / "model.safetensors")
    assert run_folder.facts(watched)["sha256"].keys() == run_folder.facts(plain)["sha256"].keys()
    assert {p.name for p in watched.iterdir()} - {p.name for p in plain.iterdir()} == {"tensorboard"}
    for path in (watched / "tensorboard").iterdir():
        path.write_bytes(b"anything")
    assert load(watched).facts["steps"] == 8


def test_a_killed_run_goes_on_in_the_same_curves_and_bit_for_bit(text, tmp_path, drawn):
    whole = train(text, out=tmp_path / "whole", settings=DRAWN).path
    out = broken(text, tmp_path / "r", DRAWN)
    assert drawn(out)["loss"].keys() == set(range(1, 6))
    train(out, resume=True)
    found = drawn(out)
    assert found == logged(out)
    assert found["loss"] == drawn(whole)["loss"]
    assert run_folder.sha256(out / "model.safetensors") == run_folder.sha256(whole / "model.safetensors")


@pytest.mark.parametrize("before", [False, True])
def test_whether_it_is_drawn_may_change_when_a_run_goes_on(text, tmp_path, drawn, before):
    out = broken(text, tmp_path / "r", {**TINY, "train.tensorboard": before})
    train(out, resume=True, settings={"train.tensorboard": not before})
    assert load(out).recipe.train.tensorboard is not before  # and so it would go on once more
    steps = drawn(out)["loss"].keys() if (out / "tensorboard").exists() else set()
    assert steps == set(range(1, 6 if before else 9))


@pytest.mark.usefixtures("drawn")
def test_a_disk_that_is_full_is_one_line(text, tmp_path, monkeypatch, capfd):
    from tensorboard.summary.writer.record_writer import RecordWriter

    def full(self: RecordWriter, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RecordWriter, "write", full)
    with pytest.raises(HarkenError, match="the disk is full; what was saved is whole"):
        train(text, out=tmp_path / "r", settings=DRAWN)
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("drawn")
def test_a_run_that_is_written_over_leaves_no_curves(text, tmp_path):
    train(text, out=tmp_path / "r", settings=DRAWN)
    train(text, out=tmp_path / "r", settings=TINY, force=True)
    assert not (tmp_path / "r" / "tensorboard").exists()
