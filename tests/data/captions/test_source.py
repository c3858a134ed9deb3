"""Pictures with captions: what is read, how it is split, what batches hold; and the scenes that harken makes."""

import numpy as np
import pytest
import torch

from harken.data.captions.batch import CaptionBatches, laid, scoring
from harken.data.captions.source import CaptionSource
from harken.data.detect.kinds import sniff
from harken.data.images import png
from harken.data.synthetic import scenes
from harken.errors import BadInput

SIDES = ("left", "right")


def spots(folder, many=40, seed=0, table="captions.tsv", header="image\tcaption\n"):
    """Pictures with a bright half, and two captions of each."""
    rng, lines = np.random.default_rng(seed), [header]
    for n in range(many):
        x = rng.integers(0, 80, (8, 8, 3), np.uint8)
        x[:, 4 * (n % 2) :][:, :4, n % 3] += 120
        name = f"p{seed}-{n}.png"
        (folder / name).write_bytes(png.write(x))
        colour = ("red", "green", "blue")[n % 3]
        lines += [f"{name}\ta {colour} half on the {SIDES[n % 2]}\n", f"{name}\t{SIDES[n % 2]}, it is {colour}\n"]
    (folder / table).write_text("".join(lines))
    return folder


@pytest.fixture
def folder(tmp_path):
    return spots(tmp_path)


def test_a_folder_with_a_table_of_captions_is_recognised(folder):
    for path in (folder, folder / "captions.tsv"):
        guess = sniff(path)
        assert guess.kind == "captions"
        assert guess.settings == {"data.image": "image", "data.caption": "caption"}


def test_a_table_of_pictures_with_labels_is_none_of_captions(folder):
    (folder / "captions.tsv").write_text("image\tkind\n" + "".join(f"p0-{n}.png\t{SIDES[n % 2]}\n" for n in range(40)))
    assert sniff(folder / "captions.tsv").kind == "images"


def test_pictures_of_one_name_in_folders_of_their_own_are_split_like_others(folder):
    lines = ["image\tcaption\n"]
    for n in range(40):
        (folder / f"{n}").mkdir()
        (folder / f"p0-{n}.png").rename(folder / f"{n}" / "photo.png")
        lines.append(f"{n}/photo.png\ta half on the {SIDES[n % 2]}\n")
    (folder / "captions.tsv").write_text("".join(lines))
    opened = CaptionSource(path=str(folder), test=0.2).open()
    assert 2 <= len(opened.splits["test"].references) <= 20


def test_several_captions_of_a_picture_are_its_references_and_each_is_learned_from(folder):
    opened = CaptionSource(path=str(folder), test=0.2).open()
    part, train = opened.splits["test"], opened.train
    for place, references in zip(part.sources, part.references, strict=True):
        n = int(place.rpartition("-")[2].removesuffix(".png"))
        colour = ("red", "green", "blue")[n % 3]
        assert references == [f"a {colour} half on the {SIDES[n % 2]}", f"{SIDES[n % 2]}, it is {colour}"]
    assert len(train.of) == 2 * len(train)
    by = opened.tokenizers
    for n, picture in enumerate(train.of.tolist()):
        assert by.decode_target(train.target[n]) == train.references[picture][n % 2]


def test_pictures_are_the_pixels_of_their_files_in_the_order_of_the_captions(folder):
    part = CaptionSource(path=str(folder)).open().train
    for place, pixels in zip(part.sources, part.pixels, strict=True):
        with open(place, "rb") as file:
            assert (pixels.permute(1, 2, 0).numpy() == png.read(file.read())).all()


def test_tables_named_train_valid_and_test_are_the_splits_and_a_twin_is_not_learned_from(tmp_path):
    for seed, split in enumerate(("train", "valid", "test")):
        spots(tmp_path, 10 + seed, seed, f"{split}.tsv")
    (tmp_path / "twin.png").write_bytes((tmp_path / "p2-3.png").read_bytes())
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("twin.png\ta copy\n")
    opened = CaptionSource(path=str(tmp_path)).open()
    assert {split: len(part) for split, part in opened.parts.items()} == {"train": 10, "valid": 11, "test": 12}


def test_places_in_an_array_are_read_as_pictures(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "x.npz", x=x, y=np.zeros(30))
    rows = "".join(f"x.npz[{n}]\tpicture number {n % 5}\n" for n in range(30))
    (tmp_path / "t.tsv").write_text("image\tcaption\n" + rows)
    opened = CaptionSource(path=str(tmp_path / "t.tsv"), valid=0, test=0).open()
    assert (opened.train.pixels.permute(0, 2, 3, 1).numpy() == x).all()
    (tmp_path / "t.tsv").write_text("image\tcaption\n" + rows + "x.npz[30]\tno such picture\n")
    with pytest.raises(BadInput, match=r"x.npz\[30\]: there are 30 pictures in it, counted from 0"):
        CaptionSource(path=str(tmp_path / "t.tsv")).open()


