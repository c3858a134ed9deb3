"""A disk that is too small is reported before the training; one that fills up leaves all saved files intact."""

import errno
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from safetensors import SafetensorError

import harken
from harken import run_folder
from harken.errors import HarkenError
from harken.experiments import train as experiment
from harken.recipe import resolve
from harken.training import resource_estimate


def _script() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "full_disk.py"
    spec = importlib.util.spec_from_file_location("full_disk", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


disks = _script()
SETTINGS: dict[str, Any] = disks.SETTINGS


@pytest.fixture(scope="module", autouse=True)
def short() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 2)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return disks.text(tmp_path_factory.mktemp("disk"))


@pytest.fixture(scope="module")
def reference(data: Path) -> Path:
    """A run with enough disk space."""
    return harken.train(data, out=data.parent / "reference", settings=SETTINGS).path


# --- before the training ----------------------------------------------------------------------------------------------


def set_free_space(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=size) if path.exists() else None)


def test_a_disk_that_is_too_small_is_an_error_in_one_line_before_a_folder_is_created(data, tmp_path, monkeypatch):
    set_free_space(monkeypatch, 300_000)
    with pytest.raises(HarkenError) as refused:
        harken.train(data, out=tmp_path / "deep" / "r", settings=SETTINGS | {"train.keep_checkpoints": 9})
    assert str(refused.value) == (
        f"{tmp_path}/deep/r: needs about 4 MiB of disk, and 0 MiB are free; free some space, use another folder, or"
        " lower train.keep_checkpoints"
    )
    assert refused.value.exit_code == 1
    assert not (tmp_path / "deep").exists()


def test_fewer_checkpoints_fit_on_a_smaller_disk(data, tmp_path, monkeypatch):
    set_free_space(monkeypatch, 1_000_000)
    with pytest.raises(HarkenError, match=r"needs about \d+ MiB of disk"):
        harken.train(data, out=tmp_path / "r", settings=SETTINGS | {"train.keep_checkpoints": 3})
    assert (
        harken.train(data, out=tmp_path / "r", settings=SETTINGS | {"train.keep_checkpoints": 1}).facts["steps"] == 12
    )


def test_the_existing_files_of_a_run_are_not_counted_again(data, reference, tmp_path, monkeypatch):
    out = shutil.copytree(reference, tmp_path / "r")
    (out / "harken.json").unlink()
    set_free_space(monkeypatch, 500_000)  # less than a new run needs
    with pytest.raises(HarkenError, match=r"needs about \d+ MiB of disk"):
        harken.train(data, out=tmp_path / "new", settings=SETTINGS)
    assert harken.train(out, resume=True).facts["steps"] == 12


def test_a_run_that_cannot_resume_for_lack_of_space_is_not_changed(reference, tmp_path, monkeypatch):
    out = shutil.copytree(reference, tmp_path / "r")
    (out / "harken.json").unlink()
    before = {p: p.read_bytes() for p in out.rglob("*.*") if p.name != ".lock"}
    set_free_space(monkeypatch, 1000)
    with pytest.raises(HarkenError, match=r"r: needs about 1 MiB of disk, and 0 MiB are free"):
        harken.train(out, resume=True)
    assert {p: p.read_bytes() for p in out.rglob("*.*") if p.name != ".lock"} == before


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizer": "muon"},
        {"optimizer": "sgd"},
        {"optimizer": "sgd", "momentum": 0.0},
        {"optimizer": "rmsprop"},
        {"average": "ema"},
        {"average": "last", "average_last": 2},
        {"keep_best": False},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "plain",
)
def test_a_checkpoint_has_the_estimated_size(data, tmp_path, settings):
    """Except for a few kilobytes of names and random state, which do not grow with the model."""
    overrides = SETTINGS | {f"train.{name}": value for name, value in settings.items()}
    overrides |= {"data.path": str(data), "model.d": 96, "train.eval_every": 1}
    recipe = resolve(("test", {"data.kind": "text", "model.kind": "gpt"} | overrides))
    _, trainer = experiment.prepare(recipe, lambda *_, **__: None)
    (tmp_path / "r").mkdir()
    trainer.fit(tmp_path / "r", 2)
    (last,) = (tmp_path / "r" / "checkpoints").iterdir()
    size = sum(p.stat().st_size for p in last.iterdir())
    estimate = resource_estimate._bytes_beside_weights(trainer.model, trainer.task, trainer.train) + sum(
        p.nbytes for p in trainer.model.parameters()
    )
    assert 0 < size - estimate < 40_000
    assert resource_estimate.estimate_disk(trainer) > 2 * estimate  # one checkpoint to keep and one being written


