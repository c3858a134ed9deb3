"""The run folder: the one hinge between making and using. `train` writes it; everything else only reads it.

    runs/<name>/  recipe.toml  harken.json  model.safetensors  tokenizer.json  log.jsonl  cost.json  report.html
                  checkpoints/step-000120/{state.safetensors, manifest.json}

No pickle, nothing outside the folder. Every file is written beside its place, synced and renamed, so a half-written
file never wins; every file's SHA-256 is written down, so a changed one is noticed.
"""

import errno
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
from torch.overrides import TorchFunctionMode

from . import recipe
from .errors import BadInput, BadRun, HarkenError, how_to_go_on, no_such_run
from .events import plain

FORMAT = 1
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # what the system says when nothing more can be written
HEADER = 8 * 2**20  # bytes; a larger header of a weights file is not ours


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(path: Path, content: str | bytes) -> None:
    """Put a whole file in place at once."""
    with _placed(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write(path, _json(content))


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """A safetensors file, put in place at once. Its metadata holds no time: equal weights give equal bytes."""
    with _placed(path) as beside:
        try:
            save_file({name: t.detach().cpu().contiguous() for name, t in sorted(tensors.items())}, beside, metadata)
        except Exception as error:  # safetensors raises its own class, which tells of a full disk in its text alone
            code = next((code for code in NO_ROOM if os.strerror(code) in str(error)), None)
            if code is None:
                raise
            raise OSError(code, os.strerror(code), str(path)) from None


@contextmanager
def _placed(path: Path) -> Iterator[Path]:
    """Where to write a file: beside its place. It is then synced and renamed; one that fails leaves nothing behind."""
    beside = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        beside.touch()
        mode = beside.stat().st_mode
        yield beside
        beside.chmod(mode)  # safetensors makes a file that nobody else may read
        _sync(beside)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
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
        raise BadRun(f"{path}: cannot be read as JSON ({error}); {COPY}") from None
    if not isinstance(found, dict):
        raise BadRun(f"{path}: holds no JSON object; this is not a file harken wrote")
    return found


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of log.jsonl."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
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


def size(model: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(p.numel() for p in model.parameters())


def fit(model: nn.Module, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model's own weights, after the saved ones were found to have the same names and shapes."""
    own = weights(model)
    odd = sorted(set(own) ^ set(saved)) or sorted(n for n in own if own[n].shape != saved[n].shape)
    if odd:
        raise BadRun(f"the weights do not fit the model at {odd[0]}; they belong to another recipe")
    return own


class Unborn(TorchFunctionMode):
    """Where models are made whose first weights nobody will see: they are not drawn, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drawn = getattr(func, "__name__", "") in ("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_")
        return next(iter((*args, *(kwargs or {}).values()))) if drawn else func(*args, **(kwargs or {}))


def load_weights(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    own = fit(model, saved)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])


# --- one writer -------------------------------------------------------------------------------------------------------


class Busy(BadInput):
    """Another process holds the folder."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the folder: a second writer is refused. The system lets go when the process dies, however it dies.

    A disk that is full ends the work in one line: every file is there whole, or as it was before.
    """
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Busy(f"{folder}: another process is training here; wait for it, or take another folder") from None
        for left in filter(Path.is_file, folder.glob(".tmp-*")):  # half-written, by a writer that was killed
            left.unlink()
        try:
            yield
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            way = how_to_go_on(folder) if (folder / "recipe.toml").exists() else "train again"
            raise HarkenError(f"{folder}: the disk is full; what was saved is whole; make room, then {way}") from None


# --- checkpoints ------------------------------------------------------------------------------------------------------


def save_checkpoint(
    folder: Path, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, keep: int
) -> Path:
    """Write a checkpoint: all its files synced in a folder of another name, then renamed. Older ones go afterwards."""
    shelf = folder / "checkpoints"
    if not shelf.exists():
        shelf.mkdir()
        _sync(folder)
    if (log := folder / "log.jsonl").exists():
        _sync(log)  # a checkpoint that survives finds the lines up to its step
    beside, place = shelf / f".tmp-{os.getpid()}", shelf / f"step-{step:06d}"
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir()
        write_tensors(beside / "state.safetensors", tensors)
        hashes = {"state.safetensors": sha256(beside / "state.safetensors")}
        made = {"format": FORMAT, "step": step, "recipe": _recipe(folder), **facts, "sha256": hashes}
        write_json(beside / "manifest.json", {**made, "seal": _seal(made)})
        set_aside(folder, step - 1)
        beside.rename(place)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    _sync(shelf)
    for old in [*_shelved(folder)[keep:], *shelf.glob(".tmp-*")]:
        shutil.rmtree(old, ignore_errors=True)
    return place


def _recipe(folder: Path) -> str:
    """The SHA-256 of what recipe.toml says, but for where the texts lie, where it is trained and who watches: these may
    change."""
    path = folder / "recipe.toml"
    said = recipe.read(path) if path.exists() else {}
    where = ("train.device", "train.threads", "train.parallel", "train.tensorboard")
    kept = {n: value for n, value in said.items() if n not in where and not os.path.isabs(str(value))}
    return _seal({n: list(value.values()) if n == "data.mix" else value for n, value in kept.items()})


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
    mine, foreign = _recipe(folder), ""
    for place in _shelved(folder):
        try:
            facts = _sealed(place)
            if facts.get("recipe", mine) == mine:  # the first ones do not say
                return facts, read_tensors(place / "state.safetensors"), damaged
            damaged.append(foreign := f"{place}: is a checkpoint of another recipe than recipe.toml")
        except FileNotFoundError as error:
            damaged.append(f"{error.filename}: is missing")
        except (BadRun, OSError) as error:
            damaged.append(str(error))
    if foreign:  # to start anew would throw away what another recipe.toml may go on with
        raise BadRun(f"{foreign}; put its recipe back, or train in another folder")
    return None, {}, damaged


def _sealed(place: Path) -> dict[str, Any]:
    """What a checkpoint says, if every byte of it is as it was written, for this step."""
    manifest, state = place / "manifest.json", place / "state.safetensors"
    facts = read_json(manifest)
    if facts.get("seal") != _seal(facts) or _json(facts) != manifest.read_bytes():
        raise BadRun(f"{manifest}: it does not say what it said when it was sealed")
    hashes = facts.get("sha256")
    if not isinstance(hashes, dict) or hashes.get(state.name) != sha256(state):
        raise BadRun(f"{state}: its SHA-256 is not the one in the manifest")
    if facts.get("step") != int(place.name[5:]):
        raise BadRun(f"{place}: is the checkpoint of step {facts.get('step')}")
    return facts


def set_aside(folder: Path, step: int) -> None:
    """Later checkpoints than this are of a run that is no more. The next that is saved takes them away for good."""
    for place in _shelved(folder):
        if int(place.name[5:]) > step:
            aside = place.with_name(f".tmp-{place.name}")
            shutil.rmtree(aside, ignore_errors=True)
            place.rename(aside)


# --- a finished run ---------------------------------------------------------------------------------------------------

TOKENS = ("tokenizer.json", "tokenizer.target.json", "labels.json")
PARTS = ("recipe.toml", "model.safetensors", *TOKENS, "log.jsonl", "cost.json", "certificate.json", "report.html")
COPY = "take it from a copy, or train again"


def finish(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write harken.json, last: the facts of the run and the SHA-256 of every other file, sealed."""
    hashes = {name: sha256(folder / name) for name in PARTS if (folder / name).exists()}
    made = plain({"format": FORMAT, **facts, "sha256": hashes})
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
        if name in TOKENS and name not in hashes and not path.exists():
            continue  # most runs have one vocabulary, and those of pictures have none
        if name in PARTS and not path.is_file():
            raise BadRun(f"{path}: is missing; {COPY}")
        if name not in PARTS or sha256(path) != hashes.get(name):
            raise BadRun(f"{path}: is not the file this run was finished with; {COPY}")
    return found


def unfinished(folder: Path) -> str:
    """What to do with a run that is not finished: go on, but for one that would end in the same way again."""
    try:
        ended = read_log(folder)[-1].get("ended")
    except (OSError, ValueError, IndexError, AttributeError):  # a killed writer leaves half a line, or none
        ended = None
    return how_to_go_on(folder) if ended is None else f"it ended at {ended}"


def _no_run(folder: Path) -> Exception:
    """What to say of a folder without harken.json."""
    if (folder / "checkpoints").exists() or (folder / "recipe.toml").exists():
        return BadRun(f"{folder}: this run is not finished; {unfinished(folder)}")
    if not folder.exists():
        return no_such_run(folder)
    return BadInput(f"{folder}: this is no run folder (it has no harken.json); harken runs lists those that are there")
