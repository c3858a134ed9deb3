"""The run folder: nothing half-written wins, nothing changed goes unnoticed, and others can read it."""

import json
import multiprocessing
import os
import signal
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from harken import run_folder
from harken.errors import BadInput, BadRun


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"model:w": torch.full((3, 4), value), "random:cpu": torch.arange(8, dtype=torch.uint8)}


def shelve(folder: Path, *steps: int, keep: int = 9) -> list[Path]:
    """Checkpoints of these steps; what is saved at step n is n."""
    folder.mkdir(exist_ok=True)
    return [
        run_folder.save_checkpoint(folder, n, tensors(n), {"best": [1.5, n], "machine": {"threads": 1}}, keep=keep)
        for n in steps
    ]


def newest(folder: Path) -> int | None:
    facts, saved, _ = run_folder.newest_checkpoint(folder)
    if facts is None:
        return None
    assert torch.equal(saved["model:w"], tensors(facts["step"])["model:w"])
    return facts["step"]


def finished(folder: Path, **more) -> Path:
    folder.mkdir()
    run_folder.write(folder / "recipe.toml", "[data]\n")
    run_folder.write(folder / "tokenizer.json", "{}")
    run_folder.write(folder / "log.jsonl", "")
    run_folder.write_json(folder / "cost.json", {"seconds": 1})
    run_folder.write_tensors(folder / "model.safetensors", {"w": torch.ones(2)})
    run_folder.finish(folder, {"name": "x", **more})
    return folder


# --- a checkpoint -----------------------------------------------------------------------------------------------------


def test_the_newest_checkpoint_is_taken(tmp_path):
    shelve(tmp_path / "r", 2, 9, 10)
    shelve(tmp_path / "s", 999_999, 1_000_000)  # by number, not by name
    assert (newest(tmp_path / "r"), newest(tmp_path / "s")) == (10, 1_000_000)


def test_what_is_read_is_what_was_saved(tmp_path):
    shelve(tmp_path / "r", 3)
    facts, saved, damaged = run_folder.newest_checkpoint(tmp_path / "r")
    assert {name: t.tolist() for name, t in saved.items()} == {name: t.tolist() for name, t in tensors(3).items()}
    assert (facts["best"], damaged) == ([1.5, 3], [])


def test_without_a_checkpoint_there_is_none(tmp_path):
    assert newest(tmp_path) is None


def test_when_no_checkpoint_is_whole_it_is_said_what_is_wrong_with_each(tmp_path):
    first, last = shelve(tmp_path / "r", 1, 2)
    (first / "manifest.json").unlink()
    (last / "state.safetensors").unlink()
    assert run_folder.newest_checkpoint(tmp_path / "r") == (
        None,
        {},
        [f"{last}/state.safetensors: is missing", f"{first}/manifest.json: is missing"],
    )


def test_a_folder_with_no_number_is_no_checkpoint(tmp_path):
    shelve(tmp_path / "r", 1)
    (tmp_path / "r" / "checkpoints" / "step-old").mkdir()
    assert newest(tmp_path / "r") == 1


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_only_so_many_checkpoints_are_kept(tmp_path, keep):
    shelve(tmp_path / "r", 1, 2, 3, 4, keep=keep)
    kept = sorted(p.name for p in (tmp_path / "r" / "checkpoints").iterdir())
    assert kept == [f"step-{n:06d}" for n in (1, 2, 3, 4)][-keep:]


def test_a_damaged_later_checkpoint_does_not_push_out_the_good_ones(tmp_path):
    """A run goes on from step 2, because step 9 was damaged: what it saves now is what counts."""
    *_, last = shelve(tmp_path / "r", 2, 9)
    (last / "manifest.json").unlink()
    shelve(tmp_path / "r", 3, keep=1)
    assert newest(tmp_path / "r") == 3
    assert not last.exists()


def test_a_checkpoint_can_be_written_again(tmp_path):
    shelve(tmp_path / "r", 2, 2)
    assert newest(tmp_path / "r") == 2


# --- one writer -------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused(tmp_path):
    with (
        run_folder.writing(tmp_path / "r"),
        pytest.raises(BadInput, match=r"r: another process is training here; wait for it, or take another folder$"),
        run_folder.writing(tmp_path / "r"),
    ):
        pass


