"""The run folder: atomic writes, detection of modified files, and files that other libraries can read."""

import json
import multiprocessing
import os
import re
import signal
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from harken import run_folder
from harken.errors import BadInput, BadRun
from harken.files import write_atomic


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"model:w": torch.full((3, 4), value), "random:cpu": torch.arange(8, dtype=torch.uint8)}


def save_checkpoints(folder: Path, *steps: int, keep: int = 9) -> list[Path]:
    """Checkpoints of these steps; step n saves the value n."""
    folder.mkdir(exist_ok=True)
    return [
        run_folder.save_checkpoint(folder, n, tensors(n), {"best": [1.5, n], "machine": {"threads": 1}}, keep=keep)
        for n in steps
    ]


def newest(folder: Path) -> int | None:
    manifest, saved, _ = run_folder.newest_checkpoint(folder)
    if manifest is None:
        return None
    assert torch.equal(saved["model:w"], tensors(manifest["step"])["model:w"])
    return manifest["step"]


def finished(folder: Path, **more) -> Path:
    folder.mkdir()
    write_atomic(folder / "recipe.toml", "[data]\n")
    write_atomic(folder / "tokenizer.json", "{}")
    write_atomic(folder / "log.jsonl", "")
    run_folder.write_json(folder / "cost.json", {"seconds": 1})
    run_folder.write_tensors(folder / "model.safetensors", {"w": torch.ones(2)})
    run_folder.write_manifest(folder, {"name": "x", **more})
    return folder


# --- a checkpoint -----------------------------------------------------------------------------------------------------


def test_the_newest_checkpoint_is_read(tmp_path):
    save_checkpoints(tmp_path / "r", 2, 9, 10)
    save_checkpoints(tmp_path / "s", 999_999, 1_000_000)  # by number, not by name
    assert (newest(tmp_path / "r"), newest(tmp_path / "s")) == (10, 1_000_000)


def test_a_checkpoint_has_the_saved_tensors_and_values(tmp_path):
    save_checkpoints(tmp_path / "r", 3)
    manifest, saved, problems = run_folder.newest_checkpoint(tmp_path / "r")
    assert {name: t.tolist() for name, t in saved.items()} == {name: t.tolist() for name, t in tensors(3).items()}
    assert (manifest["best"], problems) == ([1.5, 3], [])


def test_without_checkpoints_there_is_no_newest(tmp_path):
    assert newest(tmp_path) is None


def test_the_problem_of_each_damaged_checkpoint_is_reported(tmp_path):
    first, last = save_checkpoints(tmp_path / "r", 1, 2)
    (first / "manifest.json").unlink()
    (last / "state.safetensors").unlink()
    assert run_folder.newest_checkpoint(tmp_path / "r") == (
        None,
        {},
        [f"{last}/state.safetensors: is missing", f"{first}/manifest.json: is missing"],
    )


def test_a_folder_without_a_step_number_is_ignored(tmp_path):
    save_checkpoints(tmp_path / "r", 1)
    (tmp_path / "r" / "checkpoints" / "step-old").mkdir()
    assert newest(tmp_path / "r") == 1


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_checkpoints_are_kept(tmp_path, keep):
    save_checkpoints(tmp_path / "r", 1, 2, 3, 4, keep=keep)
    names = sorted(p.name for p in (tmp_path / "r" / "checkpoints").iterdir())
    assert names == [f"step-{n:06d}" for n in (1, 2, 3, 4)][-keep:]


def test_a_damaged_later_checkpoint_does_not_displace_intact_ones(tmp_path):
    """A run resumes from step 2 because step 9 is damaged: its next checkpoint is the newest."""
    *_, last = save_checkpoints(tmp_path / "r", 2, 9)
    (last / "manifest.json").unlink()
    save_checkpoints(tmp_path / "r", 3, keep=1)
    assert newest(tmp_path / "r") == 3
    assert not last.exists()


def test_a_checkpoint_can_be_overwritten(tmp_path):
    save_checkpoints(tmp_path / "r", 2, 2)
    assert newest(tmp_path / "r") == 2


# --- locking ----------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_an_error(tmp_path):
    with (
        run_folder.lock_folder(tmp_path / "r"),
        pytest.raises(
            BadInput, match=r"r: another process trains in this folder; wait until it ends, or use another folder$"
        ),
        run_folder.lock_folder(tmp_path / "r"),
    ):
        pass


def test_a_finished_writer_releases_the_lock(tmp_path):
    for _ in range(2):
        with run_folder.lock_folder(tmp_path / "r"):
            pass


def _hold_lock(folder: Path, locked) -> None:
    with run_folder.lock_folder(folder):
        locked.set()
        signal.pause()


