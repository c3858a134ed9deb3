"""A run that was killed, stopped or interrupted goes on as if nothing had happened: the same weights, bit for bit."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from harken import run
from harken.data.tales import tales

from children import Child  # isort: skip

pytestmark = pytest.mark.process

SETTINGS = {"gpt": ["model.heads=2", "model.dropout=0.2"], "lstm": ["model.kind=lstm", "model.dropout=0.2"]}
# 12 steps over several epochs, with a look at valid, a line and a checkpoint now and then
PLAIN = ["model.d=16", "model.layers=2", "model.context=12", "data.examples=2", "train.batch=6", "train.micro=4"]
PLAIN += ["train.steps=12", "train.eval_every=5", "train.log_every=1", "train.checkpoint_every=2", "train.lr=1e-2"]
both = pytest.mark.parametrize("kind", SETTINGS)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    (folder / "tales.txt").write_text("\n".join(tales(6)))
    return folder


@pytest.fixture(autouse=True)
def one_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARKEN_CACHE", str(home / "cache"))


@pytest.fixture(scope="module")
def unbroken(home: Path):
    """What a run that nobody disturbed ends with, for each kind."""

    @cache
    def result(kind: str, *more: str) -> tuple[str, list]:
        out = home / "-".join(["unbroken", kind, *more])
        child = Child(*begin(home, kind, out, *more), folder=home)
        assert child.wait() == 0, child.text
        return outcome(out)

    return result


def begin(home: Path, kind: str, out: Path, *more: str) -> list[str]:
    return ["train", str(home / "tales.txt"), *PLAIN, *SETTINGS[kind], *more, "--out", str(out)]


def outcome(folder: Path) -> tuple[str, list]:
    """The SHA-256 of the weights, and all that was logged but the time it took."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in lines:
        del line["tokens_per_second"]
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(), lines


def steps_in(folder: Path) -> int:
    return (folder / "log.jsonl").read_text().count("\n") if (folder / "log.jsonl").exists() else 0


# --- the same end -----------------------------------------------------------------------------------------------------


@both
def test_the_unbroken_run_is_what_it_should_be(unbroken, home, kind):
    _, lines = unbroken(kind)
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert max(line["epoch"] for line in lines) >= 1
    assert len({line["loss"] for line in lines}) == 12


