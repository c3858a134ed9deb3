"""Labelled images: reading from folders, tables, idx and .npz files; splits by pixel hash; messages."""

import csv
import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from harken.data.detect.kinds import detect_kind
from harken.data.images.files import encode_png
from harken.data.images.source import ImageProcessor, ImageSource
from harken.errors import BadInput, BadRun, BadSetting

LABELS = ["ant", "bee", "cat"]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def write_folder(folder: Path, count: int = 20, *, seed: int = 0, shape: tuple[int, ...] = (6, 6)) -> Path:
    """A subfolder with `count` images for each label."""
    for n, x in enumerate(noise(3 * count, *shape, seed=seed)):
        path = folder / LABELS[n % 3] / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(x))
    return folder


def load(path: Path, notices: list[str] | None = None, **settings):
    def listen(event: str, **facts) -> None:
        if event == "notice" and notices is not None:
            notices.append(facts["text"])

    return ImageSource(path=str(path), **settings).load_data(listen=listen)


def contents(part) -> set[bytes]:
    return {x.numpy().tobytes() for x in part.pixels}


def labelled(data) -> set[tuple[bytes, str]]:
    """All images with their labels."""
    return {
        (x.numpy().tobytes(), data.processor.labels[t])
        for part in data.parts.values()
        for x, t in zip(part.pixels, part.targets, strict=True)
    }


# --- reading ----------------------------------------------------------------------------------------------------------


def test_the_same_images_are_read_from_a_folder_a_table_an_idx_file_and_an_npz_file(tmp_path):
    pixels, names = noise(60, 6, 6), [LABELS[n % 3] for n in range(60)]
    expected = {(x.tobytes(), name) for x, name in zip(pixels, names, strict=True)}
    folder = write_folder(tmp_path / "folder")
    with (tmp_path / "table.csv").open("w", newline="") as file:
        paths = [f"folder/{name}/{n}.png" for n, name in enumerate(names)]
        csv.writer(file).writerows([("label", "path"), *zip(names, paths, strict=True)])
    (tmp_path / "my-images-idx3-ubyte").write_bytes(idx(pixels))
    (tmp_path / "my-labels-idx1-ubyte").write_bytes(idx(np.arange(60, dtype=np.uint8) % 3))
    np.savez(tmp_path / "numbers.npz", x=pixels, y=np.arange(60) % 3)
    np.savez(tmp_path / "words.npz", x=pixels, y=np.array(names))
    assert labelled(load(folder)) == expected
    assert labelled(load(tmp_path / "table.csv", image="path", label="label")) == expected
    assert labelled(load(tmp_path / "my-images-idx3-ubyte", class_names=LABELS)) == expected
    assert labelled(load(tmp_path / "numbers.npz", class_names=LABELS)) == expected
    assert labelled(load(tmp_path / "words.npz")) == expected
    assert load(tmp_path / "numbers.npz").processor.labels == ["0", "1", "2"]


def test_an_empty_path_in_a_table_is_reported_and_does_not_change_the_detection(tmp_path):
    write_folder(tmp_path / "folder")
    lines = ["path,label", *(f"folder/{LABELS[n % 3]}/{n}.png,{LABELS[n % 3]}" for n in range(60)), ",red"]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    assert detect_kind(tmp_path / "table.csv").kind == "images"
    notices: list[str] = []
    load(tmp_path / "table.csv", notices, image="path", label="label")
    assert any("table.csv:62: the path or the label is empty" in text for text in notices)


def test_idx_files_are_split_by_name_and_may_be_gzipped(tmp_path):
    for name, seed, count in (("train", 1, 40), ("t10k", 2, 10)):
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(noise(count, 6, 6, seed=seed))))
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(idx(np.arange(count, dtype=np.uint8) % 3))
    data = load(tmp_path, valid=0.2)
    assert len(data.splits["test"]) == 10
    assert np.array_equal(data.splits["test"].pixels[:, 0].numpy(), noise(10, 6, 6, seed=2))
    assert len(data.train) + len(data.splits["valid"]) == 40
    assert 0 < len(data.splits["valid"]) < 20


def test_broken_images_are_dropped_and_reported_with_their_paths(tmp_path):
    folder = write_folder(tmp_path / "a")
    raw = (folder / "ant" / "0.png").read_bytes()
    (folder / "ant" / "0.png").write_bytes(raw[:-30])
    (folder / "bee" / "x.png").write_text("this is no picture")
    notices: list[str] = []
    data = load(folder, notices)
    assert sum(map(len, data.parts.values())) == 59
    (notice,) = notices
    assert notice.startswith("images dropped because they cannot be read: 2 (")
    assert all(str(folder / name) in notice for name in ("ant/0.png", "bee/x.png"))
    assert "\n" not in notice


