"""Line charts as inline SVG, and the two things every page needs: escaped HTML and numbers for people.

A chart has no fixed size: places are percentages, so its letters stay readable on a phone and on paper.
"""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Point = tuple[float, float]
HUGE = 1e30  # beyond this a value says only that something broke, and drawing it would hide all others
MOST = 500  # points of a line: more cannot be told apart on a screen
PICTURES = {c: 0x2400 + c for c in range(32) if chr(c) not in "\t\n"}
UNSEEN = {**PICTURES, 127: 0x2421, **dict.fromkeys((*range(128, 160), *range(0xD800, 0xE000)), 0xFFFD)}

CSS = """
figure { margin: 0; min-width: 0 }
figcaption { font-size: .84rem; color: var(--soft); margin-bottom: .7rem }
figcaption b { color: var(--ink); font-weight: 600; margin-right: .35em }
.plot { display: block; overflow: visible; height: 17rem; width: calc(100% - 4.2rem); margin: 0 1.4rem 2.2rem 2.8rem }
.plot.small { height: 7rem }
.plot text { font-size: .74rem; fill: var(--soft); font-variant-numeric: tabular-nums }
.plot .y { text-anchor: end } .plot .x { text-anchor: middle }
.plot line { stroke: var(--rule) }
.plot path { fill: none; stroke: var(--accent); stroke-width: 1.8; stroke-linejoin: round; vector-effect: non-scaling-stroke }
.plot path.faint { stroke-width: 1; opacity: .38 }
.plot circle { fill: var(--accent) } .plot circle.dots { fill: var(--valid); stroke: var(--paper); stroke-width: 1.5 }
.plot line.level { stroke: var(--soft); stroke-dasharray: 5 4 }
.plot text.level { text-anchor: end; paint-order: stroke; stroke: var(--paper); stroke-width: 4px }
.key { white-space: nowrap; margin-left: .9em }
.key::before { content: ""; display: inline-block; vertical-align: middle; margin-right: .4em; width: 1.3em; border-top: 2px solid var(--accent) }
.key.faint::before { border-top-width: 1px; opacity: .6 }
.key.dots::before { width: .55em; height: .55em; border: 0; border-radius: 50%; background: var(--valid) }
"""


class Html(str):
    """Text that is HTML already. Whatever is not of this type is escaped on its way into a page."""


def tag(name: str, *inside: object, **attributes: object) -> Html:
    """One element. `class_` is written class, `aria_label` aria-label; None is left out, lists are joined."""
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    start = "".join(f' {key}="{escape(value)}"' for key, value in pairs)
    return Html(f"<{name}{start}>{escape(inside)}</{name}>")


def escape(content: object) -> str:
    """As HTML; characters that no reader can see become visible, and what UTF-8 cannot hold is replaced."""
    if isinstance(content, Html):
        return content
    if isinstance(content, list | tuple):
        return "".join(map(escape, content))
    return "" if content is None else html.escape(str(content).translate(UNSEEN))


def number(value: Any) -> float | None:
    """The value as a float, if it is a number one can draw and compare."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < HUGE else None  # false for NaN, too


def figure(value: Any, digits: int = 3) -> str:
    """A number with so many digits that mean something; words stay as they are."""
    x = number(value)
    if x is None or isinstance(value, int):
        return f"{value:,}" if x is not None else str(value)
    if x == 0 or not 1e-4 <= abs(x) < 1e9:
        return f"{x:.{digits}g}".replace("e-0", "e-").replace("e+", "e")
    return f"{x:,.{max(0, digits - 1 - math.floor(math.log10(abs(x))))}f}"


@dataclass(frozen=True)
class Line:
    """Points (x, y) in the order of x, and how they are drawn."""

    name: str
    points: Sequence[Point]
    look: Literal["line", "faint", "dots"] = "line"


def finite(points: Iterable[tuple[Any, Any]]) -> list[Point]:
    """The points one can draw, from left to right."""
    found = ((number(x), number(y)) for x, y in points)
    return sorted((x, y) for x, y in found if x is not None and y is not None)


def thin(points: Sequence[Point], most: int = MOST) -> list[Point]:
    """At most so many points: first, last, and the lowest and highest of each stretch, so that no spike is lost."""
    if len(points) <= most:
        return list(points)
    stretches = most // 2 - 1
    edges = [len(points) * i // stretches for i in range(stretches + 1)]
    kept = {0, len(points) - 1}
    for start, end in zip(edges, edges[1:], strict=False):
        heights = range(start, end)
        kept |= {min(heights, key=lambda i: points[i][1]), max(heights, key=lambda i: points[i][1])}
    return [points[i] for i in sorted(kept)]


def smooth(points: Sequence[Point], most: int = 200) -> list[Point]:
    """The mean over a window around each place; it narrows towards both ends, so that no end is pulled inwards."""
    n = len(points)
    places = sorted({i * (n - 1) // max(1, most - 1) for i in range(most)}) if n > most else range(n)
    half = max(1, n // 30)
    out = []
    for i in places:
        reach = min(i, n - 1 - i, half)
        window = points[i - reach : i + reach + 1]
        out.append((points[i][0], sum(y for _, y in window) / len(window)))
    return out


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten apart, the first not above `low`, the last not below `high`."""
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):  # one value alone: some room around it
        room = abs(high) / 10 or 1.0
        low, high = low - room, high + room
    rough = (high - low) / about
    power = math.floor(math.log10(rough))
    step = next(m * 10.0**power for m in (1, 2, 5, 10) if m * 10.0**power >= rough)
    return [round(k * step, 1 - power) for k in range(math.floor(low / step), math.ceil(high / step) + 1)]


