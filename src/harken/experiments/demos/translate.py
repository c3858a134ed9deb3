"""harken demo: a first success on real data, or on harken's own where there is no registry."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from harken.data import catalogue
from harken.errors import HarkenError
from harken.events import Listener, silent
from harken.experiments.report.attention_map import cross, drawn
from harken.experiments.train import train
from harken.inference.run import Run

WORDS = 8  # of an English sentence at most: short ones are learned in minutes
WATCHED = ("I am a student.", "I have a red car.", "She does not have a dog.")
LOOKED_INTO = WATCHED[1]  # une voiture rouge: the order of the words changes
REFERENCES = 3  # shown of a sentence at most
SECONDS = 30.0  # between two times the watched sentences are translated


@dataclass
class Shown:
    """What a demo has to show: the run, whose data it learned from, what its report has as samples, what to type next.

    The lines stand under the title. With a table several models were trained: its cells, what --json says of them, and
    the cost of all.
    """

    run: Run
    whose: str
    samples: list[dict[str, Any]] = field(default_factory=list)
    picture: Path | None = None
    title: str = ""
    lines: list[str] = field(default_factory=list)
    hints: dict[str, str] = field(default_factory=dict)
    table: tuple[list[str], list[list[str]]] | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    cost: dict[str, Any] | None = None

    def said(self) -> list[str]:
        """The lines, or each sample with what was said of it and, in brackets, the truth."""
        several = [(each["prompt"], each["text"], " | ".join(each["references"][:REFERENCES])) for each in self.samples]
        return self.lines or [line for a, b, c in several for line in (a, f"  {b}   ({c})")]


def text(*, minutes: float = 3.7, out: str | Path | None = None, listen: Listener = silent) -> Shown:
    """Lab 01: learn to write, from the catalogue's Shakespeare."""
    fetched, whose = _fetched("shakespeare", "tales", listen)
    run = train(str(fetched), out=out, minutes=minutes, settings={"data.tokenizer": "char"}, listen=listen)
    place, begin = quote(str(run.path)), "Tom" if fetched.name == "tales.txt" else "To be"
    hints = {
        f'harken generate {place} "{begin}"': "let it go on",
        f'harken generate {place} "{begin}" --next 5': "what comes next, with probabilities",
        "harken train my.txt": "your own text",
    }
    written = run.generate(tokens=400, temperature=0.8, top_p=0.95).strip().split("\n")
    return Shown(run, whose, title="It writes (temperature 0.8):", lines=written, hints=hints)


def translate(*, minutes: float = 3.7, out: str | Path | None = None, listen: Listener = silent) -> Shown:
    """Lab 02: learn to translate, from the catalogue's English-French sentences. `watch` tells how far it is."""
    fetched, whose = _fetched("tatoeba-fra", "phrases", listen)
    watch = Watch(listen)
    run = train(str(fetched), out=out, minutes=minutes, settings={"data.max_words": WORDS}, listen=watch)
    watch.translate(run)
    picture, looks = run.path / "attention.png", cross(run, LOOKED_INTO)
    place = quote(str(run.path))
    hints = {
        f'harken translate {place} "{LOOKED_INTO}"': "ask it",
        f"harken eval {place}": "its numbers again",
        "harken train my.tsv": "your own pairs",
    }
    drew = picture if looks and drawn(picture, *looks) else None
    title = "It translates sentences it has not seen (in brackets: what people wrote):"
    return Shown(run, whose, watch.samples, drew, title if watch.samples else "", hints=hints)


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