def test_transparent_drawings_keep_their_shape_on_the_background_of_the_setting(tmp_path):
    from PIL import Image

    for n, label in enumerate(("circle", "square") * 10):  # black strokes on transparent black
        drawing = np.zeros((6, 6, 4), np.uint8)
        drawing[n // 4, n % 4 : n % 4 + 2, 3] = 255
        (tmp_path / "a" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawing).save(tmp_path / "a" / label / f"{n}.png")
    pixels = load(tmp_path / "a").train.pixels
    assert ((pixels == 0).sum((1, 2, 3)) == 2 * pixels.shape[1]).all()
    assert (load(tmp_path / "a", background="black").train.pixels == 0).all()


def test_identical_images_with_different_labels_are_named(tmp_path):
    folder, notices = write_folder(tmp_path / "a"), []
    (folder / "bee" / "copy.png").write_bytes((folder / "ant" / "0.png").read_bytes())
    load(folder, notices)
    places = f"{folder / 'ant' / '0.png'} is ant, {folder / 'bee' / 'copy.png'} is bee"
    assert notices == [f"identical images with different labels: 1 ({places})"]


def test_a_folder_of_mostly_broken_images_is_refused(tmp_path):
    folder = write_folder(tmp_path / "a", 2)
    for path in sorted(folder.rglob("*.png"))[:4]:
        path.write_bytes(b"x")
    with pytest.raises(BadInput, match="4 of 6 images cannot be read"):
        load(folder)


def test_a_common_size_is_used_and_other_images_are_resized_to_64_or_the_setting(tmp_path):
    common, mixed = write_folder(tmp_path / "same", 4), write_folder(tmp_path / "mixed", 4)
    write_folder(mixed, 4, seed=5, shape=(9, 7))
    assert load(common).vocab == (6, 1, 3)
    assert load(mixed).vocab == (64, 1, 3)
    assert load(mixed, image_size=12).train.pixels.shape[1:] == (1, 12, 12)


def test_one_color_image_gives_all_three_channels_unless_color_is_false(tmp_path):
    folder = write_folder(tmp_path / "a")
    (folder / "ant" / "color.png").write_bytes(encode_png(noise(6, 6, 3)))
    (folder / "ant" / "gray.png").write_bytes(encode_png(np.repeat(noise(6, 6, 1, seed=4), 3, 2)))
    assert load(folder).vocab.channels == 3
    assert load(folder, color=False).vocab.channels == 1
    (folder / "ant" / "color.png").unlink()
    assert load(folder).vocab.channels == 1  # three equal channels are gray


def test_the_white_level_of_the_training_images_is_used_for_all_images(tmp_path):
    x, y = np.arange(17.0).repeat(36).reshape(17, 6, 6), np.arange(17) % 3  # image n is all n
    dark = np.minimum(x, 8) / 2
    for name, images in (("train", x), ("train-b", dark + 0.25), ("test", dark)):
        np.savez(tmp_path / f"{name}.npz", x=images, y=y)
    data = load(tmp_path, valid=0.0)
    assert data.processor.white_level == 16
    assert data.splits["test"].pixels[:, 0, 0, 0].tolist() == np.round(dark[:, 0, 0] * 255 / 16).tolist()
    located = zip(data.train.locations, data.train.pixels[:, 0, 0, 0].tolist(), strict=True)
    assert max(pixel for location, pixel in located if "train-b" in location) == round(4.25 * 255 / 16)
    source = ImageSource(path=str(tmp_path / "train.npz"))
    other = source.load_split(str(tmp_path / "test.npz"), "test", tokenizer=data.processor).splits["test"]
    assert torch.equal(other.pixels, data.splits["test"].pixels)


# --- splits -----------------------------------------------------------------------------------------------------------


def test_folders_named_train_val_and_test_are_the_splits(tmp_path):
    for seed, (name, count) in enumerate((("train", 10), ("val", 4), ("test", 5)), 1):
        write_folder(tmp_path / name, count, seed=seed)
    data = load(tmp_path)
    assert (len(data.train), len(data.splits["valid"]), len(data.splits["test"])) == (30, 12, 15)
    assert data.processor.labels == LABELS


def test_adding_or_renaming_images_moves_none_between_splits(tmp_path):
    first = contents(load(write_folder(tmp_path / "a", 60)).splits["valid"])
    write_folder(tmp_path / "a" / "more", 30, seed=9)
    second = contents(load(tmp_path / "a").splits["valid"])
    assert first < second
    shutil.move(tmp_path / "a" / "ant", tmp_path / "a" / "zebra")  # another label, the same images
    assert contents(load(tmp_path / "a").splits["valid"]) == second
    assert 6 <= len(first) <= 30


def test_no_image_is_in_two_splits(tmp_path):
    x = np.concatenate([noise(60, 6, 6)] * 3)  # each image three times
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(180) % 3)
    parts = [contents(part) for part in load(tmp_path / "a.npz").parts.values()]
    assert len(parts) == 3
    assert sum(map(len, parts)) == 60
    np.savez(tmp_path / "b.npz", x=x[:20], y=np.arange(20) % 3)
    notices: list[str] = []
    data = load(tmp_path / "a.npz", notices, test=str(tmp_path / "b.npz"))
    (notice,) = notices
    assert notice.startswith("dropped 60 training examples that also occur in valid or test (")
    assert f"{tmp_path / 'a.npz'}[0] = {tmp_path / 'b.npz'}[0]" in notice
    assert len(data.splits["test"]) == 20


