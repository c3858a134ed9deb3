"""A run that was killed, stopped or interrupted resumes bitwise."""

import hashlib
import json
import math
import os
import random
import re
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
from harken.recipe import parse_override
from harken.tasks import Loss
from harken.tasks.next_word import NextWordTask

from children import Child  # isort: skip

pytestmark = pytest.mark.process

SETTINGS = {"gpt": ["model.heads=2", "model.dropout=0.2"], "lstm": ["model.kind=lstm", "model.dropout=0.2"]}
# 12 steps over several epochs, with validation passes, log lines and checkpoints
PLAIN = ["model.d=16", "model.layers=2", "model.context=12", "data.examples=2", "train.batch=6", "train.micro_batch=4"]
PLAIN += ["train.steps=12", "train.eval_every=5", "train.log_every=1", "train.checkpoint_every=2", "train.lr=1e-2"]
LONGER = ("train.steps=80", "train.eval_every=40", "train.checkpoint_every=20")  # long enough to be interrupted
both_kinds = pytest.mark.parametrize("kind", SETTINGS)
FINAL_FILES = ("model.safetensors", "cost.json", "report.html", "harken.json")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    stories = list(tales(12))
    for name, texts in {"tales": stories[:6], "more": stories[6:]}.items():
        (folder / f"{name}.txt").write_text("\n".join(texts))
    return folder


@pytest.fixture(autouse=True)
def one_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARKEN_CACHE", str(home / "cache"))


@pytest.fixture(scope="module")
def uninterrupted(home: Path):
    """Outcome of an uninterrupted run of each kind."""

    @cache
    def run(kind: str, *more: str) -> dict:
        child = Child(*train_command(home, kind, reference_folder(home, kind, *more), *more), folder=home)
        assert child.wait() == 0, child.text
        return outcome(reference_folder(home, kind, *more))

    return run


def reference_folder(home: Path, kind: str, *more: str) -> Path:
    return home / "-".join(["uninterrupted", kind, *(m.replace("/", "") for m in more)])


def train_command(home: Path, kind: str, out: Path, *more: str) -> list[str]:
    text = "char" if any(m.startswith("data.mix") for m in more) else str(home / "tales.txt")
    return ["train", text, *PLAIN, *SETTINGS[kind], *more, "--out", str(out)]