def test_what_a_run_keeps_reads_the_same_pictures_and_words_again(folder, tmp_path):
    words = CaptionSource(path=str(folder)).open().words
    kept = tmp_path / "kept"
    kept.mkdir()
    for name, content in words.files().items():
        (kept / name).write_bytes(content)
    again = CaptionSource().words(kept)
    assert again.vocab == words.vocab
    ids = words.both.encode_target("a red half on the left")
    assert again.both.decode_target(ids) == "a red half on the left"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: (f / "captions.tsv").unlink(), "there is no table in it; a file such as captions.tsv"),
        (
            lambda f: (f / "captions.tsv").write_text("image\tcaption\np0-0.png\t\n"),
            "the picture or the caption is empty",
        ),
        (lambda f: [p.unlink() for p in f.glob("*.png")], "pictures cannot be read"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(folder, change, said):
    change(folder)
    with pytest.raises(BadInput, match=said) as error:
        CaptionSource(path=str(folder), image="image", caption="caption").open()
    assert "\n" not in str(error.value)


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_holds_each_caption_behind_the_edge_with_its_picture(folder):
    part = CaptionSource(path=str(folder)).open().train
    picks, edge = np.array([5, 0, 2]), part.target.edge
    L = int(part.target.lengths.max()) + 1
    batch = laid(part, picks, L)
    for row, n in enumerate(picks.tolist()):
        ids = part.target[n].tolist()
        assert batch.tokens[row].tolist() == [edge, *ids, *[edge] * (L - 1 - len(ids))]
        assert batch.targets[row].tolist() == [*ids, edge, *[-100] * (L - 1 - len(ids))]
        assert torch.equal(batch.source[row], part.pixels[part.of[n]])
    assert sum(batch.count for batch in scoring(part, 7, 4)) == int((part.target.lengths[part.of < 4] + 1).sum())


def test_batches_follow_seed_epoch_and_step_alone(folder):
    part = CaptionSource(path=str(folder)).open().train
    a, b, c = (CaptionBatches(part, 8, seed=seed) for seed in (1, 1, 2))
    a.batch(4, 1)
    assert torch.equal(a.batch(0, 2).tokens, b.batch(0, 2).tokens)
    assert not torch.equal(a.batch(0, 2).source, c.batch(0, 2).source)


# --- scenes -----------------------------------------------------------------------------------------------------------


AREAS = {"circle": 3.14, "square": 4, "triangle": 2, "cross": 1.75, "diamond": 2, "ring": 2.19}  # of a half width of 1


def test_no_training_scene_has_what_is_held_out_and_every_test_scene_has():
    things, apart = scenes.held_out()
    train = {frozenset((s.first.kind, s.second.kind)) for s in scenes.scenes("train", 3000)}
    assert not {kind for both in train for kind in both} & things
    assert not train & apart
    assert {kind for both in train for kind in both} | things == {
        (colour, shape) for colour in scenes.COLOURS for shape in scenes.SHAPES
    }
    test = list(scenes.scenes("test", 400))
    assert [s.new for s in test].count("thing") == 200
    for scene in test:
        both = frozenset((scene.first.kind, scene.second.kind))
        assert bool(both & things) if scene.new == "thing" else both in apart


def test_a_picture_shows_what_its_captions_say():
    """The pixels of each colour are where the relation says, and as many as its size and shape have."""
    for n, scene in enumerate(scenes.scenes("train", 200)):
        picture, middles = scenes.drawn(scene, scenes.dice(7, n)).astype(int), []
        grounds = np.median(picture.reshape(-1, 3), 0)
        for thing in (scene.first, scene.second):
            near = np.abs(picture - np.array(scenes.COLOURS[thing.colour])).sum(2)
            far = np.abs(picture - grounds).sum(2)
            other = scene.second if thing is scene.first else scene.first
            if other.colour == thing.colour:
                break  # two shapes of one colour cannot be told apart here
            mine = (near < far) & (near < np.abs(picture - np.array(scenes.COLOURS[other.colour])).sum(2))
            y, x = np.nonzero(mine)
            middles.append((y.mean(), x.mean()))
            area = AREAS[thing.shape] * scenes.SIZES[thing.size] ** 2
            assert 0.7 * area < len(y) < 1.4 * area
        else:
            down, right = scenes.RELATIONS[scene.relation]
            step = (middles[0][0] - middles[1][0]) * down + (middles[0][1] - middles[1][1]) * right
            assert step > 4


def test_both_captions_of_a_scene_say_the_same():
    scene = next(scenes.scenes("train", 1))
    one, other = scene.captions()
    assert one == f"{scene.first} {scene.relation} {scene.second}"
    assert other == f"{scene.second} {scenes.BACK[scene.relation]} {scene.first}"
