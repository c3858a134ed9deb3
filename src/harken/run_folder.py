"""The run folder: written by `train` and `import`, read by everything else.

    runs/<name>/  recipe.toml  harken.json  model.safetensors  tokenizer.json  log.jsonl  cost.json  report.html
                  checkpoints/step-000120/{state.safetensors, manifest.json}

No pickle, nothing outside the folder. Files are written atomically, and their SHA-256 is stored, so that neither an
incomplete nor a modified file is used.
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
from pydantic import JsonValue
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from . import recipe
from .errors import BadInput, BadRun, HarkenError
from .events import to_json_value
from .files import DISK_FULL, atomic_file, atomic_folder, sha256_of, sync, write_atomic
from .suggestions import missing_run_error, resume_command

JsonObject = Mapping[str, object]

FORMAT = 2  # 1: setting names and checkpoints before the renaming of all settings
MAX_HEADER_BYTES = 8 * 2**20  # of a safetensors file; harken writes smaller headers


def write_json(path: Path, content: JsonObject) -> None:
    write_atomic(path, _to_json(content))


def _to_json(content: JsonObject) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically. It contains no time stamp: equal weights give equal bytes."""
    with atomic_file(path) as temporary:
        try:
            save_file({name: t.detach().cpu().contiguous() for name, t in sorted(tensors.items())}, temporary, metadata)
        except SafetensorError as error:  # reports a full disk in its text only
            code = next((code for code in DISK_FULL if os.strerror(code) in str(error)), None)
            if code is None:
                raise
            raise OSError(code, os.strerror(code), str(path)) from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        with path.open("rb") as file:
            if int.from_bytes(file.read(8), "little") > MAX_HEADER_BYTES:
                limit = f"{MAX_HEADER_BYTES >> 20} MiB"
                raise BadRun(f"{path}: its header is larger than {limit}; harken did not write this file")
        return load_file(path)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise BadRun(f"{path}: cannot be read as safetensors ({error})") from None


