"""Runs on labelled images: train, evaluate, resume, compare, classify."""

import os
from pathlib import Path

import numpy as np
import pytest

import harken
from harken.data.images.files import decode_image, encode_png
from harken.errors import BadInput
from harken.experiments.choose import choose
from harken.files import sha256_of
from harken.inference.answers.images import read_pixels

TINY = {"model.d": 32, "model.layers": 1, "model.heads": 2, "model.patch": 4, "model.stem": "patch"}
TINY |= {"train.threads": 1, "train.batch": 32, "train.lr": 3e-3}


def spots(n: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A bright spot in one of three corners."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 100, (n, 8, 8), dtype=np.uint8), rng.integers(0, 3, n)
    for i, label in enumerate(y):
        x[i, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 100
    return x, y


@pytest.fixture(scope="module")
def array(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("spots") / "spots.npz"
    x, y = spots()
    np.savez(path, x=x, y=np.array(["left", "right", "below"])[y])
    return path


@pytest.fixture(scope="module")
def trained(array, tmp_path_factory) -> harken.Run:
    out = tmp_path_factory.mktemp("runs") / "spots"
    return harken.train(array, out=out, settings={**TINY, "train.steps": 80, "task.shift": 0.1})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Other spots, as files."""
    home = tmp_path_factory.mktemp("files")
    for n, (x, label) in enumerate(zip(*spots(12, seed=1), strict=True)):
        path = home / ["left", "right", "below"][label] / f"{n}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode_png(x))
    return home


def test_an_image_model_beats_the_baselines(trained):
    baseline = trained.facts["baseline"]["test"]
    assert trained.metrics["test"]["accuracy"] > baseline["most frequent label"]["accuracy"] + 0.3
    assert set(baseline) == {"most frequent label", "nearest mean image", "regression on pixels"}
    assert set(trained.facts["parts"]["test"]) == {"left", "right", "below"}
    assert trained.facts["audit"]["passed"]
    assert trained.facts["data"]["images"]["train"] > 200


def test_the_report_shows_held_out_images(trained):
    page = (trained.path / "report.html").read_text()
    samples = page[page.index('<section id="samples">') :]
    sources = samples.split('src="data:image/png;base64,')[1:]
    assert len(sources) == 10
    import base64
    from io import BytesIO

    held_out = trained.recipe.load_data(trained.tokenizer).splits["test"].pixels[:, 0].numpy()
    for source in sources:
        pixels = decode_image(BytesIO(base64.b64decode(source.partition('"')[0])))[..., 0]
        assert any(np.array_equal(pixels, x) for x in held_out)
    assert "images" in page
    assert "8 x 8 grayscale, 3 labels" in page


def test_files_arrays_and_paths_into_arrays_give_the_same_labels(trained, array, folder):
    x, _ = spots()
    path = sorted(folder.rglob("*.png"))[0]
    again = harken.load(trained.path)
    by_path, by_pixels = again.classify(path), again.classify([decode_image(path)])[0]
    assert by_path == by_pixels == trained.classify(str(path))
    assert sum(prediction["probability"] for prediction in by_path) == pytest.approx(1)
    assert {prediction["label"] for prediction in by_path} == {"left", "right", "below"}
    assert again.classify(f"{array}[7]") == again.classify([x[7]])[0]
    with pytest.raises(BadInput, match="the file has 300 images, counted from 0"):
        again.classify(f"{array}[300]")
    with pytest.raises(BadInput, match="give uint8 of shape H W or H W 3, or a path"):
        again.classify([np.zeros((8, 8))])


def test_a_changed_array_is_read_again(tmp_path):
    for level in (3, 9):
        np.savez(tmp_path / "a.npz", x=np.full((2, 4, 4), level, np.uint8), y=np.arange(2))
        os.utime(tmp_path / "a.npz", (level, level))
        assert read_pixels(f"{tmp_path}/a.npz[0]").max() == level


def test_an_array_is_scaled_like_the_training_images(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.full((2, 4, 4), 8), y=np.arange(2))
    assert [int(read_pixels(f"{tmp_path}/a.npz[0]", white=white).max()) for white in (16, 255)] == [128, 8]


def test_a_trace_has_the_attention_of_each_patch(trained, folder):
    trace = trained.trace(str(sorted(folder.rglob("*.png"))[0]))
    A = trace.attention("self", layer=0, head=0)
    side = 8 // 4
    assert trace.tokens == [f"{row},{column}" for row in range(side) for column in range(side)]
    assert A.shape == (side**2, side**2)
    assert A.sum(-1).tolist() == pytest.approx([1] * side**2)


def test_other_images_are_evaluated_with_their_own_labels(trained, folder):
    score, baseline = trained.evaluate("test", data=str(folder))
    correct = [trained.classify(path)[0]["label"] == path.parent.name for path in sorted(folder.rglob("*.png"))]
    assert score.protocol["images"] == 12
    assert score.metrics["accuracy"] == pytest.approx(sum(correct) / 12)
    assert baseline


def test_a_repeated_recipe_gives_the_same_weights(trained, tmp_path):
    again = harken.train(trained.path / "recipe.toml", out=tmp_path / "again")
    assert sha256_of(again.path / "model.safetensors") == sha256_of(trained.path / "model.safetensors")


def test_a_run_initializes_another_with_other_labels_and_a_frozen_body_is_unchanged(trained, folder, tmp_path):
    settings = {"from": str(trained.path), "transfer": "frozen", "train.steps": 5, "train.batch": 4, "data.valid": 0}
    (tmp_path / "two").mkdir()
    for n, name in enumerate(("left", "right", "below")):
        (tmp_path / "two" / ("side" if n < 2 else "under")).mkdir(exist_ok=True)
        for path in (folder / name).iterdir():
            (tmp_path / "two" / ("side" if n < 2 else "under") / path.name).write_bytes(path.read_bytes())
    run = harken.train(tmp_path / "two", out=tmp_path / "run", settings={**settings, "data.test": 0})
    assert run.tokenizer.labels == ["side", "under"]
    assert run.tokenizer.mean == trained.tokenizer.mean
    old, new = trained.model.body.state_dict(), run.model.body.state_dict()
    assert all((old[name] == new[name]).all() for name in old)


def test_settings_are_compared_on_the_same_images(array, tmp_path):
    axes = {"model.positions": ["learned", "sinusoid", "none"]}
    comparison = harken.compare(array, axes, settings={**TINY, "train.steps": 8}, seeds=1, out=tmp_path / "c")
    assert [row["settings"]["model.positions"] for row in comparison.rows] == axes["model.positions"]
    assert all(0 <= row["metrics"]["accuracy"] <= 1 for row in comparison.rows)


def test_images_are_detected_and_get_their_recipe(array, folder):
    for data in (array, folder):
        choice = choose(str(data))
        assert (choice.recipe.data.kind, choice.recipe.model.kind, choice.recipe.task.kind) == (
            "images",
            "vit",
            "image",
        )
        assert choice.detection is not None