@pytest.mark.parametrize("color", [None, False])
def test_no_image_is_in_two_splits_if_one_is_gray_and_the_other_in_color(tmp_path, color):
    write_folder(tmp_path / "train", 10, seed=1), write_folder(tmp_path / "test", 10, seed=1)
    write_folder(tmp_path / "train" / "more", 10, seed=2, shape=(6, 6, 3))
    data = load(tmp_path, valid=0.0, color=color)
    train, test = contents(data.train), contents(data.splits["test"])
    assert (len(train), len(test)) == (30, 30)
    assert not train & test


def test_one_image_of_every_label_stays_in_train(tmp_path):
    names = np.array(["a"] * 50 + ["b"] * 50 + [f"rare {n}" for n in range(12)])
    x = np.concatenate([noise(112, 6, 6), noise(112, 6, 6)[100:]])  # the rare ones twice
    np.savez(tmp_path / "a.npz", x=x, y=np.concatenate([names, names[100:]]))
    data = load(tmp_path / "a.npz", valid=0.3, test=0.3)
    assert {*data.train.targets.tolist()} == {*range(14)}
    assert sum(map(len, data.parts.values())) == 124
    np.savez(tmp_path / "b.npz", x=x[:100], y=names[:100])  # without the rare ones, the test split is the same
    test = load(tmp_path / "b.npz", valid=0.3, test=0.3).splits["test"]
    assert contents(test) == contents(data.splits["test"])


def test_fewer_examples_are_a_subset_with_all_labels(tmp_path):
    folder = write_folder(tmp_path / "a", 40)
    subset, full = load(folder, examples=30), load(folder)
    assert len(subset.train) == 30
    assert len(set(subset.train.targets.tolist())) == 3
    assert set(subset.train.locations) < set(full.train.locations)
    assert subset.splits["test"].locations == full.splits["test"].locations


def test_other_images_are_evaluated_with_the_labels_of_the_run(tmp_path):
    folder, other = write_folder(tmp_path / "a"), write_folder(tmp_path / "b", 3, seed=7, shape=(9, 9))
    source = ImageSource(path=str(folder))
    processor = source.load_data().processor
    data = source.load_split(str(other), "test", tokenizer=processor)
    assert data.splits["test"].pixels.shape == (9, 1, 6, 6)
    assert data.has_train
    (other / "wasp").mkdir()
    (other / "wasp" / "1.png").write_bytes(encode_png(noise(6, 6)))
    (other / "wasp" / "2.png").write_bytes(encode_png(noise(6, 6)))
    with pytest.raises(BadInput, match=r"2 images have unknown labels: 'wasp' \(2\); known labels are ant, bee, cat"):
        source.load_split(str(other), "test", tokenizer=processor)
    notices = []
    source.load_split(
        str(folder), "test", tokenizer=processor, listen=lambda event, **facts: notices.append(facts.get("text", ""))
    )
    n_train, n_all = len(data.train), len(source.load_split(str(folder), "test", tokenizer=processor).splits["test"])
    assert any(f"{n_train} of {n_all} examples are also in the training split" in text for text in notices)
    shutil.rmtree(folder)
    shutil.rmtree(other / "wasp")
    texts = []
    listen = lambda event, **facts: texts.append(facts.get("text", ""))  # noqa: E731
    data = source.load_split(str(other), "test", tokenizer=processor, listen=listen)
    assert not data.has_train
    assert any(text.startswith("no baselines: they need the training data") for text in texts)


# --- processor --------------------------------------------------------------------------------------------------------