def read_json(path: Path) -> dict[str, JsonValue]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BadRun(f"{path}: is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadRun(f"{path}: cannot be read as JSON ({error}); {RECOVERY_HINT}") from None
    if not isinstance(content, dict):
        raise BadRun(f"{path}: contains no JSON object; harken did not write this file")
    return content


def read_log(folder: Path) -> list[dict[str, JsonValue]]:
    """The lines of log.jsonl."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]


# --- weights ----------------------------------------------------------------------------------------------------------


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights by name, each once: a tied weight is stored under its first name."""
    persistent = model.state_dict().keys()
    buffers = {name: b for name, b in model.named_buffers() if name in persistent}
    return {name: p.detach() for name, p in model.named_parameters()} | buffers


def count_parameters(model: nn.Module) -> int:
    """Number of parameters."""
    return sum(p.numel() for p in model.parameters())


def matching_weights(model: nn.Module, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the model; raises if the saved ones differ in names or shapes."""
    current = weights(model)
    different = sorted(set(current) ^ set(saved)) or sorted(n for n in current if current[n].shape != saved[n].shape)
    if different:
        raise BadRun(f"the weights do not match the model at {different[0]}; they belong to another recipe")
    return current


class SkipInit(TorchFunctionMode):
    """Skips random initialization of weights that are loaded afterwards; drawing them takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_init = getattr(func, "__name__", "") in ("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_")
        return next(iter((*args, *(kwargs or {}).values()))) if is_init else func(*args, **(kwargs or {}))


def load_weights(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    current = matching_weights(model, saved)
    with torch.no_grad():
        for name, tensor in current.items():
            tensor.copy_(saved[name])


# --- locking ----------------------------------------------------------------------------------------------------------


class FolderLocked(BadInput):
    """Another process writes to the folder."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder for one writer, at most until the process ends. A full disk becomes a one-line error."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fix = "wait until it ends, or use another folder"
            raise FolderLocked(f"{folder}: another process trains in this folder; {fix}") from None
        for temporary in filter(Path.is_file, folder.glob(".tmp-*")):  # left by a killed writer
            temporary.unlink()
        try:
            yield
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            action = resume_command(folder) if (folder / "recipe.toml").exists() else "train again"
            problem = "the disk is full; saved files are intact"
            raise HarkenError(f"{folder}: {problem}; free space, then {action}") from None


# --- checkpoints ------------------------------------------------------------------------------------------------------


def save_checkpoint(folder: Path, step: int, tensors: Mapping[str, Tensor], values: JsonObject, *, keep: int) -> Path:
    """Write a checkpoint atomically, then delete the oldest ones."""
    checkpoints = folder / "checkpoints"
    if not checkpoints.exists():
        checkpoints.mkdir()
        sync(folder)
    if (log := folder / "log.jsonl").exists():
        sync(log)  # the log has at least the lines up to the step of the checkpoint
    path = checkpoints / f"step-{step:06d}"
    with atomic_folder(path) as temporary:
        write_tensors(temporary / "state.safetensors", tensors)
        hashes = {"state.safetensors": sha256_of(temporary / "state.safetensors")}
        manifest = {"format": FORMAT, "step": step, "recipe": _recipe_hash(folder), **values, "sha256": hashes}
        write_json(temporary / "manifest.json", {**manifest, "checksum": _checksum(manifest)})
        discard_later_checkpoints(folder, step - 1)
    for old in [*_checkpoints(folder)[keep:], *checkpoints.glob(".tmp-*")]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def _recipe_hash(folder: Path) -> str:
    """SHA-256 of recipe.toml without the settings that may change: data paths, device, parallelism, TensorBoard."""
    path = folder / "recipe.toml"
    settings = recipe.read(path) if path.exists() else {}
    variable = ("train.device", "train.threads", "train.parallel", "train.tensorboard")
    fixed = {n: value for n, value in settings.items() if n not in variable and not os.path.isabs(str(value))}
    if isinstance(mix := fixed.get("data.mix"), dict):
        fixed["data.mix"] = list(mix.values())  # weights without their paths
    return _checksum(fixed)


def _checksum(manifest: JsonObject) -> str:
    """SHA-256 of a manifest without its own checksum."""
    content = {name: value for name, value in manifest.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoints, newest first."""
    paths = [p for p in (folder / "checkpoints").glob("step-*") if p.name[5:].isdecimal()]
    return sorted(paths, key=lambda p: int(p.name[5:]), reverse=True)


def newest_checkpoint(folder: Path) -> tuple[dict[str, JsonValue] | None, dict[str, Tensor], list[str]]:
    """Manifest (None: no checkpoint) and tensors of the newest intact checkpoint, and the problems of newer ones."""
    recipe_hash, mismatch, problems = _recipe_hash(folder), "", list[str]()
    for path in _checkpoints(folder):
        try:
            manifest = _read_checkpoint_manifest(path)
            if manifest.get("recipe") == recipe_hash:
                return manifest, read_tensors(path / "state.safetensors"), problems
            problems.append(mismatch := f"{path}: is a checkpoint of another recipe than recipe.toml")
        except FileNotFoundError as error:
            problems.append(f"{error.filename}: is missing")
        except FormerFormat:
            raise
        except (BadRun, OSError) as error:
            problems.append(str(error))
    if mismatch:  # starting from step 0 would delete checkpoints that their own recipe.toml can resume
        raise BadRun(f"{mismatch}; restore the recipe, or train in another folder")
    return None, {}, problems


def _read_checkpoint_manifest(path: Path) -> dict[str, JsonValue]:
    """The manifest of a checkpoint; raises if its files were modified or belong to another step."""
    manifest_path, state = path / "manifest.json", path / "state.safetensors"
    manifest = read_json(manifest_path)
    if "seal" in manifest:  # the name of the checksum in format 1
        _check_format(path, manifest)
    if manifest.get("checksum") != _checksum(manifest) or _to_json(manifest) != manifest_path.read_bytes():
        raise BadRun(f"{manifest_path}: checksum mismatch: the file was modified")
    _check_format(path, manifest)
    hashes = manifest.get("sha256")
    if not isinstance(hashes, dict) or hashes.get(state.name) != sha256_of(state):
        raise BadRun(f"{state}: SHA-256 mismatch: the file was modified")
    if manifest.get("step") != int(path.name[5:]):
        raise BadRun(f"{path}: is the checkpoint of step {manifest.get('step')}")
    return manifest


def discard_later_checkpoints(folder: Path, step: int) -> None:
    """Rename checkpoints after this step, which a resumed run replaces; the next save deletes them."""
    for path in _checkpoints(folder):
        if int(path.name[5:]) > step:
            discarded = path.with_name(f".tmp-{path.name}")
            shutil.rmtree(discarded, ignore_errors=True)
            path.rename(discarded)


# --- a finished run ---------------------------------------------------------------------------------------------------

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.target.json", "labels.json")
RUN_FILES: tuple[str, ...] = ("recipe.toml", "model.safetensors", *TOKENIZER_FILES)
RUN_FILES += ("log.jsonl", "cost.json", "certificate.json", "report.html")
RECOVERY_HINT = "restore it from a copy, or train again"


class FormerFormat(BadRun):
    """A run folder of another format version."""


def _check_format(path: Path, manifest: JsonObject) -> None:
    if (version := manifest.get("format")) != FORMAT:
        fix = "train again, or use the version of harken that wrote it"
        raise FormerFormat(f"{path}: run folder format {version!r}; this version reads format {FORMAT}; {fix}")


def write_manifest(folder: Path, values: JsonObject) -> None:
    """Write harken.json, the last file of a run: the values, the SHA-256 of every other file, and a checksum."""
    hashes = {name: sha256_of(folder / name) for name in RUN_FILES if (folder / name).exists()}
    manifest = {n: to_json_value(value) for n, value in {"format": FORMAT, **values, "sha256": hashes}.items()}
    write_json(folder / "harken.json", {**manifest, "checksum": _checksum(manifest)})


def read_manifest(folder: Path, *needed: str) -> dict[str, JsonValue]:
    """harken.json of a finished run, after a check of the needed files (of all files, if none is named)."""
    path = folder / "harken.json"
    if not path.exists():
        raise _not_a_run(folder)
    manifest = read_json(path)
    _check_format(folder, manifest)
    if manifest.get("checksum") != _checksum(manifest):
        raise BadRun(f"{path}: checksum mismatch: the file was modified; {RECOVERY_HINT}")
    hashes = manifest.get("sha256")
    if not isinstance(hashes, dict):
        raise BadRun(f"{path}: has no SHA-256 of the other files; harken did not write this file")
    for name in needed or hashes:
        file = folder / name
        if name in TOKENIZER_FILES and name not in hashes and not file.exists():
            continue  # most runs have one tokenizer, image runs have none
        if name in RUN_FILES and not file.is_file():
            raise BadRun(f"{file}: is missing; {RECOVERY_HINT}")
        if name not in RUN_FILES or sha256_of(file) != hashes.get(name):
            raise BadRun(f"{file}: SHA-256 mismatch: the file was modified; {RECOVERY_HINT}")
    return manifest


def unfinished_hint(folder: Path) -> str:
    """What to do with an unfinished run: resume it, unless it ended with an error that would occur again."""
    try:
        ended = read_log(folder)[-1].get("ended")
    except (OSError, ValueError, IndexError, AttributeError):  # a killed writer leaves an incomplete line, or none
        ended = None
    return resume_command(folder) if ended is None else f"it ended at {ended}"


def _not_a_run(folder: Path) -> Exception:
    """The error for a folder without harken.json."""
    if (folder / "checkpoints").exists() or (folder / "recipe.toml").exists():
        return BadRun(f"{folder}: this run is not finished; {unfinished_hint(folder)}")
    if not folder.exists():
        return missing_run_error(folder)
    return BadInput(f"{folder}: is not a run folder (it has no harken.json); harken runs lists the existing ones")