def test_a_writer_that_is_done_does_not_block(tmp_path):
    for _ in range(2):
        with run_folder.writing(tmp_path / "r"):
            pass


def _hold(folder: Path, begun) -> None:
    with run_folder.writing(folder):
        begun.set()
        signal.pause()


@pytest.mark.process
def test_a_killed_writers_lock_does_not_block(tmp_path):
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    other = context.Process(target=_hold, args=(tmp_path / "r", begun))
    other.start()
    assert begun.wait(60)
    with pytest.raises(BadInput), run_folder.writing(tmp_path / "r"):
        pass
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    with run_folder.writing(tmp_path / "r"):
        pass


def test_what_a_killed_writer_left_half_written_is_put_away(tmp_path):
    (tmp_path / ".tmp-1-model.safetensors").write_bytes(b"half")
    with run_folder.writing(tmp_path):
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
    ("how", "what"), [("changed", "is not the file this run was finished with"), ("gone", "is missing")]
)
def test_a_file_that_was_changed_or_is_missing_is_refused_by_name(tmp_path, name, how, what):
    folder = finished(tmp_path / "r")
    (folder / name).unlink() if how == "gone" else (folder / name).write_bytes(b"other")
    with pytest.raises(BadRun, match=rf"^{folder / name}: {what}; take it from a copy, or train again$"):
        run_folder.facts(folder)


def reworded(folder: Path, **more) -> None:
    """Change what harken.json says, and nothing else of it."""
    said = json.loads((folder / "harken.json").read_text())
    (folder / "harken.json").write_text(json.dumps(said | more))


def test_a_changed_harken_json_is_noticed(tmp_path):
    folder = finished(tmp_path / "r", metrics={"valid": {"loss": 2.0}})
    assert run_folder.facts(folder)["metrics"]["valid"]["loss"] == 2.0
    reworded(folder, metrics={"valid": {"loss": 1.0}})
    with pytest.raises(BadRun, match=r"harken.json: was changed after the run was finished; take it from a copy"):
        run_folder.facts(folder)


def test_harken_json_is_strict_json_and_sealed_where_a_number_is_not_finite(tmp_path):
    folder = finished(tmp_path / "r", metrics={"valid": {"loss": float("nan"), "perplexity": float("inf")}})
    assert not {"NaN", "Infinity"} & set((folder / "harken.json").read_text().replace(",", " ").split())
    assert run_folder.facts(folder)["metrics"] == {"valid": {"loss": None, "perplexity": None}}


def test_a_run_from_before_the_seal_is_still_read(tmp_path):
    folder = finished(tmp_path / "r")
    said = json.loads((folder / "harken.json").read_text())
    del said["seal"]
    (folder / "harken.json").write_text(json.dumps(said))
    assert run_folder.facts(folder)["name"] == "x"


def test_only_the_files_that_are_needed_are_checked(tmp_path):
    folder = finished(tmp_path / "r")
    (folder / "log.jsonl").write_text("more\n")
    assert run_folder.facts(folder, "model.safetensors")["name"] == "x"


@pytest.mark.parametrize("name", ["../other", "/etc/hostname", "extra.bin"])
def test_a_file_that_is_not_of_a_run_is_not_even_opened(tmp_path, name):
    folder = finished(tmp_path / "r")
    (tmp_path / "other").write_bytes(b"")
    facts = json.loads((folder / "harken.json").read_text())
    facts["sha256"][name] = "0" * 64
    reworded(folder, sha256=facts["sha256"], seal=run_folder._seal(facts))
    with pytest.raises(BadRun, match="is not the file this run was finished with"):
        run_folder.facts(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"nonsense", b"\xff\xfe", b'{"format": 1}', b"[" * 100_000])
