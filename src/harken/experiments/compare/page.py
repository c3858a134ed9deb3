"""The page of a comparison, and its charts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harken.experiments.report.charts import Chart, Interval, Line, draw_chart, interval_plot
from harken.experiments.report.formatting import LOWER_IS_BETTER, display_name, finite_points, format_number
from harken.experiments.report.html import tag
from harken.experiments.report.page import definition_list, html_page, html_table
from harken.experiments.report.verdict import best_baseline, capitalized
from harken.recipe import to_toml_value

from .summary import Trial, comparison_table, eval_table, failures

Facts = Mapping[str, Any]
Groups = Sequence[Sequence[Trial]]
STYLE = "wide right"
MAX_TICKS = 20  # values that fit below an axis
LOG_RATIO = 50  # ratio of the largest to the smallest value from which on the axis is logarithmic
COST_COLUMNS = ("parameters", "tokens/s", "FLOPs", "energy", "CO2e", "price")  # a second table: one is too wide


def compare_page(facts: Facts, charts: Sequence[Chart]) -> str:
    """The page: verdict, tables, charts, failures, and the command that repeats the comparison."""
    metric = display_name(facts["curve_metric"])
    level = f"“to {format_number(facts['level'])}” is the time to this validation {metric}, which every trial reaches"
    over = "the seeds (Student's t)" if facts["seeds"] > 1 else "the examples"
    has_interval = any(row["interval"].get(facts["metric"]) for row in facts["rows"])
    caption = [f"± and brackets are 95 % intervals over {over}"] * has_interval + [level] * (facts["level"] is not None)
    rows = _rows(*comparison_table(facts))
    quality = {name: {h: cell for h, cell in row.items() if h not in COST_COLUMNS} for name, row in rows.items()}
    cost = {name: {head: row[head] for head in COST_COLUMNS if row.get(head, "-") != "-"} for name, row in rows.items()}
    settings = {"data": facts["what"], **facts["settings"]}
    for path, values in facts["implied_settings"].items():
        settings[f"{path}, row by row"] = ", ".join("-" if x is None else to_toml_value(x) for x in values)
    results = html_table("; ".join(caption), quality, STYLE), html_table("Mean cost of one training", cost, STYLE)
    evals = html_table("The trained weights, evaluated under other settings", _rows(*eval_table(facts)), STYLE)
    sections = (
        ("Result", results),
        ("Charts", [chart.figure() for chart in charts]),
        ("Evaluation settings", evals),
        ("Failed", definition_list(failures(facts))),
        ("Settings", definition_list(settings)),
        ("Runs", definition_list({row["name"]: ", ".join(Path(r).name for r in row["runs"]) for row in facts["rows"]})),
        ("Reproduce", tag("pre", facts["command"])),
    )
    lead, seeds = tag("p", facts["verdict"], class_="verdict"), f"{facts['seeds']} seed{'s' * (facts['seeds'] > 1)}"
    return html_page(Path(facts["comparison"]).name, "comparison", [seeds], lead, sections)


def _rows(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> dict[str, dict[str, str]]:
    return {name: dict(zip(heads[1:], cells, strict=True)) for name, *cells in lines}


def comparison_charts(facts: Facts, groups: Groups) -> list[Chart]:
    """The metrics with intervals; validation over steps and seconds; the metric per part, and by evaluation setting."""
    metric, title = facts["curve_metric"], f"Validation {display_name(facts['curve_metric'])}"
    over_steps, over_time = list[Line](), list[Line]()
    for n, (row, group) in enumerate(zip(facts["rows"], groups, strict=True), 1):
        for curve in (trial.curve(metric) for trial in group if not trial.failed):
            over_steps.append(Line(row["name"], [(step, y) for step, _, y in curve], color=n))
            over_time.append(Line(row["name"], [(seconds, y) for _, seconds, y in curve], color=n))
    level = None if facts["level"] is None else ("equal quality", facts["level"])
    note = "training time without validation"
    charts = (
        _metric_chart(facts, groups),
        draw_chart(f"{title} over steps", over_steps, note="one line per seed"),
        draw_chart(f"{title} over time", over_time, note=note, level=level, unit="seconds"),
        _part_chart(facts),
        _eval_chart(facts),
    )
    return [chart for chart in charts if chart]


def _title(split: str, metric: str) -> str:
    """Validation BLEU"""
    return capitalized(f"{display_name(split)} {display_name(metric)}")


def _metric_chart(facts: Facts, groups: Groups) -> Chart | None:
    """The mean of each row with its interval and its seeds, and the best baseline."""
    split, metric, rows = facts["split"], facts["metric"], []
    for n, (row, group) in enumerate(zip(facts["rows"], groups, strict=True), 1):
        if metric in row["metrics"]:
            seeds = [trial.facts["metrics"][split][metric] for trial in group if not trial.failed]
            rows.append(Interval(row["name"], row["metrics"][metric], row["interval"][metric], seeds, n))
    if not rows:
        return None
    values, level = [x for row in rows for x in row.values], best_baseline(facts["baseline"], metric)
    margin = max(values) - min(values)
    if level and not min(values) - margin <= level[1] <= max(values) + margin:
        level = None  # a distant baseline would compress the others
    level = level and (f"baseline, {level[0]}", level[1])
    title = _title(split, metric)
    return interval_plot(title, rows, note="mean, 95 % interval and every seed", level=level)


def _part_chart(facts: Facts) -> Chart | None:
    """The metric of each part that has a position on an axis, such as a length or a distance."""
    units = [row["protocol"].get(facts["split"], {}).get("grouped_by", "") for row in facts["rows"]]
    metric = facts["metric"] if facts["metric"] not in LOWER_IS_BETTER else "exact_match"
    lines = []
    for n, row in enumerate(facts["rows"], 1):
        parts = [part["metrics"] for part in row["parts"].values()]
        lines.append(Line(row["name"], [(part.get("position"), part.get(metric)) for part in parts], color=n))
    unit = max(units, default="")  # a failed row has none
    title = f"{_title(facts['split'], metric)} by {unit}"
    xs = {x for line in lines for x, _ in finite_points(line.points)}
    log = 0 < len(xs) <= MAX_TICKS and 0 < min(xs) * LOG_RATIO < max(xs)
    return draw_chart(title, lines, note="mean over the seeds", unit=unit, log=log)


def _eval_chart(facts: Facts) -> Chart | None:
    """The metric over a numeric evaluation setting, if there is exactly one."""
    if len(facts["evals"]) != 1:
        return None
    [path], metric, lines = facts["evals"], facts["metric"], []
    for n, row in enumerate(facts["rows"], 1):
        points = [(e["settings"][path], e["metrics"].get(metric)) for e in row["evals"]]
        lines.append(Line(row["name"], points, color=n))
    return draw_chart(f"{_title(facts['split'], metric)} by {path}", lines, unit=path)
