"""A writer that dies right before or right after any call that changes the disk leaves nothing half done behind."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

import failpoints
from harken import run_folder
from harken.errors import BadRun
from harken.experiments.train import _clear, _folder, is_free


class Death(BaseException):
    """No handler of the writer's own outlives it: whatever it calls next on the disk dies too."""


def dies(moment: int, work: Callable[[], object]) -> str:
    """Do the work up to this moment; the moment's name, or nothing if the work was done before."""

    def die() -> None:
        raise Death

    with pytest.MonkeyPatch.context() as patch:
        passed = failpoints.die_at(moment, die, put=patch.setattr)
        try:
            work()
        except Death:
            return passed[moment - 1]
    return ""


def deaths(folder: Path, before: Callable[[Path], object], work: Callable[[Path], object]) -> Iterator[Path]:
    """The folder as it is found after each moment at which the work can die, each time made anew; then as it is after
    the work."""
    for moment in count(1):
        place = folder / str(moment)
        place.mkdir()
        before(place)
        name = dies(moment, lambda place=place: work(place))
        yield place
        if not name:
            break
    assert moment > 3


def save(folder: Path, step: int) -> None:
    run_folder.save_checkpoint(folder, step, {"w": torch.full((50,), float(step))}, {"machine": {}}, keep=2)


def newest(folder: Path) -> int:
    facts, saved, damaged = run_folder.newest_checkpoint(folder)
    assert damaged == []
    assert saved["w"].tolist() == [facts["step"]] * 50
    return facts["step"]


def shelf(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


# --- a checkpoint -----------------------------------------------------------------------------------------------------


def test_a_dying_writer_leaves_the_old_checkpoint_or_the_new_one_whole(tmp_path):
    """What is left behind is no hindrance: the same checkpoint is then written, and nothing else stays."""

    def begin(folder: Path) -> None:
        run_folder.write(folder / "log.jsonl", '{"step": 1}\n')
        for step in (1, 2):
            save(folder, step)

    seen = []
    for folder in deaths(tmp_path, begin, lambda folder: save(folder, 3)):
        seen.append(newest(folder))
        with run_folder.writing(folder):
            save(folder, 3)
        assert (newest(folder), shelf(folder)) == (3, ["step-000002", "step-000003"])
    assert seen == sorted(seen)
    assert set(seen) == {2, 3}
    assert len(seen) > 25  # 12 calls and more, each with a moment before and one after


def test_the_first_checkpoint_is_there_whole_or_not_at_all(tmp_path):
    seen = []
    for folder in deaths(tmp_path, lambda folder: None, lambda folder: save(folder, 1)):
        facts, _, damaged = run_folder.newest_checkpoint(folder)
        assert damaged == []
        seen.append(facts and facts["step"])
        save(folder, 1)
        assert shelf(folder) == ["step-000001"]
    assert set(seen) == {None, 1}


def test_a_dying_reader_that_goes_on_from_an_earlier_checkpoint_loses_no_good_one(tmp_path):
    """Step 3 is damaged, and a step 4 comes before a new step 3 does."""

    def begin(folder: Path) -> None:
        for step in (1, 2, 3):
            save(folder, step)
        (folder / "checkpoints" / "step-000003" / "state.safetensors").unlink()

    def go_on(folder: Path) -> None:
        run_folder.set_aside(folder, 2)
        save(folder, 4)

    for folder in deaths(tmp_path, begin, go_on):
        facts, *_ = run_folder.newest_checkpoint(folder)
        assert facts["step"] in (2, 4)
        go_on(folder)
        assert (newest(folder), shelf(folder)) == (4, ["step-000002", "step-000004"])


# --- a file -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("put", "read"),
    [
        (lambda path, n: run_folder.write(path, "text " * n), lambda path: path.read_text().count("text ")),
        (lambda path, n: run_folder.write_json(path, {"n": n}), lambda path: run_folder.read_json(path)["n"]),
        (
            lambda path, n: run_folder.write_tensors(path, {"n": torch.tensor(n)}),
            lambda path: int(run_folder.read_tensors(path)["n"]),
        ),
    ],
    ids=["text", "json", "tensors"],
)
def test_a_file_is_the_old_one_or_the_new_one(tmp_path, put, read):
    seen = []
    for folder in deaths(tmp_path, lambda f: put(f / "a", 1), lambda f: put(f / "a", 2)):
        seen.append(read(folder / "a"))
        with run_folder.writing(folder):
            pass
        assert sorted(p.name for p in folder.iterdir()) == [".lock", "a"]
    assert set(seen) == {1, 2}


# --- a whole run ------------------------------------------------------------------------------------------------------


def finish(folder: Path) -> None:
    for name in ("model.safetensors", "log.jsonl", "recipe.toml"):
        run_folder.write(folder / name, "")
    save(folder, 1)
    run_folder.finish(folder, {"name": folder.name})


def test_a_run_is_finished_or_it_is_not(tmp_path):
    seen = []
    for folder in deaths(tmp_path, lambda folder: None, finish):
        try:
            seen.append(run_folder.facts(folder)["name"] == folder.name)
        except (BadRun, ValueError):
            seen.append(False)
    assert seen == sorted(seen)
    assert set(seen) == {False, True}


def test_who_dies_while_a_run_is_cleared_away_leaves_one_that_can_be_cleared_away(tmp_path):
    for folder in deaths(tmp_path, finish, _clear):
        if (folder / "harken.json").exists():
            assert run_folder.facts(folder)["name"] == folder.name  # nothing was taken yet
        assert is_free(folder) or _folder(folder, named=True, force=True) == folder
