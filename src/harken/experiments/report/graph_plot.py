"""A graph as SVG: force-directed layout, nodes colored by their predicted label."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SIDE, MARGIN, R = 640, 40, 13
ITERATIONS = 300
MAX_NODES = 400  # more cannot be distinguished
COLORS = ("#00639c", "#b84a00", "#3a7d44", "#7a4fa3", "#8a6d00", "#a3254e", "#4c6a78", "#5b5b5b")
Points = npt.NDArray[np.float64]


class NodePrediction(NamedTuple):
    """The predicted label of a node, its probability, whether the node was trained on, and the true label."""

    label: str
    probability: float
    learned: bool
    truth: str


def graph_svg(names: Sequence[str], edges: Sequence[tuple[int, int]], predictions: Sequence[NodePrediction]) -> str:
    """The graph as SVG. Pale: uncertain; thick outline: trained on; dashed outline: wrong prediction."""
    xy = SIDE / 2 + _spring_layout(len(names), edges) * (SIDE / 2 - MARGIN)
    labels = sorted({p.truth for p in predictions} | {p.label for p in predictions})
    colors = {label: COLORS[n % len(COLORS)] for n, label in enumerate(labels)}
    lines = [
        f'<line x1="{xy[a][0]:.1f}" y1="{xy[a][1]:.1f}" x2="{xy[b][0]:.1f}" y2="{xy[b][1]:.1f}"/>' for a, b in edges
    ]
    nodes = [_node(name, xy[n], predictions[n], colors) for n, name in enumerate(names)]
    legend = [
        f'<circle cx="16" cy="{SIDE + 16 + 22 * n}" r="7" fill="{colors[label]}"/>'
        f'<text x="30" y="{SIDE + 21 + 22 * n}">{escape(label)}</text>'
        for n, label in enumerate(labels)
    ]
    height = SIDE + 22 * len(labels) + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIDE} {height}" font-family="sans-serif"'
        f' font-size="13"><rect width="100%" height="100%" fill="#fcfbf8"/><g stroke="#b9b5a8">{"".join(lines)}</g>'
        f"{''.join(nodes)}{''.join(legend)}</svg>\n"
    )


def _node(name: str, xy: Points, node: NodePrediction, colors: Mapping[str, str]) -> str:
    wrong = node.label != node.truth
    outline = f' stroke-dasharray="4 3" stroke="{colors[node.truth]}"' if wrong else ' stroke="#1d2126"'
    width = 4 if node.learned else 2.5 if wrong else 1
    title = f"{name}: {node.label} {100 * node.probability:.0f} %, true label {node.truth}"
    opacity = max(0.25, 2 * node.probability - 1)
    return (
        f'<g><title>{escape(title)}</title><circle cx="{xy[0]:.1f}" cy="{xy[1]:.1f}" r="{R}" fill="#fcfbf8"/>'
        f'<circle cx="{xy[0]:.1f}" cy="{xy[1]:.1f}" r="{R}" fill="{colors[node.label]}" fill-opacity="{opacity:.2f}"'
        f'{outline} stroke-width="{width}"/>'
        f'<text x="{xy[0]:.1f}" y="{xy[1] + 4:.1f}" text-anchor="middle" font-size="10">{escape(name[:6])}</text></g>'
    )


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
