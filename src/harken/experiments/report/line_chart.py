"""Line charts as inline SVG.

Coordinates are percentages, so a chart scales with its page while its text keeps a readable size.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from .formatting import finite_float, format_number
from .html import Html, tag

Point = tuple[float, float]
Transform = Callable[[float, float], Point]
MAX_POINTS = 500  # of a line
COLORS = ("#0079b8", "#cf5a00", "#008f68", "#b05a9a", "#8a7000", "#d03d4d", "#008c99", "#7a7a7a")  # on light and dark

CSS = """
figure { margin: 0; min-width: 0 } figcaption { font-size: .84rem; color: var(--soft); margin-bottom: .7rem }
figcaption b { color: var(--ink); margin-right: .35em } .key { white-space: nowrap; margin-left: .9em }
.plot { display: block; overflow: visible; height: 17rem; width: calc(100% - 4.6rem); margin: 0 1.4rem 2.2rem 3.2rem }
.plot.small { height: 7rem }
.key::before { content: ""; display: inline-block; width: 1.3em; border-top: 2px solid var(--accent); margin: .25em }
.key.faint::before { border-top-width: 1px; opacity: .6 } .key.dots::before { border: 0; border-radius: 50% }
.key.dots::before { width: .6em; height: .6em; margin-bottom: 0; background: var(--valid) }
"""
MARKS = """
.plot .y, .plot text.level { text-anchor: end } .plot .x { text-anchor: middle }
.plot text { font-size: .74rem; fill: var(--soft) } .plot path.faint { stroke-width: 1; opacity: .45 }
.plot path { fill: none; stroke: var(--accent); stroke-width: 1.8; vector-effect: non-scaling-stroke }
.plot line { stroke: var(--rule) } .plot line.level { stroke: var(--soft); stroke-dasharray: 5 4 }
.plot :is(text.level, .name) { paint-order: stroke; stroke: var(--paper); stroke-width: 4px }
.plot circle { fill: var(--accent) } .plot .name { fill: var(--ink) }
.plot circle.dots { fill: var(--valid); stroke: var(--paper); stroke-width: 1.5 }
.plot line.span { stroke-width: 2 } .plot circle.seed { opacity: .45 } .plot .dashed { stroke-dasharray: 6 4 }
"""
for n, color in enumerate(COLORS, 1):
    MARKS += f".plot path.t{n}, .plot line.t{n} {{ stroke: {color} }} .plot circle.t{n} {{ fill: {color} }}\n"
    CSS += f".key.t{n}::before {{ border-color: {color} }}\n"
CSS += MARKS + ".key.dashed::before { border-top-style: dashed }\n"


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


def finite_points(points: Iterable[tuple[object, object]]) -> list[Point]:
    """The finite points, sorted by x."""
    numbers = ((finite_float(x), finite_float(y)) for x, y in points)
    return sorted((x, y) for x, y in numbers if x is not None and y is not None)


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
    n = len(points)
    out = []
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


def chart_figure(
    title: str, lines: Iterable[Line], *, note: str = "", level: Line | None = None, zero: bool = False
) -> Html:
    """The chart as a figure of a page; empty if there is no point."""
    chart = draw_chart(title, lines, note=note, level=level, zero=zero)
    return chart.figure() if chart else Html()


def draw_chart(
    title: str,
    lines: Iterable[Line],
    *,
    note: str = "",
    level: Line | None = None,
    zero: bool = False,
    unit: str = "step",
    log: bool = False,
) -> Chart | None:
    """The lines over steps or another unit; None if there is no point.

    `level` is a horizontal reference line; zero=True draws a small chart from 0; log=True uses a logarithmic x axis
    with a tick at every point.
    """
    if not (lines := [replace(line, points=points) for line in lines if (points := finite_points(line.points))]):
        return None
    heights = [y for line in (*lines, *([level] if level else [])) for _, y in line.points] + [0.0] * zero
    ys, right = ticks(min(heights), max(heights), 3 if zero else 5), max(0.0, *(line.points[-1][0] for line in lines))
    left = min(0.0, *(line.points[0][0] for line in lines))
    xs = [x for x in ticks(left, right, 3 if zero else 6) if left <= x <= right and (unit != "step" or x == int(x))]
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
    marks += x_labels([to_percent(x, 0)[0] for x in xs], xs, unit)
    if level:
        top = f"{to_percent(left, level.points[0][1])[1]:.2f}%"
        marks += [tag("line", class_="level", x1="0", x2="100%", y1=top, y2=top)]
        marks += [tag("text", level.name, class_="level", x="100%", y=top, dy="-.45em")]
    curves = [_curve(line, to_percent) for line in lines if line.style != "dots" and len(line.points) > 1]
    marks += [tag("svg", curves, viewBox="0 0 1000 1000", preserveAspectRatio="none")] if curves else []
    dotted = [line for line in lines if line.style == "dots" or len(line.points) == 1]
    marks += [dot for line in dotted for dot in _dots(line, to_percent, unit)]
    keys = list({line.name: line.classes for line in lines}.items())  # lines with the same name share one key
    description = " ".join(_description(line, unit) for line in lines)
    return Chart(title, note, keys if len(keys) > 1 else (), description, Html("".join(marks)), small=zero)


def _curve(line: Line, to_percent: Transform) -> Html:
    points = (to_percent(x, y) for x, y in thin(line.points))
    d = "M" + "L".join(f"{x * 10:.1f} {y * 10:.1f}" for x, y in points)
    return tag("path", tag("title", line.name) if line.color else None, class_=line.classes, d=d)


def _dots(line: Line, to_percent: Transform, unit: str) -> list[Html]:
    dots = []
    for x, y in thin(line.points):
        title = tag("title", f"{_x_text(x, unit)}: {format_number(y, 4)}")
        left, top = to_percent(x, y)
        dots.append(tag("circle", title, class_=line.classes, cx=f"{left:.2f}%", cy=f"{top:.2f}%", r="4"))
    return dots


def x_labels(percents: Sequence[float], ticks: Sequence[float], unit: str = "") -> list[Html]:
    """The labels of the x axis at these percentages; the first one names the unit."""
    return [
        tag("text", f"{unit} {label}".strip() if n == 0 else label, class_="x", x=f"{x:.2f}%", y="100%", dy="1.6em")
        for n, (x, label) in enumerate(zip(percents, labels(ticks), strict=True))
    ]


def _x_text(x: float, unit: str) -> str:
    return f"{unit} {f'{x:,.0f}' if x == int(x) or x >= 100 else format_number(x)}"


def _description(line: Line, unit: str) -> str:
    """The line in a sentence, as alternative text."""
    (x0, y0), (x1, y1) = line.points[0], line.points[-1]
    extreme, adjective = (max, "highest") if y1 > y0 else (min, "lowest")
    x, y = extreme(line.points, key=lambda point: point[1])
    ends = f"from {format_number(y0)} at {_x_text(x0, unit)} to {format_number(y1)} at {_x_text(x1, unit)}"
    return f"{line.name}: {ends}, {adjective} {format_number(y)} at {_x_text(x, unit)}."