def outcome(folder: Path) -> dict:
    """SHA-256 of the weights and of the last checkpoint, the validation state, and the log without times."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in lines:
        del line["tokens_per_second"]
    last = max((folder / "checkpoints").glob("step-*"))
    validation = json.loads((last / "manifest.json").read_text())["validation"]
    return {"weights": digest(folder / "model.safetensors"), "state": digest(last / "state.safetensors")} | {
        "step": last.name,
        "validation": validation,
        "lines": lines,
    }


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def steps_in(folder: Path) -> int:
    return (folder / "log.jsonl").read_text().count("\n") if (folder / "log.jsonl").exists() else 0


def copy_before_finish(home: Path, kind: str, out: Path) -> Path:
    """A copy of the uninterrupted run in the state after its last checkpoint."""
    shutil.copytree(reference_folder(home, kind), out)
    for name in FINAL_FILES:
        (out / name).unlink()
    return out


# --- equal outcomes ---------------------------------------------------------------------------------------------------


@both_kinds
def test_the_uninterrupted_run_has_12_steps_over_several_epochs(uninterrupted, home, kind):
    lines = uninterrupted(kind)["lines"]
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert max(line["epoch"] for line in lines) >= 1
    assert len({line["loss"] for line in lines}) == 12


@both_kinds
def test_the_same_recipe_gives_bitwise_equal_weights(uninterrupted, home, kind, tmp_path):
    expected = uninterrupted(kind)
    recipe = reference_folder(home, kind) / "recipe.toml"
    child = Child("train", recipe, "--out", tmp_path / "again", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert outcome(tmp_path / "again") == expected


# --- killed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "first", "has_checkpoint"),
    [("gpt", 1, False), ("lstm", 2, False), ("gpt", 2, True), ("lstm", 1, True)],
    ids=["before each call", "after each call", "later, after each call", "later, before each call"],
)
def test_a_run_killed_at_every_disk_operation_resumes_bitwise(
    uninterrupted, home, kind, first, has_checkpoint, tmp_path
):
    """Killed at the first disk operation, resumed and killed at the second, and so on. An incomplete checkpoint
    restarts, so each of its operations is covered."""
    expected, out, kills = uninterrupted(kind, "train.keep_checkpoints=1"), tmp_path / "r", 0
    command = [*train_command(home, kind, out, "train.keep_checkpoints=1"), "--resume"]
    if has_checkpoint:  # later checkpoints delete it
        assert Child(*command, folder=tmp_path, die_in=6).wait() == -signal.SIGKILL
    for operation in count(first, 2):
        child = Child(*command, folder=tmp_path, die_at=operation)
        if (code := child.wait()) != -signal.SIGKILL:
            break
        kills += 1
    assert code == 0, child.text
    assert outcome(out) == expected
    assert kills > 16


@pytest.mark.parametrize(("kind", "first"), [("gpt", 2), ("lstm", 1)], ids=["after each call", "before each call"])
def test_a_run_killed_at_every_disk_operation_of_its_end_can_be_finished(uninterrupted, home, kind, first, tmp_path):
    """Weights, cost, report and manifest are being written."""
    expected, out = uninterrupted(kind), copy_before_finish(home, kind, tmp_path / "r")
    for operation in count(first, 2):
        child = Child("train", out, "--resume", folder=tmp_path, die_at=operation)
        if (code := child.wait()) != -signal.SIGKILL:
            break
    assert code == 0, child.text
    assert operation > 2 * 3 * len(FINAL_FILES)
    assert outcome(out) == expected
    assert run_folder.read_manifest(out)["steps"] == 12


@pytest.mark.parametrize("operation", [2, 7, 12, 18, 24])
def test_a_kill_before_the_first_checkpoint_restarts_and_is_reported(uninterrupted, home, operation, tmp_path):
    """Recipe, log and first checkpoint are being written; the lock of a killed process does not block."""
    expected, out = uninterrupted("gpt"), tmp_path / "r"
    command = train_command(home, "gpt", out)
    assert Child(*command, folder=tmp_path, die_at=operation).wait() == -signal.SIGKILL
    child = Child(*command, "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert re.search("starts from step 0|a new run starts", child.text)
    assert outcome(out) == expected


FEATURES = {
    "ema": ["train.average=ema"],
    "last": ["train.average=last", "train.average_last=2", "train.eval_every=1"],
    "muon": ["train.optimizer=muon"],
    "sgd": ["train.optimizer=sgd", "train.nesterov=true"],
    "rmsprop": ["train.optimizer=rmsprop"],
    "plateau": ["train.schedule=plateau", "train.plateau_patience=1", "train.eval_every=1", "train.lr=1"],
    "early_stopping": ["train.early_stopping_patience=3", "train.eval_every=1", "train.lr=1"],
    "cooldown": ["train.schedule=constant", "train.cooldown=0.5"],
    "rnn": ["model.kind=rnn"],
    "gru": ["model.kind=gru"],
    "packed": ["data.batching=packed", "data.documents=line"],
    "words": ["data.tokenizer=word", "model.word_dropout=0.2", "task.label_smoothing=0.1", "train.precision=bfloat16"],
    "mix": ["data.mix={'HOME/tales.txt' = 0.7, 'HOME/more.txt' = 0.3}"],
}


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_resumes_from_the_middle_of_an_accumulation(uninterrupted, home, feature, tmp_path):
    """Killed in the second micro-batch of a step, twice."""
    kind = "lstm" if feature in ("rnn", "gru") else "gpt"
    more = [setting.replace("HOME", str(home)) for setting in FEATURES[feature]]
    expected, out = uninterrupted(kind, *more), tmp_path / "r"
    command = [*train_command(home, kind, out, *more), "--resume"]
    for step in (3, 5):
        assert Child(*command, folder=tmp_path, die_in=6).wait() == -signal.SIGKILL
        assert steps_in(out) == step - 1
    child = Child(*command, folder=tmp_path)
    assert child.wait() == 0, child.text
    assert outcome(out) == expected


@pytest.mark.parametrize("feature", ["plateau", "early_stopping"])
def test_plateau_and_early_stopping_occur_in_these_runs(uninterrupted, feature):
    """The test above depends on it."""
    end = uninterrupted("gpt", *FEATURES[feature])
    assert (end["validation"]["lr_factor"] < 1) == (feature == "plateau")
    assert (len(end["lines"]) < 12) == (feature == "early_stopping")


def test_the_number_of_skipped_updates_is_resumed(home, tmp_path, monkeypatch):
    """NaN losses in steps 3 and 8; the run is killed in step 6."""

    def batch(task: NextWordTask, epoch: int, step: int) -> Batch:
        task.position = epoch * task.steps + step
        return original_batch(task, epoch, step)

    def loss(task: NextWordTask, *args: Any) -> Loss:
        value = original_loss(task, *args)
        return Loss(value.total * math.nan, value.parts) if task.position in (2, 7) else value

    def listen(event: str, /, **facts: Any) -> None:
        if (event, facts.get("step")) == ("step", 6):
            assert not kills.pop(), "killed"

    original_batch, original_loss, kills = NextWordTask.batch, NextWordTask.loss, [True, False]
    monkeypatch.setattr(NextWordTask, "batch", batch)
    monkeypatch.setattr(NextWordTask, "loss", loss)
    settings = dict(parse_override(setting) for setting in (*PLAIN, *SETTINGS["gpt"], "train.on_nan=skip"))
    harken.train(home / "tales.txt", out=tmp_path / "uninterrupted", settings=settings, listen=listen)
    with pytest.raises(AssertionError, match="killed"):
        harken.train(home / "tales.txt", out=tmp_path / "broken", settings=settings, listen=listen)
    harken.train(tmp_path / "broken", resume=True)
    assert outcome(tmp_path / "broken") == outcome(tmp_path / "uninterrupted")
    assert outcome(tmp_path / "uninterrupted")["validation"]["skipped"] == 2


@pytest.mark.parametrize("kind", ["lstm"])
def test_a_run_killed_at_a_random_time_resumes_bitwise(uninterrupted, home, kind, tmp_path):
    """In the middle of an epoch, with a carried state. Twice."""
    out, rng = tmp_path / "r", random.Random(0)
    for after in (3, 8):
        child = Child(*train_command(home, kind, out), "--resume", folder=tmp_path)
        while steps_in(out) < after and child.process.is_alive():
            time.sleep(0.002)
        time.sleep(rng.random() * 0.02)
        child.process.kill()
        assert child.wait() == -signal.SIGKILL
    child = Child(*train_command(home, kind, out), "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert outcome(out) == uninterrupted(kind)


# --- damaged ----------------------------------------------------------------------------------------------------------


def truncated(last: Path, before: Path, other_run: Path) -> None:
    (last / "state.safetensors").write_bytes((last / "state.safetensors").read_bytes()[:-100])


def flipped_bit(last: Path, before: Path, other_run: Path) -> None:
    content = bytearray((last / "state.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (last / "state.safetensors").write_bytes(content)


def without_manifest(last: Path, before: Path, other_run: Path) -> None:
    (last / "manifest.json").unlink()


def swapped(last: Path, before: Path, other_run: Path) -> None:
    shutil.copytree(before, last, dirs_exist_ok=True)


def of_another_run(last: Path, before: Path, other_run: Path) -> None:
    shutil.copytree(other_run, last, dirs_exist_ok=True)


@pytest.mark.parametrize("damage", [truncated, flipped_bit, without_manifest, swapped, of_another_run])
def test_a_run_with_a_damaged_last_checkpoint_resumes_from_the_one_before(uninterrupted, home, damage, tmp_path):
    expected, out = uninterrupted("gpt"), copy_before_finish(home, "gpt", tmp_path / "r")
    uninterrupted("gpt", "train.seed=1")
    before, last = sorted((out / "checkpoints").glob("step-*"))
    damage(last, before, reference_folder(home, "gpt", "train.seed=1") / "checkpoints" / last.name)
    child = Child("train", out, "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert "using the checkpoint before it" in child.text
    assert "resumed after step 10" in child.text
    assert outcome(out) == expected


# --- stopped ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_prints_the_resume_command_and_resumes_bitwise(uninterrupted, home, number, tmp_path):
    out = tmp_path / "r"
    module = [sys.executable, "-m", "harken", *train_command(home, "gpt", out, *LONGER)]
    process = subprocess.Popen(module, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while steps_in(out) < 2 and process.poll() is None:
        time.sleep(0.002)
    os.kill(process.pid, number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, output + errors
    assert errors.startswith(f"harken: {out}: stopped at step ")
    assert errors.endswith(f"of 80; resume with: harken train {out} --resume\n")
    assert errors.count("\n") == 1
    child = Child("train", out, "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert outcome(out) == uninterrupted("gpt", *LONGER)


def test_resuming_a_finished_run_changes_nothing(uninterrupted, home, tmp_path):
    out = reference_folder(home, "gpt")
    before = uninterrupted("gpt"), (out / "harken.json").stat().st_mtime_ns
    child = Child("train", out, "--resume", folder=tmp_path)
    assert child.wait() == 0, child.text
    assert f"{out}: this run is already finished" in child.text
    assert (outcome(out), (out / "harken.json").stat().st_mtime_ns) == before


def test_a_run_is_resumed_with_its_own_recipe(uninterrupted, home, tmp_path):
    uninterrupted("gpt")
    child = Child("train", reference_folder(home, "gpt"), "train.lr=1", "--resume", folder=tmp_path)
    assert child.wait() == 2
    assert "a run is resumed with its own recipe; train.lr cannot be changed" in child.text


def test_a_run_is_not_resumed_with_other_data(uninterrupted, home, tmp_path):
    uninterrupted("gpt")
    (tmp_path / "other.txt").write_text("something else")
    child = Child("train", tmp_path / "other.txt", "--out", reference_folder(home, "gpt"), "--resume", folder=tmp_path)
    assert child.wait() == 2
    assert "a run is resumed with its own recipe; data.path cannot be changed" in child.text


def test_a_non_empty_folder_is_an_error_without_resume_or_force(uninterrupted, home, tmp_path):
    uninterrupted("gpt")
    child = Child(*train_command(home, "gpt", reference_folder(home, "gpt")), folder=tmp_path)
    assert child.wait() == 2
    assert "is not empty; resume the run (--resume), overwrite it (--force) or" in child.text


def test_force_deletes_the_previous_run(uninterrupted, home, tmp_path):
    uninterrupted("gpt")
    out = shutil.copytree(reference_folder(home, "gpt"), tmp_path / "r")
    command = [*train_command(home, "gpt", out), "--force", "train.steps=5"]
    assert Child(*command, folder=tmp_path, die_in=9).wait() == -signal.SIGKILL
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == ["step-000002", "step-000004"]
    assert not (out / "harken.json").exists()


def test_force_does_not_delete_a_locked_run(uninterrupted, home, tmp_path):
    uninterrupted("gpt")
    out = shutil.copytree(reference_folder(home, "gpt"), tmp_path / "r")
    with run_folder.lock_folder(out):
        child = Child(*train_command(home, "gpt", out), "--force", folder=tmp_path)
        assert child.wait() == 2
    assert "another process trains in this folder" in child.text
    assert run_folder.read_manifest(out)["steps"] == 12


def test_a_second_process_cannot_resume_a_running_run(uninterrupted, home, tmp_path):
    expected, out = uninterrupted("gpt", *LONGER), tmp_path / "r"
    command = [*train_command(home, "gpt", out, *LONGER), "--resume"]
    first = Child(*command, folder=tmp_path)
    while steps_in(out) < 2 and first.process.is_alive():
        time.sleep(0.002)
    second = Child(*command, folder=tmp_path)
    assert second.wait() == 2
    assert second.text.endswith(
        f"{out}: another process trains in this folder; wait until it ends, or use another folder\n"
    )
    assert first.wait() == 0, first.text
    assert outcome(out) == expected