def test_training_images_are_normalized_per_channel(tmp_path):
    data = load(write_folder(tmp_path / "a", shape=(6, 6, 3)))
    x = data.processor.normalize(data.train.pixels).double()
    assert torch.allclose(x.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-5)
    assert torch.allclose(x.std((0, 2, 3), correction=0), torch.ones(3, dtype=torch.float64), atol=1e-5)


def test_a_processor_is_saved_and_loaded_and_a_damaged_one_refused(tmp_path):
    processor = ImageProcessor(["ä", "b"], 28, [0.25], [0.5])
    for name, content in processor.files().items():
        (tmp_path / name).write_bytes(content)
    assert ImageProcessor.load(tmp_path) == processor
    for invalid in ("{}", "[", '{"labels": [], "image_size": 8, "mean": [0.5], "std": [0.5]}',
                    '{"labels": ["a"], "image_size": 8, "mean": [0.5], "std": [0]}',
                    '{"labels": ["a"], "image_size": -8, "mean": [0.5], "std": [1]}',
                    '{"labels": "ab", "image_size": 8, "mean": [0.5], "std": [1]}',
                    '{"labels": ["a"], "image_size": 8.5, "mean": [0.5], "std": [1]}',
                    '{"labels": ["a"], "image_size": 8, "mean": [0.5, 0.5], "std": [1, 1]}',
                    '{"labels": ["a"], "image_size": 8, "mean": [NaN], "std": [1]}',
                    '{"labels": ["a"], "image_size": true, "mean": ["0.5"], "std": [1]}',
                    '{"labels": ["a"], "image_size": 8, "mean": [0.5], "std": [1], "more": 1}'):  # fmt: skip
        (tmp_path / "labels.json").write_text(invalid)
        with pytest.raises(BadRun, match=r"labels\.json"):
            ImageProcessor.load(tmp_path)


def test_a_given_processor_is_reused_with_new_labels_if_it_lacks_some(tmp_path):
    source = ImageSource(path=str(write_folder(tmp_path / "a")))
    processor = ImageProcessor([*LABELS, "dog"], 10, [0.1], [0.2])
    assert source.load_data(tokenizer=processor).processor == processor
    relabelled = source.load_data(tokenizer=ImageProcessor(["x", "y"], 10, [0.1], [0.2])).processor
    assert relabelled == ImageProcessor(LABELS, 10, [0.1], [0.2])


# --- refused input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": None}, "data.path is missing"),
        ({"path": "nowhere"}, "no such file or folder"),
        ({"valid": 1.0}, "the fraction of held-out images must be at least 0 and below 1"),
    ],
)
def test_invalid_settings_are_refused(settings, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "a", 5)
    with pytest.raises((BadInput, BadSetting), match=message):
        ImageSource(**{"path": "a", **settings}).load_data()


def test_an_unknown_background_color_is_refused():
    with pytest.raises(ValueError, match="unknown color"):
        ImageSource(path="a", background="whit")


def test_images_without_usable_labels_are_refused(tmp_path):
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.png").write_bytes(encode_png(noise(6, 6)))
    with pytest.raises(BadInput, match="its images have no labels"):
        load(tmp_path / "flat")
    (tmp_path / "one" / "ant").mkdir(parents=True)
    for n in range(9):
        (tmp_path / "one" / "ant" / f"{n}.png").write_bytes(encode_png(noise(6, 6, seed=n)))
    with pytest.raises(BadInput, match="the only label is 'ant'"):
        load(tmp_path / "one")
    (tmp_path / "none").mkdir()
    with pytest.raises(BadInput, match=r"none: no images \(\.png, "):
        load(tmp_path / "none")
    np.savez(tmp_path / "a.npz", x=noise(4, 6, 6), y=np.arange(3))
    with pytest.raises(BadInput, match="one integer or string for each of the 4 images"):
        load(tmp_path / "a.npz")
    (tmp_path / "my-images-idx3-ubyte").write_bytes(idx(noise(4, 6, 6)))
    with pytest.raises(BadInput, match="its label file is missing"):
        load(tmp_path / "my-images-idx3-ubyte")


def test_the_sha256_covers_images_and_labels(tmp_path):
    (tmp_path / "my-images-idx3-ubyte").write_bytes(idx(noise(40, 6, 6)))
    (tmp_path / "my-labels-idx1-ubyte").write_bytes(idx(np.arange(40, dtype=np.uint8) % 3))
    first = load(tmp_path).sha256
    assert load(tmp_path, sha256=first).sha256 == first
    (tmp_path / "my-labels-idx1-ubyte").write_bytes(idx(np.arange(40, dtype=np.uint8) % 4))
    with pytest.raises(BadInput, match="SHA-256 mismatch"):
        load(tmp_path, sha256=first)
