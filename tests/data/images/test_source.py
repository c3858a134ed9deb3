"""Pictures with labels: found in folders, tables, idx and .npz; split by what they show; what is odd is told."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from harken.data.detect.kinds import sniff
from harken.data.images import png
from harken.data.images.source import ImageSource, Lens
from harken.errors import BadInput, BadRun, BadSetting

LABELS = ["ant", "bee", "cat"]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def folder(place: Path, many: int = 20, *, seed: int = 0, shape: tuple[int, ...] = (6, 6)) -> Path:
    """A folder for each label, with pictures in it."""
    for n, x in enumerate(noise(3 * many, *shape, seed=seed)):
        path = place / LABELS[n % 3] / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png.write(x))
    return place


def heard():
    told = []
    return told, lambda event, **facts: told.append(facts["text"]) if event == "notice" else None


def opened(path: Path, **settings):
    return ImageSource(path=str(path), **settings).open()


def shown(data) -> set[tuple[str, str]]:
    """All pictures with their labels."""
    parts = [data.train, *data.splits.values()]
    return {
        (x.numpy().tobytes(), data.lens.labels[t])
        for part in parts
        for x, t in zip(part.pixels, part.targets, strict=True)
    }


def test_the_same_pictures_are_found_in_a_folder_a_table_an_idx_file_and_an_npz_file(tmp_path):
    pixels, names = noise(60, 6, 6), [LABELS[n % 3] for n in range(60)]
    wanted = {(x.tobytes(), name) for x, name in zip(pixels, names, strict=True)}
    home = folder(tmp_path / "folder")
    with (tmp_path / "table.csv").open("w", newline="") as file:
        paths = [f"folder/{name}/{n}.png" for n, name in enumerate(names)]
        csv.writer(file).writerows([("label", "path"), *zip(names, paths, strict=True)])
    (tmp_path / "my-images-idx3-ubyte").write_bytes(idx(pixels))
    (tmp_path / "my-labels-idx1-ubyte").write_bytes(idx(np.arange(60, dtype=np.uint8) % 3))
    np.savez(tmp_path / "numbers.npz", x=pixels, y=np.arange(60) % 3)
    np.savez(tmp_path / "words.npz", x=pixels, y=np.array(names))
    assert shown(opened(home)) == wanted
    assert shown(opened(tmp_path / "table.csv", image="path", label="label")) == wanted
    assert shown(opened(tmp_path / "my-images-idx3-ubyte", labels=LABELS)) == wanted
    assert shown(opened(tmp_path / "numbers.npz", labels=LABELS)) == wanted
    assert shown(opened(tmp_path / "words.npz")) == wanted
    assert opened(tmp_path / "numbers.npz").lens.labels == ["0", "1", "2"]


def test_an_empty_path_does_not_make_a_table_of_pictures_one_of_texts(tmp_path):
    folder(tmp_path / "folder")
    lines = ["path,label", *(f"folder/{LABELS[n % 3]}/{n}.png,{LABELS[n % 3]}" for n in range(60)), ",red"]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    guess, heard = sniff(tmp_path / "table.csv"), []
    assert guess.kind == "images"
    listen = lambda event, **facts: heard.append(facts.get("text", ""))  # noqa: E731
    ImageSource(path=str(tmp_path / "table.csv"), image="path", label="label").open(listen=listen)
    assert any("table.csv:62: the path or the label is empty" in text for text in heard)


def test_idx_files_are_split_by_their_names_and_packed_ones_are_read_alike(tmp_path):
    import gzip

    for name, seed, many in (("train", 1, 40), ("t10k", 2, 10)):
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(noise(many, 6, 6, seed=seed))))
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(idx(np.arange(many, dtype=np.uint8) % 3))
    data = opened(tmp_path, valid=0.2)
    assert len(data.splits["test"]) == 10
    assert np.array_equal(data.splits["test"].pixels[:, 0].numpy(), noise(10, 6, 6, seed=2))
    assert len(data.train) + len(data.splits["valid"]) == 40
    assert 0 < len(data.splits["valid"]) < 20


def test_folders_and_files_named_train_and_test_are_the_splits(tmp_path):
    folder(tmp_path / "train", 10, seed=1), folder(tmp_path / "val", 4, seed=2), folder(tmp_path / "test", 5, seed=3)
    data = opened(tmp_path)
    assert (len(data.train), len(data.splits["valid"]), len(data.splits["test"])) == (30, 12, 15)
    assert data.lens.labels == LABELS


def test_a_held_out_picture_is_chosen_by_its_pixels_and_stays_where_it_was_when_others_come(tmp_path):
    first = opened(folder(tmp_path / "a", 60))
    held = {x.numpy().tobytes() for x in first.splits["valid"].pixels}
    folder(tmp_path / "a" / "more", 30, seed=9)
    second = opened(tmp_path / "a")
    assert held < {x.numpy().tobytes() for x in second.splits["valid"].pixels}
    shutil.move(tmp_path / "a" / "ant", tmp_path / "a" / "zebra")  # another name, the same pictures
    third = opened(tmp_path / "a")
    assert {x.numpy().tobytes() for x in third.splits["valid"].pixels} == {
        x.numpy().tobytes() for x in second.splits["valid"].pixels
    }
    assert 6 <= len(held) <= 30


def test_no_picture_stands_on_two_sides(tmp_path):
    x = np.concatenate([noise(60, 6, 6)] * 3)  # each of them three times
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(180) % 3)
    data = opened(tmp_path / "a.npz")
    parts = [{x.numpy().tobytes() for x in part.pixels} for part in (data.train, *data.splits.values())]
    assert len(parts) == 3
    assert sum(map(len, parts)) == 60
    np.savez(tmp_path / "b.npz", x=x[:20], y=np.arange(20) % 3)
    told, listen = heard()
    data = ImageSource(path=str(tmp_path / "a.npz"), test=str(tmp_path / "b.npz")).open(listen=listen)
    assert told == ["training pictures left out because they are held out too: 60"]
    assert len(data.splits["test"]) == 20


@pytest.mark.parametrize("colour", [None, False])
def test_no_picture_stands_on_two_sides_where_one_side_is_grey_and_the_other_in_colour(tmp_path, colour):
    folder(tmp_path / "train", 10, seed=1), folder(tmp_path / "test", 10, seed=1)
    folder(tmp_path / "train" / "more", 10, seed=2, shape=(6, 6, 3))
    data = opened(tmp_path, valid=0.0, colour=colour)
    learned, held = ({x.numpy().tobytes() for x in part.pixels} for part in (data.train, data.splits["test"]))
    assert (len(learned), len(held)) == (30, 30)
    assert not learned & held


def test_no_labels_last_picture_is_held_out(tmp_path):
    names = np.array(["a"] * 50 + ["b"] * 50 + [f"rare {n}" for n in range(12)])
    x = np.concatenate([noise(112, 6, 6), noise(112, 6, 6)[100:]])  # the rare ones twice, so that none is alone
    np.savez(tmp_path / "a.npz", x=x, y=np.concatenate([names, names[100:]]))
    data = opened(tmp_path / "a.npz", valid=0.3, test=0.3)
    assert {*data.train.targets.tolist()} == {*range(14)}
    assert len(data.train) + sum(map(len, data.splits.values())) == 124
    np.savez(tmp_path / "b.npz", x=x[:100], y=names[:100])  # with the others nothing has moved
    before = {x.numpy().tobytes() for x in opened(tmp_path / "b.npz", valid=0.3, test=0.3).splits["test"].pixels}
    assert before == {x.numpy().tobytes() for x in data.splits["test"].pixels}


def test_what_stands_for_white_is_decided_by_the_pictures_to_learn_from_and_kept(tmp_path):
    x, y = np.arange(17.0).repeat(36).reshape(17, 6, 6), np.arange(17) % 3  # picture n is all n
    dark = np.minimum(x, 8) / 2
    for name, some in (("train", x), ("train-b", dark + 0.25), ("test", dark)):
        np.savez(tmp_path / f"{name}.npz", x=some, y=y)
    data = opened(tmp_path, valid=0.0)
    assert data.lens.white == 16
    assert data.splits["test"].pixels[:, 0, 0, 0].tolist() == np.round(dark[:, 0, 0] * 255 / 16).tolist()
    places = zip(data.train.places, data.train.pixels[:, 0, 0, 0].tolist(), strict=True)
    assert max(pixel for place, pixel in places if "train-b" in place) == round(4.25 * 255 / 16)
    again = ImageSource(path=str(tmp_path / "train.npz"))
    there = again.other(str(tmp_path / "test.npz"), "test", tokenizer=data.lens).splits["test"]
    assert torch.equal(there.pixels, data.splits["test"].pixels)


def test_broken_pictures_are_left_out_and_told_by_their_paths(tmp_path):
    home = folder(tmp_path / "a")
    whole = (home / "ant" / "0.png").read_bytes()
    (home / "ant" / "0.png").write_bytes(whole[:-30])
    (home / "bee" / "x.png").write_text("this is no picture")
    told, listen = heard()
    data = ImageSource(path=str(home)).open(listen=listen)
    assert len(data.train) + sum(map(len, data.splits.values())) == 59
    assert len(told) == 1
    assert told[0].startswith("pictures left out because they cannot be read: 2 (")
    assert all(str(home / name) in told[0] for name in ("ant/0.png", "bee/x.png"))
    assert "\n" not in told[0]


def test_a_folder_that_is_mostly_broken_is_refused(tmp_path):
    home = folder(tmp_path / "a", 2)
    for path in sorted(home.rglob("*.png"))[:4]:
        path.write_bytes(b"x")
    with pytest.raises(BadInput, match="4 of 6 pictures cannot be read"):
        opened(home)


def test_pictures_keep_their_side_if_they_have_one_and_are_squeezed_to_64_or_the_given_one_if_not(tmp_path):
    same, mixed = folder(tmp_path / "same", 4), folder(tmp_path / "mixed", 4)
    folder(mixed, 4, seed=5, shape=(9, 7))
    assert opened(same).vocab == (6, 1, 3)
    assert opened(mixed).vocab == (64, 1, 3)
    assert opened(mixed, side=12).train.pixels.shape[1:] == (1, 12, 12)


def test_one_picture_in_colour_makes_all_have_three_channels_unless_grey_is_asked_for(tmp_path):
    home = folder(tmp_path / "a")
    (home / "ant" / "colours.png").write_bytes(png.write(noise(6, 6, 3)))
    (home / "ant" / "grey.png").write_bytes(png.write(np.repeat(noise(6, 6, 1, seed=4), 3, 2)))
    assert opened(home).vocab.channels == 3
    assert opened(home, colour=False).vocab.channels == 1
    (home / "ant" / "colours.png").unlink()
    assert opened(home).vocab.channels == 1  # three channels that are equal are no colours


def test_numbers_have_mean_0_and_spread_1_over_the_training_pictures(tmp_path):
    data = opened(folder(tmp_path / "a", shape=(6, 6, 3)))
    x = data.lens.numbers(data.train.pixels).double()
    assert torch.allclose(x.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-5)
    assert torch.allclose(x.std((0, 2, 3), correction=0), torch.ones(3, dtype=torch.float64), atol=1e-5)


def test_a_lens_is_what_a_run_keeps_and_a_damaged_one_is_refused(tmp_path):
    lens = Lens(["ä", "b"], 28, [0.25], [0.5])
    for name, content in lens.files().items():
        (tmp_path / name).write_bytes(content)
    assert Lens.load(tmp_path) == lens
    for odd in ("{}", "[", '{"labels": [], "side": 8, "mean": [0.5], "spread": [0.5]}',
                '{"labels": ["a"], "side": 8, "mean": [0.5], "spread": [0]}',
                '{"labels": ["a"], "side": -8, "mean": [0.5], "spread": [1]}',
                '{"labels": "ab", "side": 8, "mean": [0.5], "spread": [1]}',
                '{"labels": ["a"], "side": 8.5, "mean": [0.5], "spread": [1]}',
                '{"labels": ["a"], "side": 8, "mean": [0.5, 0.5], "spread": [1, 1]}',
                '{"labels": ["a"], "side": 8, "mean": [NaN], "spread": [1]}',
                '{"labels": ["a"], "side": true, "mean": ["0.5"], "spread": [1]}',
                '{"labels": ["a"], "side": 8, "mean": [0.5], "spread": [1], "more": 1}'):  # fmt: skip
        (tmp_path / "labels.json").write_text(odd)
        with pytest.raises(BadRun, match=r"labels\.json"):
            Lens.load(tmp_path)


def test_a_lens_that_is_given_stays_but_for_labels_it_does_not_know(tmp_path):
    home = folder(tmp_path / "a")
    lens = Lens([*LABELS, "dog"], 10, [0.1], [0.2])
    assert ImageSource(path=str(home)).open(tokenizer=lens).lens == lens
    other = ImageSource(path=str(home)).open(tokenizer=Lens(["x", "y"], 10, [0.1], [0.2])).lens
    assert other == Lens(LABELS, 10, [0.1], [0.2])


def test_fewer_examples_are_the_same_ones_of_all_labels(tmp_path):
    home = folder(tmp_path / "a", 40)
    few, all_ = opened(home, examples=30), opened(home)
    assert len(few.train) == 30
    assert len(set(few.train.targets.tolist())) == 3
    assert set(few.train.places) < set(all_.train.places)
    assert few.splits["test"].places == all_.splits["test"].places


def test_other_pictures_are_judged_by_the_runs_own_labels(tmp_path):
    home, more = folder(tmp_path / "a"), folder(tmp_path / "b", 3, seed=7, shape=(9, 9))
    source = ImageSource(path=str(home))
    lens = source.open().lens
    data = source.other(str(more), "test", tokenizer=lens)
    assert data.splits["test"].pixels.shape == (9, 1, 6, 6)
    assert data.learned
    (more / "wasp").mkdir()
    (more / "wasp" / "1.png").write_bytes(png.write(noise(6, 6)))
    with pytest.raises(BadInput, match="wasp' was not learned; known are ant, bee, cat"):
        source.other(str(more), "test", tokenizer=lens)
    shutil.rmtree(home)
    shutil.rmtree(more / "wasp")
    told, listen = heard()
    data = source.other(str(more), "test", tokenizer=lens, listen=listen)
    assert not data.learned
    assert "the free baselines are left out" in told[0]


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"path": None}, "data.path is not given"), ({"path": "nowhere"}, "there is no such file or folder"),
     ({"valid": 1.0}, "lies between 0 and 1")],
)  # fmt: skip
def test_settings_that_name_nothing_are_refused(settings, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "a", 5)
    with pytest.raises((BadInput, BadSetting), match=told):
        ImageSource(**{"path": "a", **settings}).open()


def test_what_cannot_be_learned_from_says_why(tmp_path):
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.png").write_bytes(png.write(noise(6, 6)))
    with pytest.raises(BadInput, match="have no labels"):
        opened(tmp_path / "flat")
    (tmp_path / "one" / "ant").mkdir(parents=True)
    for n in range(9):
        (tmp_path / "one" / "ant" / f"{n}.png").write_bytes(png.write(noise(6, 6, seed=n)))
    with pytest.raises(BadInput, match="the only label is 'ant'"):
        opened(tmp_path / "one")
    (tmp_path / "none").mkdir()
    with pytest.raises(BadInput, match="there is no picture in it"):
        opened(tmp_path / "none")
    np.savez(tmp_path / "a.npz", x=noise(4, 6, 6), y=np.arange(3))
    with pytest.raises(BadInput, match="one whole number or word for each of 4 pictures"):
        opened(tmp_path / "a.npz")
    (tmp_path / "my-images-idx3-ubyte").write_bytes(idx(noise(4, 6, 6)))
    with pytest.raises(BadInput, match="the file with its labels is not there"):
        opened(tmp_path / "my-images-idx3-ubyte")


def test_the_fingerprint_is_that_of_pictures_and_labels(tmp_path):
    (tmp_path / "my-images-idx3-ubyte").write_bytes(idx(noise(40, 6, 6)))
    (tmp_path / "my-labels-idx1-ubyte").write_bytes(idx(np.arange(40, dtype=np.uint8) % 3))
    first = opened(tmp_path).sha256
    assert opened(tmp_path, sha256=first).sha256 == first
    (tmp_path / "my-labels-idx1-ubyte").write_bytes(idx(np.arange(40, dtype=np.uint8) % 4))
    with pytest.raises(BadInput, match="SHA-256 differs"):
        opened(tmp_path, sha256=first)
