"""Run folders: choose, claim and clear the one to write, and find the one to resume."""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import chain, count
from pathlib import Path

from harken import recipe as recipes
from harken import run_folder
from harken.errors import BadInput
from harken.training.tensorboard import FOLDER

RESULTS = "folds.json"  # of a cross-validation


def is_cross_validation(what: str | Path | None) -> bool:
    """Whether this is the folder of a cross-validation, finished or not."""
    return what is not None and (Path(what) / RESULTS).is_file()


def numbered_folders(folder: Path) -> list[Path]:
    """The folder, and those of name-2, name-3 ... that exist."""
    later = [p for p in folder.parent.glob("*") if re.fullmatch(rf"{re.escape(folder.name)}-\d+", p.name)]
    return [folder, *sorted(later, key=lambda p: int(p.name.rpartition("-")[2]))]


def is_data(what: str | Path | None) -> bool:
    """Whether this is an existing file or folder of data: not a recipe, a run or a catalogue name."""
    exists = what is not None and Path(what).exists() and Path(what).suffix != ".toml"
    return exists and not (Path(str(what)) / "recipe.toml").is_file()


def run_to_resume(what: str | Path | None, folder: Path, *, explicit: bool) -> Path | None:
    """The run to resume: the named one, or the newest run on this data, an unfinished one first."""
    if what is not None and (Path(what) / "recipe.toml").is_file():
        if explicit and Path(what).absolute() != folder.absolute():
            raise BadInput(f"{what}: a run is resumed in its own folder, not in {folder}; remove out (--out)")
        return Path(what)
    runs = [p for p in ([folder] if explicit else numbered_folders(folder)) if (p / "recipe.toml").is_file()]
    if not explicit and is_data(what):
        data_path = str(Path(str(what)).absolute())
        runs = [p for p in runs if recipes.read(p / "recipe.toml").get("data.path") == data_path]
    candidates = [p for p in runs if not (p / "harken.json").exists()] or runs
    return candidates[-1] if candidates else None


def folder_to_write(folder: Path, *, explicit: bool, force: bool) -> Path:
    """The folder to write. An explicit name that is in use is refused; a default name gets the suffix -2, -3 ..."""
    if not explicit or is_available(folder):
        return next_available(folder)
    if not folder.is_dir():
        raise BadInput(f"{folder}: is a file; choose another folder")
    if not (folder / "recipe.toml").is_file():
        raise BadInput(f"{folder}: is not empty and not a run folder (it has no recipe.toml); choose another folder")
    if not force:
        options = "resume the run (--resume), overwrite it (--force) or choose another folder (--out)"
        raise BadInput(f"{folder}: is not empty; {options}")
    return folder


def claim_run_folder(folder: Path, locks: ExitStack, *, explicit: bool, force: bool) -> Path:
    """The folder to write, locked. A default name that another process claims meanwhile is skipped."""
    if not explicit:
        return claim_folder(folder, locks)
    folder = folder_to_write(folder, explicit=True, force=force)
    locks.enter_context(run_folder.lock_folder(folder))
    return folder


def claim_folder(folder: Path, locks: ExitStack) -> Path:
    """The first available folder of name, name-2, name-3 ..., locked until `locks` is closed."""
    return next(candidate for candidate in _available(folder) if _lock(candidate, locks))


def _lock(folder: Path, locks: ExitStack) -> bool:
    """Lock this folder, unless another process holds it or has written to it meanwhile."""
    with suppress(run_folder.FolderLocked), ExitStack() as stack:
        stack.enter_context(run_folder.lock_folder(folder))
        if is_available(folder):
            locks.push(stack.pop_all())
            return True
    return False


def next_available(folder: Path) -> Path:
    """The first available folder of name, name-2, name-3 ..."""
    return next(_available(folder))


def _available(folder: Path) -> Iterator[Path]:
    later = (folder.with_name(f"{folder.name}-{n}") for n in count(2))
    return filter(is_available, chain([folder], later))


def is_available(folder: Path) -> bool:
    """Whether a run may be written here. Hidden files, which a killed writer leaves behind, do not count."""
    return not folder.exists() or (folder.is_dir() and all(p.name.startswith(".") for p in folder.iterdir()))


def clear_run(folder: Path) -> None:
    """Delete the run in this folder, its recipe last: an interrupted deletion leaves an unfinished run."""
    (folder / "harken.json").unlink(missing_ok=True)
    for name in ("checkpoints", FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in reversed(run_folder.RUN_FILES):
        (folder / name).unlink(missing_ok=True)
