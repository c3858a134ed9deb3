"""Suggestions for error messages: similar names, and the command that resumes a run."""

import difflib
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from .errors import BadInput

COMPARISON_FILE = "compare.json"  # a folder with this file holds a comparison and its trials


def did_you_mean(name: str, candidates: Iterable[str], *, cutoff: float = 0.6) -> str:
    """' Did you mean X?' for the most similar candidate, ignoring case; empty if there is none."""
    originals = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(name.lower(), originals, n=1, cutoff=cutoff)
    return f" Did you mean {originals[close[0]]}?" if close else ""


def reject_unknown_options(names: Iterable[str], accepted: Sequence[str]) -> None:
    """Raise BadInput for the first name that is not accepted."""
    for name in names:
        if name not in accepted:
            hint = did_you_mean(name, accepted)
            raise BadInput(f"{name} is not an option; accepted: {', '.join(accepted)}.{hint}")


def similar_path(path: str | Path, candidates: Iterable[str] = ()) -> str:
    """'. Did you mean X?' for the most similar file, folder or candidate; empty if there is none. Says if a folder of
    this name exists where a file is expected."""
    if str(path) and Path(path).is_dir():
        return ". There is a folder of that name"
    hint = did_you_mean(str(path), [*_similar_siblings(Path(path)), *candidates])
    return hint and f".{hint}"


def _similar_siblings(path: Path) -> list[str]:
    """Files and folders with a similar stem, in the same folder or in a folder with a similar name.

    The cutoff is low because names are short: mt.txt suggests my.txt.
    """
    folders = [path.parent] if path.parent.is_dir() else [Path(p) for p in _similar_siblings(path.parent)]
    siblings = (p for folder in folders if folder.is_dir() for p in folder.iterdir())
    return [str(p) for p in siblings if path.name and did_you_mean(path.stem, [p.stem], cutoff=0.5)]


def missing_run_error(folder: Path) -> BadInput:
    """The error for a run folder that does not exist."""
    in_runs = Path("runs") / folder
    hint = f". Did you mean {in_runs}?" if in_runs.is_dir() else similar_path(folder)
    return BadInput(f"{folder}: no such folder; harken runs lists the existing ones{hint}")


def resume_command(folder: Path, processes: int = 1) -> str:
    """The command that resumes a run, a comparison, or the comparison that has this run as a trial."""
    program = "harken" if processes == 1 else f"torchrun --nproc-per-node {processes} -m harken"
    comparison = next((path for path in (folder, folder.parent) if (path / COMPARISON_FILE).is_file()), None)
    verb = "compare" if comparison else "train"
    return f"resume with: {program} {verb} {shlex.quote(str(comparison or folder))} --resume"
