"""A checkpoint that is not as it was written (cut, a bit flipped, a file missing, swapped, foreign) is never taken."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harken import run_folder
from harken.errors import BadRun

FILES = ("state.safetensors", "manifest.json")
files = st.sampled_from(FILES)
place = st.floats(0, 1, exclude_max=True)
some = settings(max_examples=60, deadline=None)


def shelve(folder: Path, *steps: int, recipe: str = "[train]\nseed = 1\n") -> list[Path]:
    """A run with a recipe, and checkpoints of these steps."""
    folder.mkdir(exist_ok=True)
    (folder / "recipe.toml").write_text(recipe)
    facts = {"cost": {"joules": 1e-05, "source": "estimated"}, "machine": {"threads": 1}}
    return [
        run_folder.save_checkpoint(folder, n, {"model:w": torch.full((3, 40), float(n))}, facts, keep=9) for n in steps
    ]


def found(folder: Path) -> tuple[int | None, list[str]]:
    """The step that is taken, and what is wrong with later ones."""
    facts, saved, damaged = run_folder.newest_checkpoint(folder)
    assert facts is None or saved["model:w"].unique().tolist() == [facts["step"]]
    return facts and facts["step"], damaged


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 1 and 2, which each test leaves as they were."""
    folder = tmp_path_factory.mktemp("damage") / "r"
    shelve(folder, 1, 2)
    return folder


@contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    good = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(good)


def last(shelf: Path) -> Path:
    return shelf / "checkpoints" / "step-000002"


# --- any damage -------------------------------------------------------------------------------------------------------


@some
@given(name=files, share=place)
def test_a_file_that_was_cut_anywhere_is_found(shelf, name, share):
    good = (last(shelf) / name).read_bytes()
    with changed(last(shelf) / name, good[: int(len(good) * share)]):
        step, damaged = found(shelf)
    assert (step, len(damaged)) == (1, 1)
    assert str(last(shelf) / name) in damaged[0]


@some
@given(name=files, share=place, bit=st.integers(0, 7))
def test_one_flipped_bit_anywhere_is_found(shelf, name, share, bit):
    good = bytearray((last(shelf) / name).read_bytes())
    good[int(len(good) * share)] ^= 1 << bit
    with changed(last(shelf) / name, bytes(good)):
        assert found(shelf)[0] == 1


@some
@given(name=files, content=st.binary(max_size=300))
def test_a_file_that_became_anything_else_is_found(shelf, name, content):
    with changed(last(shelf) / name, content):
        assert found(shelf)[0] == 1


@some
@given(name=files, more=st.binary(min_size=1, max_size=20))
def test_a_file_that_grew_is_found(shelf, name, more):
    with changed(last(shelf) / name, (last(shelf) / name).read_bytes() + more):
        assert found(shelf)[0] == 1


@pytest.mark.parametrize(("was", "is_now"), [(b"1e-05", b"1E-05"), (b"}\n", b"}"), (b'"step": 2', b'"step":  2')])
def test_a_manifest_that_says_the_same_in_other_bytes_is_found(shelf, was, is_now):
    manifest = last(shelf) / "manifest.json"
    good = manifest.read_bytes()
    assert was in good
    with changed(manifest, good.replace(was, is_now)):
        assert json.loads(manifest.read_bytes()) == json.loads(good)
        assert found(shelf)[0] == 1


def test_what_is_whole_is_taken(shelf):
    assert found(shelf) == (2, [])


# --- each damage ------------------------------------------------------------------------------------------------------


def exchange(a: Path, b: Path) -> None:
    aside = a.with_name("aside")
    a.rename(aside)
    b.rename(a)
    aside.rename(b)


