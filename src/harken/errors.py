"""What may go wrong for a user. Every message is one line: place: what was given; what is accepted; what to do.

HarkenError
├── BadInput        a file, a text or an option that cannot be used       exit code 2
│   └── BadSetting  a recipe setting that is not one, or has a bad value  exit code 2
├── BadRun          a run folder that is not whole, or not ours           exit code 1
├── MissingExtra    an optional package is needed; names the pip command  exit code 1
└── Stopped         the work was asked to stop and left a checkpoint      exit code 130, or 143 for SIGTERM
"""

import difflib
import shlex
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

COMPARISON = "compare.json"  # the folder that has it holds a comparison, and its trials


class HarkenError(Exception):
    """An error meant for people: its text is the whole message."""

    exit_code = 1
    told = False  # another process of the same training has said it already


class BadInput(HarkenError, ValueError):
    """Something the user gave cannot be used."""

    exit_code = 2


class BadSetting(BadInput):
    """A recipe setting that does not exist or has a value that is not accepted."""


class BadRun(HarkenError):
    """A run folder that is missing a file, was changed, or was not written by harken."""


class MissingExtra(HarkenError):
    """An optional package is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs an extra package; install it with: pip install "harken[{extra}]"')


class Stopped(HarkenError):
    """The work was asked to stop (Ctrl-C, SIGTERM) and has left a good checkpoint."""

    def __init__(self, text: str, number: int = signal.SIGINT) -> None:
        super().__init__(text)
        self.exit_code = 128 + number  # as a shell says it of whoever dies of a signal


def did_you_mean(given: str, known: Iterable[str], *, alike: float = 0.6) -> str:
    """' Did you mean X?' for the nearest known word, in small letters or capitals, or nothing."""
    words = {word.lower(): word for word in known}
    close = difflib.get_close_matches(given.lower(), words, n=1, cutoff=alike)
    return f" Did you mean {words[close[0]]}?" if close else ""


def refuse_unknown(given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse an option that is none by its name, and say which there are."""
    for name in given:
        if name not in known:
            raise BadInput(f"{name} is not an option; there are {', '.join(known)}.{did_you_mean(name, known)}")


def near_name(given: str | Path, known: Iterable[str] = ()) -> str:
    """'. Did you mean X?' for the file or folder with the nearest name, or one of the known words; or nothing. Where a
    file is asked for and a folder is there, that is told."""
    if str(given) and Path(given).is_dir():
        return ". There is a folder of that name"
    near = did_you_mean(str(given), [*_beside(Path(given)), *known])
    return near and f".{near}"


def _beside(path: Path) -> list[str]:
    """Files and folders with a like name, in its folder or in one with a like name: the ending alone makes none alike.

    Half of the letters is enough here: names are short, and mt.txt is meant to be my.txt.
    """
    folders = [path.parent] if path.parent.is_dir() else [Path(near) for near in _beside(path.parent)]
    there = (p for folder in folders if folder.is_dir() for p in folder.iterdir())
    return [str(p) for p in there if path.name and did_you_mean(path.stem, [p.stem], alike=0.5)]


def no_such_run(folder: Path) -> BadInput:
    """What to say of a run that is not there."""
    here = Path("runs") / folder
    near = f". Did you mean {here}?" if here.is_dir() else near_name(folder)
    return BadInput(f"{folder}: there is no such folder; harken runs lists those that are there{near}")


def how_to_go_on(folder: Path, processes: int = 1) -> str:
    """The command that goes on with a run, with a comparison, or with the comparison that a run is a trial of."""
    start = "harken" if processes == 1 else f"torchrun --nproc-per-node {processes} -m harken"
    whole = next((place for place in (folder, folder.parent) if (place / COMPARISON).is_file()), None)
    verb = "compare" if whole else "train"
    return f"go on with: {start} {verb} {shlex.quote(str(whole or folder))} --resume"