def test_a_description_that_is_no_description_is_refused_in_one_line(tmp_path, content):
    folder = finished(tmp_path / "r")
    (folder / "harken.json").write_bytes(content)
    with pytest.raises(BadRun, match=r"harken.json: ") as refused:
        run_folder.facts(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("number", [0, 2, "1", None])
def test_a_foreign_format_is_refused(tmp_path, number):
    folder = finished(tmp_path / "r", format=number)
    with pytest.raises(BadRun, match=rf"format {number!r} is not known to this harken \(it reads format 1\)$"):
        run_folder.facts(folder)


def test_an_unfinished_run_says_how_to_go_on(tmp_path):
    shelve(tmp_path / "r", 1)
    with pytest.raises(BadRun) as refused:
        run_folder.facts(tmp_path / "r")
    assert str(refused.value) == (
        f"{tmp_path}/r: this run is not finished; go on with: harken train {tmp_path}/r --resume"
    )


@pytest.mark.parametrize(("there", "what"), [(False, "there is no such folder"), (True, "this is no run folder")])
def test_what_is_no_run_is_refused(tmp_path, there, what):
    if there:
        (tmp_path / "r").mkdir()
    with pytest.raises(BadInput, match=rf"^{tmp_path}/r: {what}.*; harken runs lists those that are there$"):
        run_folder.facts(tmp_path / "r")


def test_a_near_name_is_offered_for_a_run_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    finished(tmp_path / "runs" / "my")
    for given in ("runs/mi", "run/my", "my"):
        with pytest.raises(BadInput, match=r" Did you mean runs/my\?$"):
            run_folder.facts(Path(given))


def test_a_name_with_a_space_is_quoted_in_the_command_to_go_on_with(tmp_path):
    shelve(tmp_path / "a run", 1)
    with pytest.raises(BadRun, match=r"go on with: harken train '.*/a run' --resume$"):
        run_folder.facts(tmp_path / "a run")


# --- the weights ------------------------------------------------------------------------------------------------------


def test_equal_weights_give_equal_bytes(tmp_path):
    a, b = {"b": torch.ones(2), "a": torch.zeros(3)}, {"a": torch.zeros(3), "b": torch.ones(2)}
    for name, saved in {"1": a, "2": b}.items():
        run_folder.write_tensors(tmp_path / name, saved)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_safetensors_itself_opens_the_weights(tmp_path):
    saved = {"w": torch.randn(3, 4), "b": torch.randn(4).to(torch.bfloat16), "t": torch.randn(4, 3).mT}
    run_folder.write_tensors(tmp_path / "model.safetensors", saved)
    read = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert {n: t.tolist() for n, t in read.items()} == {n: t.tolist() for n, t in saved.items()}


def test_whoever_may_read_the_recipe_may_read_the_weights(tmp_path):
    folder = finished(tmp_path / "r")
    assert (folder / "model.safetensors").stat().st_mode == (folder / "recipe.toml").stat().st_mode


def test_the_weights_say_nothing_of_the_time(tmp_path):
    run_folder.write_tensors(tmp_path / "w", {"w": torch.ones(1)})
    raw = (tmp_path / "w").read_bytes()
    header = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
    assert header == {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}


def hostile(header: dict, size: int = 4, length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + b"\0" * size


HUGE = {"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 7,
        hostile(HUGE),
        hostile({}, length=2**63),
        hostile({}, length=2**64 - 1),
        struct.pack("<Q", 50 << 20) + b"{" * 100,
        hostile({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}),
        hostile({"w": {"dtype": "CODE", "shape": [1], "data_offsets": [0, 4]}}),
        hostile({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}),
    ],
    ids=["empty", "short", "huge", "endless", "more", "header", "negative", "type", "backwards"],
)
def test_a_hostile_weights_file_is_refused_before_anything_is_allocated(tmp_path, raw):
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(BadRun, match=r"^.*model.safetensors: ") as refused:
        run_folder.read_tensors(tmp_path / "model.safetensors")
    assert "\n" not in str(refused.value)


def test_tied_weights_are_stored_once(tmp_path):
    model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    model["b"].weight = model["a"].weight
    assert list(run_folder.weights(model)) == ["a.weight"]


@pytest.mark.parametrize("other", [{}, {"weight": torch.ones(3, 3)}, {"weight": torch.ones(2, 3), "x": torch.ones(1)}])
def test_weights_of_another_model_are_refused_by_name(other):
    with pytest.raises(
        BadRun, match=r"^the weights do not fit the model at (weight|x); they belong to another recipe$"
    ):
        run_folder.load_weights(nn.Linear(3, 2, bias=False), other)


def test_a_file_is_put_in_place_at_once(tmp_path, monkeypatch):
    run_folder.write(tmp_path / "a", "old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(SystemExit))
    with pytest.raises(SystemExit):
        run_folder.write(tmp_path / "a", "new, but not all of it")
    assert (tmp_path / "a").read_text() == "old"
