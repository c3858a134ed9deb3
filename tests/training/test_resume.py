"""A run that was killed, stopped or interrupted goes on as if nothing had happened: the same weights, bit for bit."""

import hashlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import harken
from harken import run_folder
from harken.data.batch import Batch
from harken.data.synthetic.tales import tales
from harken.recipe import override
from harken.tasks import Loss
from harken.tasks.next_word import NextWord

from children import Child  # isort: skip

pytestmark = pytest.mark.process

SETTINGS = {"gpt": ["model.heads=2", "model.dropout=0.2"], "lstm": ["model.kind=lstm", "model.dropout=0.2"]}
# 12 steps over several epochs, with a look at valid, a line and a checkpoint now and then
PLAIN = ["model.d=16", "model.layers=2", "model.context=12", "data.examples=2", "train.batch=6", "train.micro_batch=4"]
PLAIN += ["train.steps=12", "train.eval_every=5", "train.log_every=1", "train.checkpoint_every=2", "train.lr=1e-2"]
LONGER = ("train.steps=80", "train.eval_every=40", "train.checkpoint_every=20")  # to be caught on the way
both = pytest.mark.parametrize("kind", SETTINGS)
MADE_LAST = ("model.safetensors", "cost.json", "report.html", "harken.json")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    told = list(tales(12))
    for name, which in {"tales": told[:6], "others": told[6:]}.items():
        (folder / f"{name}.txt").write_text("\n".join(which))
    return folder


@pytest.fixture(autouse=True)
def one_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARKEN_CACHE", str(home / "cache"))


@pytest.fixture(scope="module")
def unbroken(home: Path):
    """What a run that nobody disturbed ends with, for each kind."""

    @cache
    def result(kind: str, *more: str) -> dict:
        child = Child(*begin(home, kind, peace(home, kind, *more), *more), folder=home)
        assert child.wait() == 0, child.text
        return outcome(peace(home, kind, *more))

    return result


def peace(home: Path, kind: str, *more: str) -> Path:
    return home / "-".join(["unbroken", kind, *(m.replace("/", "") for m in more)])


def begin(home: Path, kind: str, out: Path, *more: str) -> list[str]:
    text = "char" if any(m.startswith("data.mix") for m in more) else str(home / "tales.txt")
    return ["train", text, *PLAIN, *SETTINGS[kind], *more, "--out", str(out)]


