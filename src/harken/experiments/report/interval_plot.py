"""Intervals below each other over one axis, and charts in an SVG file of their own."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .line_chart import MARKS, TONES, Html, Line, Picture, below, figure, tag, ticks, toned

WIDTH, LEFT, RIGHT, TALL, SMALL, ROW, LETTER = 900, 64, 28, 280, 112, 40, 7  # pixels
COLOURS = {"ink": "#1d2126", "soft": "#59606a", "rule": "#dfdcd3", "paper": "#ffffff"}
COLOURS |= {"accent": TONES[0], "valid": TONES[1]}


@dataclass(frozen=True)
class Span:
    """A number, the interval it is thought to lie in, and the numbers it was found from."""

    name: str
    middle: float
    ends: tuple[float, float] | None = None
    points: Sequence[float] = ()
    tone: int = 0


def spans(title: str, rows: Sequence[Span], *, note: str = "", level: Line | None = None) -> Picture:
    """Each number with its interval, one below the other. A level is a number to be compared with."""
    known = [x for row in rows for x in (row.middle, *(row.ends or ()), *row.points)]
    known += [level.points[0][1]] if level else []
    xs = ticks(min(known), max(known), 6)

    def place(x: float) -> float:
        return (x - xs[0]) / (xs[-1] - xs[0]) * 100

    def across(x: float) -> str:
        return f"{place(x):.2f}%"

    marks = [tag("line", x1=across(x), x2=across(x), y1="0", y2="100%") for x in xs]
    marks += below([place(x) for x in xs], xs)
    if level:
        at = across(level.points[0][1])
        marks += [tag("line", class_="level", x1=at, x2=at, y1="0", y2="100%")]
    for n, row in enumerate(rows):
        at, tone = f"{(n + 0.68) / len(rows) * 100:.2f}%", toned(row.tone)
        marks += [tag("text", row.name, class_="name", x="4", y=at, dy="-.7em")]
        if row.ends:
            low, high = map(across, row.ends)
            marks += [tag("line", class_=f"span {tone}", x1=low, x2=high, y1=at, y2=at)]
        marks += [tag("circle", class_=f"seed {tone}", cx=across(x), cy=at, r="2.5") for x in row.points]
        said = tag("title", f"{row.name}: {figure(row.middle, 4)}")
        marks += [tag("circle", said, class_=tone, cx=across(row.middle), cy=at, r="4.5")]
    told = " ".join(f"{row.name}: {figure(row.middle, 4)}." for row in rows)
    note = f"{note}; dashed: {level.name}" if level else note
    return Picture(title, note, (), told, Html("".join(marks)), rows=len(rows))


def alone(title: str, pictures: Sequence[Picture]) -> str:
    """The pictures below each other as one SVG file. Its colours and sizes are its own: it needs no page."""
    down, parts = 16, []
    for picture in pictures:
        head = tag("tspan", picture.title, class_="title"), tag("tspan", picture.note, dx="8")
        parts += [tag("text", head, x=LEFT, y=(down := down + 16))]
        keys, down = _keys(picture, down + 8)
        tall = ROW * picture.rows if picture.rows else SMALL if picture.small else TALL
        wide = WIDTH - LEFT - RIGHT
        parts += [*keys, tag("svg", picture.marks, x=LEFT, y=down + 10, width=wide, height=tall, overflow="visible")]
        down += tall + 56
    css = re.sub(r"var\(--(\w+)\)", lambda m: COLOURS[m[1]], MARKS)
    css = re.sub(r"([\d.]+)rem", lambda m: f"{float(m[1]) * 16:g}px", css)
    css += "text { font: 12px system-ui, sans-serif; fill: #59606a } .title { font-weight: 600; fill: #1d2126 }"
    back = tag("rect", width="100%", height="100%", fill=COLOURS["paper"])
    body = tag("title", title), tag("style", Html(css)), back, tag("g", parts, class_="plot")
    box = {"viewBox": f"0 0 {WIDTH} {down}", "width": WIDTH, "height": down}
    return tag("svg", body, xmlns="http://www.w3.org/2000/svg", **box) + "\n"


def _keys(picture: Picture, down: int) -> tuple[list[Html], int]:
    """The names of the lines, each behind a piece of its line, in as many rows as they need; where they end."""
    parts: list[Html] = []
    right = LEFT
    for name, classes in picture.keys:
        wide = 44 + LETTER * len(name)
        if right > LEFT and right + wide > WIDTH - RIGHT:
            right, down = LEFT, down + 18
        parts += [tag("path", class_=classes, d=f"M{right} {down + 4}h22"), tag("text", name, x=right + 28, y=down + 8)]
        right += wide
    return parts, down + 14 if parts else down
