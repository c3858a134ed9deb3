"""The commands on runs of captions."""

import csv
import json
import re

import numpy as np
import pytest

from harken.data.images.files import encode_png
from harken.data.synthetic import scenes
from harken.experiments import train
from harken.experiments.demos import pictures

TINY = [
    "train.steps=2",
    "train.batch=8",
    "model.size=tiny",
    "train.threads=1",
    "task.max_new_tokens=6",
    "task.eval_pairs=3",
]


@pytest.fixture
def run(harken, tmp_path) -> str:
    """A run in the working folder, which has images with captions."""
    rng, home = np.random.default_rng(0), tmp_path / "shots"
    home.mkdir()
    for n in range(30):
        (home / f"{n}.png").write_bytes(encode_png(rng.integers(0, 256, (8, 8, 3), np.uint8)))
    rows = "".join(f"{n}.png\ta picture of the number {n % 3}\n" for n in range(30))
    (home / "captions.tsv").write_text("image\tcaption\n" + rows)
    messages = harken("train", "shots", *TINY).out
    assert "images (8 x 8 color, 1 caption per image" in messages
    assert "next    harken caption runs/shots" in messages
    return "runs/shots"


def test_images_get_one_caption_each_as_arguments_from_stdin_and_from_a_table(harken, run, tmp_path):
    caption = harken("caption", run, "shots/1.png").out
    assert caption.count("\n") == 1
    captions = harken("caption", run, "shots").out.splitlines()
    assert len(captions) == 30
    assert all(line.endswith(".png") for line in captions)
    actual = json.loads(harken("caption", run, "shots/1.png", "--alternatives", "2", "--json").out)["captions"][0]
    assert actual["text"] == caption.rstrip("\n")
    assert len(actual["alternatives"]) == 2
    assert harken("caption", run, "-", stdin=b"shots/1.png\n").out == caption
    with_empty = harken("caption", run, "-", stdin=b"shots/1.png\n\n").out
    assert with_empty == f"{caption.rstrip()}  shots/1.png\nnull  (the text is empty)\n"
    table = "shots/held.csv"  # its paths are relative to the table
    (tmp_path / table).write_text("id,image\n7,1.png\n8,\n")
    assert (
        harken("caption", run, "--in", table, "--out", "out.csv").out == "1 answer and 1 row without one in out.csv\n"
    )
    with open("out.csv", newline="") as file:
        first, empty = csv.DictReader(file)
    assert {**first, "score": ""} == {
        "id": "7", "image": "1.png", "text": actual["text"], "score": "", "reason": "", "line": "2"
    }  # fmt: skip
    assert float(first["score"]) == pytest.approx(actual["score"], abs=1e-4)
    assert (empty["text"], empty["reason"]) == ("", "the text is empty")
    (tmp_path / table).write_text("id,image\n7,1.png\n8,99.png\n")
    refused = harken("caption", run, "--in", table, "--out", "new.csv").err
    assert refused == "harken: shots/held.csv:3: no such image: 99.png; its path is relative to held.csv; fix the row\n"
    (tmp_path / table).unlink()
    assert "baseline: caption of the nearest image" in harken("eval", run, "shots/captions.tsv").out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["caption", "RUN", "shots/99.png"], "shots/99.png: no such image; check the name"),
        (["caption", "RUN"], "give an image, or - to read file names from stdin, one per line"),
        (["caption", "RUN", "shots/1.png", "--beam", "0"], "beam"),
        (["classify", "RUN", "shots/1.png"], "this run captions images; use harken caption"),
        (["capton", "RUN"], "Did you mean caption?"),
        (["train", "shots", "data.capton=caption"], "data.capton is not a setting. Did you mean data.caption?"),
        (["train", "shots", "data.caption=capton"], "no column 'capton'"),
        (["train", "shots", "model.kind=vit"], "model.kind = 'vit' is not a model of captions"),
    ],
)
def test_mistyped_arguments_are_reported(harken, run, args, message):
    done = harken(*[run if word == "RUN" else word for word in args])
    assert done.code in (1, 2)
    assert message in done.err


def test_the_scenes_demo_captions_held_out_pairs(harken, monkeypatch):
    def small(data, *, minutes, **how):
        assert (data, minutes) == ("scenes", 4.0)
        tiny = {"train.steps": 2, "model.size": "tiny", "task.max_new_tokens": 6, "task.eval_pairs": 3}
        return train.train(data, settings=tiny, **how)

    monkeypatch.setattr(pictures, "train", small)
    monkeypatch.setattr(scenes, "SPLIT_SIZES", {"train": 60, "valid": 10, "test": 20})
    output = harken("demo", "scenes", "--out", "mine").out
    assert len(re.findall(r"^ +caption     ", output, re.M)) == 3
    references = re.findall(r"^ +references  (.+)   or   (.+)$", output, re.M)
    held_out_pairs = scenes.held_out()[1]
    for caption, swapped in references:
        a, b = (re.findall(r"(?:small|large) (\w+) (\w+)", text) for text in (caption, swapped))
        assert a == b[::-1]
        assert frozenset(a) in held_out_pairs
    letters = "".join(re.findall(r"^    ([.rgbypwoc]{32})$", output, re.M))
    assert len(letters) == 3 * 16 * 32
    assert {*letters} <= {*".rgbypwoc"}
    assert len({*letters}) > 2
