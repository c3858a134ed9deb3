"""The loss on the plane of a `Landscape` as contours."""

from collections.abc import Sequence

import numpy as np

from harken.analysis.landscape import Landscape

from .formatting import Point, format_number
from .panels import Axis, Contours, Curve, Dots, Mark, Panel, panels_svg

N_LEVELS = 14


def landscape_panel(landscape: Landscape, title: str, *, path: Sequence[Point] = (), name: str = "weights") -> Panel:
    """The contours of the loss, the weights in the center, and a path of weights projected to the plane."""
    radius, losses = float(landscape.coordinates[-1]), landscape.losses
    low, high = float(losses.min()), float(losses.max())
    levels = low + (high - low) * ((np.arange(N_LEVELS) + 0.5) / N_LEVELS) ** 2  # closer together at the bottom
    marks: list[Mark] = [Contours(landscape.coordinates, landscape.coordinates, losses, levels.tolist())]
    if path:
        marks += [Curve(path, color=2), Dots([path[-1]], color=2, names=["end"])]
    marks.append(Dots([(0.0, 0.0)], color=6, radius=4, names=[name]))
    x, y = (
        Axis(f"{letter}: eigenvector of eigenvalue {format_number(curvature)}", -radius, radius)
        for letter, curvature in zip("xy", landscape.curvatures, strict=True)
    )
    note = f"loss {format_number(landscape.loss, 3)}; contours from {low:.3g} to {high:.3g}"
    return Panel(title, note, x, y, marks)


def landscape_svg(landscape: Landscape, title: str = "Loss around the weights") -> str:
    """The picture as an SVG file."""
    return panels_svg(title, [landscape_panel(landscape, "Contours of the loss")])
