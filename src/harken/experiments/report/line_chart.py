"""Line charts as inline SVG, and the two things every page needs: escaped HTML and numbers for people.

A chart has no fixed size: places are percentages, so its letters stay readable on a phone and on paper.
"""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

Point = tuple[float, float]
HUGE = 1e30  # beyond this a value says only that something broke, and drawing it would hide all others
MOST = 500  # points of a line: more cannot be told apart on a screen
UNSEEN = {c: 0x2400 + c for c in range(32) if chr(c) not in "\t\n"}  # their pictures
UNSEEN |= dict.fromkeys((*range(127, 160), *range(0xD800, 0xE000)), 0xFFFD)
UNITS = {  # from where on, divided by what, called what; energy comes in kWh, mass in kg
    "count": ((1e9, 1e9, "B"), (1e5, 1e6, "M"), (1e4, 1e3, "k")),
    "flop": tuple((n, n, c + "FLOP") for n, c in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))),
    "energy": ((1e3, 1e3, "MWh"), (0.1, 1, "kWh"), (1e-4, 1e-3, "Wh"), (0, 1e-6, "mWh")),
    "mass": ((1e3, 1e3, "t"), (0.1, 1, "kg"), (1e-4, 1e-3, "g"), (0, 1e-6, "mg")),
}
TONES = ("#0079b8", "#cf5a00", "#008f68", "#b05a9a", "#8a7000", "#d03d4d", "#008c99", "#7a7a7a")  # on light and dark

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
for n, tone in enumerate(TONES, 1):
    MARKS += f".plot path.t{n}, .plot line.t{n} {{ stroke: {tone} }} .plot circle.t{n} {{ fill: {tone} }}\n"
    CSS += f".key.t{n}::before {{ border-color: {tone} }}\n"
CSS += MARKS + ".key.dashed::before { border-top-style: dashed }\n"


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
    """A number with so many digits that mean something; words stay as they are, None is nothing."""
    if not isinstance(value, float) or not math.isfinite(value):
        return "" if value is None else f"{value:,}" if type(value) is int else str(value)
    if value == 0 or not 1e-4 <= abs(value) < 1e9:
        return f"{value:.{digits}g}".replace("e-0", "e-").replace("e+", "e")
    return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def scaled(value: Any, what: str) -> str:
    """A number in the unit that suits it: 0.83 M, 0.33 Wh."""
    if (x := number(value)) is None or x < 0:
        return figure(value)
    factor, name = next(((factor, name) for start, factor, name in UNITS[what] if x >= start), (1, ""))
    return f"{figure(value if factor == 1 else x / factor, 2)} {name}".strip()


def duration(value: Any) -> str:
    """Seconds as people say them: 4 min 0 s."""
    if (x := number(value)) is None or x < 10:
        return figure(value) if x is None else f"{x:.1f} s"
    minutes, seconds = divmod(round(x), 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours:,} h {rest} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


@dataclass(frozen=True)
class Line:
    """Points (x, y) in the order of x, and how they are drawn."""

    name: str
    points: Sequence[Point]
    look: Literal["line", "faint", "dots"] = "line"
    tone: int = 0  # which colour; 0: the page's own

    @property
    def classes(self) -> str:
        return f"{self.look} {toned(self.tone)}".strip()


@dataclass(frozen=True)
class Picture:
    """A drawn chart: a figure on a page, or a part of a file of its own."""

    title: str
    note: str
    keys: Sequence[tuple[str, str]]  # the name of each line, and its classes
    told: str  # in words, for those who cannot see it
    marks: Html
    small: bool = False
    rows: int = 0  # if it is made of rows: how many, each 2.5 lines high

    def figure(self) -> Html:
        keys = [tag("span", name, class_=f"key {classes}") for name, classes in self.keys]
        words, tall = (tag("title", self.title), tag("desc", self.told)), f"height: {2.5 * self.rows}rem"
        look = "plot small" if self.small else "plot"
        plot = tag("svg", words, self.marks, class_=look, role="img", style=tall if self.rows else None)
        return tag("figure", tag("figcaption", tag("b", self.title), self.note, keys), plot)


def toned(tone: int) -> str:
    """The classes of a colour; when all were used, they come again dashed."""
    return f"t{(tone - 1) % len(TONES) + 1}{' dashed' * (tone > len(TONES))}" if tone else ""


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
    for places in (range(start, end) for start, end in pairwise(edges)):
        kept |= {min(places, key=lambda i: points[i][1]), max(places, key=lambda i: points[i][1])}
    return [points[i] for i in sorted(kept)]


