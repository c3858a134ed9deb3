"""How the work is told to people: a live bar on a terminal, plain lines elsewhere, nothing with --json."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from harken.errors import BadInput

if TYPE_CHECKING:
    from rich.progress import Progress

PLAIN_SECONDS = 10.0  # between two lines where there is no terminal
TOKENS = {"char": "characters", "byte": "bytes", "word": "words", "bpe": "byte pairs"}


def number(n: float) -> str:
    """1234567 -> 1.23 M."""
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(n) >= size:
            return f"{n / size:.3g} {name}"
    return f"{n:.3g}"


def size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count else "made here"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.3g} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def energy(kwh: float) -> str:
    return f"{kwh:.3g} kWh" if kwh >= 1 else f"{kwh * 1000:.3g} Wh"


def figure(value: float) -> str:
    """Four figures, as many as a metric is good for."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:#.4g}".rstrip(".")


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table that wraps inside its columns on a terminal, plain aligned lines elsewhere."""
    if not terminal():
        click.echo("\n".join(columns([heads, *rows])))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(*heads, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        shown.add_row(*map(Text, row))
    Console().print(shown)


# --- where we are -----------------------------------------------------------------------------------------------------


def terminal() -> bool:
    """Whether somebody watches a terminal that may be drawn on."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and sys.stdout.isatty() and sys.stderr.isatty()


def piped() -> bool:
    """Whether something is piped into us."""
    return sys.stdin is not None and not sys.stdin.isatty()


def lines() -> Iterator[str]:
    """The lines of standard input, each as soon as it comes; empty ones are kept."""
    for n, raw in enumerate(sys.stdin.buffer, 1):
        try:
            yield raw.decode("utf-8-sig" if n == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            way = "convert it: iconv -f WINDOWS-1252 -t UTF-8"
            raise BadInput(
                f"stdin:{n}: byte 0x{raw[error.start]:02x} is not UTF-8; texts are read as UTF-8; {way}"
            ) from None


# --- what happens -----------------------------------------------------------------------------------------------------


class Teller:
    """A listener that tells people what happens. Use it as a context, so that the bar is put away."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet, self.live = quiet, terminal() and not quiet
        self.bar: Progress | None = None
        self.job: Any = None
        self.doing = ""
        self.seen: dict[str, float] = {}
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

    def _chosen(self, recipe: Any, guess: Any, folder: Any) -> None:
        if guess is not None:
            self.line(f"  {guess.kind:<7} {guess.reason} (overrule with data.kind=...)")
        self.line(f"  recipe  {folder}/recipe.toml will hold every setting")

    def _fetch(self, name: str, done: int, total: int) -> None:
        if done < total and not self.live:  # on stderr: stdout is for the result
            self.line(f"fetching {name}, {size(total)} ...", err=True)
        self._progress(f"fetching {name}, {size(total)}", done, None)  # how far it is, nobody says

    def _vocabulary(self, done: int, **_: Any) -> None:
        self._progress("learning the tokens", done, None, f"{number(done)} characters read")

    def _encode(self, done: int, total: int, **_: Any) -> None:
        self._progress("reading the text", done, total)

    def _data(self, facts: dict[str, Any], parameters: int) -> None:
        self._away()
        tokens = ", ".join(f"{name} {number(n)}" for name, n in facts["tokens"].items())
        kind = TOKENS.get(facts["token"], facts["token"])
        self.line(f"  data    {tokens} tokens ({kind}, {facts['vocab']:,} different)")
        self.line(f"  model   {number(parameters)} weights")

    def _measure(self) -> None:
        self._away()
        self.line("  timing a few steps ...")

    def _begin(self, step: int, steps: int, epochs: float) -> None:
        after = f", going on after step {step:,}" if step else ""
        self.line(f"  train   {steps:,} steps = {epochs:.3g} times through the data{after}")

    def _step(self, step: int, steps: int, loss: float, **facts: Any) -> None:
        self.seen |= {name: facts[name] for name in ("valid", "tokens_per_second") if name in facts}
        valid = f"   valid {self.seen['valid']:.4f}" if "valid" in self.seen else ""
        speed = f"   {number(self.seen['tokens_per_second'])} tokens/s" if self.seen.get("tokens_per_second") else ""
        if self.live:
            self._progress("training", step, steps, f"loss {loss:.4f}{valid}{speed}")
        due = step == steps or time.monotonic() - self.last > PLAIN_SECONDS
        if "valid" in facts or (due and not self.live):
            self.last = time.monotonic()
            self.line(f"  step {step:>7,} of {steps:,}   loss {loss:.4f}{valid}{speed}")

    def _judge(self) -> None:
        self._away()
        self.line("  judging on the held-out text, beside the free baselines ...")

    def _progress(self, what: str, done: float, total: float | None, text: str = "") -> None:
        if not self.live:
            return
        if self.bar is None or what != self.doing:
            self._away()
            self.doing, self.bar = what, _bar()
            self.job = self.bar.add_task(what, total=total, text=text)
            self.bar.start()
        self.bar.update(self.job, completed=done, total=total, text=text)

    def _away(self) -> None:
        if self.bar is not None:
            with suppress(Exception):
                self.bar.stop()
            self.bar = self.job = None


def _bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    what, text = TextColumn("  {task.description}"), TextColumn("{task.fields[text]}")
    console = Console(stderr=True, highlight=False)
    return Progress(what, BarColumn(bar_width=24), text, TimeRemainingColumn(), console=console, transient=True)


# --- what came of it --------------------------------------------------------------------------------------------------


def cost_line(cost: dict[str, Any]) -> str:
    used = f"{duration(cost['seconds'])}, {energy(cost['kwh'])} ({cost['energy_source']})"
    return f"  cost    {used}, {cost['co2e_kg'] * 1000:.3g} g CO2e"


def judged(metrics: Mapping[str, Any]) -> str:
    """The split a run is judged by where only one is shown: test, if there is one, else valid."""
    return "test" if "test" in metrics else next(iter(metrics), "")


def verdict(facts: dict[str, Any]) -> list[str]:
    """The metrics of each split and of its mixed texts, the baselines that cost nothing, and the protocol of it all."""
    width = max([6, *map(len, facts["metrics"])])
    told = [] if facts["metrics"] else ["  (no text is held out, so nothing is judged: data.valid, data.test)"]
    for split, values in facts["metrics"].items():
        free, parts = (facts.get(name, {}).get(split, {}) for name in ("baseline", "parts"))
        rows = [("this model", values), *((f"this model on {name}", part) for name, part in parts.items())]
        rows += [(f"{name}, for free", base) for name, base in free.items()]
        found = [f"{_metrics(row)}   {who}" for who, row in rows]
        protocol = facts.get("protocol", {}).get(split, {})
        how = ", ".join(f"{name} {x:,}" if isinstance(x, int) else f"{name} {x}" for name, x in protocol.items())
        told += [f"  {split if n == 0 else '':<{width}}  {line}" for n, line in enumerate(found)]
        told += [f"  {'':<{width}}  ({how})"] if how else []
    return told


def _metrics(values: dict[str, float]) -> str:
    return "   ".join(f"{name.replace('_', ' ')} {figure(value):>6}" for name, value in values.items())
