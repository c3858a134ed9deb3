"""The commands on runs of images: classify, check, eval, demo digits."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from harken.data.images.files import encode_png
from harken.experiments import train
from harken.experiments.demos import pictures

TINY = ["train.steps=2", "train.batch=8", "model.d=16", "model.layers=1", "model.heads=2", "train.threads=1"]


@pytest.fixture
def folder(tmp_path):
    """The working folder has images with two labels."""
    rng = np.random.default_rng(0)
    for n in range(40):
        path = tmp_path / "shapes" / ("dark", "light")[n % 2] / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(rng.integers(0, 100, (8, 8), np.uint8) + np.uint8(120 * (n % 2))))
    return tmp_path / "shapes"


def test_images_are_checked_trained_on_classified_and_evaluated(harken, folder):
    checked = harken("check", "shapes", *TINY).out
    assert re.search(r"shapes is images: a folder of images; its subfolders \(dark, light\) are the labels", checked)
    assert re.search(r"\d+ images for training", checked)
    assert "images (8 x 8 grayscale, 2 labels)" in harken("train", "shapes", *TINY).out
    single = harken("classify", "runs/shapes", "shapes/dark/0.png").out
    assert re.fullmatch(r"0\.\d{3} (dark|light)  0\.\d{3} (dark|light)\n", single)
    lines = harken("classify", "runs/shapes", "shapes/light", "shapes/dark/0.png").out.splitlines()
    assert len(lines) == 21
    assert lines[-1].endswith("  shapes/dark/0.png")
    first, empty = harken("classify", "runs/shapes", stdin=b"shapes/dark/0.png\n\n").out.splitlines()
    assert (first.split()[:-1], empty.rstrip()) == (single.split(), "null  (the text is empty)")
    (folder / "held.tsv").write_text("image\tid\ndark/0.png\t7\n")
    harken("classify", "runs/shapes", "--in", "shapes/held.tsv", "--out", "out.jsonl")
    row = json.loads(Path("out.jsonl").read_text())
    assert (row["image"], row["id"], row["line"], row["label"]) == ("dark/0.png", "7", 2, single.split()[1])
    (folder / "held.tsv").unlink()
    output = json.loads(harken("classify", "runs/shapes", "shapes/light", "--json").out)
    assert [len(output["labels"]), len(output["files"])] == [20, 20]
    assert "baseline: regression on pixels" in harken("eval", "runs/shapes", "shapes").out
    image = "shapes/dark/0.png"
    for corpus in ([], ["shapes"]):  # the training data, a folder
        best = json.loads(harken("search", "runs/shapes", *corpus, image, "--json").out)["hits"][0]
        assert best["name"].endswith("dark/0.png")
        assert best["score"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shapes/drak/0.png", "no such image; check the name"),
        ("broken.png", "not an image, damaged, or of an unknown format"),
        ("empty", "empty: has no images; accepted: "),
    ],
)
def test_a_file_that_is_not_an_image_is_reported_by_name(harken, folder, tmp_path, name, message):
    harken("train", "shapes", *TINY)
    (tmp_path / "broken.png").write_text("x")
    (tmp_path / "empty").mkdir()
    failed = harken("classify", "runs/shapes", name)
    assert failed.code == 2
    assert failed.err.startswith(f"harken: {name}: ")
    assert message in failed.err
    assert failed.err.count("\n") == 1


def test_a_broken_image_of_many_is_skipped_with_a_notice(harken, folder):
    harken("train", "shapes", *TINY)
    full = (folder / "light" / "1.png").read_bytes()
    (folder / "light" / "1.png").write_bytes(full[: len(full) // 2])
    output = harken("classify", "runs/shapes", "shapes/light")
    assert len(output.out.splitlines()) == 19
    assert "skipped: shapes/light/1.png: " in output.err
    assert output.code == 0


def test_a_run_of_images_refuses_commands_for_texts(harken, folder):
    harken("train", "shapes", *TINY)
    output = harken("generate", "runs/shapes", "x").err
    assert output.startswith("harken: runs/shapes: this run classifies images; use harken classify")
    assert harken("embed", "runs/shapes", "x").code == 2


def test_the_digits_demo_draws_held_out_digits(harken, monkeypatch):
    def small(data, *, minutes, settings=None, **how):
        assert minutes == 0.5
        tiny = {"train.steps": 2, "model.d": 16, "model.layers": 1, "model.heads": 2}
        return train.train(data, settings=tiny, **how)

    monkeypatch.setattr(pictures, "train", small)
    output = harken("demo", "digits", "--out", "mine").out
    assert "Predictions for held-out digits:" in output
    assert len(re.findall(r"true: \d", output)) == 6
    assert len(re.findall(r"\d \(\d+ %\)", output)) == 6
    assert "#" in output
    place = re.search(r"harken classify mine '?([^'\n]+?\[\d+\])'?  ", output)
    assert place
    assert re.match(r"0\.\d{3} \d  ", harken("classify", "mine", place[1]).out)
