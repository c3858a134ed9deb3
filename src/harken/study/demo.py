"""harken demo: a first success on real data, or on harken's own where there is no registry."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harken.data import catalogue
from harken.errors import HarkenError
from harken.events import Listener, silent
from harken.use.model import Run

from .heat import cross, drawn
from .train import train

WORDS = 8  # of an English sentence at most: short ones are learned in minutes
WATCHED = ("I am a student.", "I have a red car.", "She does not have a dog.")
LOOKED_INTO = WATCHED[1]  # une voiture rouge: the order of the words changes
SECONDS = 30.0  # between two times the watched sentences are translated


@dataclass
class Shown:
    """What a demo has to show: the run, whose data it learned from, what the report has as samples, a picture."""

    run: Run
    whose: str
    samples: list[dict[str, Any]] = field(default_factory=list)
    picture: Path | None = None


def text(*, minutes: float = 3.7, out: str | Path | None = None, listen: Listener = silent) -> Shown:
    """Lab 01: learn to write, from the catalogue's Shakespeare."""
    fetched, whose = _fetched("shakespeare", "tales", listen)
    run = train(str(fetched), out=out, minutes=minutes, settings={"data.tokens": "char"}, listen=listen)
    return Shown(run, whose)


def translate(*, minutes: float = 3.7, out: str | Path | None = None, listen: Listener = silent) -> Shown:
    """Lab 02: learn to translate, from the catalogue's English-French sentences. `watch` tells how far it is."""
    fetched, whose = _fetched("tatoeba-fra", "phrases", listen)
    watch = Watch(listen)
    run = train(str(fetched), out=out, minutes=minutes, settings={"data.most_words": WORDS}, listen=watch)
    watch.translate(run)
    picture, looks = run.path / "attention.png", cross(run, LOOKED_INTO)
    return Shown(run, whose, watch.samples, picture if looks and drawn(picture, *looks) else None)


def _fetched(name: str, own: str, listen: Listener) -> tuple[Path, str]:
    """A set of the catalogue and whom to thank; without the registry harken's own, and that is said."""
    try:
        fetched = catalogue.fetch(name, listen=listen)
    except HarkenError as error:
        listen("notice", text=f"{error}; harken's own {own} are taken instead")
        fetched = catalogue.fetch(own, listen=listen)
    return fetched.path, f"{fetched.attribution} ({fetched.licence})"


class Watch:
    """A listener that has the same sentences translated again and again while a model learns, and tells it on.

    Greedy translation draws no random number, and so the run stays the same, bit for bit.
    """

    def __init__(self, listen: Listener) -> None:
        self.listen = listen
        self.run: Run | None = None
        self.last = 0.0
        self.samples: list[dict[str, Any]] = []

    def __call__(self, event: str, /, **facts: Any) -> None:
        self.listen(event, **facts)
        if event == "begin":
            self.run, self.last = facts["run"], time.monotonic()
        elif event == "samples":
            self.samples = facts["samples"]
        elif event == "step" and self.run and time.monotonic() - self.last > SECONDS:
            self.run.model.eval()
            self.translate(self.run)
            self.run.model.train()
            self.last = time.monotonic()

    def translate(self, run: Run) -> None:
        self.listen("watch", texts=dict(zip(WATCHED, run.translate(WATCHED, beam=1), strict=True)))
