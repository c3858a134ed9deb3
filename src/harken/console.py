"""Prints progress: a live bar on a terminal, plain lines elsewhere; on stderr with --json."""

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
from harken.events import OverflowSum
from harken.experiments.report import verdict
from harken.experiments.report.formatting import (
    VALIDATION_METRICS,
    display_name,
    format_duration,
    format_number,
    format_price,
    format_quantity,
)
from harken.experiments.report.verdict import Facts, nested

if TYPE_CHECKING:
    from rich.progress import Progress

LISTENER = "harken.listener"  # the console listener of a command, in the context of click
PLAIN_SECONDS = 10.0  # between two progress lines without a terminal
VALIDATION_LINE_SECONDS = 1.0  # between two validation lines; log.jsonl has all of them
READ_BYTES = 1 << 16  # bytes read from standard input at a time
MIN_GROUP_SIZE = 10  # smaller groups of a split are shown in the report only
MAX_GROUPS = 20  # more groups of a split are shown in the report only
TOKEN_UNITS = {"char": "characters", "byte": "bytes", "word": "words", "bpe": "byte pairs"}


def download_size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count else "generated"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as aligned lines; the width of wide (East Asian) characters is respected."""
    from rich.cells import cell_len, set_cell_size

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(set_cell_size, row, widths)).rstrip() for row in rows]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: wrapped inside its columns on a terminal, aligned lines elsewhere."""
    if not is_terminal():
        click.echo("\n".join(columns([heads, *rows])))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(*heads, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        shown.add_row(*map(Text, row))
    Console().print(shown)


# --- standard input and terminal --------------------------------------------------------------------------------------


def is_terminal(*, to_stderr: bool = False) -> bool:
    """Whether output goes to a terminal that supports a live bar."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and sys.stderr.isatty() and (to_stderr or sys.stdout.isatty())


def is_interactive() -> bool:
    """Whether someone watches standard output: it is a terminal, or this is a notebook."""
    kernel = sys.modules.get("ipykernel.kernelapp")  # imported by the process of a notebook
    return bool(kernel and kernel.IPKernelApp.initialized()) or (sys.stdout is not None and sys.stdout.isatty())


def stdin_is_piped() -> bool:
    """Whether standard input is a pipe or a file."""
    return sys.stdin is not None and not sys.stdin.isatty()


def decode_argument(text: str) -> str:
    """A command-line argument as text; undecodable bytes become question marks."""
    return text.encode("utf-8", "replace").decode()


def decode_prompt(prompt: str) -> str:
    r"""A command-line prompt, in which \n is a newline."""
    return decode_argument(prompt).replace("\\n", "\n")


def stdin_lines(*, required: bool) -> Iterator[str]:
    """The lines of standard input as they arrive, empty ones included. `required`: fail if there is none."""
    return chain.from_iterable(stdin_batches(1, required=required))


def stdin_batches(size: int, *, required: bool) -> Iterator[list[str]]:
    """The lines of standard input in batches of at most `size`; an incomplete batch is not delayed."""
    n, rest, more = 0, b"", True
    stdin = cast(BufferedReader, sys.stdin.buffer)
    while more:
        piece = stdin.read1(READ_BYTES)
        more = bool(piece)
        *complete, rest = (rest + piece).split(b"\n")
        complete += [rest] if rest and not more else []
        for start in range(0, len(complete), size):
            yield [_decode_line(raw, n + start + k) for k, raw in enumerate(complete[start : start + size], 1)]
        n += len(complete)
    if required and not n:
        raise click.UsageError("no text is given and stdin is empty; give a text, or - to accept empty input")


def _decode_line(raw: bytes, n: int) -> str:
    try:
        return raw.decode("utf-8-sig" if n == 1 else "utf-8").removesuffix("\r")
    except UnicodeDecodeError as error:
        what = f"stdin:{n}: byte 0x{raw[error.start]:02x} is not UTF-8"
        raise BadInput(f"{what}; harken reads UTF-8; convert it: iconv -f cp1252 -t utf-8") from None


# --- progress -----------------------------------------------------------------------------------------------------


class ConsoleListener(OverflowSum):
    """A listener that prints events; on stderr if stdout is reserved for JSON or generated text.

    Use it as a context manager, which removes the progress bar and reports truncated inputs. `notices` are all notices.
    """

    def __init__(self, *, to_stderr: bool) -> None:
        super().__init__()
        self.notices = list[str]()
        if context := click.get_current_context(silent=True):
            context.meta[LISTENER] = self
        self.to_stderr, self.live = to_stderr, is_terminal(to_stderr=to_stderr)
        self.bar: Progress | None = None
        self.job: Any = None
        self.doing = ""
        self.epoch = "epochs"
        self.seen: dict[str, float] = {}
        self.last = 0.0
        self.held = ""  # a validation line that is held back briefly

    def __enter__(self) -> "ConsoleListener":
        return self

    def __exit__(self, *error: object) -> None:
        self._flush_held_line()
        self._stop_progress()
        self.report_overflows()

    def __call__(self, event: str, /, **facts: object) -> None:
        if event != "step":
            self._flush_held_line()
        getattr(self, f"_{event}", lambda **_: None)(**facts)

    def line(self, text: str, *, err: bool = False) -> None:
        if self.bar is not None:
            self.bar.console.print(text, markup=False, soft_wrap=True)
        else:
            click.echo(text, err=err or self.to_stderr)

    def _notice(self, text: str, **_: Any) -> None:
        self.notices.append(text)
        self.line(text, err=True)

    def _detected(self, detection: Any) -> None:
        if detection is not None:
            hint = "" if detection.user_specified else f" ({detection.override_hint})"
            self.line(f"  {detection.kind:<7} {detection.reason}{hint}")

    def _recipe(self, path: Any) -> None:
        self.line(f"  recipe  {path} (every setting)")

    def _fetch(self, name: str, done: int, total: int) -> None:
        if not done and not self.live:  # stdout is reserved for the output
            self.line(f"downloading {name}, {download_size(total)} ...", err=True)
        self._progress(f"downloading {name}, {download_size(total)}", done, total)

    def _vocabulary(self, done: int, **_: Any) -> None:
        self._progress("training the tokenizer", done, None, f"{format_quantity(done, 'count')} characters read")

    def _encode(self, done: int, total: int, **_: Any) -> None:
        self._progress("encoding the text", done, total)

    def _answer(self, done: int, total: int) -> None:
        self._progress("predicting", done, total, f"{done:,} of {total:,}")

    def _data(self, facts: dict[str, Any], parameters: int) -> None:
        self._stop_progress()
        unit = facts.get("unit", "pairs" if "pairs" in facts else "tokens")
        counts = ", ".join(f"{name} {format_quantity(n, 'count')}" for name, n in facts[unit].items())
        self.epoch = "epochs of generated examples" if facts.get("generated") else self.epoch
        held = f"; held-out sources that also occur in training: {facts['overlap']:,}" if "overlap" in facts else ""
        if (references := max(facts.get("references", {"": 1}).values(), default=1)) > 1:
            held += f"; references per held-out source: {format_number(references)} on average"
        self.line(f"  data    {counts} {unit} ({facts.get('summary') or _vocabulary_text(facts)}){held}")
        if facts.get("split"):
            self.line(f"  split   {facts['split']}")
        self.line(f"  model   {format_quantity(parameters, 'count')} weights")

    def _fold(self, number: int, n_folds: int, metrics: Mapping[str, float]) -> None:
        self._stop_progress()
        shown = ", ".join(f"{display_name(name)} {format_metric(value)}" for name, value in metrics.items())
        self.line(f"  fold    {number} of {n_folds}: {shown}")

    def _measure(self) -> None:
        self._stop_progress()
        self.line("  measuring the time per step ...")

    def _start(self, step: int, steps: int, epochs: float, predicted: Mapping[str, Any] | None, **_: Any) -> None:
        after = f", resumed after step {step:,}" if step else ""
        epoch = self.epoch.replace("epochs", "epoch") if f"{epochs:.3g}" == "1" else self.epoch
        self.line(f"  train   {steps:,} step{'s' * (steps != 1)} = {epochs:.3g} {epoch}{after}")
        if predicted:
            energy = f"{format_quantity(predicted['kwh'], 'energy')} ({predicted['energy_source']})"
            self.line(f"          about {format_duration(predicted['seconds'])} and {energy}")

    def _step(self, step: int, steps: int, loss: float, **facts: Any) -> None:
        names = ("valid", *VALIDATION_METRICS, "tokens_per_second")
        self.seen |= {name: facts[name] for name in names if name in facts}
        metrics = {name.replace("_", " "): self.seen[name] for name in VALIDATION_METRICS if name in self.seen}
        shown = "".join(f", {name} {format_number(value)}" for name, value in metrics.items())
        valid = f"   valid {self.seen['valid']:.4f}{shown} (fast validation)" if "valid" in self.seen else ""
        lr = f"   lr {facts['lr']:.2g}" if "lr" in facts else ""
        rate = self.seen.get("tokens_per_second")
        speed = f"{lr}   {format_quantity(rate, 'count')} tokens/s" if rate else lr
        if self.live:
            self._progress("training", step, steps, f"loss {loss:.4f}{valid}{speed}")
        since, start = time.monotonic() - self.last, f"  step {step:>7,} of {steps:,}   loss {loss:.4f}"
        if "valid" in facts:
            self.held = f"{start}{valid}{speed}"
        elif (step == steps or since > PLAIN_SECONDS) and not self.live:
            self._flush_held_line()
            self.held = f"{start}{speed}"  # do not repeat an old validation loss
        if step == steps or since > VALIDATION_LINE_SECONDS:
            self._flush_held_line()

    def _flush_held_line(self) -> None:
        """Print the held line, so the last of several fast validation passes is never lost."""
        if self.held:
            self.line(self.held)
            self.held, self.last = "", time.monotonic()

    def _evaluate(self) -> None:
        self._stop_progress()
        self.line("  final evaluation, with baselines ...")

    def _translations(self, texts: Mapping[str, str]) -> None:
        """Translations of the same sentences during the training of a demo."""
        for n, row in enumerate(columns([[source, "->", text] for source, text in texts.items()])):
            self.line(f"  {'' if n else 'sample':<6}  {row}")

    def _setup_end(self, who: str, seconds: float) -> None:
        self.line(f"  {who}: ready after {format_duration(seconds)}")

    def _clusters(self, k: int, done: int, total: int) -> None:
        self._progress("clustering", done, total, f"k = {k}")

    def _progress(self, what: str, done: float, total: float | None, text: str = "") -> None:
        if not self.live:
            return
        if self.bar is None or what != self.doing:
            self._stop_progress()
            self.doing, self.bar = what, _progress_bar()
            self.job = self.bar.add_task(what, total=total, text=text)
            self.bar.start()
        self.bar.update(self.job, completed=done, total=total, text=text)

    def _stop_progress(self) -> None:
        if self.bar is not None:
            with suppress(Exception):
                self.bar.stop()
            self.bar = self.job = None


def _vocabulary_text(facts: Mapping[str, Any]) -> str:
    """The unit of the tokens and the vocabulary size (of each side for pairs)."""
    kind, vocab = TOKEN_UNITS.get(facts["token"], facts["token"]), facts["vocab"]
    different = f"{vocab:,}" if isinstance(vocab, int) else " and ".join(f"{n:,}" for n in dict.fromkeys(vocab))
    return f"{kind}, vocabulary {different}"


def _progress_bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    what, text = TextColumn("  {task.description}"), TextColumn("{task.fields[text]}")
    console = Console(stderr=True, highlight=False)
    return Progress(what, BarColumn(bar_width=24), text, TimeRemainingColumn(), console=console, transient=True)


# --- evaluation --------------------------------------------------------------------------------------------------


def cost_line(cost: Facts) -> str:
    used = f"{format_duration(cost['seconds'])}, {format_quantity(cost['kwh'], 'energy')} ({cost['energy_source']})"
    price = format_price(cost.get("price_usd"))
    return f"  cost    {used}, {format_quantity(cost['co2e_kg'], 'mass')} CO2e" + (f", {price}" if price else "")


def main_split(metrics: Mapping[str, object]) -> str:
    """The split that is shown if only one is: test if it exists, else valid."""
    return "test" if "test" in metrics else next(iter(metrics), "")


def interval_note(facts: Facts, split: str, row: str = "") -> str:
    """The intervals of the metrics of a split, or of a `row` of it; empty if there are none."""
    ends = [f"{name.replace('_', ' ')} {text}" for name, text in verdict.interval_texts(facts, split).items()]
    return f"95 % intervals{row and f', {row}'}: {', '.join(ends)}" if ends else ""


def evaluation_lines(facts: Facts) -> list[str]:
    """The metrics of each split and its groups, the baselines, and the evaluation protocol."""
    width = max([6, *map(len, facts["metrics"])])
    missing = "  (no split is held out, so there is no evaluation; set data.valid or data.test)"
    lines = [] if facts["metrics"] else [missing]
    for split, values in facts["metrics"].items():
        baselines, parts, protocol = (nested(facts, name, split) for name in ("baseline", "parts", "protocol"))
        large = {name: part for name, part in parts.items() if part.get("pairs", MIN_GROUP_SIZE) >= MIN_GROUP_SIZE}
        groups = {f"this model on {name}": verdict.displayed_metrics(part) for name, part in large.items()}
        rows = [("this model", values), *list(groups.items())[:MAX_GROUPS]]
        rows += nested(facts, "seeds", "summary", split).items()
        rows += [(f"baseline: {name}", metrics) for name, metrics in baselines.items()]
        notes = [interval_note(facts, split)]
        notes.append(", ".join(f"{name.replace('_', ' ')} {format_number(x)}" for name, x in protocol.items()))
        if len(large) > MAX_GROUPS:
            notes.append(f"{len(large) - MAX_GROUPS} more groups are in the report and in --json")
        if verdict.too_few_tokens(protocol):
            notes.append(f"too few tokens for a verdict; {verdict.MIN_TOKENS:,} are needed")
        text = [*align_metrics(rows), *(f"({note})" for note in notes if note)]
        lines += [f"  {'' if n else split:<{width}}  {line}" for n, line in enumerate(text)]
    lines += [f"  {'':<{width}}  {skipped}"] if (skipped := verdict.skipped_updates(facts)) else []
    if "audit" not in facts:
        return lines
    if warning := verdict.audit_warning(facts):
        return [*lines, f"  audit   {warning}"]
    lines += [f"  verdict {verdict.run_verdict(facts)[0]}"] if facts["metrics"] else []
    return [*lines, f"  audit   {facts['audit']['summary']}"]


def fold_lines(metrics: Mapping[str, Facts], baseline: Mapping[str, Mapping[str, float]], n_folds: int) -> list[str]:
    """The mean of each metric over the folds with its interval, and the mean baselines."""
    rows = [
        [display_name(name), format_metric(x["mean"]), f"{format_metric(x['low'])} to {format_metric(x['high'])}"]
        for name, x in metrics.items()
    ]
    lines = [f"  folds   mean of {n_folds} folds, 95 % interval corrected for overlapping training data"]
    lines += [f"          {line}" for line in columns(rows)]
    means = [(f"baseline: {name}", row) for name, row in baseline.items()]
    return lines + [f"          {line}" for line in (align_metrics(means) if means else [])]


def format_metric(value: object) -> str:
    """A metric with four digits; null in a run folder means non-finite."""
    return "nan" if value is None else format_number(value, 4)


def align_metrics(rows: Sequence[tuple[str, Mapping[str, float]]]) -> list[str]:
    """The metrics of each row, aligned, followed by the name of the row."""
    grid = []
    for name in dict.fromkeys(name for _, values in rows for name in values):
        figures = [format_metric(values[name]) if name in values else "" for _, values in rows]
        width = max(6, *map(len, figures))
        grid.append([f"{name.replace('_', ' ')} {x:>{width}} " if x else "" for x in figures])
    return columns(list(zip(*grid, [who for who, _ in rows], strict=True)))
