"""The run folder: the one hinge between making and using. `train` writes it; everything else only reads it.

    runs/<name>/  recipe.toml  harken.json  model.safetensors  tokenizer.json  log.jsonl  cost.json  report.html
                  checkpoints/step-000120/{state.safetensors, manifest.json}

No pickle, nothing outside the folder. Every file is written beside its place, synced and renamed, so a half-written
file never wins; every file's SHA-256 is written down, so a changed one is noticed.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .errors import BadInput, BadRun, how_to_go_on, near_name

FORMAT = 1
HEADER = 8 * 2**20  # bytes; a larger header of a weights file is not ours


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(path: Path, content: str | bytes) -> None:
    """Put a whole file in place at once."""
    beside = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    with beside.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    _sync(path.parent)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file, put in place at once. Its metadata holds no time: equal weights give equal bytes."""
    beside = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    save_file({name: t.detach().cpu().contiguous() for name, t in sorted(tensors.items())}, beside)
    with beside.open("rb") as file:
        os.fsync(file.fileno())
    beside.replace(path)
    _sync(path.parent)


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        with path.open("rb") as file:
            if int.from_bytes(file.read(8), "little") > HEADER:
                raise BadRun(f"{path}: its header is larger than {HEADER >> 20} MiB; this is not a file harken wrote")
        return load_file(path)
    except (OSError, ValueError, RuntimeError) as error:
        raise BadRun(f"{path}: cannot be read as safetensors ({error})") from None
    except Exception as error:  # safetensors raises its own class, straight from Exception
        if type(error).__name__ != "SafetensorError":
            raise
        raise BadRun(f"{path}: cannot be read as safetensors ({error})") from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BadRun(f"{path}: is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadRun(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(found, dict):
        raise BadRun(f"{path}: holds no JSON object; this is not a file harken wrote")
    return found


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- the weights of a model -------------------------------------------------------------------------------------------


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights by name, each once: a matrix with two names (tied) is stored under the first."""
    kept = model.state_dict().keys()
    buffers = {name: b for name, b in model.named_buffers() if name in kept}
    return {name: p.detach() for name, p in model.named_parameters()} | buffers


def fit(model: nn.Module, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model's own weights, after the saved ones were found to have the same names and shapes."""
    own = weights(model)
    odd = sorted(set(own) ^ set(saved)) or sorted(n for n in own if own[n].shape != saved[n].shape)
    if odd:
        raise BadRun(f"the weights do not fit the model at {odd[0]}; they belong to another recipe")
    return own


def load_weights(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    own = fit(model, saved)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])


# --- one writer -------------------------------------------------------------------------------------------------------


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the folder: a second writer is refused. The system lets go when the process dies, however it dies."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"{folder}: another process is training here; wait for it, or take another folder") from None
        for left in filter(Path.is_file, folder.glob(".tmp-*")):  # half-written, by a writer that was killed
            left.unlink()
        yield


# --- checkpoints ------------------------------------------------------------------------------------------------------


def save_checkpoint(
    folder: Path, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, keep: int
) -> Path:
    """Write a checkpoint: all its files synced in a folder of another name, then renamed. Older ones go afterwards."""
    shelf = folder / "checkpoints"
    shelf.mkdir(exist_ok=True)
    beside, place = shelf / f".tmp-{os.getpid()}", shelf / f"step-{step:06d}"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    write_tensors(beside / "state.safetensors", tensors)
    hashes = {"state.safetensors": sha256(beside / "state.safetensors")}
    made = {"format": FORMAT, "step": step, **facts, "sha256": hashes}
    write_json(beside / "manifest.json", {**made, "seal": _seal(made)})
    if place.exists():  # left by a run that was stopped and resumed from an earlier one
        shutil.rmtree(place)
    beside.rename(place)
    _sync(shelf)
    mine = [p for p in _shelved(folder) if int(p.name[5:]) <= step]  # later ones are of a run that is no more
    for old in {*_shelved(folder), *shelf.glob(".tmp-*")}.difference(mine[:keep]):
        shutil.rmtree(old, ignore_errors=True)
    return place


