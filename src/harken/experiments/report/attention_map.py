"""Who looks at whom, as a picture: a row for each word that looks, a column for each it looks at, darker is more."""

import math
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from harken.data.tokenizers.pairs import GLUE
from harken.inference.run import Run

from .line_chart import Html, figure, tag

CELL, LETTER, SHOT = 26, 8, 64  # pixels
Weights = Sequence[Sequence[float]]


def cross(run: Run, text: str) -> tuple[list[str], list[str], Weights] | None:
    """The words written for a source, its own, and the weights: the mean over the heads of the last layer that looks
    from one to the other. None, if none does."""
    trace = run.trace(text)
    if not (views := trace.views.get("cross")):
        return None
    written, read = ([word.strip(GLUE) for word in words] for words in (trace.tokens, trace.source or []))
    return written, read, views[-1].whole()[0].mean(0).tolist()


def heat(rows: Sequence[str], columns: Sequence[str], weights: Weights) -> Html:
    """The weights as an inline SVG in the page's colours."""
    left, top = (12 + LETTER * max(map(len, words)) for words in (rows, columns))
    wide, tall = left + CELL * len(columns), top + CELL * len(rows)
    marks = []
    for n, word in enumerate(columns):
        at = left + CELL * (n + 0.5)
        marks.append(tag("text", word, x=at, y=top - 6, transform=f"rotate(-90 {at} {top - 6})", dy=".33em"))
    for m, (word, row) in enumerate(zip(rows, weights, strict=True)):
        y = top + CELL * m
        marks.append(tag("text", word, x=left - 6, y=y + CELL / 2, dy=".33em", text_anchor="end"))
        for n, (other, weight) in enumerate(zip(columns, row, strict=True)):
            told = tag("title", f"{word} looks at {other}: {figure(weight, 2)}")
            look = {"fill": "currentColor", "fill_opacity": f"{weight:.3f}", "width": CELL - 1, "height": CELL - 1}
            marks.append(tag("rect", told, x=left + CELL * n, y=y, **look))
    words = tag("title", f"{len(rows)} words written look at {len(columns)} words read")
    box = {"viewBox": f"0 0 {wide} {tall}", "width": wide, "height": tall}
    return tag("svg", words, tag("g", marks, fill="currentColor", font_size="13"), role="img", **box)


def maps(rows: Sequence[str], weights: Weights, picture: bytes) -> Html:
    """For each word the picture, and beside it what was looked at, patch by patch where they stand in it."""
    left, many = 12 + LETTER * max(map(len, rows)), math.isqrt(len(weights[0]))
    patch, shot = SHOT / many, f"data:image/png;base64,{b64encode(picture).decode()}"
    marks = []
    for m, (word, row) in enumerate(zip(rows, weights, strict=True)):
        y, top = (SHOT + 4) * m, max(row)
        marks.append(tag("text", word, x=left - 6, y=y + SHOT / 2, dy=".33em", text_anchor="end"))
        marks.append(tag("image", href=shot, x=left, y=y, width=SHOT, height=SHOT))
        for n, weight in enumerate(row):
            told = tag("title", f"{word} looks at row {n // many}, column {n % many}: {figure(weight, 2)}")
            x, down = left + SHOT + 4 + patch * (n % many), y + patch * (n // many)
            look = {
                "fill_opacity": f"{weight / top:.3f}",
                "width": f"{patch - 0.5:.2f}",
                "height": f"{patch - 0.5:.2f}",
            }
            marks.append(tag("rect", told, x=f"{x:.2f}", y=f"{down:.2f}", **look))
    words = tag("title", f"{len(rows)} words written look at {len(weights[0])} patches")
    wide, tall = left + 2 * SHOT + 4, (SHOT + 4) * len(rows)
    box = {"viewBox": f"0 0 {wide} {tall}", "width": wide, "height": tall}
    return tag("svg", words, tag("g", marks, fill="currentColor", font_size="13"), role="img", **box)


def drawn(path: Path, rows: Sequence[str], columns: Sequence[str], weights: Weights) -> bool:
    """Write the weights as a PNG; False without matplotlib, which draws it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    picture = Figure(figsize=(1.5 + 0.4 * len(columns), 1.2 + 0.4 * len(rows)), layout="constrained")
    axes = picture.subplots()
    axes.imshow(weights, cmap="Blues", vmin=0)
    axes.set_xticks(range(len(columns)), columns, rotation=90)
    axes.set_yticks(range(len(rows)), rows)
    axes.xaxis.tick_top()
    picture.savefig(path, dpi=150)
    return True
