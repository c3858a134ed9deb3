"""Line charts and interval plots as inline SVG of a page, or together in a standalone SVG file.

Coordinates are percentages, so a chart scales with its page while its text keeps a readable size.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import pairwise
from typing import Literal

from .formatting import Point, finite_points, format_number
from .html import Html, tag

Level = tuple[str, float]  # name and value of a reference line
MAX_POINTS = 500  # of a line
COLORS = ("#0079b8", "#cf5a00", "#008f68", "#b05a9a", "#8a7000", "#d03d4d", "#008c99", "#7a7a7a")  # on light and dark
MARKS, KEYS = files(__package__).joinpath("marks.css").read_text("utf-8"), ""
for n, color in enumerate(COLORS, 1):
    MARKS += f".plot path.t{n}, .plot line.t{n} {{ stroke: {color} }} .plot circle.t{n} {{ fill: {color} }}\n"
    KEYS += f".key.t{n}::before {{ border-color: {color} }}\n"
# pixels and colors of a standalone file
WIDTH, LEFT, RIGHT, HEIGHT, SMALL_HEIGHT, ROW_HEIGHT, CHARACTER = 900, 64, 28, 280, 112, 40, 7
PALETTE = {"ink": "#1d2126", "soft": "#59606a", "rule": "#dfdcd3", "paper": "#ffffff"}
PALETTE |= {"accent": COLORS[0], "valid": COLORS[1]}


@dataclass(frozen=True)
class Line:
    """Points (x, y) sorted by x, and their style."""

    name: str
    points: Sequence[Point]
    style: Literal["line", "faint", "dots"] = "line"
    color: int = 0  # index into COLORS from 1; 0: the accent color of the page

    @property
    def classes(self) -> str:
        return f"{self.style} {color_class(self.color)}".strip()


@dataclass(frozen=True)
class Interval:
    """A mean, its confidence interval, and the values it is computed from."""

    name: str
    mean: float
    ends: Sequence[float] | None = None  # low and high
    points: Sequence[float] = ()
    color: int = 0

    @property
    def values(self) -> tuple[float, ...]:
        """All numbers that are drawn."""
        return self.mean, *(self.ends or ()), *self.points


@dataclass(frozen=True)
class Chart:
    """A drawn chart: a figure of a page, or a part of an SVG file."""

    title: str
    note: str
    keys: Sequence[tuple[str, str]]  # name and CSS classes of each line
    description: str  # alternative text
    marks: Html
    small: bool = False
    rows: int = 0  # number of rows of an interval plot, each 2.5rem high

    def figure(self) -> Html:
        keys = [tag("span", name, class_=f"key {classes}") for name, classes in self.keys]
        text, height = (tag("title", self.title), tag("desc", self.description)), f"height: {2.5 * self.rows}rem"
        style = "plot small" if self.small else "plot"
        plot = tag("svg", text, self.marks, class_=style, role="img", style=height if self.rows else None)
        return tag("figure", tag("figcaption", tag("b", self.title), self.note, keys), plot)


def color_class(color: int) -> str:
    """The CSS classes of a color; after the last color they repeat, dashed."""
    return f"t{(color - 1) % len(COLORS) + 1}{' dashed' * (color > len(COLORS))}" if color else ""


def thin(points: Sequence[Point], max_points: int = MAX_POINTS) -> list[Point]:
    """At most this many points: the first, the last, and the minimum and maximum of each interval."""
    if len(points) <= max_points:
        return list(points)
    n_intervals = max_points // 2 - 1
    edges = [len(points) * i // n_intervals for i in range(n_intervals + 1)]
    selected = {0, len(points) - 1}
    for interval in (range(start, end) for start, end in pairwise(edges)):
        selected |= {min(interval, key=lambda i: points[i][1]), max(interval, key=lambda i: points[i][1])}
    return [points[i] for i in sorted(selected)]


def smooth(points: Sequence[Point], max_points: int = 200) -> list[Point]:
    """A moving average with a shorter window at the start. Fewer than 20 points give none."""
    n, out = len(points), []
    for i in sorted({i * (n - 1) // max(1, max_points - 1) for i in range(max_points if n >= 20 else 0)}):
        half = min(i, max(1, n // 30))
        window = points[i - half : i + half + 1]
        out.append((points[i][0], sum(y for _, y in window) / len(window)))
    return out


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten apart, the first not above `low`, the last not below `high`."""
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):  # a single value: add a margin
        margin = abs(high) / 10 if abs(high) > 1e-9 else 1.0
        low, high = low - margin, high + margin
    rough = (high - low) / about
    power = math.floor(math.log10(rough))
    step = next(m * 10.0**power for m in (1, 2, 5, 10) if m * 10.0**power >= rough)
    return [round(k * step, 1 - power) for k in range(math.floor(low / step), math.ceil(high / step) + 1)]


def labels(ticks: Sequence[float]) -> list[str]:
    """The ticks of an axis as text, all with the same unit and number of decimals."""
    step, top = (ticks[1] - ticks[0] if len(ticks) > 1 else 1.0), max(map(abs, ticks))
    if step < 1e-4 or top >= 1e9:
        return [f"{tick:.12g}".replace("e-0", "e-").replace("e+", "e") for tick in ticks]
    factor, unit = next(pair for pair in ((1e6, " M"), (1e3, " k"), (1, "")) if top >= 10 * pair[0] or pair[0] == 1)
    decimals = max(0, -math.floor(math.log10(step / factor) + 1e-9))
    return [f"{tick / factor:,.{decimals}f}{unit}" if tick else "0" for tick in ticks]


