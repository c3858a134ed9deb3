"""Interval plots (one row per number with its interval), and charts in a standalone SVG file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .formatting import format_number
from .html import Html, tag
from .line_chart import COLORS, MARKS, Chart, Line, color_class, ticks, x_labels

WIDTH, LEFT, RIGHT, HEIGHT, SMALL_HEIGHT, ROW_HEIGHT, CHARACTER = 900, 64, 28, 280, 112, 40, 7  # pixels
PALETTE = {"ink": "#1d2126", "soft": "#59606a", "rule": "#dfdcd3", "paper": "#ffffff"}
PALETTE |= {"accent": COLORS[0], "valid": COLORS[1]}


@dataclass(frozen=True)
class Interval:
    """A mean, its confidence interval, and the values it is computed from."""

    name: str
    mean: float
    ends: tuple[float, float] | None = None
    points: Sequence[float] = ()
    color: int = 0


def interval_plot(title: str, rows: Sequence[Interval], *, note: str = "", level: Line | None = None) -> Chart:
    """Each mean with its interval, one below the other. `level` is a vertical reference line."""
    values = [x for row in rows for x in (row.mean, *(row.ends or ()), *row.points)]
    values += [level.points[0][1]] if level else []
    xs = ticks(min(values), max(values), 6)

    def percent(x: float) -> float:
        return (x - xs[0]) / (xs[-1] - xs[0]) * 100

    def left(x: float) -> str:
        return f"{percent(x):.2f}%"

    marks = [tag("line", x1=left(x), x2=left(x), y1="0", y2="100%") for x in xs]
    marks += x_labels([percent(x) for x in xs], xs)
    if level:
        x = left(level.points[0][1])
        marks += [tag("line", class_="level", x1=x, x2=x, y1="0", y2="100%")]
    for n, row in enumerate(rows):
        y, color = f"{(n + 0.68) / len(rows) * 100:.2f}%", color_class(row.color)
        marks += [tag("text", row.name, class_="name", x="4", y=y, dy="-.7em")]
        if row.ends:
            low, high = map(left, row.ends)
            marks += [tag("line", class_=f"span {color}", x1=low, x2=high, y1=y, y2=y)]
        marks += [tag("circle", class_=f"seed {color}", cx=left(value), cy=y, r="2.5") for value in row.points]
        title_element = tag("title", f"{row.name}: {format_number(row.mean, 4)}")
        marks += [tag("circle", title_element, class_=color, cx=left(row.mean), cy=y, r="4.5")]
    description = " ".join(f"{row.name}: {format_number(row.mean, 4)}." for row in rows)
    note = f"{note}; dashed: {level.name}" if level else note
    return Chart(title, note, (), description, Html("".join(marks)), rows=len(rows))


def standalone_svg(title: str, charts: Sequence[Chart]) -> str:
    """The charts below each other as one SVG file with its own colors and sizes."""
    y, parts = 16, []
    for chart in charts:
        head = tag("tspan", chart.title, class_="title"), tag("tspan", chart.note, dx="8")
        parts += [tag("text", head, x=LEFT, y=(y := y + 16))]
        keys, y = _keys(chart, y + 8)
        height = ROW_HEIGHT * chart.rows if chart.rows else SMALL_HEIGHT if chart.small else HEIGHT
        width = WIDTH - LEFT - RIGHT
        parts += [*keys, tag("svg", chart.marks, x=LEFT, y=y + 10, width=width, height=height, overflow="visible")]
        y += height + 56
    css = re.sub(r"var\(--(\w+)\)", lambda m: PALETTE[m[1]], MARKS)
    css = re.sub(r"([\d.]+)rem", lambda m: f"{float(m[1]) * 16:g}px", css)
    css += "text { font: 12px system-ui, sans-serif; fill: #59606a } .title { font-weight: 600; fill: #1d2126 }"
    background = tag("rect", width="100%", height="100%", fill=PALETTE["paper"])
    body = tag("title", title), tag("style", Html(css)), background, tag("g", parts, class_="plot")
    box = {"viewBox": f"0 0 {WIDTH} {y}", "width": WIDTH, "height": y}
    return tag("svg", body, xmlns="http://www.w3.org/2000/svg", **box) + "\n"


def _keys(chart: Chart, y: int) -> tuple[list[Html], int]:
    """The legend in as many rows as it needs, and the y coordinate below it."""
    parts: list[Html] = []
    x = LEFT
    for name, classes in chart.keys:
        width = 44 + CHARACTER * len(name)
        if x > LEFT and x + width > WIDTH - RIGHT:
            x, y = LEFT, y + 18
        parts += [tag("path", class_=classes, d=f"M{x} {y + 4}h22"), tag("text", name, x=x + 28, y=y + 8)]
        x += width
    return parts, y + 14 if parts else y
