"""How the work is told to people: a live bar on a terminal, plain lines elsewhere, nothing with --json."""

import sys
import time
from contextlib import suppress
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_SECONDS = 10.0  # between two lines where there is no terminal


def number(n: float) -> str:
    """1234567 -> 1.23 M."""
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(n) >= size:
            return f"{n / size:.3g} {name}"
    return f"{n:.3g}"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.3g} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def energy(kwh: float) -> str:
    return f"{kwh:.3g} kWh" if kwh >= 1 else f"{kwh * 1000:.3g} Wh"


def metrics(values: dict[str, float]) -> str:
    return "   ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in values.items())


class Teller:
    """A listener that tells people what happens. Use it as a context, so that the bar is put away."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.console = Console(stderr=True, highlight=False)
        self.bar: Progress | None = None
        self.job: Any = None
        self.last = 0.0

    def __enter__(self) -> "Teller":
        return self

    def __exit__(self, *error: object) -> None:
        self._away()

    def __call__(self, event: str, /, **facts: Any) -> None:
        if event == "notice":
            self.line(facts["text"], err=True)
        elif not self.quiet:
            getattr(self, f"_{event}", lambda **_: None)(**facts)

    def line(self, text: str, *, err: bool = False) -> None:
        if self.bar is not None:
            self.bar.console.print(text, markup=False, soft_wrap=True)
        else:
            click.echo(text, err=err or self.quiet)

    def _away(self) -> None:
        if self.bar is not None:
            with suppress(Exception):
                self.bar.stop()
            self.bar = self.job = None

    def _chosen(self, recipe: Any, guess: Any, folder: Any) -> None:
        if guess is not None:
            self.line(f"  {guess.kind}: {guess.reason}  (overrule with data.kind=...)")
        self.line(f"  recipe  {folder}/recipe.toml will hold every setting")

    def _encode(self, done: int, total: int, **_: Any) -> None:
        self._progress("reading the text", done, total, "")

    def _tokenizer(self, done: int, total: int | None = None, **_: Any) -> None:
        self._progress("learning the tokens", done, total, "")

    def _fetch(self, name: str, done: int, total: int, **_: Any) -> None:
        self._progress(f"fetching {name}", done, total, "")

    def _data(self, facts: dict[str, Any], parameters: int) -> None:
        self._away()
        tokens = ", ".join(f"{name} {number(n)}" for name, n in facts["tokens"].items())
        kind = {"char": "characters", "byte": "bytes", "word": "words", "bpe": "byte pairs"}.get(
            facts["token"], facts["token"]
        )
        self.line(f"  data    {tokens} tokens ({kind}, {facts['vocab']:,} different)")
        self.line(f"  model   {number(parameters)} weights")

    def _measure(self) -> None:
        self.line("  measuring the speed, to turn minutes into steps ...")

    def _begin(self, step: int, steps: int, epochs: float) -> None:
        after = f", going on after step {step:,}" if step else ""
        self.line(f"  train   {steps:,} steps = {epochs:.3g} times through the data{after}")

    def _step(self, step: int, steps: int, loss: float, **facts: Any) -> None:
        speed = facts.get("tokens_per_second")
        valid = f"   valid {facts['valid']:.4f}" if "valid" in facts else ""
        text = f"loss {loss:.4f}{valid}" + (f"   {number(speed)} tokens/s" if speed else "")
        if self.console.is_terminal:
            self._progress("training", step, steps, text)
            if "valid" in facts:
                self.line(f"  step {step:>7,}   {text}")
        elif "valid" in facts or time.monotonic() - self.last > PLAIN_SECONDS:
            self.last = time.monotonic()
            self.line(f"  step {step:>7,} of {steps:,}   {text}")

    def _judge(self) -> None:
        self._away()
        self.line("  judging on the held-out text, beside the free baselines ...")

    def _progress(self, what: str, done: float, total: float | None, text: str) -> None:
        if not self.console.is_terminal:
            return
        if self.bar is None:
            columns = (
                TextColumn("  {task.description}"),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(),
            )
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.bar.start()
            self.job = self.bar.add_task(what, total=total, text=text)
        if text or what != self.bar.tasks[0].description:
            self.bar.update(self.job, text=text or "", description=what)
        self.bar.update(self.job, completed=done, total=total)


def cost_line(cost: dict[str, Any]) -> str:
    used = f"{duration(cost['seconds'])}, {energy(cost['kwh'])} ({cost['energy_source']})"
    return f"  cost    {used}, {cost['co2e_kg'] * 1000:.3g} g CO2e"


def verdict(facts: dict[str, Any]) -> list[str]:
    """The metrics of each split beside the baselines that cost nothing."""
    lines = []
    for split, values in facts["metrics"].items():
        protocol = ", ".join(f"{k} {v}" for k, v in facts.get("protocol", {}).get(split, {}).items())
        lines.append(f"  {split:<6}  {metrics(values)}   ({protocol})")
        for name, base in facts.get("baseline", {}).get(split, {}).items():
            lines.append(f"          {metrics(base)}   {name}, for free")
    return lines


def piped() -> bool:
    """Whether something is piped into us."""
    return not sys.stdin.isatty()