@pytest.mark.process
def test_the_lock_of_a_killed_writer_does_not_block(tmp_path):
    context = multiprocessing.get_context("spawn")
    locked = context.Event()
    process = context.Process(target=_hold_lock, args=(tmp_path / "r", locked))
    process.start()
    assert locked.wait(60)
    with pytest.raises(BadInput), run_folder.lock_folder(tmp_path / "r"):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with run_folder.lock_folder(tmp_path / "r"):
        pass


def test_temporary_files_of_a_killed_writer_are_deleted(tmp_path):
    (tmp_path / ".tmp-1-model.safetensors").write_bytes(b"half")
    with run_folder.lock_folder(tmp_path):
        assert [p.name for p in tmp_path.iterdir()] == [".lock"]


# --- a finished run ---------------------------------------------------------------------------------------------------


def test_every_file_of_a_finished_run_is_hashed(tmp_path):
    folder = finished(tmp_path / "r")
    hashes = json.loads((folder / "harken.json").read_text())["sha256"]
    assert set(hashes) == {p.name for p in folder.iterdir()} - {"harken.json"}
    by_sha256sum = "1d206c1d48cf7b51ad48b5f46289f22685f7c59dc2e40ea8f32cb24bd873f0a0"  # printf '[data]\\n' | sha256sum
    assert hashes["recipe.toml"] == by_sha256sum


@pytest.mark.parametrize("name", ["recipe.toml", "model.safetensors", "tokenizer.json", "log.jsonl", "cost.json"])
@pytest.mark.parametrize(
    ("change", "problem"), [("modified", "SHA-256 mismatch: the file was modified"), ("deleted", "is missing")]
)
def test_a_modified_or_missing_file_is_an_error_with_its_name(tmp_path, name, change, problem):
    folder = finished(tmp_path / "r")
    (folder / name).unlink() if change == "deleted" else (folder / name).write_bytes(b"other")
    with pytest.raises(BadRun, match=rf"^{folder / name}: {problem}; restore it from a copy, or train again$"):
        run_folder.read_manifest(folder)


def rewrite_manifest(folder: Path, **more) -> None:
    """Change values of harken.json and keep the rest."""
    manifest = json.loads((folder / "harken.json").read_text())
    (folder / "harken.json").write_text(json.dumps(manifest | more))


def test_a_modified_harken_json_is_an_error(tmp_path):
    folder = finished(tmp_path / "r", metrics={"valid": {"loss": 2.0}})
    assert run_folder.read_manifest(folder)["metrics"]["valid"]["loss"] == 2.0
    rewrite_manifest(folder, metrics={"valid": {"loss": 1.0}})
    with pytest.raises(BadRun, match=r"harken.json: checksum mismatch: the file was modified; restore it from a copy"):
        run_folder.read_manifest(folder)


def test_harken_json_is_strict_json_with_a_checksum_for_non_finite_numbers(tmp_path):
    folder = finished(tmp_path / "r", metrics={"valid": {"loss": float("nan"), "perplexity": float("inf")}})
    assert not {"NaN", "Infinity"} & set((folder / "harken.json").read_text().replace(",", " ").split())
    assert run_folder.read_manifest(folder)["metrics"] == {"valid": {"loss": None, "perplexity": None}}


def test_a_manifest_without_a_checksum_is_an_error(tmp_path):
    folder = finished(tmp_path / "r")
    manifest = json.loads((folder / "harken.json").read_text())
    del manifest["checksum"]
    (folder / "harken.json").write_text(json.dumps(manifest))
    with pytest.raises(BadRun, match="checksum mismatch"):
        run_folder.read_manifest(folder)


def test_only_the_needed_files_are_checked(tmp_path):
    folder = finished(tmp_path / "r")
    (folder / "log.jsonl").write_text("more\n")
    assert run_folder.read_manifest(folder, "model.safetensors")["name"] == "x"


@pytest.mark.parametrize("name", ["../other", "/etc/hostname", "extra.bin"])
def test_a_file_that_is_not_part_of_a_run_is_not_opened(tmp_path, name):
    folder = finished(tmp_path / "r")
    (tmp_path / "other").write_bytes(b"")
    manifest = json.loads((folder / "harken.json").read_text())
    manifest["sha256"][name] = "0" * 64
    rewrite_manifest(folder, sha256=manifest["sha256"], checksum=run_folder._checksum(manifest))
    with pytest.raises(BadRun, match="SHA-256 mismatch: the file was modified"):
        run_folder.read_manifest(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"nonsense", b"\xff\xfe", b'{"format": 2}', b"[" * 100_000])