def outcome(folder: Path) -> dict:
    """The SHA-256 of the weights and of the last state (weights, optimiser, random state, averages, what a model
    carries on), what the looks decided, and all that was logged but the time it took."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in lines:
        del line["tokens_per_second"]
    last = max((folder / "checkpoints").glob("step-*"))
    course = json.loads((last / "manifest.json").read_text())["course"]
    return {"weights": digest(folder / "model.safetensors"), "state": digest(last / "state.safetensors")} | {
        "step": last.name,
        "course": course,
        "lines": lines,
    }


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def steps_in(folder: Path) -> int:
    return (folder / "log.jsonl").read_text().count("\n") if (folder / "log.jsonl").exists() else 0


def at_its_last_step(home: Path, kind: str, out: Path) -> Path:
    """The unbroken run once more, as it was when its last checkpoint had just been written."""
    shutil.copytree(peace(home, kind), out)
    for name in MADE_LAST:
        (out / name).unlink()
    return out


# --- the same end -----------------------------------------------------------------------------------------------------


@both
def test_the_unbroken_run_is_what_it_should_be(unbroken, home, kind):
    lines = unbroken(kind)["lines"]
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert max(line["epoch"] for line in lines) >= 1
    assert len({line["loss"] for line in lines}) == 12


@both
def test_the_same_recipe_gives_the_same_weights_bit_for_bit(unbroken, home, kind, tmp_path):
    expected = unbroken(kind)
    recipe = peace(home, kind) / "recipe.toml"
    child = Child("train", recipe, "--out", tmp_path / "again", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert outcome(tmp_path / "again") == expected


# --- killed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "first", "begun"),
    [("gpt", 1, False), ("lstm", 2, False), ("gpt", 2, True), ("lstm", 1, True)],
    ids=["before each call", "after each call", "later, after each call", "later, before each call"],
)
def test_a_run_killed_at_every_moment_of_its_writing_ends_as_if_nothing_had_happened(
    unbroken, home, kind, first, begun, tmp_path
):
    """Killed at the first moment at which it writes, gone on and killed at the second, and so on, to its end. A
    checkpoint begins anew as long as it is not whole, so each of its moments has its turn."""
    expected, out, deaths = unbroken(kind, "train.keep_checkpoints=1"), tmp_path / "r", 0
    command = [*begin(home, kind, out, "train.keep_checkpoints=1"), "--resume"]
    if begun:  # there is a first checkpoint, which each later one takes away
        assert Child(*command, folder=tmp_path, die_in=6).wait() == -signal.SIGKILL
    for moment in count(first, 2):
        child = Child(*command, folder=tmp_path, die_at=moment)
        if (code := child.wait()) != -signal.SIGKILL:
            break
        deaths += 1
    assert code == 0, child.text
    assert outcome(out) == expected
    assert deaths > 16


@pytest.mark.parametrize(("kind", "first"), [("gpt", 2), ("lstm", 1)], ids=["after each call", "before each call"])
def test_a_run_killed_at_every_moment_of_its_end_can_be_finished(unbroken, home, kind, first, tmp_path):
    """The weights, the cost, the report and the facts are being written."""
    expected, out = unbroken(kind), at_its_last_step(home, kind, tmp_path / "r")
    for moment in count(first, 2):
        child = Child("train", out, "--resume", folder=tmp_path, die_at=moment)
        if (code := child.wait()) != -signal.SIGKILL:
            break
    assert code == 0, child.text
    assert moment > 2 * 3 * len(MADE_LAST)
    assert outcome(out) == expected
    assert run_folder.facts(out)["steps"] == 12


@pytest.mark.parametrize("moment", [2, 7, 12, 18, 24])
def test_a_kill_before_the_first_checkpoint_is_whole_starts_anew_and_says_so(unbroken, home, moment, tmp_path):
    """The recipe, the log and the first checkpoint are being written: the lock of the dead does not block."""
    expected, out = unbroken("gpt"), tmp_path / "r"
    command = begin(home, "gpt", out)
    assert Child(*command, folder=tmp_path, die_at=moment).wait() == -signal.SIGKILL
    child = Child(*command, "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert "starts anew" in child.text
    assert outcome(out) == expected


FEATURES = {
    "ema": ["train.average=ema"],
    "last": ["train.average=last", "train.average_last=2", "train.eval_every=1"],
    "muon": ["train.optimizer=muon"],
    "sgd": ["train.optimizer=sgd", "train.nesterov=true"],
    "rmsprop": ["train.optimizer=rmsprop"],
    "plateau": ["train.schedule=plateau", "train.plateau_patience=1", "train.eval_every=1", "train.lr=1"],
    "stop_after": ["train.early_stopping_patience=3", "train.eval_every=1", "train.lr=1"],
    "cooldown": ["train.schedule=constant", "train.cooldown=0.5"],
    "rnn": ["model.kind=rnn"],
    "gru": ["model.kind=gru"],
    "packed": ["data.batching=packed", "data.documents=line"],
    "words": ["data.tokenizer=word", "model.word_dropout=0.2", "task.label_smoothing=0.1", "train.precision=bfloat16"],
    "mix": ["data.mix={'HOME/tales.txt' = 0.7, 'HOME/others.txt' = 0.3}"],
}


@pytest.mark.parametrize("feature", FEATURES)
def test_whatever_is_trained_goes_on_from_the_middle_of_an_accumulation(unbroken, home, feature, tmp_path):
    """Killed in the second of a step's micro-batches, twice."""
    kind = "lstm" if feature in ("rnn", "gru") else "gpt"
    more = [setting.replace("HOME", str(home)) for setting in FEATURES[feature]]
    expected, out = unbroken(kind, *more), tmp_path / "r"
    command = [*begin(home, kind, out, *more), "--resume"]
    for step in (3, 5):
        assert Child(*command, folder=tmp_path, die_in=6).wait() == -signal.SIGKILL
        assert steps_in(out) == step - 1
    child = Child(*command, folder=tmp_path)
    assert child.wait() == 0, child.text
    assert outcome(out) == expected


@pytest.mark.parametrize("feature", ["plateau", "stop_after"])
def test_what_the_looks_decide_is_decided_in_these_runs(unbroken, feature):
    """Else the test above would say nothing of it."""
    made = unbroken("gpt", *FEATURES[feature])
    assert (made["course"]["left"] < 1) == (feature == "plateau")
    assert (len(made["lines"]) < 12) == (feature == "stop_after")


def test_updates_that_were_left_out_are_counted_on(home, tmp_path, monkeypatch):
    """A loss that is no number in the 3rd and in the 8th step; the run dies in its 6th."""

    def batch(task: NextWord, epoch: int, step: int) -> Batch:
        task.at = epoch * task.steps + step
        return right_batch(task, epoch, step)

    def loss(task: NextWord, *given: Any) -> Loss:
        found = right_loss(task, *given)
        return Loss(found.total * math.nan, found.parts) if task.at in (2, 7) else found

    def listen(event: str, /, **facts: Any) -> None:
        if (event, facts.get("step")) == ("step", 6):
            assert dying.pop(), "dead"

    right_batch, right_loss, dying = NextWord.batch, NextWord.loss, [False, True]
    monkeypatch.setattr(NextWord, "batch", batch)
    monkeypatch.setattr(NextWord, "loss", loss)
    settings = dict(override(setting) for setting in (*PLAIN, *SETTINGS["gpt"], "train.on_nan=skip"))
    harken.train(home / "tales.txt", out=tmp_path / "whole", settings=settings, listen=listen)
    with pytest.raises(AssertionError, match="dead"):
        harken.train(home / "tales.txt", out=tmp_path / "broken", settings=settings, listen=listen)
    harken.train(tmp_path / "broken", resume=True)
    assert outcome(tmp_path / "broken") == outcome(tmp_path / "whole")
    assert outcome(tmp_path / "whole")["course"]["skipped"] == 2


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


