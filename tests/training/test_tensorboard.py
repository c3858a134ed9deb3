"""TensorBoard events: the values of the log, each step once, without any change of the run."""

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
from harken.files import sha256_of
from harken.inference.run import load

TINY = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 16, "train.batch": 4}
TINY |= {"train.steps": 8, "train.checkpoint_every": 3, "train.eval_every": 4, "train.log_every": 1}
WITH_EVENTS = {**TINY, "train.tensorboard": True}


@pytest.fixture(autouse=True)
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 2)
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("\n".join(tales(20)))
    return tmp_path / "a.txt"


@pytest.fixture
def events():
    """A reader of event files: {name: {step: value}}; a repeated step is an error."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    def read(folder: Path) -> dict[str, dict[int, float]]:
        values: dict[str, dict[int, float]] = defaultdict(dict)
        for path in (folder / "tensorboard").iterdir():
            for event in LegacyEventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    assert event.step not in values[value.tag], (value.tag, event.step)
                    values[value.tag][event.step] = value.simple_value
        return values

    return read


def logged(folder: Path) -> dict[str, dict[int, float]]:
    """The same for log.jsonl, in the precision of TensorBoard."""
    values: dict[str, dict[int, float]] = defaultdict(dict)
    for line in map(json.loads, (folder / "log.jsonl").read_text().splitlines()):
        step, parts = line.pop("step"), line.pop("parts", {})
        for name, value in (line | {f"parts/{name}": loss for name, loss in parts.items()}).items():
            values[name][step] = float(np.float32(value))
    return values


def killed_after(step: int):
    """A listener that ends the training after this step without a checkpoint, as a kill does."""

    def listen(event: str, /, **facts: object) -> None:
        if event == "step" and facts["step"] == step:
            raise SystemExit

    return listen


def killed_run(text: Path, out: Path, settings: dict) -> Path:
    """A run that was killed after step 5, two steps after its checkpoint."""
    with pytest.raises(SystemExit):
        train(text, out=out, settings=settings, listen=killed_after(5))
    return out


def test_without_the_package_one_line_names_the_extra_and_nothing_is_created(text, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tensorboard.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    message = 'train.tensorboard=true needs an extra package; install it with: pip install "harken[track]"'
    with pytest.raises(MissingExtra) as error:
        train(text, out=tmp_path / "r", settings=WITH_EVENTS)
    assert str(error.value) == message
    assert not (tmp_path / "r").exists()


def test_the_events_equal_the_log(text, tmp_path, events):
    train(text, out=tmp_path / "r", settings=WITH_EVENTS)
    values = events(tmp_path / "r")
    assert values == logged(tmp_path / "r")
    assert values["loss"].keys() == values["lr"].keys() == values["gradient"].keys() == set(range(1, 9))
    assert values["tokens_per_second"].keys() == set(range(1, 9))
    assert values["valid"].keys() == {4, 8}


def test_each_mixed_text_has_its_own_curve(tmp_path, events):
    mix = {str(tmp_path / "a.txt"): 1.0, str(tmp_path / "b.txt"): 1.0}
    train(out=tmp_path / "r", settings={**WITH_EVENTS, "data.mix": mix})
    values = events(tmp_path / "r")
    assert values == logged(tmp_path / "r")
    assert len([name for name in values if name.startswith("parts/")]) == 2


@pytest.mark.usefixtures("events")
def test_events_change_neither_weights_nor_files_of_the_run(text, tmp_path):
    plain, logged_run = (train(text, out=tmp_path / n, settings=s).path for n, s in (("p", TINY), ("w", WITH_EVENTS)))
    assert sha256_of(logged_run / "model.safetensors") == sha256_of(plain / "model.safetensors")
    assert run_folder.read_manifest(logged_run)["sha256"].keys() == run_folder.read_manifest(plain)["sha256"].keys()
    assert {p.name for p in logged_run.iterdir()} - {p.name for p in plain.iterdir()} == {"tensorboard"}
    for path in (logged_run / "tensorboard").iterdir():
        path.write_bytes(b"modified")
    assert load(logged_run).facts["steps"] == 8


def test_a_killed_run_resumes_its_curves_bitwise(text, tmp_path, events):
    uninterrupted = train(text, out=tmp_path / "uninterrupted", settings=WITH_EVENTS).path
    out = killed_run(text, tmp_path / "r", WITH_EVENTS)
    assert events(out)["loss"].keys() == set(range(1, 6))
    train(out, resume=True)
    values = events(out)
    assert values == logged(out)
    assert values["loss"] == events(uninterrupted)["loss"]
    assert sha256_of(out / "model.safetensors") == sha256_of(uninterrupted / "model.safetensors")


@pytest.mark.parametrize("before", [False, True])
def test_train_tensorboard_may_change_on_resume(text, tmp_path, events, before):
    out = killed_run(text, tmp_path / "r", {**TINY, "train.tensorboard": before})
    train(out, resume=True, settings={"train.tensorboard": not before})
    assert load(out).recipe.train.tensorboard is not before  # also for the next resume
    steps = events(out)["loss"].keys() if (out / "tensorboard").exists() else set()
    assert steps == set(range(1, 6 if before else 9))


@pytest.mark.usefixtures("events")
def test_a_full_disk_is_reported_in_one_line(text, tmp_path, monkeypatch, capfd):
    from tensorboard.summary.writer.record_writer import RecordWriter

    def full(self: RecordWriter, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RecordWriter, "write", full)
    with pytest.raises(HarkenError, match="the disk is full; saved files are intact"):
        train(text, out=tmp_path / "r", settings=WITH_EVENTS)
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("events")
def test_an_overwritten_run_leaves_no_events(text, tmp_path):
    train(text, out=tmp_path / "r", settings=WITH_EVENTS)
    train(text, out=tmp_path / "r", settings=TINY, force=True)
    assert not (tmp_path / "r" / "tensorboard").exists()