def _seal(facts: Mapping[str, Any]) -> str:
    """The SHA-256 of what a file of facts says, kept in the file itself."""
    said = {name: value for name, value in facts.items() if name != "seal"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _shelved(folder: Path) -> list[Path]:
    """The checkpoints, newest first."""
    found = [p for p in (folder / "checkpoints").glob("step-*") if p.name[5:].isdecimal()]
    return sorted(found, key=lambda p: int(p.name[5:]), reverse=True)


def newest_checkpoint(folder: Path) -> tuple[dict[str, Any] | None, dict[str, Tensor], list[str]]:
    """The newest checkpoint that is whole: its facts (None: there is none), its tensors; and what is wrong with newer
    ones that are not."""
    damaged: list[str] = []
    for place in _shelved(folder):
        try:
            facts = read_json(place / "manifest.json")
            if facts.get("seal") != _seal(facts):
                raise BadRun(f"{place / 'manifest.json'}: it does not say what it said when it was sealed")
            hashes = facts.get("sha256")
            if not isinstance(hashes, dict) or hashes.get("state.safetensors") != sha256(place / "state.safetensors"):
                raise BadRun(f"{place / 'state.safetensors'}: its SHA-256 is not the one in the manifest")
            return facts, read_tensors(place / "state.safetensors"), damaged
        except FileNotFoundError as error:
            damaged.append(f"{error.filename}: is missing")
        except (BadRun, OSError) as error:
            damaged.append(str(error))
    return None, {}, damaged


# --- a finished run ---------------------------------------------------------------------------------------------------

PARTS = ("recipe.toml", "model.safetensors", "tokenizer.json", "log.jsonl", "cost.json", "report.html")
COPY = "take it from a copy, or train again"


def finish(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write harken.json, last: the facts of the run and the SHA-256 of every other file, sealed."""
    hashes = {name: sha256(folder / name) for name in PARTS if (folder / name).exists()}
    made = {"format": FORMAT, **facts, "sha256": hashes}
    write_json(folder / "harken.json", {**made, "seal": _seal(made)})


def facts(folder: Path, *needed: str) -> dict[str, Any]:
    """The facts of a finished run, after the files that are needed (all, if none is named) were checked."""
    if not (folder / "harken.json").exists():
        raise _no_run(folder)
    found = read_json(folder / "harken.json")
    if found.get("format") != FORMAT:
        raise BadRun(f"{folder}: format {found.get('format')!r} is not known to this harken (it reads format {FORMAT})")
    if found.get("seal", seal := _seal(found)) != seal:  # the first runs have none
        raise BadRun(f"{folder / 'harken.json'}: was changed after the run was finished; {COPY}")
    hashes = found.get("sha256")
    if not isinstance(hashes, dict):
        raise BadRun(f"{folder / 'harken.json'}: names no SHA-256 of the run's files; this is not a file harken wrote")
    for name in needed or hashes:
        path = folder / name
        if name in PARTS and not path.is_file():
            raise BadRun(f"{path}: is missing; {COPY}")
        if name not in PARTS or sha256(path) != hashes.get(name):
            raise BadRun(f"{path}: is not the file this run was finished with; {COPY}")
    return found


def _no_run(folder: Path) -> Exception:
    """What to say of a folder without harken.json."""
    if (folder / "checkpoints").exists() or (folder / "recipe.toml").exists():
        return BadRun(f"{folder}: this run is not finished; {how_to_go_on(folder)}")
    listed = "harken runs lists those that are there"
    if folder.exists():
        return BadInput(f"{folder}: this is no run folder (it has no harken.json); {listed}")
    here = Path("runs") / folder
    near = f". Did you mean {here}?" if here.is_dir() else near_name(folder)
    return BadInput(f"{folder}: there is no such folder; {listed}{near}")
