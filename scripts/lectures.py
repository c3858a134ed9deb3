"""Check docs/lectures.md: each row has a statement, the command that demonstrates it, its measured value, and tests.

    python scripts/lectures.py                  check the page, run every command, write lectures.html
    python scripts/lectures.py show scaling     one demonstration
    python scripts/lectures.py list             all demonstrations
    python scripts/lectures.py --write          run, and write the measured values into docs/lectures.md

Errors: a row with neither a command nor a test, a test that does not exist, a statement that no longer holds.
"""

import argparse
import ast
import html
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import shows

HOME = Path(__file__).resolve().parents[1]
PAGE = HOME / "docs" / "lectures.md"
TITLES = (
    "Mathematics and AI, lecture 22",
    "Neural Networks and Machine Learning: Transformers",
    "CS37300: Transformers",
    "CS5242, lecture 7",
)
SHOW = "python scripts/lectures.py show "
MEASURED = "measured value"  # heading of the column
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
STYLE = """body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}
table{border-collapse:collapse;width:100%}td,th{border-top:1px solid #8886;padding:.45rem .6rem;text-align:left}
td,th{vertical-align:top}code{font-size:.85em;overflow-wrap:anywhere}.no{color:#c22;font-weight:600}.ok{color:#173}
@media(prefers-color-scheme:dark){body{background:#16181c;color:#ddd}.ok{color:#8d8}.no{color:#f77}}"""


@dataclass(frozen=True)
class Row:
    """One statement: its line on the page, its lecture, its command, measured value and tests."""

    line: int
    statement: str
    lecture: str
    command: str
    measured: str
    tests: tuple[str, ...]
    correction: str = ""
    is_complete: bool = True  # the number of cells equals the number of columns


@dataclass(frozen=True)
class Outcome:
    """The output of a row's command, whether the statement holds, and the run time."""

    text: str
    holds: bool
    seconds: float


# --- the page ---------------------------------------------------------------------------------------------------------


def split_cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))]


def tables(page: str) -> Iterator[tuple[list[str], list[tuple[int, list[str]]]]]:
    """Yield each table of a page: the names of its columns, and its rows with their line numbers."""
    head: list[str] | None = None
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate([*page.splitlines(), ""]):
        if line.startswith("|"):
            if head is None:
                head = split_cells(line)
            elif not set(line) <= set("|-: "):
                rows.append((number, split_cells(line)))
        elif head is not None:
            yield head, rows
            head, rows = None, []


def read(page: str) -> list[Row]:
    """Return the rows of all tables with the columns lecture, command and test."""
    rows = []
    for head, body in tables(page):
        if not {"lecture", "command", "test"} <= set(head):
            continue
        for number, values in body:
            row = dict(zip(head, values, strict=False))
            command = row.get("command", "").strip("`")
            tests = tuple(re.findall(r"`([^`]+::[^`]+)`", row.get("test", "")))
            statement = row.get("statement") or row.get("as printed", "")
            measured, correction = row.get(MEASURED, ""), row.get("correction", "")
            is_complete = len(values) == len(head)
            rows.append(
                Row(number, statement, row.get("lecture", ""), command, measured, tests, correction, is_complete)
            )
    return rows


@cache
def functions(path: Path) -> frozenset[str]:
    """Return the names of the functions of a file, without importing it."""
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def problems(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the errors of the page, one line each."""
    known = shows.every()
    for row in rows:
        where = f"docs/lectures.md:{row.line + 1}"
        if not row.is_complete:
            yield f"{where}: more or fewer cells than columns: {row.statement}"
        if not row.command and not row.tests:
            yield f"{where}: the row has neither a command nor a test: {row.statement}"
        for title in row.lecture.split("; "):
            if title not in TITLES:
                yield f"{where}: {title!r} is not the title of a lecture"
        if row.command.startswith(SHOW) and row.command.removeprefix(SHOW) not in known:
            yield f"{where}: no such demonstration: {row.command.removeprefix(SHOW)}"
        elif row.command and not row.command.startswith((SHOW, "harken ")):
            yield f"{where}: {row.command!r} is neither a demonstration nor a harken command"
        if row.command and not NUMBER.search(row.measured):
            yield f"{where}: the measured value is missing: {row.statement}"
        for test in row.tests:
            file, _, function = test.partition("::")
            if not (HOME / file).is_file() or function.partition("[")[0] not in functions(HOME / file):
                yield f"{where}: no such test: {test}"
    named = {row.command.removeprefix(SHOW) for row in rows}
    yield from (f"docs/lectures.md: no row has the demonstration {name!r}" for name in known if name not in named)


def first_number(text: str) -> float:
    match = NUMBER.search(text)
    return float(match.group().replace(",", "")) if match else math.nan


def agree(measured: str, now: str) -> bool:
    """Whether the first numbers of two texts are equal, within the tolerance between machines."""
    return math.isclose(first_number(measured), first_number(now), rel_tol=0.05, abs_tol=1e-5)


# --- running ----------------------------------------------------------------------------------------------------------


def run(command: str) -> Outcome:
    """Run a demonstration in this process, or a harken command in a temporary folder."""
    start = time.perf_counter()
    if command.startswith(SHOW):
        measurement = shows.every()[command.removeprefix(SHOW)]()
        return Outcome(str(measurement), bool(measurement.holds), time.perf_counter() - start)
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, "-m", *shlex.split(command), "--json"]
        cached = {**os.environ, "HARKEN_CACHE": folder + "/cache"}
        done = subprocess.run(arguments, capture_output=True, text=True, cwd=folder, env=cached, check=False)
    if done.returncode:
        return Outcome(done.stderr.strip() or "failed", False, time.perf_counter() - start)
    output = json.loads(done.stdout)
    numbers = {k: v for k, v in output.get("metrics", output).items() if isinstance(v, int | float)}
    text = ", ".join(f"{v:.3g} {k.replace('_', ' ')}" for k, v in numbers.items())
    return Outcome(text, True, time.perf_counter() - start)


def to_html(text: str) -> str:
    """Escape a text for HTML; text in backticks becomes code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text.replace("\\|", "|")))