# --- during the training ----------------------------------------------------------------------------------------------


class Disk:
    """A disk with limited space, for every way in which a run writes."""

    def __init__(self, space: int, patch: pytest.MonkeyPatch) -> None:
        self.space = space
        save, write, open_ = run_folder.save_file, Path.write_bytes, Path.open

        def save_file(tensors: dict[str, Any], path: Path, metadata: dict[str, str] | None = None) -> None:
            save(tensors, path, metadata)
            try:
                self.take(path.stat().st_size, path)
            except OSError as error:  # the message of safetensors
                raise SafetensorError(f"Error while serializing: I/O error: {error.strerror} (os error 28)") from None

        def write_bytes(path: Path, content: bytes) -> int:
            write(path, content)
            self.take(len(content), path)
            return len(content)

        def open_limited(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            file = open_(path, mode, *args, **kwargs)
            return Log(file, self) if mode == "a" else file

        patch.setattr(run_folder, "save_file", save_file)
        patch.setattr(Path, "write_bytes", write_bytes)
        patch.setattr(Path, "open", open_limited)

    def take(self, size: int, path: Path) -> None:
        fits, self.space = min(size, self.space), max(0, self.space - size)
        if fits < size:
            os.truncate(path, path.stat().st_size - (size - fits))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Log:
    """A file opened in append mode."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self.file, self.disk = file, disk

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, text: str) -> None:
        self.file.write(text)
        self.file.flush()
        self.disk.take(len(text), Path(self.file.name))

    def flush(self) -> None: ...


@pytest.fixture(scope="module")
def bytes_written(data: Path) -> int:
    """Number of bytes that a complete run writes."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(1 << 40, patch)
        harken.train(data, out=data.parent / "again", settings=SETTINGS)
        return (1 << 40) - disk.space


@pytest.mark.parametrize("fraction", [0.0, 0.002, 0.1, 0.3, 0.32, 0.5, 0.9, 0.97, 0.995])
def test_a_disk_that_fills_up_leaves_saved_files_intact_and_the_run_resumable(
    data, reference, bytes_written, tmp_path, fraction
):
    out = tmp_path / "r"
    with pytest.MonkeyPatch.context() as patch:
        Disk(int(bytes_written * fraction), patch)
        with pytest.raises(HarkenError) as refused:
            harken.train(data, out=out, settings=SETTINGS)
    started = (out / "recipe.toml").exists()
    action = f"resume with: harken train {out} --resume" if started else "train again"
    assert str(refused.value) == f"{out}: the disk is full; saved files are intact; free space, then {action}"
    assert run_folder.newest_checkpoint(out)[2] == []
    assert list(out.rglob(".tmp-*")) == []
    harken.train(data, out=out, settings=SETTINGS, resume=started)
    assert disks.hashes(out) == disks.hashes(reference)


def test_another_disk_error_is_not_reported_as_a_full_disk(tmp_path):
    def fail() -> None:
        with run_folder.lock_folder(tmp_path / "r"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match="Input/output error"):
        fail()


def test_another_error_of_safetensors_is_not_reported_as_a_full_disk(tmp_path):
    with pytest.raises(Exception, match=r"(?i)no such file|not found"):
        run_folder.write_tensors(tmp_path / "no" / "w.safetensors", {})


@pytest.mark.parametrize("level", range(2))
def test_a_real_disk_that_fills_up_leaves_the_run_resumable(data, reference, level):
    """benchmarks/full_disk.py tests more levels."""
    try:
        with disks.small_disk() as disk:
            moment = disks.rooms(reference, 4)[2 * level + 1]
            outcome = disks.survive(disk, data, moment, disks.hashes(reference))
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("a small disk (tmpfs) cannot be mounted")
    assert outcome.message.startswith(
        f"{disk}/run: the disk is full; saved files are intact; free space, then resume with:"
    )
    assert outcome[1:] == ((4, 12)[level], [], [], True)
