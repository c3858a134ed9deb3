"""Runs on captioned images: train, evaluate, resume, trace, compare."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import harken
from harken.data.images.files import encode_png
from harken.errors import BadInput
from harken.experiments.choose import choose
from harken.experiments.report.formatting import format_number
from harken.tasks.metrics import generation

COLLAGES = Path(__file__).parents[2] / "benchmarks" / "collages.py"
TINY = {"model.size": "tiny", "model.stem": "patch", "model.patch": 4, "train.threads": 1, "train.batch": 32}
TINY |= {
    "train.optimizer": "muon",
    "train.lr": 1e-2,
    "task.beam": 2,
    "task.metric": "exact_match",
    "task.max_new_tokens": 12,
}
COLORS, SIDES = ("red", "green", "blue"), ("left", "right")


def halves(folder: Path, many: int = 240) -> Path:
    """One half of an image is colored. Blue on the left is in the test split only."""
    rng, rows = np.random.default_rng(0), dict[str, list[str]](train=[], valid=[], test=[])
    images = np.zeros((many, 8, 8, 3), np.uint8)
    for n in range(many):
        color, side = rng.integers(3), rng.integers(2)
        images[n] = rng.integers(0, 60, (8, 8, 3))
        images[n, :, 4 * side : 4 * side + 4, color] += 150
        split = "test" if (color, side) == (2, 0) else "valid" if n % 8 == 0 else "train"
        captions = (f"{COLORS[color]} on the {SIDES[side]}", f"the {SIDES[side]} is {COLORS[color]}")
        rows[split] += [f"halves.npz[{n}]\t{text}\n" for text in captions]
    folder.mkdir()
    np.savez(folder / "halves.npz", x=images, y=np.zeros(many))
    for split, lines in rows.items():
        (folder / f"{split}.tsv").write_text("image\tcaption\n" + "".join(lines))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return halves(tmp_path_factory.mktemp("captions") / "halves")


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory) -> harken.Run:
    out = tmp_path_factory.mktemp("runs") / "halves"
    return harken.train(folder, out=out, settings={**TINY, "train.steps": 120, "model.d": 48})


def test_a_caption_model_beats_the_baselines(trained):
    baseline = trained.facts["baseline"]
    assert baseline["valid"]["most frequent caption"]["exact_match"] < 0.5
    assert (
        baseline["valid"]["caption of the nearest image"]["exact_match"] > 0.9
    )  # similar pixels are in the training split
    assert baseline["test"]["caption of the nearest image"]["exact_match"] == 0
    assert trained.metrics["valid"]["exact_match"] > 0.9
    assert trained.facts["data"]["images"]["train"] * 2 == trained.facts["data"]["captions"]["train"]


def test_the_audit_passes_with_images_as_sources(trained):
    passed = {c["name"] for c in trained.facts["audit"]["checks"] if c["outcome"] == "passed"}
    assert passed == {"causal", "gradient", "padding", "source_padding", "cache", "batching", "accumulation"}


def test_exact_match_compares_captions_with_all_references(trained):
    part = trained.recipe.load_data(trained.tokenizer).splits["valid"]
    pixels = [x.permute(1, 2, 0).numpy() for x in part.pixels]
    captions = trained.caption(pixels, beam=2)
    assert generation.exact_match(captions, part.references) == trained.metrics["valid"]["exact_match"]
    assert captions[3] == trained.caption(pixels[3], beam=2)


def test_files_arrays_and_paths_into_arrays_give_the_same_caption(trained, folder, tmp_path):
    x = np.load(folder / "halves.npz")["x"][7]
    (tmp_path / "a.png").write_bytes(encode_png(x))
    again = harken.load(trained.path)
    by_file, by_array = again.caption(tmp_path / "a.png"), again.caption([x])[0]
    assert by_file == by_array == again.caption(f"{folder}/halves.npz[7]")
    alternatives = again.caption(tmp_path / "a.png", alternatives=3)
    assert alternatives[0]["text"] == by_file
    assert [each["score"] for each in alternatives] == sorted((each["score"] for each in alternatives), reverse=True)
    with pytest.raises(BadInput, match="this run captions images; use harken caption"):
        again.translate("a text")
    with pytest.raises(BadInput, match="beem"):
        again.caption([x], beem=3)


def test_a_trace_has_the_attention_of_each_word_to_the_patches(trained, folder):
    trace = trained.trace(f"{folder}/halves.npz[7]")
    A = trace.attention("cross", layer=0, head=0)
    assert trace.source == ["0,0", "0,1", "1,0", "1,1"]
    assert A.shape == (len(trace.tokens), 4)
    assert A.sum(-1).tolist() == pytest.approx([1] * len(trace.tokens))
    assert trained.trace(f"{folder}/halves.npz[7]", "the left is red").tokens[:2] == ["the", "left"]


def test_the_report_shows_images_captions_and_attention(trained):
    page = (trained.path / "report.html").read_text()
    assert page.count('src="data:image/png;base64,') == 10
    trace = trained.trace(trained.facts["example"])
    assert f"attention of {len(trace.tokens)} generated tokens to 4 patches" in page
    weights = trace.views["cross"][-1].full()[0].mean(0)
    assert f"{trace.tokens[0]} attends to row 1, column 0: {format_number(float(weights[0, 2]), 2)}" in page


def test_other_images_are_evaluated_with_their_own_captions(trained, folder):
    score, baseline = trained.evaluate("test", data=str(folder / "train.tsv"))
    assert score.metrics["exact_match"] > 0.9
    assert baseline


def test_seeds_of_caption_models_are_stacked(folder, tmp_path):
    settings = {**TINY, "train.steps": 3, "task.eval_pairs": 5, "train.seeds": 2, "train.optimizer": "adamw"}
    summary = harken.train(folder, out=tmp_path / "two", settings=settings).facts["seeds"]
    assert [each["seed"] for each in summary["per_seed"]] == [0, 1]


def test_settings_are_compared_on_the_same_images(folder, tmp_path):
    axes = {"model.positions": ["learned", "sinusoid"]}
    settings = {**TINY, "train.steps": 4, "task.eval_pairs": 5}
    comparison = harken.compare(folder, axes, settings=settings, seeds=1, out=tmp_path / "c")
    assert [row["settings"]["model.positions"] for row in comparison.rows] == axes["model.positions"]


def test_collages_hold_out_pairs_and_photographs(tmp_path):
    """Each photograph is identified by its brightness: no test collage has one of a training collage."""
    y = [("coat", "bag", "boot", "dress", "shirt")[n % 5] for n in range(200)]
    x = np.broadcast_to(np.arange(1, 201, dtype=np.uint8)[:, None, None], (200, 4, 4))
    script = runpy.run_path(str(COLLAGES))
    home = script["write_files"](tmp_path / "c", script["collages"](x, y, {"train": 300, "valid": 20, "test": 40}))
    images = np.load(home / "collages.npz")["x"]
    seen: dict[str, tuple[set[int], set[frozenset[str]]]] = {}
    for split in ("train", "test"):
        rows = [line.split("\t") for line in (home / f"{split}.tsv").read_text().splitlines()[1:]]
        photos, pairs = set[int](), set[frozenset[str]]()
        for out, caption in rows:
            words = caption.split()
            image = images[int(out.partition("[")[2][:-1])]
            pairs.add(frozenset((words[1], words[-1])))
            photos |= set(image.flatten().tolist()) - {0}
            for name, (down, right) in {"left": (0, -1), "below": (1, 0)}.items():
                if words[2] == name:  # position of the first object
                    first = next(n for n in set(image.flatten().tolist()) - {0} if y[n - 1] == words[1])
                    where = np.argwhere(image == first).mean(0) - 3.5
                    assert where @ np.array([down, right]) > 0
        seen[split] = photos, pairs
    assert not seen["train"][0] & seen["test"][0]
    assert not seen["train"][1] & seen["test"][1]


def test_a_folder_with_captions_gets_its_recipe(folder):
    recipe = choose(str(folder)).recipe
    assert (recipe.data.kind, recipe.model.kind, recipe.task.kind) == ("captions", "caption", "caption")