def html_page(rows: Sequence[Row], outcomes: Sequence[Outcome | None]) -> str:
    """Return one offline page: every statement with the value on docs/lectures.md and the value measured now."""
    body = []
    for row, now in zip(rows, outcomes, strict=True):
        current = "" if now is None else f'<span class="{"ok" if now.holds else "no"}">{to_html(now.text)}</span>'
        statement = to_html(row.statement) + (f"<br><em>{to_html(row.correction)}</em>" if row.correction else "")
        tests = "<br>".join(f"<code>{html.escape(t)}</code>" for t in row.tests)
        seconds = "" if now is None else f"{now.seconds:.1f}"
        command = f"<code>{html.escape(row.command)}</code>" if row.command else ""
        columns = (statement, html.escape(row.lecture), command, to_html(row.measured), current, seconds, tests)
        body.append("<tr>" + "".join(f"<td>{c}</td>" for c in columns) + "</tr>")
    names = ("statement", "lecture", "command", "value on the page", "value now", "seconds", "test")
    head = "".join(f"<th>{name}</th>" for name in names)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Statements of the lectures</title>'
        f"<style>{STYLE}</style><h1>Statements of the lectures, with measured values</h1>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></html>\n"
    )


def with_values(page: str, rows: Sequence[Row]) -> str:
    """Return the page with the measured values of these rows."""
    lines = page.splitlines()
    for head, body in tables(page):
        for number, values in body:
            for row in (r for r in rows if r.line == number and r.command):
                values[head.index(MEASURED)] = row.measured.replace("|", "\\|")
                lines[number] = f"| {' | '.join(values)} |"
    return "\n".join(lines) + "\n"


def run_all(out: Path, *, write: bool) -> int:
    """Check the page, run every row, write the HTML page; return the number of failures."""
    page = PAGE.read_text("utf-8")
    rows, start = read(page), time.perf_counter()
    outcomes: list[Outcome | None] = []
    for row in rows:
        outcomes.append(now := run(row.command) if row.command else None)
        if now is not None:
            verdict = "holds" if now.holds else "FAILS"
            print(f"{verdict}  {row.command.removeprefix(SHOW):24} {now.text}  ({now.seconds:.1f} s)", flush=True)
    out.write_text(html_page(rows, outcomes), "utf-8")
    if write:
        rows = [r if now is None else replace(r, measured=now.text) for r, now in zip(rows, outcomes, strict=True)]
        PAGE.write_text(with_values(page, rows), "utf-8")
    errors = list(problems(rows))
    for line in errors:
        print(line, file=sys.stderr)
    failed = sum(now is not None and not now.holds for now in outcomes) + len(errors)
    summary = f"{failed} fail" if failed else "all hold"
    print(f"{len(rows)} rows, {summary}, {time.perf_counter() - start:.0f} seconds; {out}")
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("act", nargs="?", choices=["show", "list"])
    parser.add_argument("name", nargs="?", help="name of a demonstration")
    parser.add_argument("--out", type=Path, default=Path("lectures.html"))
    parser.add_argument("--write", action="store_true", help="write the measured values into docs/lectures.md")
    options = parser.parse_args(arguments)
    known = shows.every()
    if options.act == "list":
        for name, show in known.items():
            print(f"{name:24} {(show.f.__doc__ or '').strip()}")
        return 0
    if options.act == "show":
        if options.name not in known:
            parser.error(f"no such demonstration: {options.name}; list them with: python scripts/lectures.py list")
        measurement = known[options.name]()
        print(measurement)
        return 0 if measurement.holds else 1
    return min(1, run_all(options.out, write=options.write))


if __name__ == "__main__":
    sys.exit(main())