@both
def test_the_same_recipe_gives_the_same_weights_bit_for_bit(unbroken, home, kind, tmp_path):
    expected = unbroken(kind)
    recipe = home / f"unbroken-{kind}" / "recipe.toml"
    child = Child("train", recipe, "--out", tmp_path / "again", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert outcome(tmp_path / "again") == expected


@both
def test_a_run_killed_wherever_it_writes_ends_as_if_nothing_had_happened(unbroken, home, kind, tmp_path):
    """Killed at a moment when a file is half there, gone on, killed again, until it comes to its end."""
    out, kills, moments = tmp_path / "r", 0, random.Random(kind)
    code, command = -9, begin(home, kind, out)
    while code == -signal.SIGKILL:
        child = Child(*command, "--resume", folder=tmp_path, die_at=moments.randint(2, 18))
        code = child.wait()
        kills += code == -signal.SIGKILL
        assert kills < 40
    assert code == 0, child.text
    assert kills >= 3
    assert outcome(out) == unbroken(kind)


@pytest.mark.parametrize("moment", [1, 2, 3, 5, 8])
def test_a_kill_before_the_first_checkpoint_is_whole_starts_anew_and_says_so(unbroken, home, moment, tmp_path):
    """The recipe, the log and the first checkpoint are being written: the lock of the dead does not block."""
    expected, out = unbroken("gpt"), tmp_path / "r"
    command = begin(home, "gpt", out)
    assert Child(*command, folder=tmp_path, die_at=moment).wait() == -signal.SIGKILL
    child = Child(*command, "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert "starts anew" in child.text
    assert outcome(out) == expected


@pytest.mark.parametrize("moment", [35, 37, 39, 41])
def test_a_kill_after_the_last_step_leaves_a_run_that_can_be_finished(unbroken, home, moment, tmp_path):
    """The weights, the cost, the report and the facts are being written."""
    expected, out = unbroken("gpt"), tmp_path / "r"
    assert Child(*begin(home, "gpt", out), folder=tmp_path, die_at=moment).wait() == -signal.SIGKILL
    assert not (out / "harken.json").exists()
    child = Child("train", out, "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert outcome(out) == expected
    assert (out / "report.html").exists()


@pytest.mark.parametrize("kind", ["lstm"])
def test_a_run_killed_at_any_time_ends_as_if_nothing_had_happened(unbroken, home, kind, tmp_path):
    """In the middle of an epoch, with a state that is carried on, at a time that nobody chose. Twice."""
    out, dice = tmp_path / "r", random.Random(0)
    for after in (3, 8):
        child = Child(*begin(home, kind, out), "--resume", folder=tmp_path)
        while steps_in(out) < after and child.process.is_alive():
            time.sleep(0.002)
        time.sleep(dice.random() * 0.02)
        child.process.kill()
        assert child.wait() == -signal.SIGKILL
    child = Child(*begin(home, kind, out), "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert outcome(out) == unbroken(kind)


def test_a_run_whose_last_checkpoint_is_damaged_goes_on_from_the_one_before(unbroken, home, tmp_path):
    expected, out = unbroken("gpt"), tmp_path / "r"
    assert Child(*begin(home, "gpt", out), folder=tmp_path, die_at=33).wait() == -signal.SIGKILL
    last = max((out / "checkpoints").glob("step-*"))
    (last / "state.safetensors").write_bytes((last / "state.safetensors").read_bytes()[:-100])
    child = Child("train", out, "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert "the checkpoint before it is taken" in child.text
    assert outcome(out) == expected


# --- asked to stop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_stop_says_how_to_go_on_and_does(unbroken, home, number, tmp_path):
    longer = ("train.steps=80", "train.eval_every=40", "train.checkpoint_every=20")  # to be caught on the way
    out = tmp_path / "r"
    module = [sys.executable, "-m", "harken", *begin(home, "gpt", out, *longer)]
    process = subprocess.Popen(module, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while steps_in(out) < 2 and process.poll() is None:
        time.sleep(0.002)
    os.kill(process.pid, number)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said + errors
    assert errors.startswith(f"harken: {out}: stopped at step ")
    assert errors.endswith(f"of 80; go on with: harken train {out} --resume\n")
    assert errors.count("\n") == 1
    child = Child("train", out, "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert outcome(out) == unbroken("gpt", *longer)


def test_a_finished_run_has_nothing_left_to_do(unbroken, home, tmp_path):
    out = home / "unbroken-gpt"
    before = unbroken("gpt"), (out / "harken.json").stat().st_mtime_ns
    child = Child("train", out, "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert f"{out}: this run is finished; there is nothing left to do" in child.text
    assert (outcome(out), (out / "harken.json").stat().st_mtime_ns) == before


def test_a_run_is_resumed_with_the_recipe_it_has(unbroken, home, tmp_path):
    unbroken("gpt")
    child = Child("train", home / "unbroken-gpt", "train.lr=1", "--resume", folder=tmp_path)
    assert child.wait() == 2
    assert "a run is resumed with the recipe it has; train.lr cannot be changed now" in child.text


def test_a_run_on_another_text_is_not_resumed(unbroken, home, tmp_path):
    unbroken("gpt")
    (tmp_path / "other.txt").write_text("something else")
    child = Child("train", tmp_path / "other.txt", "--out", home / "unbroken-gpt", "--resume", folder=tmp_path)
    assert child.wait() == 2
    assert "a run is resumed with the recipe it has; data.path cannot be changed now" in child.text


def test_a_taken_folder_is_refused_without_resume_or_force(unbroken, home, tmp_path):
    unbroken("gpt")
    child = Child(*begin(home, "gpt", home / "unbroken-gpt"), folder=tmp_path)
    assert child.wait() == 2
    assert "is not empty; resume the run there, force to write over it, or take another folder" in child.text


def test_writing_over_a_run_leaves_nothing_of_it(unbroken, home, tmp_path):
    unbroken("gpt")
    out = tmp_path / "r"
    assert Child(*begin(home, "gpt", out), folder=tmp_path).wait() == 0
    command = [*begin(home, "gpt", out), "--force", "train.steps=5"]
    assert Child(*command, folder=tmp_path, die_at=15).wait() == -signal.SIGKILL
    kept = sorted(p.name for p in (out / "checkpoints").glob("step-*"))
    assert kept
    assert max(kept) <= "step-000005"
    assert not (out / "harken.json").exists()


def test_a_run_that_is_being_written_is_not_cleared_by_force(unbroken, home, tmp_path):
    unbroken("gpt")
    out = tmp_path / "r"
    assert Child(*begin(home, "gpt", out), folder=tmp_path).wait() == 0
    with run.writing(out):
        child = Child(*begin(home, "gpt", out), "--force", folder=tmp_path)
        assert child.wait() == 2
    assert "another process is training here" in child.text
    assert run.facts(out)["steps"] == 12