def test_an_invalid_harken_json_is_an_error_in_one_line(tmp_path, content):
    folder = finished(tmp_path / "r")
    (folder / "harken.json").write_bytes(content)
    with pytest.raises(BadRun, match=r"harken.json: ") as error:
        run_folder.read_manifest(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("version", [0, 1, 3, "2", None])
def test_another_format_is_an_error_that_names_both_formats(tmp_path, version):
    folder = finished(tmp_path / "r", format=version)
    message = (
        f"{folder}: run folder format {version!r}; this version reads format 2; "
        "train again, or use the version of harken that wrote it"
    )
    with pytest.raises(BadRun, match=rf"^{re.escape(message)}$"):
        run_folder.read_manifest(folder)


def test_the_error_of_an_unfinished_run_has_the_resume_command(tmp_path):
    save_checkpoints(tmp_path / "r", 1)
    with pytest.raises(BadRun) as error:
        run_folder.read_manifest(tmp_path / "r")
    assert str(error.value) == (
        f"{tmp_path}/r: this run is not finished; resume with: harken train {tmp_path}/r --resume"
    )


@pytest.mark.parametrize(("exists", "problem"), [(False, "no such folder"), (True, "is not a run folder")])
def test_a_folder_that_is_not_a_run_is_an_error(tmp_path, exists, problem):
    if exists:
        (tmp_path / "r").mkdir()
    with pytest.raises(BadInput, match=rf"^{tmp_path}/r: {problem}.*; harken runs lists the existing ones$"):
        run_folder.read_manifest(tmp_path / "r")


def test_a_similar_run_is_suggested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    finished(tmp_path / "runs" / "my")
    for name in ("runs/mi", "run/my", "my"):
        with pytest.raises(BadInput, match=r" Did you mean runs/my\?$"):
            run_folder.read_manifest(Path(name))


def test_a_name_with_a_space_is_quoted_in_the_resume_command(tmp_path):
    save_checkpoints(tmp_path / "a run", 1)
    with pytest.raises(BadRun, match=r"resume with: harken train '.*/a run' --resume$"):
        run_folder.read_manifest(tmp_path / "a run")


# --- the weights ------------------------------------------------------------------------------------------------------


def test_equal_weights_give_equal_bytes(tmp_path):
    a, b = {"b": torch.ones(2), "a": torch.zeros(3)}, {"a": torch.zeros(3), "b": torch.ones(2)}
    for name, saved in {"1": a, "2": b}.items():
        run_folder.write_tensors(tmp_path / name, saved)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_safetensors_reads_the_weights(tmp_path):
    saved = {"w": torch.randn(3, 4), "b": torch.randn(4).to(torch.bfloat16), "t": torch.randn(4, 3).mT}
    run_folder.write_tensors(tmp_path / "model.safetensors", saved)
    read = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert {n: t.tolist() for n, t in read.items()} == {n: t.tolist() for n, t in saved.items()}


def test_the_weights_have_the_file_mode_of_the_recipe(tmp_path):
    folder = finished(tmp_path / "r")
    assert (folder / "model.safetensors").stat().st_mode == (folder / "recipe.toml").stat().st_mode


def test_the_weights_file_has_no_time_stamp(tmp_path):
    run_folder.write_tensors(tmp_path / "w", {"w": torch.ones(1)})
    raw = (tmp_path / "w").read_bytes()
    header = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
    assert header == {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}


def malformed(header: dict, size: int = 4, length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + b"\0" * size


HUGE = {"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 7,
        malformed(HUGE),
        malformed({}, length=2**63),
        malformed({}, length=2**64 - 1),
        struct.pack("<Q", 50 << 20) + b"{" * 100,
        malformed({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}),
        malformed({"w": {"dtype": "CODE", "shape": [1], "data_offsets": [0, 4]}}),
        malformed({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}),
    ],
    ids=["empty", "short", "huge", "endless", "more", "header", "negative", "type", "backwards"],
)
def test_a_malformed_weights_file_is_an_error_before_any_allocation(tmp_path, raw):
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(BadRun, match=r"^.*model.safetensors: ") as error:
        run_folder.read_tensors(tmp_path / "model.safetensors")
    assert "\n" not in str(error.value)


def test_tied_weights_are_stored_once(tmp_path):
    model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    model["b"].weight = model["a"].weight
    assert list(run_folder.weights(model)) == ["a.weight"]


@pytest.mark.parametrize("other", [{}, {"weight": torch.ones(3, 3)}, {"weight": torch.ones(2, 3), "x": torch.ones(1)}])
def test_weights_of_another_model_are_an_error_with_a_name(other):
    with pytest.raises(
        BadRun, match=r"^the weights do not match the model at (weight|x); they belong to another recipe$"
    ):
        run_folder.load_weights(nn.Linear(3, 2, bias=False), other)


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    write_atomic(tmp_path / "a", "old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(SystemExit))
    with pytest.raises(SystemExit):
        write_atomic(tmp_path / "a", "new, but not all of it")
    assert (tmp_path / "a").read_text() == "old"
