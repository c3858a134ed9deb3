"""Interval plots, and charts in a standalone SVG file."""

import re
from xml.etree import ElementTree

import pytest

from harken.experiments.report.charts import COLORS, Interval, Line, draw_chart, interval_plot, standalone_svg
from harken.experiments.report.page import CSS

ROWS = [Interval("a", 2.0, (1.5, 2.5), [1.8, 2.2], 1), Interval("<b>", 3.0, None, [3.0], 2)]
SVG = "{http://www.w3.org/2000/svg}"


def svg_content(chart) -> ElementTree.Element:
    return ElementTree.fromstring(standalone_svg("x", [chart])).find(f"{SVG}g/{SVG}svg")


def fraction(percent: str) -> float:
    return float(percent.rstrip("%")) / 100


def test_an_interval_is_drawn_at_its_values():
    marks = svg_content(interval_plot("x", ROWS))
    numbers = [
        (fraction(text.get("x")), float(text.text)) for text in marks.iter(f"{SVG}text") if text.get("class") == "x"
    ]
    (left, low), (right, high) = numbers[0], numbers[-1]
    [line] = [line for line in marks.iter(f"{SVG}line") if "span" in (line.get("class") or "")]
    ends = [low + (fraction(line.get(end)) - left) / (right - left) * (high - low) for end in ("x1", "x2")]
    assert ends == pytest.approx([1.5, 2.5], abs=1e-3)
    assert [circle.get("class") for circle in marks.iter(f"{SVG}circle")] == [
        "seed t1",
        "seed t1",
        "t1",
        "seed t2",
        "t2",
    ]


def test_rows_are_drawn_below_each_other_with_their_names():
    marks = svg_content(interval_plot("x", ROWS))
    names = [(text.text, fraction(text.get("y"))) for text in marks.iter(f"{SVG}text") if text.get("class") == "name"]
    assert [name for name, _ in names] == ["a", "<b>"]
    assert 0 < names[0][1] < names[1][1] < 1


def test_a_level_extends_the_axis_and_is_named():
    chart = interval_plot("x", ROWS, note="mean", level=("baseline", 9.0))
    assert chart.note == "mean; dashed: baseline: 9.00"
    assert all(0 <= fraction(line.get("x1")) <= 1 for line in svg_content(chart).iter(f"{SVG}line"))


def test_the_svg_file_is_standalone_and_charts_do_not_overlap():
    lines = [Line(f"line {n}", [(0.0, 1.0), (9.0, 2.0 + n)], color=n) for n in range(1, 31)]
    text = standalone_svg("verdict <b>", [interval_plot("x", ROWS), draw_chart("y", lines, unit="seconds")])
    chart = ElementTree.fromstring(text)
    assert "var(" not in text
    assert "rem" not in text
    assert chart.find(f"{SVG}title").text == "verdict <b>"
    plots = [(int(p.get("y")), int(p.get("height"))) for p in chart.iter(f"{SVG}svg") if p.get("y")]
    keys = [int(t.get("y")) for t in chart.iter(f"{SVG}text") if (t.text or "").startswith("line ")]
    assert plots[0][0] + plots[0][1] < min(keys) <= max(keys) < plots[1][0]
    assert plots[1][0] + plots[1][1] < int(chart.get("height"))


def test_lines_with_the_same_name_share_one_key_and_color():
    lines = [Line("a", [(0.0, x), (1.0, x)], color=1) for x in (1.0, 2.0)] + [Line("b", [(0.0, 3.0)], color=2)]
    assert list(draw_chart("x", lines).keys) == [("a", "line t1"), ("b", "line t2")]


def test_colors_repeat_dashed():
    lines = [Line(str(n), [(0.0, 1.0)], color=n) for n in range(1, len(COLORS) + 3)]
    styles = [style for _, style in draw_chart("x", lines).keys]
    assert styles[len(COLORS)] == "line t1 dashed"
    assert len(set(styles)) == len(lines)


def test_time_ticks_may_be_fractional_and_step_ticks_are_integers():
    short = [Line("a", [(0.1, 1.0), (0.5, 2.0)])]
    assert [
        t.text for t in svg_content(draw_chart("x", short, unit="seconds")).iter(f"{SVG}text") if t.get("class") == "x"
    ][1] == "0.1"
    assert [t.text for t in svg_content(draw_chart("x", short)).iter(f"{SVG}text") if t.get("class") == "x"] == [
        "step 0"
    ]


def luminance(color: str) -> float:
    parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("color", COLORS)
def test_every_line_color_is_visible_on_light_and_dark_background(color):
    for paper in re.findall(r"--paper: (#[0-9a-f]{6})", CSS):
        dark, light = sorted([luminance(color), luminance(paper)])
        assert (light + 0.05) / (dark + 0.05) >= 3, paper
