"""Square plots side by side as a standalone SVG file: points, cells of a matrix, curves, contours of a surface."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .charts import COLORS, PALETTE, labels, ticks
from .formatting import Point
from .html import Html, tag

Floats = npt.NDArray[np.floating[Any]]
SIDE, LEFT, TOP, GAP, BOTTOM = 250, 62, 84, 66, 58  # pixels of a plot and of the space around it
NAME_HEIGHT = 44  # the title and the note of a plot
STYLE = """text {{ font: 12px system-ui, sans-serif; fill: {soft} }}
.title, .head {{ font-weight: 600; fill: {ink} }} .title {{ font-size: 14px }}
.middle {{ text-anchor: middle }} .end {{ text-anchor: end }} .frame {{ fill: none; stroke: {soft} }}
.name {{ fill: {ink}; paint-order: stroke; stroke: {paper}; stroke-width: 3px }}"""
WHITE, BLUE = (255, 255, 255), (0, 84, 138)  # of the lowest and the highest value


@dataclass(frozen=True)
class Axis:
    """The name of an axis and its ends."""

    name: str
    low: float
    high: float

    def scale(self, x: float) -> float:
        """The position of x in pixels from the lower end."""
        return (x - self.low) / (self.high - self.low) * SIDE


@dataclass(frozen=True)
class Panel:
    """One square plot; `down`: y grows downwards, as the rows of a matrix do."""

    title: str
    note: str
    x: Axis
    y: Axis
    marks: Sequence["Mark"]
    down: bool = False

    def place(self, x: float, y: float) -> Point:
        """Pixels of a point."""
        vertical = self.y.scale(y)
        return round(self.x.scale(x), 1), round(vertical if self.down else SIDE - vertical, 1)


class Mark:
    """Something drawn in a panel."""

    def draw(self, panel: Panel) -> Iterable[Html]:
        raise NotImplementedError


@dataclass(frozen=True)
class Dots(Mark):
    """Points of one color (an index into COLORS from 1), with the text of each, if any."""

    points: Sequence[Point]
    color: int = 1
    radius: float = 3
    names: Sequence[str] = ()

    def draw(self, panel: Panel) -> Iterator[Html]:
        for x, y in (panel.place(*point) for point in self.points):
            yield tag("circle", cx=x, cy=y, r=self.radius, fill=COLORS[self.color - 1], fill_opacity=0.75)
        for name, point in zip(self.names, self.points, strict=False):
            x, y = panel.place(*point)
            yield tag("text", name, x=x + 6, y=y - 6, class_="name")


@dataclass(frozen=True)
class Curve(Mark):
    """Connected points."""

    points: Sequence[Point]
    color: int = 1
    width: float = 1.8

    def draw(self, panel: Panel) -> Iterator[Html]:
        d = "M" + "L".join(f"{x:g} {y:g}" for x, y in (panel.place(*point) for point in self.points))
        yield tag("path", d=d, fill="none", stroke=COLORS[self.color - 1], stroke_width=self.width)


@dataclass(frozen=True)
class Cells(Mark):
    """A matrix of values from 0 (white) to 1 (blue) as cells of unit size; row 0 is at y = 0."""

    values: Floats  # rows columns

    def draw(self, panel: Panel) -> Iterator[Html]:
        for row, values in enumerate(self.values):
            for column, value in enumerate(values):
                if value > 0:
                    (x0, y0), (x1, y1) = panel.place(column, row), panel.place(column + 1, row + 1)
                    box = {"x": x0, "y": min(y0, y1), "width": round(x1 - x0, 1), "height": round(abs(y1 - y0), 1)}
                    yield tag("rect", fill=shade(float(value)), **box)


@dataclass(frozen=True)
class Contours(Mark):
    """Lines of equal height of a surface on a grid: values[row of y, column of x]."""

    x: Floats
    y: Floats
    values: Floats
    levels: Sequence[float]

    def draw(self, panel: Panel) -> Iterator[Html]:
        for n, level in enumerate(self.levels):
            lines = contour(self.x, self.y, self.values, level)
            ends = ((panel.place(*a), panel.place(*b)) for a, b in lines)
            d = "".join(f"M{a[0]:g} {a[1]:g}L{b[0]:g} {b[1]:g}" for a, b in ends)
            color = shade(0.25 + 0.75 * n / max(1, len(self.levels) - 1))
            yield tag("path", tag("title", f"{level:.4g}"), d=d, fill="none", stroke=color, stroke_width=1.3)


def contour(x: Floats, y: Floats, values: Floats, level: float) -> Iterator[tuple[Point, Point]]:
    """The line segments on which the surface has this height, by linear interpolation in the triangles of the grid."""
    for row in range(len(y) - 1):
        for column in range(len(x) - 1):
            corners = [(column, row), (column + 1, row), (column + 1, row + 1), (column, row + 1)]
            for triangle in (corners[:3], [corners[0], *corners[2:]]):
                points = [(float(x[c]), float(y[r])) for c, r in triangle]
                heights = [float(values[r, c]) - level for c, r in triangle]
                pairs = ((0, 1), (1, 2), (2, 0))
                crossed = [(a, b) for a, b in pairs if (heights[a] < 0) != (heights[b] < 0)]
                if crossed:
                    start, end = (_between(points[a], points[b], heights[a], heights[b]) for a, b in crossed)
                    yield start, end


def _between(a: Point, b: Point, height_a: float, height_b: float) -> Point:
    """The point between a and b at which a linear function with these values is 0."""
    t = height_a / (height_a - height_b)
    return a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])


def shade(value: float) -> str:
    """A color from white (0) to blue (1)."""
    mixed = (round(low + value * (high - low)) for low, high in zip(WHITE, BLUE, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def panels_svg(title: str, panels: Sequence[Panel], *, columns: int = 4) -> str:
    """The panels in rows of this number of columns, with a title, as one SVG file."""
    columns, step_x, step_y = min(columns, len(panels)), SIDE + GAP, SIDE + NAME_HEIGHT + BOTTOM
    rows = -(-len(panels) // columns)
    width, height = LEFT + columns * step_x - GAP + 28, TOP - NAME_HEIGHT + rows * step_y
    parts = [tag("text", title, x=LEFT, y=28, class_="title")]
    for n, panel in enumerate(panels):
        at = f"translate({LEFT + step_x * (n % columns)} {TOP + step_y * (n // columns)})"
        parts.append(tag("g", *_draw(panel), transform=at))
    css = STYLE.format(**PALETTE)
    background = tag("rect", width="100%", height="100%", fill=PALETTE["paper"])
    body = tag("title", title), tag("style", Html(css)), background, *parts
    box = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height}
    return tag("svg", body, xmlns="http://www.w3.org/2000/svg", **box) + "\n"


def _draw(panel: Panel) -> Iterator[Html]:
    """The names, the marks, cut at the frame, and the axes."""
    yield tag("text", panel.title, x=0, y=-24, class_="head")
    yield tag("text", panel.note, x=0, y=-8)
    yield tag("svg", *(html for mark in panel.marks for html in mark.draw(panel)), width=SIDE, height=SIDE)
    yield tag("rect", width=SIDE, height=SIDE, class_="frame")
    for value, label in _tick_labels(panel.x):
        yield tag("text", label, x=round(panel.x.scale(value), 1), y=SIDE + 17, class_="middle")
    for value, label in _tick_labels(panel.y):
        y = panel.y.scale(value) if panel.down else SIDE - panel.y.scale(value)
        yield tag("text", label, x=-7, y=round(y + 4, 1), class_="end")
    yield tag("text", panel.x.name, x=SIDE / 2, y=SIDE + 36, class_="middle")
    turned = f"translate(-44 {SIDE // 2}) rotate(-90)"
    yield tag("text", panel.y.name, transform=turned, class_="middle")


def _tick_labels(axis: Axis) -> list[tuple[float, str]]:
    values = ticks(axis.low, axis.high, 5)
    pairs = zip(values, labels(values), strict=True)
    return [(value, label) for value, label in pairs if axis.low <= value <= axis.high]
