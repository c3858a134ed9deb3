"""A disk that is too small is said before the training; one that fills up leaves all that was saved whole."""

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

import harken
from harken import run_folder
from harken.errors import HarkenError
from harken.experiments import train as room
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
def peace(data: Path) -> Path:
    """A run that had room enough."""
    return harken.train(data, out=data.parent / "peace", settings=SETTINGS).path


# --- said before ------------------------------------------------------------------------------------------------------


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=size) if path.exists() else None)


def test_a_disk_that_is_too_small_is_refused_in_one_line_before_a_folder_is_taken(data, tmp_path, monkeypatch):
    free(monkeypatch, 300_000)
    with pytest.raises(HarkenError) as refused:
        harken.train(data, out=tmp_path / "deep" / "r", settings=SETTINGS | {"train.keep_checkpoints": 9})
    assert str(refused.value) == (
        f"{tmp_path}/deep/r: about 4 MiB of disk are needed and 0 are free; make room, take another folder, or keep"
        " fewer checkpoints (train.keep_checkpoints)"
    )
    assert refused.value.exit_code == 1
    assert not (tmp_path / "deep").exists()


def test_fewer_checkpoints_fit_on_a_smaller_disk(data, tmp_path, monkeypatch):
    free(monkeypatch, 1_000_000)
    with pytest.raises(HarkenError, match="MiB of disk are needed"):
        harken.train(data, out=tmp_path / "r", settings=SETTINGS | {"train.keep_checkpoints": 3})
    assert (
        harken.train(data, out=tmp_path / "r", settings=SETTINGS | {"train.keep_checkpoints": 1}).facts["steps"] == 12
    )


def test_what_a_run_has_on_the_disk_already_is_not_asked_for_again(data, peace, tmp_path, monkeypatch):
    out = shutil.copytree(peace, tmp_path / "r")
    (out / "harken.json").unlink()
    free(monkeypatch, 500_000)  # less than a new run needs
    with pytest.raises(HarkenError, match="MiB of disk are needed"):
        harken.train(data, out=tmp_path / "new", settings=SETTINGS)
    assert harken.train(out, resume=True).facts["steps"] == 12


def test_a_run_that_cannot_go_on_for_want_of_room_stays_as_it_is(peace, tmp_path, monkeypatch):
    out = shutil.copytree(peace, tmp_path / "r")
    (out / "harken.json").unlink()
    before = {p: p.read_bytes() for p in out.rglob("*.*") if p.name != ".lock"}
    free(monkeypatch, 1000)
    with pytest.raises(HarkenError, match=r"r: about 1 MiB of disk are needed and 0 are free"):
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
        {"average": "last", "last": 2},
        {"best": False},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "plain",
)
def test_a_checkpoint_takes_the_room_that_was_counted(data, tmp_path, settings):
    """But for a few kilobytes of names and random state, which do not grow with the model."""
    given = SETTINGS | {f"train.{name}": value for name, value in settings.items()}
    given |= {"data.path": str(data), "model.d": 96, "train.eval_every": 1}
    recipe = resolve(("test", {"data.kind": "text", "model.kind": "gpt"} | given))
    _, trainer = room.prepare(recipe, lambda *_, **__: None)
    (tmp_path / "r").mkdir()
    trainer.fit(tmp_path / "r", 2)
    (last,) = (tmp_path / "r" / "checkpoints").iterdir()
    real = sum(p.stat().st_size for p in last.iterdir())
    counted = resource_estimate._saved(trainer) + sum(p.nbytes for p in trainer.model.parameters())
    assert 0 < real - counted < 40_000
    assert resource_estimate.disk(trainer) > 2 * counted  # keep = 1, and one that is being written


# --- filled up on the way ---------------------------------------------------------------------------------------------


class Disk:
    """A disk that takes so many more bytes, through everything a run writes with."""

    def __init__(self, room: int, patch: pytest.MonkeyPatch) -> None:
        self.room = room
        save, put, begin = run_folder.save_file, Path.write_bytes, Path.open

        def save_file(tensors: dict[str, Any], path: Path, metadata: dict[str, str] | None = None) -> None:
            save(tensors, path, metadata)
            try:
                self.take(path.stat().st_size, path)
            except OSError as error:  # as safetensors says it
                raise Exception(f"Error while serializing: I/O error: {error.strerror} (os error 28)") from None

        def write_bytes(path: Path, content: bytes) -> int:
            put(path, content)
            self.take(len(content), path)
            return len(content)

        def opened(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
            file = begin(path, mode, *more, **named)
            return Log(file, self) if mode == "a" else file

        patch.setattr(run_folder, "save_file", save_file)
        patch.setattr(Path, "write_bytes", write_bytes)
        patch.setattr(Path, "open", opened)

    def take(self, size: int, path: Path) -> None:
        fits, self.room = min(size, self.room), max(0, self.room - size)
        if fits < size:
            os.truncate(path, path.stat().st_size - (size - fits))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Log:
    """A file to whose end is written."""

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
def written(data: Path) -> int:
    """How many bytes a whole run writes."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(1 << 40, patch)
        harken.train(data, out=data.parent / "again", settings=SETTINGS)
        return (1 << 40) - disk.room


@pytest.mark.parametrize("share", [0.0, 0.002, 0.1, 0.3, 0.32, 0.5, 0.9, 0.97, 0.995])
def test_a_disk_that_fills_up_leaves_what_was_saved_whole_and_the_run_can_go_on(data, peace, written, tmp_path, share):
    out = tmp_path / "r"
    with pytest.MonkeyPatch.context() as patch:
        Disk(int(written * share), patch)
        with pytest.raises(HarkenError) as refused:
            harken.train(data, out=out, settings=SETTINGS)
    begun = (out / "recipe.toml").exists()
    way = f"go on with: harken train {out} --resume" if begun else "train again"
    assert str(refused.value) == f"{out}: the disk is full; what was saved is whole; make room, then {way}"
    assert run_folder.newest_checkpoint(out)[2] == []
    assert list(out.rglob(".tmp-*")) == []
    harken.train(data, out=out, settings=SETTINGS, resume=begun)
    assert disks.hashes(out) == disks.hashes(peace)


def test_another_failure_of_the_disk_is_not_called_a_full_one(tmp_path):
    def fails() -> None:
        with run_folder.writing(tmp_path / "r"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match="Input/output error"):
        fails()


def test_another_failure_of_safetensors_is_not_called_a_full_disk(tmp_path):
    with pytest.raises(Exception, match=r"(?i)no such file|not found"):
        run_folder.write_tensors(tmp_path / "no" / "w.safetensors", {})


@pytest.mark.parametrize("level", range(2))
def test_a_small_real_disk_that_fills_up_is_survived(data, peace, level):
    """Of more levels tells benchmarks/full_disk.py."""
    try:
        with disks.small_disk() as disk:
            when = disks.rooms(peace, 4)[2 * level + 1]
            made = disks.survive(disk, data, when, disks.hashes(peace))
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("a small disk (tmpfs) cannot be mounted here")
    assert made.said.startswith(f"{disk}/run: the disk is full; what was saved is whole; make room, then go on with:")
    assert made[1:] == ((4, 12)[level], [], [], True)
