"""Images with captions: detection, reading and splits."""

from pathlib import Path

import numpy as np
import pytest

from harken.data.captions.source import CaptionSource
from harken.data.detect.kinds import detect_kind
from harken.data.images.files import decode_image, encode_png
from harken.errors import BadInput

SIDES, COLORS = ("left", "right"), ("red", "green", "blue")


def captions(n: int) -> list[str]:
    return [f"a {COLORS[n % 3]} half on the {SIDES[n % 2]}", f"{SIDES[n % 2]}, it is {COLORS[n % 3]}"]


def write_images(folder, count=40, seed=0, table="captions.tsv"):
    """Images with a bright half, and two captions of each."""
    rng, lines = np.random.default_rng(seed), ["image\tcaption\n"]
    for n in range(count):
        x = rng.integers(0, 80, (8, 8, 3), np.uint8)
        x[:, 4 * (n % 2) :][:, :4, n % 3] += 120
        name = f"p{seed}-{n}.png"
        (folder / name).write_bytes(encode_png(x))
        lines += [f"{name}\t{caption}\n" for caption in captions(n)]
    (folder / table).write_text("".join(lines))
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_images(tmp_path)


def test_a_folder_with_a_table_of_captions_is_detected(folder):
    for path in (folder, folder / "captions.tsv"):
        detection = detect_kind(path)
        assert detection.kind == "captions"
        assert detection.settings == {"data.image": "image", "data.caption": "caption"}


def test_a_table_of_labelled_images_is_not_detected_as_captions(folder):
    (folder / "captions.tsv").write_text("image\tkind\n" + "".join(f"p0-{n}.png\t{SIDES[n % 2]}\n" for n in range(40)))
    assert detect_kind(folder / "captions.tsv").kind == "images"


def test_images_with_one_name_in_different_folders_are_split(folder):
    lines = ["image\tcaption\n"]
    for n in range(40):
        (folder / f"{n}").mkdir()
        (folder / f"p0-{n}.png").rename(folder / f"{n}" / "photo.png")
        lines.append(f"{n}/photo.png\ta half on the {SIDES[n % 2]}\n")
    (folder / "captions.tsv").write_text("".join(lines))
    data = CaptionSource(path=str(folder), test=0.2).load_data()
    assert 2 <= len(data.splits["test"].references) <= 20


def test_the_captions_of_an_image_are_its_references_and_each_is_trained_on(folder):
    data = CaptionSource(path=str(folder), test=0.2).load_data()
    test, train = data.splits["test"], data.train
    for location, references in zip(test.sources, test.references, strict=True):
        assert references == captions(int(location.rpartition("-")[2].removesuffix(".png")))
    assert len(train.image_index) == 2 * len(train)
    for n, image in enumerate(train.image_index.tolist()):
        assert data.tokenizers.decode_target(train.target[n]) == train.references[image][n % 2]


def test_images_are_the_pixels_of_their_files(folder):
    train = CaptionSource(path=str(folder)).load_data().train
    for location, pixels in zip(train.sources, train.pixels, strict=True):
        assert (pixels.permute(1, 2, 0).numpy() == decode_image(Path(location))).all()


def test_tables_are_split_by_name_and_a_copy_of_a_test_image_is_not_trained_on(tmp_path):
    for seed, split in enumerate(("train", "valid", "test")):
        write_images(tmp_path, 10 + seed, seed, f"{split}.tsv")
    (tmp_path / "twin.png").write_bytes((tmp_path / "p2-3.png").read_bytes())
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("twin.png\ta copy\n")
    data = CaptionSource(path=str(tmp_path)).load_data()
    assert {split: len(part) for split, part in data.parts.items()} == {"train": 10, "valid": 11, "test": 12}


def test_elements_of_an_array_are_read_as_images(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "x.npz", x=x, y=np.zeros(30))
    rows = "".join(f"x.npz[{n}]\tpicture number {n % 5}\n" for n in range(30))
    (tmp_path / "t.tsv").write_text("image\tcaption\n" + rows)
    data = CaptionSource(path=str(tmp_path / "t.tsv"), valid=0, test=0).load_data()
    assert (data.train.pixels.permute(0, 2, 3, 1).numpy() == x).all()
    (tmp_path / "t.tsv").write_text("image\tcaption\n" + rows + "x.npz[30]\tno such picture\n")
    with pytest.raises(BadInput, match=r"x.npz\[30\]: the array has 30 images, counted from 0"):
        CaptionSource(path=str(tmp_path / "t.tsv")).load_data()


def test_a_processor_is_saved_and_loaded(folder, tmp_path):
    processor = CaptionSource(path=str(folder)).load_data().processor
    run = tmp_path / "run"
    run.mkdir()
    for name, content in processor.files().items():
        (run / name).write_bytes(content)
    loaded = CaptionSource().load_processor(run)
    assert loaded.vocab == processor.vocab
    ids = processor.tokenizers.encode_target("a red half on the left")
    assert loaded.tokenizers.decode_target(ids) == "a red half on the left"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "captions.tsv").unlink(), "no table of images and captions; add a file such as captions.tsv"),
        (
            lambda f: (f / "captions.tsv").write_text("image\tcaption\np0-0.png\t\n"),
            "the image or the caption is empty",
        ),
        (lambda f: [p.unlink() for p in f.glob("*.png")], "images cannot be read"),
    ],
)
def test_unusable_input_is_refused_in_one_line(folder, change, message):
    change(folder)
    with pytest.raises(BadInput, match=message) as error:
        CaptionSource(path=str(folder), image="image", caption="caption").load_data()
    assert "\n" not in str(error.value)