# --- damaged ----------------------------------------------------------------------------------------------------------


def cut(last: Path, before: Path, foreign: Path) -> None:
    (last / "state.safetensors").write_bytes((last / "state.safetensors").read_bytes()[:-100])


def flipped(last: Path, before: Path, foreign: Path) -> None:
    whole = bytearray((last / "state.safetensors").read_bytes())
    whole[len(whole) // 2] ^= 1
    (last / "state.safetensors").write_bytes(whole)


def without_its_manifest(last: Path, before: Path, foreign: Path) -> None:
    (last / "manifest.json").unlink()


def swapped(last: Path, before: Path, foreign: Path) -> None:
    shutil.copytree(before, last, dirs_exist_ok=True)


def of_another_run(last: Path, before: Path, foreign: Path) -> None:
    shutil.copytree(foreign, last, dirs_exist_ok=True)


@pytest.mark.parametrize("damage", [cut, flipped, without_its_manifest, swapped, of_another_run])
def test_a_run_whose_last_checkpoint_is_damaged_goes_on_from_the_one_before(unbroken, home, damage, tmp_path):
    expected, out = unbroken("gpt"), at_its_last_step(home, "gpt", tmp_path / "r")
    unbroken("gpt", "train.seed=1")
    before, last = sorted((out / "checkpoints").glob("step-*"))
    damage(last, before, peace(home, "gpt", "train.seed=1") / "checkpoints" / last.name)
    child = Child("train", out, "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert "the checkpoint before it is taken" in child.text
    assert "going on after step 10" in child.text
    assert outcome(out) == expected


# --- asked to stop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_stop_says_how_to_go_on_and_does(unbroken, home, number, tmp_path):
    out = tmp_path / "r"
    module = [sys.executable, "-m", "harken", *begin(home, "gpt", out, *LONGER)]
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
    assert outcome(out) == unbroken("gpt", *LONGER)


def test_a_finished_run_has_nothing_left_to_do(unbroken, home, tmp_path):
    out = peace(home, "gpt")
    before = unbroken("gpt"), (out / "harken.json").stat().st_mtime_ns
    child = Child("train", out, "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert f"{out}: this run is finished; there is nothing left to do" in child.text
    assert (outcome(out), (out / "harken.json").stat().st_mtime_ns) == before


def test_a_run_is_resumed_with_the_recipe_it_has(unbroken, home, tmp_path):
    unbroken("gpt")
    child = Child("train", peace(home, "gpt"), "train.lr=1", "--resume", folder=tmp_path)
    assert child.wait() == 2
    assert "a run is resumed with the recipe it has; train.lr cannot be changed now" in child.text


def test_a_run_on_another_text_is_not_resumed(unbroken, home, tmp_path):
    unbroken("gpt")
    (tmp_path / "other.txt").write_text("something else")
    child = Child("train", tmp_path / "other.txt", "--out", peace(home, "gpt"), "--resume", folder=tmp_path)
    assert child.wait() == 2
    assert "a run is resumed with the recipe it has; data.path cannot be changed now" in child.text


def test_a_taken_folder_is_refused_without_resume_or_force(unbroken, home, tmp_path):
    unbroken("gpt")
    child = Child(*begin(home, "gpt", peace(home, "gpt")), folder=tmp_path)
    assert child.wait() == 2
    assert "is not empty; resume the run there (--resume), force to write over it (--force), or" in child.text


def test_writing_over_a_run_leaves_nothing_of_it(unbroken, home, tmp_path):
    unbroken("gpt")
    out = shutil.copytree(peace(home, "gpt"), tmp_path / "r")
    command = [*begin(home, "gpt", out), "--force", "train.steps=5"]
    assert Child(*command, folder=tmp_path, die_in=9).wait() == -signal.SIGKILL
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == ["step-000002", "step-000004"]
    assert not (out / "harken.json").exists()


def test_a_run_that_is_being_written_is_not_cleared_by_force(unbroken, home, tmp_path):
    unbroken("gpt")
    out = shutil.copytree(peace(home, "gpt"), tmp_path / "r")
    with run_folder.writing(out):
        child = Child(*begin(home, "gpt", out), "--force", folder=tmp_path)
        assert child.wait() == 2
    assert "another process is training here" in child.text
    assert run_folder.facts(out)["steps"] == 12


def test_of_two_that_go_on_with_one_run_the_second_is_refused_and_the_first_undisturbed(unbroken, home, tmp_path):
    expected, out = unbroken("gpt", *LONGER), tmp_path / "r"
    command = [*begin(home, "gpt", out, *LONGER), "--resume"]
    first = Child(*command, folder=tmp_path)
    while steps_in(out) < 2 and first.process.is_alive():
        time.sleep(0.002)
    second = Child(*command, folder=tmp_path)
    assert second.wait() == 2
    assert second.text.endswith(f"{out}: another process is training here; wait for it, or take another folder\n")
    assert first.wait() == 0, first.text
    assert outcome(out) == expected
