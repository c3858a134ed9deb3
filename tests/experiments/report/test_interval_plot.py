"""Intervals drawn where they are, and charts that stand in a file of their own."""

import re
from xml.etree import ElementTree

import pytest

from harken.experiments.report.interval_plot import Span, alone, spans
from harken.experiments.report.line_chart import TONES, Line, drawn
from harken.experiments.report.page import CSS

ROWS = [Span("a", 2.0, (1.5, 2.5), [1.8, 2.2], 1), Span("<b>", 3.0, None, [3.0], 2)]
SVG = "{http://www.w3.org/2000/svg}"


def inside(picture) -> ElementTree.Element:
    return ElementTree.fromstring(alone("x", [picture])).find(f"{SVG}g/{SVG}svg")


def share(words: str) -> float:
    return float(words.rstrip("%")) / 100


def test_an_interval_lies_where_its_numbers_are():
    marks = inside(spans("x", ROWS))
    numbers = [
        (share(text.get("x")), float(text.text)) for text in marks.iter(f"{SVG}text") if text.get("class") == "x"
    ]
    (left, low), (right, high) = numbers[0], numbers[-1]
    [line] = [line for line in marks.iter(f"{SVG}line") if "span" in (line.get("class") or "")]
    seen = [low + (share(line.get(end)) - left) / (right - left) * (high - low) for end in ("x1", "x2")]
    assert seen == pytest.approx([1.5, 2.5], abs=1e-3)
    assert [circle.get("class") for circle in marks.iter(f"{SVG}circle")] == [
        "seed t1",
        "seed t1",
        "t1",
        "seed t2",
        "t2",
    ]


def test_rows_stand_below_each_other_each_with_its_name():
    marks = inside(spans("x", ROWS))
    names = [(text.text, share(text.get("y"))) for text in marks.iter(f"{SVG}text") if text.get("class") == "name"]
    assert [name for name, _ in names] == ["a", "<b>"]
    assert 0 < names[0][1] < names[1][1] < 1


def test_a_level_widens_the_axis_and_is_named():
    picture = spans("x", ROWS, note="mean", level=Line("free: 9", [(0.0, 9.0)]))
    assert picture.note == "mean; dashed: free: 9"
    assert all(0 <= share(line.get("x1")) <= 1 for line in inside(picture).iter(f"{SVG}line"))


def test_the_file_needs_no_page_and_no_two_pictures_share_a_place():
    lines = [Line(f"line {n}", [(0.0, 1.0), (9.0, 2.0 + n)], tone=n) for n in range(1, 31)]
    text = alone("verdict <b>", [spans("x", ROWS), drawn("y", lines, unit="seconds")])
    picture = ElementTree.fromstring(text)
    assert "var(" not in text
    assert "rem" not in text
    assert picture.find(f"{SVG}title").text == "verdict <b>"
    plots = [(int(p.get("y")), int(p.get("height"))) for p in picture.iter(f"{SVG}svg") if p.get("y")]
    keys = [int(t.get("y")) for t in picture.iter(f"{SVG}text") if (t.text or "").startswith("line ")]
    assert plots[0][0] + plots[0][1] < min(keys) <= max(keys) < plots[1][0]
    assert plots[1][0] + plots[1][1] < int(picture.get("height"))


def test_lines_of_one_name_have_one_key_and_one_colour():
    lines = [Line("a", [(0.0, x), (1.0, x)], tone=1) for x in (1.0, 2.0)] + [Line("b", [(0.0, 3.0)], tone=2)]
    assert list(drawn("x", lines).keys) == [("a", "line t1"), ("b", "line t2")]


def test_when_the_colours_are_used_up_they_come_again_dashed():
    lines = [Line(str(n), [(0.0, 1.0)], tone=n) for n in range(1, len(TONES) + 3)]
    looks = [look for _, look in drawn("x", lines).keys]
    assert looks[len(TONES)] == "line t1 dashed"
    assert len(set(looks)) == len(lines)


def test_time_may_have_parts_of_a_second_and_steps_have_no_parts():
    short = [Line("a", [(0.1, 1.0), (0.5, 2.0)])]
    assert [t.text for t in inside(drawn("x", short, unit="seconds")).iter(f"{SVG}text") if t.get("class") == "x"][
        1
    ] == "0.1"
    assert [t.text for t in inside(drawn("x", short)).iter(f"{SVG}text") if t.get("class") == "x"] == ["step 0"]


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("tone", TONES)
def test_every_line_can_be_seen_on_light_and_on_dark_paper(tone):
    for paper in re.findall(r"--paper: (#[0-9a-f]{6})", CSS):
        dark, light = sorted([luminance(tone), luminance(paper)])
        assert (light + 0.05) / (dark + 0.05) >= 3, paper
