"""Attention maps: a row per query token, a column per key token, darker for a larger weight."""

import math
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from harken.data.tokenizers.pairs import JOINER
from harken.inference.run import Run

from .formatting import format_number
from .html import Html, tag

CELL, CHARACTER, IMAGE = 26, 8, 64  # pixels
Weights = Sequence[Sequence[float]]


def source_attention(run: Run, text: str) -> dict[str, tuple[list[str], list[str], Weights]]:
    """The generated tokens, the source tokens and the weights: of the last cross-attention (the mean of its heads), and
    of the pointer of a model that copies."""
    trace = run.trace(text)
    target, source = ([token.strip(JOINER) for token in tokens] for tokens in (trace.tokens, trace.source or []))
    present = {kind: trace.views[kind][-1] for kind in ("cross", "pointer") if kind in trace.views}
    return {kind: (target, source, view.full()[0].mean(0).tolist()) for kind, view in present.items()}


def cross_attention(run: Run, text: str) -> tuple[list[str], list[str], Weights] | None:
    """The map of the cross-attention, if there is one."""
    return source_attention(run, text).get("cross")


def attention_svg(rows: Sequence[str], columns: Sequence[str], weights: Weights, kind: str = "") -> Html:
    """The weights as an inline SVG in the colors of the page; the kind is a part of its title."""
    left, top = (12 + CHARACTER * max(map(len, tokens)) for tokens in (rows, columns))
    width, height = left + CELL * len(columns), top + CELL * len(rows)
    marks = []
    for n, token in enumerate(columns):
        x = left + CELL * (n + 0.5)
        marks.append(tag("text", token, x=x, y=top - 6, transform=f"rotate(-90 {x} {top - 6})", dy=".33em"))
    for m, (query, row) in enumerate(zip(rows, weights, strict=True)):
        y = top + CELL * m
        marks.append(tag("text", query, x=left - 6, y=y + CELL / 2, dy=".33em", text_anchor="end"))
        for n, (key, weight) in enumerate(zip(columns, row, strict=True)):
            title = tag("title", f"{query} attends to {key}: {format_number(weight, 2)}")
            style = {"fill": "currentColor", "fill_opacity": f"{weight:.3f}", "width": CELL - 1, "height": CELL - 1}
            marks.append(tag("rect", title, x=left + CELL * n, y=y, **style))
    caption = f"{kind} attention of {len(rows)} generated tokens to {len(columns)} source tokens".strip()
    return _svg(caption, marks, width, height)


def patch_maps_svg(rows: Sequence[str], weights: Weights, png: bytes) -> Html:
    """For each token the image, and beside it the attention weight of every patch at its position."""
    left, side = 12 + CHARACTER * max(map(len, rows)), math.isqrt(len(weights[0]))
    patch, source = IMAGE / side, f"data:image/png;base64,{b64encode(png).decode()}"
    size = f"{patch - 0.5:.2f}"
    marks = []
    for m, (query, row) in enumerate(zip(rows, weights, strict=True)):
        y, highest = (IMAGE + 4) * m, max(row)
        marks.append(tag("text", query, x=left - 6, y=y + IMAGE / 2, dy=".33em", text_anchor="end"))
        marks.append(tag("image", href=source, x=left, y=y, width=IMAGE, height=IMAGE))
        for n, weight in enumerate(row):
            title = tag("title", f"{query} attends to row {n // side}, column {n % side}: {format_number(weight, 2)}")
            x, top = left + IMAGE + 4 + patch * (n % side), y + patch * (n // side)
            style = {"fill_opacity": f"{weight / highest:.3f}", "width": size, "height": size}
            marks.append(tag("rect", title, x=f"{x:.2f}", y=f"{top:.2f}", **style))
    caption = f"attention of {len(rows)} generated tokens to {len(weights[0])} patches"
    return _svg(caption, marks, left + 2 * IMAGE + 4, (IMAGE + 4) * len(rows))


def _svg(title: str, marks: list[Html], width: int, height: int) -> Html:
    box = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height}
    return tag("svg", tag("title", title), tag("g", marks, fill="currentColor", font_size="13"), role="img", **box)


def save_attention_png(path: Path, rows: Sequence[str], columns: Sequence[str], weights: Weights) -> bool:
    """Write the weights as a PNG; False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(1.5 + 0.4 * len(columns), 1.2 + 0.4 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(weights, cmap="Blues", vmin=0)
    axes.set_xticks(range(len(columns)), columns, rotation=90)
    axes.set_yticks(range(len(rows)), rows)
    axes.xaxis.tick_top()
    figure.savefig(path, dpi=150)
    return True
