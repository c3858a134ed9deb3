"""Attention maps as SVG and PNG."""

import re

import pytest

import harken
from harken.data.synthetic.phrases import phrases
from harken.experiments.report.attention_map import attention_svg, cross_attention, save_attention_png

TINY = {"model.d": 16, "model.layers": 2, "model.heads": 2, "train.batch": 4, "train.steps": 2, "train.threads": 1}
WEIGHTS = [[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]]


def test_the_opacity_of_a_cell_is_its_weight():
    cells = re.findall(
        r'<rect[^>]*fill-opacity="([\d.]+)"', attention_svg(["une", "voiture", "<edge>"], ["a", "car"], WEIGHTS)
    )
    assert [float(cell) for cell in cells] == [weight for row in WEIGHTS for weight in row]


def test_every_token_is_shown_escaped():
    svg = attention_svg(["<b>", "voiture", "."], ["a", "car"], WEIGHTS)
    tokens = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert tokens == ["a", "car", "&lt;b&gt;", "voiture", "."]


def test_the_size_of_the_png_follows_the_number_of_tokens(tmp_path):
    for name, n in (("few.png", 2), ("many.png", 20)):
        assert save_attention_png(tmp_path / name, ["x"] * n, ["y"] * n, [[1 / n] * n] * n)
    sizes = [int.from_bytes((tmp_path / name).read_bytes()[16:20], "big") for name in ("few.png", "many.png")]
    assert sizes[0] < sizes[1]


def test_cross_attention_rows_sum_to_1(tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join("\t".join(pair) + "\n" for pair in phrases(200)))
    run = harken.train(pairs, out=tmp_path / "run", settings=TINY)
    rows, columns, weights = cross_attention(run, "I have a red car.")
    assert "".join(columns).startswith("I have a red car")
    assert [len(row) for row in weights] == [len(columns)] * len(rows)
    assert [sum(row) for row in weights] == pytest.approx([1.0] * len(rows))


def test_a_model_without_cross_attention_has_no_map(char):
    assert cross_attention(char, "I have a red car.") is None