def label(tick: float, step: float) -> str:
    """A tick in writing, with as many decimals as its neighbours."""
    if tick and step < 1e-4 or abs(tick) >= 1e9:
        return f"{tick:.6g}".replace("e-0", "e-").replace("e+", "e")
    if abs(tick) >= 1e4:
        return f"{tick / 1e6:g} M" if abs(tick) >= 1e6 else f"{tick / 1e3:g} k"
    return f"{tick:,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}" if tick else "0"


def chart(title: str, lines: Iterable[Line], *, note: str = "", level: Line | None = None, zero: bool = False) -> Html:
    """The lines over steps as a figure; nothing if there is no point. A level is a line to be compared with."""
    lines = [Line(line.name, finite(line.points), line.look) for line in lines]
    lines = [line for line in lines if line.points]
    if not lines:
        return Html()
    heights = [y for line in (*lines, *([level] if level else [])) for _, y in line.points] + [0.0] * zero
    ys, right = ticks(min(heights), max(heights), 3 if zero else 5), max(x for line in lines for x, _ in line.points)
    left = min(0.0, *(line.points[0][0] for line in lines))
    xs = [x for x in ticks(left, right, 6) if left <= x <= right and x == int(x)]

    def place(x: float, y: float) -> Point:
        return (x - left) / ((right - left) or 1) * 100, (ys[-1] - y) / (ys[-1] - ys[0]) * 100

    marks: list[Html] = []
    for y in ys:
        at = f"{place(left, y)[1]:.2f}%"
        marks += [tag("line", x1="0", x2="100%", y1=at, y2=at)]
        marks += [tag("text", label(y, ys[1] - ys[0]), class_="y", x="-9", y=at, dy=".33em")]
    for i, x in enumerate(xs):
        word = ("" if i else "step ") + label(x, xs[1] - xs[0] if len(xs) > 1 else 1)
        marks += [tag("text", word, class_="x", x=f"{place(x, ys[0])[0]:.2f}%", y="100%", dy="1.6em")]
    if level:
        at = f"{place(left, level.points[0][1])[1]:.2f}%"
        marks += [tag("line", class_="level", x1="0", x2="100%", y1=at, y2=at)]
        marks += [tag("text", level.name, class_="level", x="100%", y=at, dy="-.45em")]
    curves = [_path(line, place) for line in lines if line.look != "dots" and len(line.points) > 1]
    marks += [tag("svg", curves, viewBox="0 0 1000 1000", preserveAspectRatio="none")] if curves else []
    marks += [_dots(line, place) for line in lines if line.look == "dots" or len(line.points) == 1]
    words = [tag("title", f"{title}, {note}" if note else title), tag("desc", " ".join(map(_told, lines)))]
    keys = [tag("span", line.name, class_=f"key {line.look}") for line in lines if len(lines) > 1]
    picture = tag("svg", words, marks, class_="plot small" if zero else "plot", role="img")
    return tag("figure", tag("figcaption", tag("b", title), note, keys), picture)


def _path(line: Line, place: Any) -> Html:
    at = (place(x, y) for x, y in thin(line.points))
    return tag("path", class_=line.look, d="M" + "L".join(f"{x * 10:.1f} {y * 10:.1f}" for x, y in at))


def _dots(line: Line, place: Any) -> list[Html]:
    at = [(*place(x, y), f"step {x:,.0f}: {figure(y, 4)}") for x, y in thin(line.points)]
    return [tag("circle", tag("title", t), class_=line.look, cx=f"{x:.2f}%", cy=f"{y:.2f}%", r="4") for x, y, t in at]


def _told(line: Line) -> str:
    """The line in a sentence, for those who cannot see it."""
    (x0, y0), (x1, y1), low = line.points[0], line.points[-1], min(line.points, key=lambda p: p[1])
    ends = f"from {figure(y0)} at step {x0:,.0f} to {figure(y1)} at step {x1:,.0f}"
    return f"{line.name}: {ends}, lowest {figure(low[1])} at step {low[0]:,.0f}."
