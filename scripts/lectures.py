"""Check docs/lectures.md: each row has a statement, the command that demonstrates it, its measured value, and tests.

    python scripts/lectures.py                    check the page, run every command, write lectures.html
    python scripts/lectures.py show scaling       one demonstration
    python scripts/lectures.py list               all demonstrations
    python scripts/lectures.py --write            run, and write the measured values into docs/lectures.md
    python scripts/lectures.py --missing TEXTS    paragraphs of these lectures without a row or a reason on the page
    python scripts/lectures.py --paragraphs TEXTS every paragraph with its kind, its rows and its reasons

TEXTS is a folder with .txt files, or one file. Commands in a column "long command" need minutes, a GPU or data and are
not run. Errors: a row without command, value or test, a test that does not exist, a statement that no longer holds, a
key phrase (lecture_phrases.toml) for a row or a reason that is not on the page.
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
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import paragraphs
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
MEASURED, LONG = "measured value", "long command"  # headings of columns
REASONS = "## Statements without a row"
REASON = re.compile(r"- \*\*(.+?)\*\*:")
MAX_SHOWN = 100  # characters of a paragraph
SCRIPT = re.compile(r"python (benchmarks/\w+\.py)")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
STYLE = """body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}
table{border-collapse:collapse;width:100%;table-layout:fixed}td,th{border-top:1px solid #8886;padding:.45rem .6rem}
td,th{text-align:left;vertical-align:top;overflow-wrap:anywhere}h2{margin:2rem 0 .5rem;font-size:1.2rem}
th:nth-child(1){width:32%}th:nth-child(2){width:22%}th:nth-child(5){width:4.5rem}:is(td,th):nth-child(5){text-align:right}
code{font-size:.85em}small{display:block;margin-top:.3rem;opacity:.7}.no{color:#c22;font-weight:600}.ok{color:#173}
@media(prefers-color-scheme:dark){body{background:#16181c;color:#ddd}a{color:#8bf}.ok{color:#8d8}.no{color:#f77}}"""


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
    is_long: bool = False  # not run by `make lectures`
    section: str = ""

    @property
    def name(self) -> str:
        """The demonstration, else the command."""
        return self.command.removeprefix(SHOW)


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
    """Return the rows of all tables with the columns lecture, command (or long command) and test."""
    rows = []
    sections = {number: line[3:] for number, line in enumerate(page.splitlines()) if line.startswith("## ")}
    for head, body in tables(page):
        if not {"lecture", "test"} <= set(head):
            continue
        section = next((title for line, title in reversed(sections.items()) if line < body[0][0]), "")
        is_long = LONG in head
        for number, values in body:
            row = dict(zip(head, values, strict=False))
            command = row.get(LONG if is_long else "command", "").strip("`")
            tests = tuple(re.findall(r"`([^`]+::[^`]+)`", row.get("test", "")))
            statement = row.get("statement") or row.get("as printed", "")
            measured, correction = row.get(MEASURED, ""), row.get("correction", "")
            is_complete = len(values) == len(head)
            lecture = row.get("lecture", "")
            facts = number, statement, lecture, command, measured, tests, correction, is_complete, is_long, section
            rows.append(Row(*facts))
    return rows


def reasons(page: str) -> list[str]:
    """The names of the reasons in the list of statements without a row."""
    section = page.partition(REASONS)[2].partition("\n## ")[0]
    return REASON.findall(section)


@cache
def functions(path: Path) -> frozenset[str]:
    """Return the names of the functions of a file, without importing it."""
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def problems(page: str) -> Iterator[str]:
    """Yield the errors of the page and of the key phrases, one line each."""
    rows, known = read(page), shows.every()
    for row in rows:
        yield from (f"docs/lectures.md:{row.line + 1}: {problem}" for problem in _row_problems(row))
    first = {row.statement: row.line for row in reversed(rows)}
    repeated = [row for row in rows if row.line != first[row.statement]]
    yield from (
        f"docs/lectures.md:{row.line + 1}: the statement of line {first[row.statement] + 1}" for row in repeated
    )
    named = {row.name for row in rows}
    yield from (f"docs/lectures.md: no row has the demonstration {name!r}" for name in known if name not in named)
    yield from _phrase_problems(paragraphs.load(), named, reasons(page))


def _row_problems(row: Row) -> Iterator[str]:
    if not row.is_complete:
        yield f"more or fewer cells than columns: {row.statement}"
    for part in ("command", "tests"):
        if not getattr(row, part):
            yield f"the row has no {part.removesuffix('s')}: {row.statement}"
    for title in row.lecture.split("; "):
        if title not in TITLES:
            yield f"{title!r} is not the title of a lecture"
    script = SCRIPT.match(row.command) if row.is_long else None
    if row.command.startswith(SHOW) and row.name not in shows.every():
        yield f"no such demonstration: {row.name}"
    elif row.command and not row.command.startswith((SHOW, "harken ")) and not script:
        yield f"{row.command!r} is neither a demonstration nor a harken command"
    elif script and not (HOME / script[1]).is_file():
        yield f"no such script: {script[1]}"
    if row.command and not NUMBER.search(row.measured):
        yield f"the measured value is missing: {row.statement}"
    for test in row.tests:
        file, _, function = test.partition("::")
        if not (HOME / file).is_file() or function.partition("[")[0] not in functions(HOME / file):
            yield f"no such test: {test}"


def _phrase_problems(phrases: paragraphs.Phrases, named: Collection[str], on_page: Collection[str]) -> Iterator[str]:
    where = f"scripts/{paragraphs.PHRASES.name}"
    shows_names = shows.every()
    for name in phrases.rows:
        if name not in named and (name in shows_names or not any(row.startswith(name) for row in named)):
            yield f"{where}: no row has the command {name!r}"
    yield from (f"{where}: the page has no reason {name!r}" for name in phrases.reasons if name not in on_page)
    yield from (f"{where}: the reason {name!r} has no phrase" for name in on_page if name not in phrases.reasons)
    for phrase in (p for group in (phrases.rows, phrases.reasons) for several in group.values() for p in several):
        if not 1 <= len(paragraphs.words(phrase)) <= paragraphs.MAX_PHRASE_WORDS:
            yield f"{where}: {phrase!r} has no word or more than {paragraphs.MAX_PHRASE_WORDS}"


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


def to_html(text: str, docs: str = "docs") -> str:
    """Escape a text for HTML; code, emphasis and links of Markdown remain. `docs`: the folder of the page's links."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text.replace("\\|", "|")))
    text = re.sub(r"(?<![\w*])\*(\w[^*]*)\*", r"<em>\1</em>", text)
    return re.sub(r"\[([^\]]+)\]\(([^):#]+)[^)]*\)", rf'<a href="{html.escape(docs)}/\2">\1</a>', text)


def html_page(rows: Sequence[Row], outcomes: Sequence[Outcome | None], docs: str = "docs") -> str:
    """Return one offline page: every statement with the value on docs/lectures.md and the value measured now."""
    sections = dict[str, list[str]]()
    for row, now in zip(rows, outcomes, strict=True):
        verdict = "" if now is None else f'<span class="{"ok" if now.holds else "no"}">{to_html(now.text)}</span>'
        current = "<em>not run: needs minutes, data or a GPU</em>" if row.is_long else verdict
        correction = f"<br><em>{to_html(row.correction, docs)}</em>" if row.correction else ""
        statement = f"{to_html(row.statement, docs)}{correction}<small>{html.escape(row.lecture)}</small>"
        tests = "".join(f"<small><code>{html.escape(test)}</code></small>" for test in row.tests)
        seconds = "" if now is None else f"{now.seconds:.1f}"
        command = f"<code>{html.escape(row.command)}</code>{tests}"
        columns = (statement, command, to_html(row.measured, docs), current, seconds)
        body = sections.setdefault(row.section, [])
        body.append("<tr>" + "".join(f"<td>{c}</td>" for c in columns) + "</tr>")
    head = "".join(
        f"<th>{name}</th>" for name in ("statement", "command and tests", "value on the page", "value now", "seconds")
    )
    sections_html = "".join(
        f"<h2>{html.escape(title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        for title, body in sections.items()
    )
    ran = [now.holds for now in outcomes if now is not None]
    summary = (
        f"{len(rows)} statements: {sum(ran)} hold, {len(ran) - sum(ran)} fail, {len(rows) - len(ran)} were not run."
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Statements of the lectures</title>'
        f"<style>{STYLE}</style><h1>Statements of the lectures, with measured values</h1>"
        f"<p>{summary}</p>{sections_html}</html>\n"
    )


def with_values(page: str, rows: Sequence[Row]) -> str:
    """Return the page with the measured values of these rows."""
    lines = page.splitlines()
    for head, body in tables(page):
        for number, values in body:
            for row in (r for r in rows if r.line == number and r.command and not r.is_long):
                values[head.index(MEASURED)] = row.measured.replace("|", "\\|")
                lines[number] = f"| {' | '.join(values)} |"
    return "\n".join(lines) + "\n"


def run_all(out: Path, *, write: bool) -> int:
    """Check the page, run every row, write the HTML page; return the number of failures."""
    page = PAGE.read_text("utf-8")
    rows, start = read(page), time.perf_counter()
    outcomes: list[Outcome | None] = []
    for row in rows:
        outcomes.append(now := None if row.is_long or not row.command else run(row.command))
        if now is not None:
            verdict = "holds" if now.holds else "FAILS"
            changed = "" if agree(row.measured, now.text) else f", on the page {first_number(row.measured):,g}"
            print(f"{verdict}  {row.name:24} {now.text}  ({now.seconds:.1f} s{changed})", flush=True)
    docs = os.path.relpath(PAGE.parent, out.resolve().parent)
    out.write_text(html_page(rows, outcomes, docs), "utf-8")
    if write:
        rows = [r if now is None else replace(r, measured=now.text) for r, now in zip(rows, outcomes, strict=True)]
        PAGE.write_text(with_values(page, rows), "utf-8")
    errors = list(problems(page))
    for line in errors:
        print(line, file=sys.stderr)
    failed = sum(now is not None and not now.holds for now in outcomes) + len(errors)
    summary = f"{failed} fail" if failed else "all hold"
    print(f"{len(rows)} rows, {summary}, {time.perf_counter() - start:.0f} seconds; {out}")
    return failed


def paragraph_lines(texts: Path, *, missing: bool) -> list[str]:
    """One line per paragraph of the lectures, with its kind or its rows and reasons; or only those without any."""
    phrases, lines = paragraphs.load(), []
    for file in paragraphs.lecture_files(texts):
        for paragraph in paragraphs.read(file.read_text("utf-8")):
            references = [paragraph.kind] if paragraph.kind else phrases.references(paragraph)
            if missing and references:
                continue
            text = " ".join(paragraph.text.split())
            lines.append(f"{file.name}:{paragraph.line}: {', '.join(references) or 'missing'}: {text[:MAX_SHOWN]}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("act", nargs="?", choices=["show", "list"])
    parser.add_argument("name", nargs="?", help="name of a demonstration")
    parser.add_argument("--out", type=Path, default=Path("lectures.html"))
    parser.add_argument("--write", action="store_true", help="write the measured values into docs/lectures.md")
    parser.add_argument("--missing", type=Path, metavar="TEXTS", help="list paragraphs without a row or a reason")
    parser.add_argument("--paragraphs", type=Path, metavar="TEXTS", help="list every paragraph with its rows")
    options = parser.parse_args(arguments)
    if texts := options.missing or options.paragraphs:
        try:
            lines = paragraph_lines(texts, missing=bool(options.missing))
        except (OSError, UnicodeDecodeError) as error:
            parser.error(str(error))
        for line in lines:
            print(line)
        return int(bool(options.missing and lines))
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
