"""What a comparison shows people: one offline page, and its pictures as one SVG file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harken.experiments.report import line_chart
from harken.experiments.report.interval_plot import Span, alone, spans
from harken.experiments.report.line_chart import Line, Picture, figure, number, tag
from harken.experiments.report.page import LESS, page, pairs, table
from harken.recipe import as_toml

from .summary import Trial, elsewhere, grid, refused

Facts = Mapping[str, Any]
Groups = Sequence[Sequence[Trial]]
LOOK = "wide right"
SIDE_BY_SIDE = 20  # numbers that have room below an axis
FAR = 50  # times the nearest group: beyond it those in between would lie on one spot
PAID = ("weights", "tokens/s", "arithmetic", "energy", "CO2e", "a layer")  # a table of its own: one is too wide


def compare_page(found: Facts, groups: Groups) -> str:
    """The page: verdict, table, pictures, what failed, and how to repeat it."""
    watched = found["watched"].replace("_", " ")
    level = f"“to {figure(found['level'])}” is the time until this valid {watched}, the best that every trial reaches"
    over = "Student's t over the seeds" if found["seeds"] > 1 else "the sentences, drawn 1,000 times"
    sure = any(row["interval"].get(found["metric"]) for row in found["rows"])
    how = "; ".join([f"± is the 95 % interval of {over}"] * sure + [level] * (found["level"] is not None))
    rows = _rows(*grid(found))
    good = {name: {head: cell for head, cell in row.items() if head not in PAID} for name, row in rows.items()}
    paid = {name: {head: row[head] for head in PAID if row[head] != "-"} for name, row in rows.items()}
    words = {path: ", ".join("-" if x is None else as_toml(x) for x in some) for path, some in found["follows"].items()}
    follows = {f"{path}, row by row": said for path, said in words.items()}
    sections = (
        ("Result", [table(how, good, LOOK), table("One training, mean over the seeds", paid, LOOK)]),
        ("Pictures", [picture.figure() for picture in pictures(found, groups)]),
        ("Elsewhere", table("The trained weights, judged under other settings", _rows(*elsewhere(found)), LOOK)),
        ("Failed", pairs(refused(found))),
        ("Settings", pairs({"data": found["what"], **found["settings"], **follows})),
        ("Runs", pairs({row["name"]: ", ".join(Path(r).name for r in row["runs"]) for row in found["rows"]})),
        ("Repeat it", tag("pre", found["command"])),
    )
    lead = (tag("p", found["verdict"], class_="verdict"),)
    many = f"{found['seeds']} seed{'s' * (found['seeds'] > 1)}"
    return page(Path(found["comparison"]).name, "a comparison", [many], lead, sections)


def compare_svg(found: Facts, groups: Groups) -> str:
    """The pictures as one file."""
    return alone(found["verdict"], pictures(found, groups))


def _rows(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> dict[str, dict[str, str]]:
    return {name: dict(zip(heads[1:], cells, strict=True)) for name, *cells in lines}


def pictures(found: Facts, groups: Groups) -> list[Picture]:
    """The numbers with their intervals; the looks over steps and over seconds; the metric of each group, and under
    other settings."""
    rows = list(zip(range(1, len(groups) + 1), found["rows"], groups, strict=True))
    watched, what = found["watched"], f"Valid {found['watched'].replace('_', ' ')}"
    curves = [(row["name"], n, trial.curve(watched)) for n, row, group in rows for trial in group if not trial.failed]
    over_steps = [Line(name, [(step, seen) for step, _, seen in points], tone=n) for name, n, points in curves]
    over_time = [Line(name, [(seconds, seen) for _, seconds, seen in points], tone=n) for name, n, points in curves]
    equal = found["level"]
    level = None if equal is None else Line(f"equal quality: {figure(equal)}", [(0.0, equal)])
    drawn = (
        _judged(found, groups),
        line_chart.drawn(f"{what} over steps", over_steps, note="a line for each seed"),
        line_chart.drawn(f"{what} over time", over_time, note="without the looks", level=level, unit="seconds"),
        _grouped(found),
        _under(found),
    )
    return [picture for picture in drawn if picture]


def _judged(found: Facts, groups: Groups) -> Picture | None:
    """Each row's number with its interval and its seeds, beside the best that costs nothing."""
    split, metric, rows = found["split"], found["metric"], []
    for n, (row, group) in enumerate(zip(found["rows"], groups, strict=True), 1):
        if metric in row["metrics"]:
            low_high = row["interval"][metric]
            seeds = [trial.facts["metrics"][split][metric] for trial in group if not trial.failed]
            ends = None if low_high is None else (low_high[0], low_high[1])
            rows.append(Span(row["name"], row["metrics"][metric], ends, seeds, n))
    free = sorted((x, name) for name, m in found["baseline"].items() if (x := number(m.get(metric))) is not None)
    known = [x for row in rows for x in (row.middle, *(row.ends or ()), *row.points)]
    level = None
    if known and free:
        best, name = free[0] if metric in LESS else free[-1]
        room = max(known) - min(known)
        if min(known) - room <= best <= max(known) + room:  # one far away would leave the others no room
            level = Line(f"{name}, free: {figure(best)}", [(0.0, best)])
    title = f"{split} {metric.replace('_', ' ')}".capitalize()
    return spans(title, rows, note="mean, 95 % interval and each seed", level=level) if rows else None


def _grouped(found: Facts) -> Picture | None:
    """The metric of each group that has a place on an axis: a length, a distance."""
    said = [row["protocol"].get(found["split"], {}).get("grouped_by", "") for row in found["rows"]]
    metric = found["metric"] if found["metric"] not in LESS else "exact_match"
    lines = []
    for n, row in enumerate(found["rows"], 1):
        parts = [part["metrics"] for part in row["parts"].values()]
        lines.append(Line(row["name"], [(part.get("at"), part.get(metric)) for part in parts], tone=n))
    unit = max(said, default="")  # of a row that failed nothing is known
    title = f"{found['split']} {metric.replace('_', ' ')} by {unit}".capitalize()
    places = {x for line in lines for x, _ in line_chart.finite(line.points)}
    far = 0 < len(places) <= SIDE_BY_SIDE and 0 < min(places) * FAR < max(places)
    return line_chart.drawn(title, lines, note="mean over the seeds", unit=unit, log=far)


def _under(found: Facts) -> Picture | None:
    """The metric over a setting of the evaluation, where there is one and it is a number."""
    if len(found["evals"]) != 1:
        return None
    [path], metric = found["evals"], found["metric"]
    asked = [[(one["settings"][path], one["metrics"].get(metric)) for one in row["evals"]] for row in found["rows"]]
    lines = [
        Line(row["name"], points, tone=n) for n, (row, points) in enumerate(zip(found["rows"], asked, strict=True), 1)
    ]
    return line_chart.drawn(f"{found['split']} {metric} by {path}".capitalize(), lines, unit=path)