def draw_chart(
    title: str,
    lines: Iterable[Line],
    *,
    note: str = "",
    level: Level | None = None,
    small: bool = False,
    unit: str = "step",
    log: bool = False,
) -> Chart | None:
    """The lines over steps or another unit; None if there is no point.

    `level` is a horizontal reference line; small=True draws a small chart from 0; log=True uses a logarithmic x axis
    with a tick at every point.
    """
    if not (lines := [replace(line, points=points) for line in lines if (points := finite_points(line.points))]):
        return None
    heights = [y for line in lines for _, y in line.points] + ([level[1]] if level else []) + [0.0] * small
    ys, right = ticks(min(heights), max(heights), 3 if small else 5), max(0.0, *(line.points[-1][0] for line in lines))
    left = min(0.0, *(line.points[0][0] for line in lines))
    xs = [x for x in ticks(left, right, 3 if small else 6) if left <= x <= right and (unit != "step" or x == int(x))]
    scale = math.log if log else float
    if log:
        xs = sorted({x for line in lines for x, _ in line.points})
        left, right = xs[0], xs[-1]
    start, width = scale(left), scale(right) - scale(left) or 1

    def to_percent(x: float, y: float) -> Point:
        return (scale(x) - start) / width * 100, (ys[-1] - y) / (ys[-1] - ys[0]) * 100

    marks: list[Html] = []
    for y, label in zip(ys, labels(ys), strict=True):
        top = f"{to_percent(left, y)[1]:.2f}%"
        marks += [tag("line", x1="0", x2="100%", y1=top, y2=top)]
        marks += [tag("text", label, class_="y", x="-9", y=top, dy=".33em")]
    marks += _x_labels([to_percent(x, 0)[0] for x in xs], xs, unit)
    if level:
        top = f"{to_percent(left, level[1])[1]:.2f}%"
        marks += [tag("line", class_="level", x1="0", x2="100%", y1=top, y2=top)]
        marks += [tag("text", _level_text(level), class_="level", x="100%", y=top, dy="-.45em")]
    curves, dots = list[Html](), list[Html]()
    for line in lines:
        points, style = thin(line.points), line.classes
        percents = [to_percent(x, y) for x, y in points]
        if line.style == "dots" or len(points) == 1:
            titles = [tag("title", f"{_x_text(x, unit)}: {format_number(y, 4)}") for x, y in points]
            for text, (x, y) in zip(titles, percents, strict=True):
                dots.append(tag("circle", text, class_=style, cx=f"{x:.2f}%", cy=f"{y:.2f}%", r="4"))
        else:
            d = "M" + "L".join(f"{x * 10:.1f} {y * 10:.1f}" for x, y in percents)
            curves.append(tag("path", tag("title", line.name) if line.color else None, class_=style, d=d))
    marks += [tag("svg", curves, viewBox="0 0 1000 1000", preserveAspectRatio="none")] if curves else []
    keys = list({line.name: line.classes for line in lines}.items())  # lines with the same name share one key
    description = " ".join(_description(line, unit) for line in lines)
    return Chart(title, note, keys if len(keys) > 1 else (), description, Html("".join(marks + dots)), small=small)


def _level_text(level: Level) -> str:
    return f"{level[0]}: {format_number(level[1])}"


def _x_labels(percents: Sequence[float], ticks: Sequence[float], unit: str = "") -> list[Html]:
    """The labels of the x axis at these percentages; the first one names the unit."""
    texts = [f"{unit} {label}".strip() if n == 0 else label for n, label in enumerate(labels(ticks))]
    rows = zip(percents, texts, strict=True)
    return [tag("text", text, class_="x", x=f"{x:.2f}%", y="100%", dy="1.6em") for x, text in rows]


def _x_text(x: float, unit: str) -> str:
    return f"{unit} {f'{x:,.0f}' if x == int(x) or x >= 100 else format_number(x)}"


def _description(line: Line, unit: str) -> str:
    """The line in a sentence, as alternative text."""
    (x0, y0), (x1, y1) = line.points[0], line.points[-1]
    extreme, adjective = (max, "highest") if y1 > y0 else (min, "lowest")
    x, y = extreme(line.points, key=lambda point: point[1])
    ends = f"from {format_number(y0)} at {_x_text(x0, unit)} to {format_number(y1)} at {_x_text(x1, unit)}"
    return f"{line.name}: {ends}, {adjective} {format_number(y)} at {_x_text(x, unit)}."


def interval_plot(title: str, rows: Sequence[Interval], *, note: str = "", level: Level | None = None) -> Chart:
    """Each mean with its interval, one below the other. `level` is a vertical reference line."""
    values = [x for row in rows for x in row.values] + ([level[1]] if level else [])
    xs = ticks(min(values), max(values), 6)

    def percent(x: float) -> float:
        return (x - xs[0]) / (xs[-1] - xs[0]) * 100

    def left(x: float) -> str:
        return f"{percent(x):.2f}%"

    marks = [tag("line", x1=left(x), x2=left(x), y1="0", y2="100%") for x in xs]
    marks += _x_labels([percent(x) for x in xs], xs)
    if level:
        marks += [tag("line", class_="level", x1=left(level[1]), x2=left(level[1]), y1="0", y2="100%")]
        note = f"{note}; dashed: {_level_text(level)}"
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