def smooth(points: Sequence[Point], most: int = 200) -> list[Point]:
    """The mean around each place, over less at the start, where a loss falls fast. Fewer than 20 points need none."""
    n = len(points)
    out = []
    for i in sorted({i * (n - 1) // max(1, most - 1) for i in range(most if n >= 20 else 0)}):
        half = min(i, max(1, n // 30))
        window = points[i - half : i + half + 1]
        out.append((points[i][0], sum(y for _, y in window) / len(window)))
    return out


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten apart, the first not above `low`, the last not below `high`."""
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):  # one value alone: some room around it
        room = abs(high) / 10 if abs(high) > 1e-9 else 1.0
        low, high = low - room, high + room
    rough = (high - low) / about
    power = math.floor(math.log10(rough))
    step = next(m * 10.0**power for m in (1, 2, 5, 10) if m * 10.0**power >= rough)
    return [round(k * step, 1 - power) for k in range(math.floor(low / step), math.ceil(high / step) + 1)]


def labels(ticks: Sequence[float]) -> list[str]:
    """The ticks of an axis in writing, all in the same unit and with as many decimals as their distance has."""
    step, top = (ticks[1] - ticks[0] if len(ticks) > 1 else 1.0), max(map(abs, ticks))
    if step < 1e-4 or top >= 1e9:
        return [f"{tick:.12g}".replace("e-0", "e-").replace("e+", "e") for tick in ticks]
    factor, unit = next(pair for pair in ((1e6, " M"), (1e3, " k"), (1, "")) if top >= 10 * pair[0] or pair[0] == 1)
    decimals = max(0, -math.floor(math.log10(step / factor) + 1e-9))
    return [f"{tick / factor:,.{decimals}f}{unit}" if tick else "0" for tick in ticks]


def chart(title: str, lines: Iterable[Line], **how: Any) -> Html:
    """The lines as a figure of a page; nothing if there is no point. Options: those of `drawn`."""
    picture = drawn(title, lines, **how)
    return picture.figure() if picture else Html()


def drawn(
    title: str,
    lines: Iterable[Line],
    *,
    note: str = "",
    level: Line | None = None,
    zero: bool = False,
    unit: str = "step",
    log: bool = False,
) -> Picture | None:
    """The lines over steps, or over another unit. A level is a line to be compared with; zero: a small one, from 0;
    log: equal ratios are equally far apart, and the numbers below are those of the points."""
    if not (lines := [replace(line, points=here) for line in lines if (here := finite(line.points))]):
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

    def place(x: float, y: float) -> Point:
        return (scale(x) - start) / width * 100, (ys[-1] - y) / (ys[-1] - ys[0]) * 100

    marks: list[Html] = []
    for y, word in zip(ys, labels(ys), strict=True):
        at = f"{place(left, y)[1]:.2f}%"
        marks += [tag("line", x1="0", x2="100%", y1=at, y2=at), tag("text", word, class_="y", x="-9", y=at, dy=".33em")]
    marks += below([place(x, 0)[0] for x in xs], xs, unit)
    if level:
        at = f"{place(left, level.points[0][1])[1]:.2f}%"
        marks += [tag("line", class_="level", x1="0", x2="100%", y1=at, y2=at)]
        marks += [tag("text", level.name, class_="level", x="100%", y=at, dy="-.45em")]
    curves = [_curve(line, place) for line in lines if line.look != "dots" and len(line.points) > 1]
    marks += [tag("svg", curves, viewBox="0 0 1000 1000", preserveAspectRatio="none")] if curves else []
    marks += [dot for line in lines if line.look == "dots" or len(line.points) == 1 for dot in _dots(line, place, unit)]
    keys = list({line.name: line.classes for line in lines}.items())  # lines of one name have one key
    told = " ".join(_told(line, unit) for line in lines)
    return Picture(title, note, keys if len(keys) > 1 else (), told, Html("".join(marks)), small=zero)


def _curve(line: Line, place: Any) -> Html:
    at = (place(x, y) for x, y in thin(line.points))
    d = "M" + "L".join(f"{x * 10:.1f} {y * 10:.1f}" for x, y in at)
    return tag("path", tag("title", line.name) if line.tone else None, class_=line.classes, d=d)


def _dots(line: Line, place: Any, unit: str) -> list[Html]:
    at = [(*place(x, y), f"{_at(x, unit)}: {figure(y, 4)}") for x, y in thin(line.points)]
    look = line.classes
    return [tag("circle", tag("title", t), class_=look, cx=f"{x:.2f}%", cy=f"{y:.2f}%", r="4") for x, y, t in at]


def below(places: Sequence[float], ticks: Sequence[float], unit: str = "") -> list[Html]:
    """The numbers under an axis, at these percentages; the first says what is counted."""
    words = labels(ticks)
    return [
        tag("text", f"{unit} {word}".strip() if n == 0 else word, class_="x", x=f"{at:.2f}%", y="100%", dy="1.6em")
        for n, (at, word) in enumerate(zip(places, words, strict=True))
    ]


def _at(x: float, unit: str) -> str:
    return f"{unit} {f'{x:,.0f}' if x == int(x) or x >= 100 else figure(x)}"


def _told(line: Line, unit: str) -> str:
    """The line in a sentence, for those who cannot see it."""
    (x0, y0), (x1, y1) = line.points[0], line.points[-1]
    pick, word = (max, "highest") if y1 > y0 else (min, "lowest")
    x, y = pick(line.points, key=lambda p: p[1])
    ends = f"from {figure(y0)} at {_at(x0, unit)} to {figure(y1)} at {_at(x1, unit)}"
    return f"{line.name}: {ends}, {word} {figure(y)} at {_at(x, unit)}."
