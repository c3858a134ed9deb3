"""A graph as SVG: force-directed layout, nodes colored by their predicted label."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .html import Html, tag

SIDE, MARGIN, R = 640, 40, 13
ITERATIONS = 300
MAX_NODES = 400  # more cannot be distinguished
COLORS = ("#00639c", "#b84a00", "#3a7d44", "#7a4fa3", "#8a6d00", "#a3254e", "#4c6a78", "#5b5b5b")
PAPER = "#fcfbf8"
Points = npt.NDArray[np.float64]


class NodePrediction(NamedTuple):
    """The predicted label of a node, its probability, whether the node was trained on, and the true label."""

    label: str
    probability: float
    learned: bool
    truth: str


def graph_svg(names: Sequence[str], edges: Sequence[tuple[int, int]], predictions: Sequence[NodePrediction]) -> str:
    """The graph as SVG. Pale: uncertain; thick outline: trained on; dashed outline: wrong prediction."""
    xy = (SIDE / 2 + _spring_layout(len(names), edges) * (SIDE / 2 - MARGIN)).round(1)
    labels = sorted({p.truth for p in predictions} | {p.label for p in predictions})
    colors = {label: COLORS[n % len(COLORS)] for n, label in enumerate(labels)}
    lines = [tag("line", x1=a[0], y1=a[1], x2=b[0], y2=b[1]) for a, b in ((xy[a], xy[b]) for a, b in edges)]
    nodes = [_node(name, xy[n], predictions[n], colors) for n, name in enumerate(names)]
    legend = []
    for n, label in enumerate(labels):
        legend.append(tag("circle", cx=16, cy=SIDE + 16 + 22 * n, r=7, fill=colors[label]))
        legend.append(tag("text", label, x=30, y=SIDE + 21 + 22 * n))
    background, box = tag("rect", width="100%", height="100%", fill=PAPER), f"0 0 {SIDE} {SIDE + 22 * len(labels) + 12}"
    body, namespace = (background, tag("g", lines, stroke="#b9b5a8"), nodes, legend), "http://www.w3.org/2000/svg"
    return tag("svg", body, xmlns=namespace, viewBox=box, font_family="sans-serif", font_size=13) + "\n"


def _node(name: str, xy: Points, node: NodePrediction, colors: Mapping[str, str]) -> Html:
    wrong, (x, y), opacity = node.label != node.truth, xy, max(0.25, 2 * node.probability - 1)
    outline = {"stroke": colors[node.truth], "stroke_dasharray": "4 3"} if wrong else {"stroke": "#1d2126"}
    outline["stroke_width"] = "4" if node.learned else "2.5" if wrong else "1"
    title = tag("title", f"{name}: {node.label} {100 * node.probability:.0f} %, true label {node.truth}")
    disc = tag("circle", cx=x, cy=y, r=R, fill=colors[node.label], fill_opacity=f"{opacity:.2f}", **outline)
    text = tag("text", name[:6], x=x, y=(y + 4).round(1), text_anchor="middle", font_size=10)
    return tag("g", title, tag("circle", cx=x, cy=y, r=R, fill=PAPER), disc, text)


def _spring_layout(n: int, edges: Sequence[tuple[int, int]]) -> Points:  # N 2
    """Coordinates in [-1, 1]: nodes repel each other, edges attract (Fruchterman and Reingold 1991)."""
    xy = np.random.default_rng(0).uniform(-1, 1, (n, 2))
    a, b = np.array(edges, np.int64).reshape(-1, 2).T
    k = 1 / np.sqrt(max(1, n))  # ideal edge length
    for step in range(ITERATIONS):
        offset = xy[:, None] - xy
        distance = np.maximum(np.linalg.norm(offset, axis=-1, keepdims=True), 1e-3)
        force = (offset / distance * k**2 / distance).sum(1) - 0.5 * k * xy  # and a weak pull to the center
        pull = (xy[a] - xy[b]) * np.linalg.norm(xy[a] - xy[b], axis=-1, keepdims=True) / k
        np.add.at(force, a, -pull)
        np.add.at(force, b, pull)
        norm = np.maximum(np.linalg.norm(force, axis=-1, keepdims=True), 1e-9)
        xy += force / norm * np.minimum(norm, 0.1 * (1 - step / ITERATIONS))
    xy -= xy.mean(0)
    return xy / max(1e-9, np.abs(xy).max())
