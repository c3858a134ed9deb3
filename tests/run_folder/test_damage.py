"""A modified checkpoint (truncated, flipped bit, missing file, swapped, of another run) is never used."""

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
position = st.floats(0, 1, exclude_max=True)
examples = settings(max_examples=60, deadline=None)


def save_checkpoints(folder: Path, *steps: int, recipe: str = "[train]\nseed = 1\n") -> list[Path]:
    """A run with a recipe and checkpoints of these steps."""
    folder.mkdir(exist_ok=True)
    (folder / "recipe.toml").write_text(recipe)
    values = {"cost": {"joules": 1e-05, "source": "estimated"}, "machine": {"threads": 1}}
    return [
        run_folder.save_checkpoint(folder, n, {"model:w": torch.full((3, 40), float(n))}, values, keep=9) for n in steps
    ]


def newest(folder: Path) -> tuple[int | None, list[str]]:
    """The step that is used, and the problems of later ones."""
    manifest, saved, problems = run_folder.newest_checkpoint(folder)
    assert manifest is None or saved["model:w"].unique().tolist() == [manifest["step"]]
    return manifest and manifest["step"], problems


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of steps 1 and 2, which each test restores."""
    folder = tmp_path_factory.mktemp("damage") / "r"
    save_checkpoints(folder, 1, 2)
    return folder


@contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    original = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(original)


def last(run: Path) -> Path:
    return run / "checkpoints" / "step-000002"


# --- any damage -------------------------------------------------------------------------------------------------------


@examples
@given(name=files, fraction=position)
def test_a_truncated_file_is_detected(run, name, fraction):
    content_before = (last(run) / name).read_bytes()
    with changed(last(run) / name, content_before[: int(len(content_before) * fraction)]):
        step, problems = newest(run)
    assert (step, len(problems)) == (1, 1)
    assert str(last(run) / name) in problems[0]


@examples
@given(name=files, fraction=position, bit=st.integers(0, 7))
def test_a_flipped_bit_is_detected(run, name, fraction, bit):
    content_before = bytearray((last(run) / name).read_bytes())
    content_before[int(len(content_before) * fraction)] ^= 1 << bit
    with changed(last(run) / name, bytes(content_before)):
        assert newest(run)[0] == 1


@examples
@given(name=files, content=st.binary(max_size=300))
def test_a_replaced_file_is_detected(run, name, content):
    with changed(last(run) / name, content):
        assert newest(run)[0] == 1


@examples
@given(name=files, more=st.binary(min_size=1, max_size=20))
def test_appended_bytes_are_detected(run, name, more):
    with changed(last(run) / name, (last(run) / name).read_bytes() + more):
        assert newest(run)[0] == 1


@pytest.mark.parametrize(("old", "new"), [(b"1e-05", b"1E-05"), (b"}\n", b"}"), (b'"step": 2', b'"step":  2')])
def test_an_equal_manifest_in_other_bytes_is_detected(run, old, new):
    manifest = last(run) / "manifest.json"
    content_before = manifest.read_bytes()
    assert old in content_before
    with changed(manifest, content_before.replace(old, new)):
        assert json.loads(manifest.read_bytes()) == json.loads(content_before)
        assert newest(run)[0] == 1


def test_an_intact_checkpoint_is_used(run):
    assert newest(run) == (2, [])


# --- each damage ------------------------------------------------------------------------------------------------------


def swap(a: Path, b: Path) -> None:
    temporary = a.with_name("temporary")
    a.rename(temporary)
    b.rename(a)
    temporary.rename(b)


def rewrite(path: Path, **more: object) -> None:
    """Change a manifest and its checksum."""
    manifest = {**json.loads((path / "manifest.json").read_text()), **more}
    run_folder.write_json(path / "manifest.json", {**manifest, "checksum": run_folder._checksum(manifest)})


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "no state": lambda last, first: (last / FILES[0]).unlink(),
    "no manifest": lambda last, first: (last / FILES[1]).unlink(),
    "an empty folder": lambda last, first: (shutil.rmtree(last), last.mkdir()),
    "a folder for a file": lambda last, first: ((last / FILES[0]).unlink(), (last / FILES[0]).mkdir()),
    "the state of another step": lambda last, first: shutil.copy(first / FILES[0], last / FILES[0]),
    "the manifest of another step": lambda last, first: shutil.copy(first / FILES[1], last / FILES[1]),
    "both files of another step": lambda last, first: shutil.copytree(first, last, dirs_exist_ok=True),
    "no hashes": lambda last, first: rewrite(last, sha256=["state.safetensors"]),
    "another step": lambda last, first: rewrite(last, step=7),
    "an empty manifest": lambda last, first: (last / FILES[1]).write_text("{}"),
    "a damaged format": lambda last, first: (last / FILES[1]).write_text(
        (last / FILES[1]).read_text().replace('"format": 2', '"format": 3')
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, damage):
    first, last = save_checkpoints(tmp_path / "r", 1, 2)
    DAMAGES[damage](last, first)
    step, problems = newest(tmp_path / "r")
    assert (step, len(problems)) == (1, 1)
    assert str(last) in problems[0]


def test_swapped_checkpoints_are_not_used(tmp_path):
    _, second, third = save_checkpoints(tmp_path / "r", 1, 2, 3)
    swap(second, third)
    assert newest(tmp_path / "r") == (
        1,
        [f"{third}: is the checkpoint of step 2", f"{second}: is the checkpoint of step 3"],
    )


# --- another run ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_run_is_not_used(tmp_path):
    """Intact, with the same step and shape: only the recipe differs."""
    *_, last = save_checkpoints(tmp_path / "r", 1, 2)
    *_, other = save_checkpoints(tmp_path / "other", 1, 2, recipe="[train]\nseed = 2\n")
    shutil.rmtree(last)
    shutil.copytree(other, last)
    assert newest(tmp_path / "r") == (1, [f"{last}: is a checkpoint of another recipe than recipe.toml"])


def test_other_mixture_weights_are_another_recipe(tmp_path):
    save_checkpoints(tmp_path / "r", 1, recipe='[data]\nmix = {"/a.txt" = 1.0, "/b.txt" = 2.0}\n')
    (tmp_path / "r" / "recipe.toml").write_text('[data]\nmix = {"/a.txt" = 2.0, "/b.txt" = 1.0}\n')
    with pytest.raises(BadRun, match="another recipe"):
        run_folder.newest_checkpoint(tmp_path / "r")


@pytest.mark.parametrize("recipe", ["[train]\nseed = 2\n", "[train]\nseed = 1\nlr = 0.1\n", ""])
def test_a_run_with_a_changed_recipe_does_not_restart_over_its_checkpoints(tmp_path, recipe):
    first, _ = save_checkpoints(tmp_path / "r", 1, 2)
    (tmp_path / "r" / "recipe.toml").write_text(recipe)
    with pytest.raises(BadRun) as error:
        run_folder.newest_checkpoint(tmp_path / "r")
    assert str(error.value) == (
        f"{first}: is a checkpoint of another recipe than recipe.toml; restore the recipe, or train in another folder"
    )


@pytest.mark.parametrize("data", ['path = "{}"', 'mix = {{"{}" = 1.0, "/c.txt" = 2.0}}'])
def test_a_run_may_move_to_another_path_and_device(tmp_path, data):
    before = '\n[train]\nseed = 1\ndevice = "cuda"\nthreads = 1\nparallel = "ddp"\n'
    after = '\n[train]\nseed = 1\ndevice = "cpu"\nthreads = 2\nparallel = "none"\n'
    save_checkpoints(tmp_path / "r", 1, recipe=f"[data]\n{data.format('/here/a.txt')}{before}")
    (tmp_path / "r" / "recipe.toml").write_text(f"[data]\n{data.format('/there/b.txt')}{after}")
    assert newest(tmp_path / "r") == (1, [])


def test_a_checkpoint_of_the_former_format_is_an_error_that_names_both_formats(tmp_path):
    (first,) = save_checkpoints(tmp_path / "r", 1)
    manifest = json.loads((first / "manifest.json").read_text())
    del manifest["checksum"]
    manifest["format"] = 1
    run_folder.write_json(first / "manifest.json", {**manifest, "seal": run_folder._checksum(manifest)})
    with pytest.raises(BadRun) as error:
        run_folder.newest_checkpoint(tmp_path / "r")
    assert str(error.value) == (
        f"{first}: run folder format 1; this version reads format 2; "
        "train again, or use the version of harken that wrote it"
    )
