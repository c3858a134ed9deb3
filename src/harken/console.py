"""How the work is told to people: a live bar on a terminal, plain lines elsewhere; with --json all of it on stderr."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import BufferedReader
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import click

from harken.errors import BadInput
from harken.experiments.report.line_chart import duration, figure, scaled
from harken.experiments.report.page import FEW, MEASURES, doubtful, judge, shown_of, skipped, too_few

if TYPE_CHECKING:
    from rich.progress import Progress

PLAIN_SECONDS = 10.0  # between two lines where there is no terminal
LOOK_SECONDS = 1.0  # between the lines of two looks; the log has all of them
PIECE = 1 << 16  # bytes of standard input read at a time, or as many as are there
ENOUGH = 10  # pairs of one length; what fewer say stands in the report alone
MANY = 20  # parts of a split that are told; more stand in the report
TOKENS = {"char": "characters", "byte": "bytes", "word": "words", "bpe": "byte pairs"}


def size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count else "made here"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell; a Chinese letter is as wide as two others."""
    from rich.cells import cell_len, set_cell_size

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(set_cell_size, row, widths)).rstrip() for row in rows]


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


def terminal(*, aside: bool = False) -> bool:
    """Whether somebody watches a terminal that may be drawn on; what is told aside needs only stderr."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and sys.stderr.isatty() and (aside or sys.stdout.isatty())


def piped() -> bool:
    """Whether something is piped into us."""
    return sys.stdin is not None and not sys.stdin.isatty()


def typed(text: str) -> str:
    """A text of the command line; bytes in it that are no text become question marks."""
    return text.encode("utf-8", "replace").decode()


def as_typed(prompt: str) -> str:
    r"""A prompt of the command line, where \n stands for a new line."""
    return typed(prompt).replace("\\n", "\n")


def lines(*, must: bool) -> Iterator[str]:
    """The lines of standard input, each as soon as it comes; empty ones are kept. `must`: one at least is needed."""
    return chain.from_iterable(blocks(1, must=must))


def blocks(most: int, *, must: bool) -> Iterator[list[str]]:
    """The same, so many at a time or as many as have come: no line waits for the next one."""
    n, rest, more = 0, b"", True
    stdin = cast(BufferedReader, sys.stdin.buffer)
    while more:
        piece = stdin.read1(PIECE)
        more = bool(piece)
        *whole, rest = (rest + piece).split(b"\n")
        whole += [rest] if rest and not more else []
        for start in range(0, len(whole), most):
            yield [_decoded(raw, n + start + k) for k, raw in enumerate(whole[start : start + most], 1)]
        n += len(whole)
    if must and not n:
        raise click.UsageError("no text is given, and stdin is empty; give a text (with - no line is no error)")


def _decoded(raw: bytes, n: int) -> str:
    try:
        return raw.decode("utf-8-sig" if n == 1 else "utf-8").removesuffix("\r")
    except UnicodeDecodeError as error:
        what = f"stdin:{n}: byte 0x{raw[error.start]:02x} is not UTF-8"
        raise BadInput(f"{what}; harken reads UTF-8; convert it: iconv -f latin1 -t utf-8") from None


# --- what happens -----------------------------------------------------------------------------------------------------


class Teller:
    """A listener that tells people what happens, aside (on stderr) where stdout belongs to JSON or to a text.

    Use it as a context, so that the bar is put away.
    """

    def __init__(self, *, aside: bool) -> None:
        self.aside, self.live = aside, terminal(aside=aside)
        self.bar: Progress | None = None
        self.job: Any = None
        self.doing = ""
        self.epoch = "times through the data"
        self.seen: dict[str, float] = {}
        self.last = 0.0
        self.held = ""  # the line of a look that came soon after another

    def __enter__(self) -> "Teller":
        return self

    def __exit__(self, *error: object) -> None:
        self._release()
        self._away()

    def __call__(self, event: str, /, **facts: Any) -> None:
        if event != "step":
            self._release()
        getattr(self, f"_{event}", lambda **_: None)(**facts)

    def line(self, text: str, *, err: bool = False) -> None:
        if self.bar is not None:
            self.bar.console.print(text, markup=False, soft_wrap=True)
        else:
            click.echo(text, err=err or self.aside)

    def _notice(self, text: str) -> None:
        self.line(text, err=True)

    def _chosen(self, guess: Any) -> None:
        if guess is not None:
            self.line(f"  {guess.kind:<7} {guess.reason}{'' if guess.named else ' (overrule with data.kind=...)'}")

    def _recipe(self, path: Any) -> None:
        self.line(f"  recipe  {path} holds every setting")

    def _fetch(self, name: str, done: int, total: int) -> None:
        if done < total and not self.live:  # on stderr: stdout is for the result
            self.line(f"fetching {name}, {size(total)} ...", err=True)
        self._progress(f"fetching {name}, {size(total)}", done, None)  # how far it is, nobody says

    def _vocabulary(self, done: int, **_: Any) -> None:
        self._progress("learning the tokens", done, None, f"{scaled(done, 'count')} characters read")

    def _encode(self, done: int, total: int, **_: Any) -> None:
        self._progress("reading the text", done, total)

    def _answer(self, done: int, total: int) -> None:
        self._progress("answering", done, total, f"{done:,} of {total:,}")

    def _data(self, facts: dict[str, Any], parameters: int) -> None:
        self._away()
        unit = facts.get("unit", "pairs" if "pairs" in facts else "tokens")
        counts = ", ".join(f"{name} {scaled(n, 'count')}" for name, n in facts[unit].items())
        self.epoch = "epochs of fresh examples" if facts.get("fresh") else self.epoch
        held = f"; held-out sources among those learned from: {facts['overlap']:,}" if "overlap" in facts else ""
        if (most := max(facts.get("references", {"": 1}).values(), default=1)) > 1:
            held += f"; a held-out source is judged once, by its references: {figure(most)} on average"
        self.line(f"  data    {counts} {unit} ({facts.get('told') or _words_of(facts)}){held}")
        self.line(f"  model   {scaled(parameters, 'count')} weights")

    def _measure(self) -> None:
        self._away()
        self.line("  timing a few steps ...")

    def _begin(self, step: int, steps: int, epochs: float, predicted: Mapping[str, Any] | None, **_: Any) -> None:
        after = f", going on after step {step:,}" if step else ""
        self.line(f"  train   {steps:,} step{'s' * (steps != 1)} = {epochs:.3g} {self.epoch}{after}")
        if predicted:
            source = f"({predicted['energy_source']})"
            self.line(
                f"          about {duration(predicted['seconds'])} and {scaled(predicted['kwh'], 'energy')} {source}"
            )

    def _step(self, step: int, steps: int, loss: float, **facts: Any) -> None:
        self.seen |= {name: facts[name] for name in ("valid", *MEASURES, "tokens_per_second") if name in facts}
        here = {name.replace("_", " "): self.seen[name] for name in MEASURES if name in self.seen}
        other = "".join(f", {name} {figure(value)}" for name, value in here.items())
        valid = f"   valid {self.seen['valid']:.4f}{other} (quick look)" if "valid" in self.seen else ""
        lr = f"   lr {facts['lr']:.2g}" if "lr" in facts else ""
        rate = self.seen.get("tokens_per_second")
        speed = f"{lr}   {scaled(rate, 'count')} tokens/s" if rate else lr
        if self.live:
            self._progress("training", step, steps, f"loss {loss:.4f}{valid}{speed}")
        since = time.monotonic() - self.last
        due = step == steps or since > PLAIN_SECONDS
        if "valid" in facts:
            self.held = f"  step {step:>7,} of {steps:,}   loss {loss:.4f}{valid}{speed}"
        elif due and not self.live:
            self._release()
            self.held = f"  step {step:>7,} of {steps:,}   loss {loss:.4f}{speed}"  # an old look is not told again
        if step == steps or since > LOOK_SECONDS:
            self._release()

    def _release(self) -> None:
        """Tell the line that was held: of looks that follow each other fast the last is never left out."""
        if self.held:
            self.line(self.held)
            self.held, self.last = "", time.monotonic()

    def _judge(self) -> None:
        self._away()
        self.line("  judging more closely than the quick looks, beside the free baselines ...")

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


def _words_of(facts: Mapping[str, Any]) -> str:
    """What a token is, and how many different ones there are, of each side where there are two."""
    kind, vocab = TOKENS.get(facts["token"], facts["token"]), facts["vocab"]
    different = f"{vocab:,}" if isinstance(vocab, int) else " and ".join(f"{n:,}" for n in dict.fromkeys(vocab))
    return f"{kind}, {different} different"


def _bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    what, text = TextColumn("  {task.description}"), TextColumn("{task.fields[text]}")
    console = Console(stderr=True, highlight=False)
    return Progress(what, BarColumn(bar_width=24), text, TimeRemainingColumn(), console=console, transient=True)


# --- what came of it --------------------------------------------------------------------------------------------------


def cost_line(cost: dict[str, Any]) -> str:
    used = f"{duration(cost['seconds'])}, {scaled(cost['kwh'], 'energy')} ({cost['energy_source']})"
    return f"  cost    {used}, {scaled(cost['co2e_kg'], 'mass')} CO2e"


def judged(metrics: Mapping[str, Any]) -> str:
    """The split a run is judged by where only one is shown: test, if there is one, else valid."""
    return "test" if "test" in metrics else next(iter(metrics), "")


def verdict(facts: dict[str, Any]) -> list[str]:
    """The metrics of each split and of its mixed texts, the baselines that cost nothing, and the protocol of it all."""
    width = max([6, *map(len, facts["metrics"])])
    told = [] if facts["metrics"] else ["  (nothing is held out, so nothing is judged: data.valid, data.test)"]
    for split, values in facts["metrics"].items():
        free, parts = (facts.get(name, {}).get(split, {}) for name in ("baseline", "parts"))
        large = {name: part for name, part in parts.items() if part.get("pairs", ENOUGH) >= ENOUGH}
        first = list(large.items())[:MANY]
        rows = [("this model", values), *((f"this model on {name}", shown_of(part)) for name, part in first)]
        rows += facts.get("seeds", {}).get("together", {}).get(split, {}).items()
        rows += [(f"{name}, for free", base) for name, base in free.items()]
        protocol = facts.get("protocol", {}).get(split, {})
        how = ", ".join(f"{name.replace('_', ' ')} {figure(x)}" for name, x in protocol.items())
        told += [f"  {split if n == 0 else '':<{width}}  {line}" for n, line in enumerate(aligned(rows))]
        told += [f"  {'':<{width}}  ({how})"] if how else []
        rest = f"({len(large) - MANY} parts more are in the report, and told with --json)"
        told += [f"  {'':<{width}}  {rest}"] if len(large) > MANY else []
        told += [f"  {'':<{width}}  (too few tokens for a verdict: {FEW:,} are needed)"] if too_few(protocol) else []
    told += [f"  {'':<{width}}  {left}"] if (left := skipped(facts)) else []
    if "audit" not in facts:
        return told
    if doubt := doubtful(facts):
        return [*told, f"  audit   {doubt}"]
    told += [f"  verdict {judge(facts)[0]}"] if facts["metrics"] else []
    return [*told, f"  audit   {facts['audit']['summary']}"]


def measured(value: Any) -> str:
    """A metric in four digits; a run folder has null for one that is not finite."""
    return "nan" if value is None else figure(value, 4)


def aligned(rows: Sequence[tuple[str, Mapping[str, float]]]) -> list[str]:
    """Each row's metrics, one below the other, and whose they are."""
    grid = []
    for name in dict.fromkeys(name for _, values in rows for name in values):
        figures = [measured(values[name]) if name in values else "" for _, values in rows]
        width = max(6, *map(len, figures))
        grid.append([f"{name.replace('_', ' ')} {x:>{width}} " if x else "" for x in figures])
    return columns(list(zip(*grid, [who for who, _ in rows], strict=True)))
