"""A process killed right before or after any disk operation leaves no incomplete file behind."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

import failpoints
from harken import run_folder
from harken.errors import BadRun
from harken.experiments.folders import clear_run, folder_to_write, is_available
from harken.files import write_atomic


class Killed(BaseException):
    """No exception handler of the writer catches it, and every later disk operation raises it again."""


def run_until(operation: int, work: Callable[[], object]) -> str:
    """Run until this disk operation; its name, or empty if the work has fewer operations."""

    def die() -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        passed = failpoints.die_at(operation, die, put=patch.setattr)
        try:
            work()
        except Killed:
            return passed[operation - 1]
    return ""


def kill_everywhere(folder: Path, prepare: Callable[[Path], object], work: Callable[[Path], object]) -> Iterator[Path]:
    """A new folder for each operation at which the work is killed, in the state after the kill; the last one after the
    complete work."""
    for operation in count(1):
        path = folder / str(operation)
        path.mkdir()
        prepare(path)
        name = run_until(operation, lambda path=path: work(path))
        yield path
        if not name:
            break
    assert operation > 3


def save(folder: Path, step: int) -> None:
    run_folder.save_checkpoint(folder, step, {"w": torch.full((50,), float(step))}, {"machine": {}}, keep=2)


def newest(folder: Path) -> int:
    manifest, saved, problems = run_folder.newest_checkpoint(folder)
    assert problems == []
    assert saved["w"].tolist() == [manifest["step"]] * 50
    return manifest["step"]


def checkpoint_names(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


# --- a checkpoint -----------------------------------------------------------------------------------------------------


def test_a_killed_writer_leaves_the_old_or_the_new_checkpoint_intact(tmp_path):
    """The remains do not block: the same checkpoint can be written afterwards, and no other file stays."""

    def prepare(folder: Path) -> None:
        write_atomic(folder / "log.jsonl", '{"step": 1}\n')
        for step in (1, 2):
            save(folder, step)

    states = []
    for folder in kill_everywhere(tmp_path, prepare, lambda folder: save(folder, 3)):
        states.append(newest(folder))
        with run_folder.lock_folder(folder):
            save(folder, 3)
        assert (newest(folder), checkpoint_names(folder)) == (3, ["step-000002", "step-000003"])
    assert states == sorted(states)
    assert set(states) == {2, 3}
    assert len(states) > 25  # more than 12 operations, each with a kill before and after


def test_the_first_checkpoint_exists_intact_or_not_at_all(tmp_path):
    states = []
    for folder in kill_everywhere(tmp_path, lambda folder: None, lambda folder: save(folder, 1)):
        manifest, _, problems = run_folder.newest_checkpoint(folder)
        assert problems == []
        states.append(manifest and manifest["step"])
        save(folder, 1)
        assert checkpoint_names(folder) == ["step-000001"]
    assert set(states) == {None, 1}


def test_a_kill_during_a_resume_from_an_earlier_checkpoint_loses_no_intact_one(tmp_path):
    """Step 3 is damaged, and step 4 is written before a new step 3."""

    def prepare(folder: Path) -> None:
        for step in (1, 2, 3):
            save(folder, step)
        (folder / "checkpoints" / "step-000003" / "state.safetensors").unlink()

    def resume(folder: Path) -> None:
        run_folder.discard_later_checkpoints(folder, 2)
        save(folder, 4)

    for folder in kill_everywhere(tmp_path, prepare, resume):
        manifest, *_ = run_folder.newest_checkpoint(folder)
        assert manifest["step"] in (2, 4)
        resume(folder)
        assert (newest(folder), checkpoint_names(folder)) == (4, ["step-000002", "step-000004"])


# --- a file -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (lambda path, n: write_atomic(path, "text " * n), lambda path: path.read_text().count("text ")),
        (lambda path, n: run_folder.write_json(path, {"n": n}), lambda path: run_folder.read_json(path)["n"]),
        (
            lambda path, n: run_folder.write_tensors(path, {"n": torch.tensor(n)}),
            lambda path: int(run_folder.read_tensors(path)["n"]),
        ),
    ],
    ids=["text", "json", "tensors"],
)
def test_a_file_has_its_old_or_its_new_content(tmp_path, write, read):
    states = []
    for folder in kill_everywhere(tmp_path, lambda f: write(f / "a", 1), lambda f: write(f / "a", 2)):
        states.append(read(folder / "a"))
        with run_folder.lock_folder(folder):
            pass
        assert sorted(p.name for p in folder.iterdir()) == [".lock", "a"]
    assert set(states) == {1, 2}


# --- a run ------------------------------------------------------------------------------------------------------------


def finish(folder: Path) -> None:
    for name in ("model.safetensors", "log.jsonl", "recipe.toml"):
        write_atomic(folder / name, "")
    save(folder, 1)
    run_folder.write_manifest(folder, {"name": folder.name})


def test_a_run_is_finished_or_unfinished(tmp_path):
    states = []
    for folder in kill_everywhere(tmp_path, lambda folder: None, finish):
        try:
            states.append(run_folder.read_manifest(folder)["name"] == folder.name)
        except (BadRun, ValueError):
            states.append(False)
    assert states == sorted(states)
    assert set(states) == {False, True}


def test_a_kill_while_a_run_is_deleted_leaves_one_that_can_be_deleted(tmp_path):
    for folder in kill_everywhere(tmp_path, finish, clear_run):
        if (folder / "harken.json").exists():
            assert run_folder.read_manifest(folder)["name"] == folder.name  # nothing is deleted yet
        assert is_available(folder) or folder_to_write(folder, explicit=True, force=True) == folder
