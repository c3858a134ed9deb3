"""Errors for users. Every message is one line: place: what is wrong; what is accepted; what to do.

HarkenError
├── BadInput        a file, a text or an option that cannot be used          exit code 2
│   └── BadSetting  an unknown recipe setting, or one with an invalid value  exit code 2
├── BadRun          a run folder that is incomplete, modified or not harken's  exit code 1
├── MissingExtra    an optional package is needed; names the pip command     exit code 1
└── Stopped         the work was interrupted after writing a checkpoint      exit code 130, or 143 for SIGTERM
"""

import signal


class HarkenError(Exception):
    """An error for users: its text is the complete message."""

    exit_code = 1
    reported = False  # True: another process of the same training has printed the message


class BadInput(HarkenError, ValueError):
    """Input that cannot be used."""

    exit_code = 2


class BadSetting(BadInput):
    """A recipe setting that does not exist or has an invalid value."""


class BadRun(HarkenError):
    """A run folder that misses a file, was modified, or was not written by harken."""


class MissingExtra(HarkenError):
    """An optional package is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f'{feature} needs an extra package; install it with: pip install "harken[{extra}]"')


class Stopped(HarkenError):
    """The work was interrupted (Ctrl-C, SIGTERM) and has written a checkpoint."""

    def __init__(self, text: str, number: int = signal.SIGINT) -> None:
        super().__init__(text)
        self.exit_code = 128 + number  # as a shell reports a process ended by a signal
