"""harken demo translate and harken demo text: the labs on real data, or on generated data without network access; and
harken demo sql: questions to SQL on generated tables."""

import time
from pathlib import Path
from typing import Any

from harken.data import catalogue
from harken.errors import HarkenError
from harken.events import Listener, silent
from harken.experiments.report.attention_map import cross_attention, save_attention_png
from harken.experiments.train import train
from harken.inference.run import Run
from harken.tasks import evaluating

from . import DemoOutput, credit, demo_texts

MAX_WORDS = 8  # of an English sentence: short ones are learned in minutes
WATCHED = ("He drives the car.", "I am a student.", "I have a red car.", "She does not have a dog.")
ATTENTION_EXAMPLE = WATCHED[2]  # une voiture rouge: the word order changes
TABLE = "table city (name, country, population): "  # names that no training question has
QUERIES = (
    "how many city have population above 300 ?",
    "show the name of every city with country france",
    "what is the largest population of all city ?",
    "count the city by country",
    "list the name of 3 city by highest population",
)
WATCH_SECONDS = 30.0  # between two translations of the watched sentences


def text(*, minutes: float = 3.7, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Lab 01: train a language model on Shakespeare from the catalogue."""
    path, attribution = _fetch("shakespeare", "tales", listen)
    run = train(str(path), out=out, minutes=minutes, settings={"data.tokenizer": "char"}, listen=listen)
    lines = run.generate(max_new_tokens=400, temperature=0.8, top_p=0.95).strip().split("\n")
    texts = demo_texts("text", run, prompt="Tom" if path.name == "tales.txt" else "To be")
    return DemoOutput(run, attribution, lines=lines, **texts)


def translate(*, minutes: float = 3.7, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Lab 02: train a translation model on English-French sentences from the catalogue."""
    path, attribution = _fetch("tatoeba-fra", "phrases", listen)
    watcher = _TranslationWatcher(listen)
    run = train(str(path), out=out, minutes=minutes, settings={"data.max_words": MAX_WORDS}, listen=watcher)
    watcher.translate(run)
    png, weights = run.path / "attention.png", cross_attention(run, ATTENTION_EXAMPLE)
    attention_map = png if weights and save_attention_png(png, *weights) else None
    texts = demo_texts("translate", run, example=ATTENTION_EXAMPLE)
    return DemoOutput(run, attribution, samples=watcher.samples, attention_map=attention_map, **texts)


def sql(*, minutes: float = 2.0, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Train a model that copies on questions and SQL, then ask about a table whose names are new."""
    fetched = catalogue.fetch("sql", listen=listen)
    run = train("sql", out=out, minutes=minutes, listen=listen)
    queries = run.translate([TABLE + question for question in QUERIES])
    pairs = zip(QUERIES, queries, strict=True)
    lines = [TABLE.rstrip(": "), *(line for question, query in pairs for line in (question, f"  {query}"))]
    texts = demo_texts("sql", run, example=TABLE + QUERIES[0])
    return DemoOutput(run, credit(fetched), lines=lines, **texts)


def _fetch(name: str, fallback: str, listen: Listener) -> tuple[Path, str]:
    """The path and attribution of a catalogue entry, or of a generated one without network access."""
    try:
        fetched = catalogue.fetch(name, listen=listen, stand_in=False)
    except HarkenError as error:
        listen("notice", text=f"{error}; using the generated {fallback} instead")
        fetched = catalogue.fetch(fallback, listen=listen)
    return fetched.path, credit(fetched)


class _TranslationWatcher:
    """A listener that translates the same sentences repeatedly during training and reports them.

    Greedy translation draws no random numbers, so the training is bitwise the same.
    """

    def __init__(self, listen: Listener) -> None:
        self.listen = listen
        self.run: Run | None = None
        self.last = 0.0
        self.samples: list[dict[str, Any]] = []

    def __call__(self, event: str, /, **facts: Any) -> None:
        self.listen(event, **facts)
        if event == "start":
            self.run, self.last = facts["run"], time.monotonic()
        elif event == "samples":
            self.samples = facts["samples"]
        elif event == "step" and self.run and time.monotonic() - self.last > WATCH_SECONDS:
            with evaluating(self.run.model):
                self.translate(self.run)
            self.last = time.monotonic()

    def translate(self, run: Run) -> None:
        self.listen("translations", texts=dict(zip(WATCHED, run.translate(WATCHED, beam=1), strict=True)))
