"""Panels: contours, scales and texts of a standalone picture."""

import math
from xml.etree import ElementTree

import numpy as np
import pytest

from harken.experiments.report.panels import Axis, Cells, Curve, Dots, Panel, contour, panels_svg, shade


def test_a_contour_of_a_cone_is_a_circle():
    x = np.linspace(-2, 2, 41)
    segments = list(contour(x, x, np.hypot(*np.meshgrid(x, x)), 1.3))
    points = [point for segment in segments for point in segment]
    assert max(abs(math.hypot(*point) - 1.3) for point in points) < 0.01
    length = sum(math.dist(a, b) for a, b in segments)
    assert length == pytest.approx(2 * math.pi * 1.3, rel=0.01)


def test_a_level_outside_the_surface_has_no_contour():
    x = np.linspace(0, 1, 5)
    assert list(contour(x, x, np.ones((5, 5)), 2.0)) == []


def test_y_grows_upwards_in_a_plot_and_downwards_in_a_matrix():
    plot, matrix = (Panel("", "", Axis("x", 0, 10), Axis("y", 0, 10), [], down=down) for down in (False, True))
    assert plot.place(10, 10) == (250, 0)
    assert matrix.place(10, 10) == (250, 250)


def test_shades_reach_from_white_to_blue():
    assert (shade(0.0), shade(1.0)) == ("#ffffff", "#00548a")


def test_a_picture_has_all_marks_and_texts_once():
    cells = Panel("M <1>", "note", Axis("key", 0, 2), Axis("query", 0, 2), [Cells(np.eye(2))], down=True)
    marks = [Dots([(0, 0), (1, 1)], names=["a", "b"]), Curve([(0, 0), (1, 1)])]
    plot = Panel("P", "", Axis("x", 0, 1), Axis("y", 0, 1), marks)
    tree = ElementTree.fromstring(panels_svg("both", [cells, plot]))
    tags = [element.tag.rpartition("}")[2] for element in tree.iter()]
    assert (tags.count("circle"), tags.count("path"), tags.count("rect")) == (2, 1, 2 + 2 + 1)  # cells, frames, paper
    texts = [element.text for element in tree.iter() if element.text]
    assert all(texts.count(name) == 1 for name in ("M <1>", "note", "key", "query", "a", "b"))