def reseal(place: Path, **more: object) -> None:
    """What somebody could write who knows how a manifest is sealed."""
    made = {**json.loads((place / "manifest.json").read_text()), **more}
    run_folder.write_json(place / "manifest.json", {**made, "seal": run_folder._seal(made)})


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "no state": lambda last, first: (last / FILES[0]).unlink(),
    "no manifest": lambda last, first: (last / FILES[1]).unlink(),
    "an empty folder": lambda last, first: (shutil.rmtree(last), last.mkdir()),
    "a folder for a file": lambda last, first: ((last / FILES[0]).unlink(), (last / FILES[0]).mkdir()),
    "the state of the other": lambda last, first: shutil.copy(first / FILES[0], last / FILES[0]),
    "the manifest of the other": lambda last, first: shutil.copy(first / FILES[1], last / FILES[1]),
    "both of the other": lambda last, first: shutil.copytree(first, last, dirs_exist_ok=True),
    "no hashes": lambda last, first: reseal(last, sha256=["state.safetensors"]),
    "another step": lambda last, first: reseal(last, step=7),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path, damage):
    first, last = shelve(tmp_path / "r", 1, 2)
    DAMAGES[damage](last, first)
    step, damaged = found(tmp_path / "r")
    assert (step, len(damaged)) == (1, 1)
    assert str(last) in damaged[0]


def test_of_two_that_changed_places_the_one_before_is_taken(tmp_path):
    _, second, third = shelve(tmp_path / "r", 1, 2, 3)
    exchange(second, third)
    assert found(tmp_path / "r") == (
        1,
        [f"{third}: is the checkpoint of step 2", f"{second}: is the checkpoint of step 3"],
    )


# --- of another run ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_run_is_not_taken(tmp_path):
    """Whole, of the same step and shape: only its recipe tells."""
    *_, last = shelve(tmp_path / "r", 1, 2)
    *_, other = shelve(tmp_path / "other", 1, 2, recipe="[train]\nseed = 2\n")
    shutil.rmtree(last)
    shutil.copytree(other, last)
    assert found(tmp_path / "r") == (1, [f"{last}: is a checkpoint of another recipe than recipe.toml"])


def test_a_mix_of_other_weights_is_another_recipe(tmp_path):
    shelve(tmp_path / "r", 1, recipe='[data]\nmix = {"/a.txt" = 1.0, "/b.txt" = 2.0}\n')
    (tmp_path / "r" / "recipe.toml").write_text('[data]\nmix = {"/a.txt" = 2.0, "/b.txt" = 1.0}\n')
    with pytest.raises(BadRun, match="another recipe"):
        run_folder.newest_checkpoint(tmp_path / "r")


@pytest.mark.parametrize("recipe", ["[train]\nseed = 2\n", "[train]\nseed = 1\nlr = 0.1\n", ""])
def test_a_run_whose_recipe_was_changed_is_not_begun_anew_over_its_checkpoints(tmp_path, recipe):
    first, _ = shelve(tmp_path / "r", 1, 2)
    (tmp_path / "r" / "recipe.toml").write_text(recipe)
    with pytest.raises(BadRun) as refused:
        run_folder.newest_checkpoint(tmp_path / "r")
    assert str(refused.value) == (
        f"{first}: is a checkpoint of another recipe than recipe.toml; put its recipe back, or train in another folder"
    )


@pytest.mark.parametrize("data", ['path = "{}"', 'mix = {{"{}" = 1.0, "/c.txt" = 2.0}}'])
def test_a_run_may_move_to_another_place_and_device(tmp_path, data):
    before = '\n[train]\nseed = 1\ndevice = "cuda"\nthreads = 1\nparallel = "ddp"\n'
    after = '\n[train]\nseed = 1\ndevice = "cpu"\nthreads = 2\nparallel = "none"\n'
    shelve(tmp_path / "r", 1, recipe=f"[data]\n{data.format('/here/a.txt')}{before}")
    (tmp_path / "r" / "recipe.toml").write_text(f"[data]\n{data.format('/there/b.txt')}{after}")
    assert found(tmp_path / "r") == (1, [])


def test_a_checkpoint_that_does_not_say_its_recipe_is_still_taken(tmp_path):
    """As the first ones were written."""
    (first,) = shelve(tmp_path / "r", 1)
    made = json.loads((first / "manifest.json").read_text())
    del made["recipe"]
    run_folder.write_json(first / "manifest.json", {**made, "seal": run_folder._seal(made)})
    assert found(tmp_path / "r") == (1, [])
