"""What may go wrong for a user. Every message is one line: place: what was given; what is accepted; what to do.

HarkenError
├── BadInput        a file, a text or an option that cannot be used       exit code 2
│   └── BadSetting  a recipe setting that is not one, or has a bad value  exit code 2
├── BadRun          a run folder that is not whole, or not ours           exit code 1
├── MissingExtra    an optional package is needed; names the pip command  exit code 1
└── Stopped         the work was asked to stop and left a checkpoint      exit code 1
"""

import difflib
from collections.abc import Iterable


class HarkenError(Exception):
    """An error meant for people: its text is the whole message."""

    exit_code = 1


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


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """' Did you mean X?' for the nearest known word, or nothing."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]}?" if close else ""
