"""The picture of who looks at whom."""

import re

import pytest

import harken
from harken.data.synthetic.phrases import phrases
from harken.experiments.report.attention_map import cross, drawn, heat

TINY = {"model.d": 16, "model.layers": 2, "model.heads": 2, "train.batch": 4, "train.steps": 2, "train.threads": 1}
WEIGHTS = [[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]]


def test_a_cell_is_as_dark_as_its_weight():
    cells = re.findall(r'<rect[^>]*fill-opacity="([\d.]+)"', heat(["une", "voiture", "<edge>"], ["a", "car"], WEIGHTS))
    assert [float(cell) for cell in cells] == [weight for row in WEIGHTS for weight in row]


def test_every_word_is_written_and_none_is_html():
    drawing = heat(["<b>", "voiture", "."], ["a", "car"], WEIGHTS)
    words = re.findall(r"<text[^>]*>([^<]*)</text>", drawing)
    assert words == ["a", "car", "&lt;b&gt;", "voiture", "."]


def test_a_picture_file_is_as_large_as_its_words_need(tmp_path):
    for name, many in (("few.png", 2), ("many.png", 20)):
        assert drawn(tmp_path / name, ["x"] * many, ["y"] * many, [[1 / many] * many] * many)
    sizes = [int.from_bytes((tmp_path / name).read_bytes()[16:20], "big") for name in ("few.png", "many.png")]
    assert sizes[0] < sizes[1]


def test_each_word_that_is_written_looks_at_the_source_and_its_weights_are_whole(tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join("\t".join(pair) + "\n" for pair in phrases(200)))
    run = harken.train(pairs, out=tmp_path / "run", settings=TINY)
    rows, columns, weights = cross(run, "I have a red car.")
    assert "".join(columns).startswith("I have a red car")
    assert [len(row) for row in weights] == [len(columns)] * len(rows)
    assert [sum(row) for row in weights] == pytest.approx([1.0] * len(rows))


def test_a_model_that_looks_at_no_source_has_no_picture(char):
    assert cross(char, "I have a red car.") is None
