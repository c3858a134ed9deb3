"""A graph as a picture (SVG): nodes where springs between neighbours pull them, coloured by what is said of them."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

SIDE, MARGIN, R = 640, 40, 13
ROUNDS = 300
MOST = 400  # nodes that can be told apart
COLOURS = ("#00639c", "#b84a00", "#3a7d44", "#7a4fa3", "#8a6d00", "#a3254e", "#4c6a78", "#5b5b5b")
Points = npt.NDArray[np.float64]


class Said(NamedTuple):
    """What is said of a node: a label of how great a probability; whether it was learned from, and what is so."""

    label: str
    probability: float
    learned: bool
    truth: str


def picture(names: Sequence[str], pairs: Sequence[tuple[int, int]], said: Sequence[Said]) -> str:
    """The graph as SVG. Paler nodes are less certain, thick rings were learned from, dashed ones are said wrongly."""
    at = SIDE / 2 + _sprung(len(names), pairs) * (SIDE / 2 - MARGIN)
    labels = sorted({s.truth for s in said} | {s.label for s in said})
    colour = {label: COLOURS[n % len(COLOURS)] for n, label in enumerate(labels)}
    lines = [
        f'<line x1="{at[a][0]:.1f}" y1="{at[a][1]:.1f}" x2="{at[b][0]:.1f}" y2="{at[b][1]:.1f}"/>' for a, b in pairs
    ]
    dots = [_dot(name, at[n], said[n], colour) for n, name in enumerate(names)]
    legend = [
        f'<circle cx="16" cy="{SIDE + 16 + 22 * n}" r="7" fill="{colour[label]}"/>'
        f'<text x="30" y="{SIDE + 21 + 22 * n}">{escape(label)}</text>'
        for n, label in enumerate(labels)
    ]
    high = SIDE + 22 * len(labels) + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIDE} {high}" font-family="sans-serif" font-size="13">'
        f'<rect width="100%" height="100%" fill="#fcfbf8"/><g stroke="#b9b5a8">{"".join(lines)}</g>'
        f"{''.join(dots)}{''.join(legend)}</svg>\n"
    )


def _dot(name: str, at: Any, said: Said, colour: Mapping[str, str]) -> str:
    ring = f' stroke-dasharray="4 3" stroke="{colour[said.truth]}"' if said.label != said.truth else ' stroke="#1d2126"'
    width = 4 if said.learned else 2.5 if said.label != said.truth else 1
    told = f"{name}: {said.label} {100 * said.probability:.0f} %, in truth {said.truth}"
    sure = max(0.25, 2 * said.probability - 1)
    return (
        f'<g><title>{escape(told)}</title><circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{R}" fill="#fcfbf8"/>'
        f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{R}" fill="{colour[said.label]}" fill-opacity="{sure:.2f}"'
        f'{ring} stroke-width="{width}"/>'
        f'<text x="{at[0]:.1f}" y="{at[1] + 4:.1f}" text-anchor="middle" font-size="10">{escape(name[:6])}</text></g>'
    )


def _sprung(n: int, pairs: Sequence[tuple[int, int]]) -> Points:  # N 2
    """Places from -1 to 1: all nodes push each other away, and edges pull (Fruchterman and Reingold 1991)."""
    at = np.random.default_rng(0).uniform(-1, 1, (n, 2))
    a, b = np.array(pairs, np.int64).reshape(-1, 2).T
    near = 1 / np.sqrt(max(1, n))
    for step in range(ROUNDS):
        apart = at[:, None] - at
        far = np.maximum(np.linalg.norm(apart, axis=-1, keepdims=True), 1e-3)
        force = (apart / far * near**2 / far).sum(1) - 0.5 * near * at  # and all are drawn to the middle
        pull = (at[a] - at[b]) * np.linalg.norm(at[a] - at[b], axis=-1, keepdims=True) / near
        np.add.at(force, a, -pull)
        np.add.at(force, b, pull)
        long = np.maximum(np.linalg.norm(force, axis=-1, keepdims=True), 1e-9)
        at += force / long * np.minimum(long, 0.1 * (1 - step / ROUNDS))
    at -= at.mean(0)
    return at / max(1e-9, np.abs(at).max())
