"""The sentences that the lectures print: a translation and a caption that no training example has."""

import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

from harken.data.images.files import Array
from harken.data.synthetic.phrases import phrases
from harken.events import silent
from harken.experiments.train import train
from harken.inference.run import Run

from . import Measurement, private_cache, show

TRANSLATIONS = {
    "He drives the car.": "Il conduit la voiture.",  # the lecture's sentence
    "She drives the truck.": "Elle conduit le camion.",
    "They drive the tractor.": "Ils conduisent le tracteur.",
    "He sees the car.": "Il voit la voiture.",
    "I wash the car.": "Je lave la voiture.",
}
CAPTION = "a large airplane flying in the blue sky"
HALF_WIDTHS = {"large": 5, "small": 3}  # pixels
SKIES = {"blue": (90, 150, 235), "grey": (150, 150, 150), "red": (225, 110, 80), "dark": (25, 25, 60)}
SIZE = 16  # pixels


def train_on(folder: str, tables: dict[str, list[str]], settings: dict[str, object]) -> Run:
    """Train on these tables (train.tsv, valid.tsv), one CPU thread."""
    for name, lines in tables.items():
        Path(folder, "data", f"{name}.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    settings = {**settings, "train.threads": 1, "train.device": "cpu", "train.precision": "float32"}
    settings |= {"train.eval_every": settings["train.steps"]}
    with private_cache(folder):
        return train(str(Path(folder, "data")), out=Path(folder, "run"), settings=settings, listen=silent)


@show(slow=True)
def drives_the_car() -> Measurement:
    """A small Transformer translates five sentences that its training data lacks; each of their words occurs in it."""
    pairs = [(source, target) for source, target in phrases(20_000) if source not in TRANSLATIONS]
    lines = [f"{source}\t{target}" for source, target in pairs]
    settings = {"data.tokenizer": "word", "data.vocab_size": 4000, "model.d": 96, "model.layers": 1, "model.d_ff": 192}
    settings |= {"task.eval_pairs": 50, "train.batch": 48, "train.lr": 1e-2, "train.steps": 400}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "data").mkdir()
        run = train_on(folder, {"train": lines[500:], "valid": lines[:500]}, settings)
        texts = run.translate(list(TRANSLATIONS), beam=1)
    right = [text == target for text, target in zip(texts, TRANSLATIONS.values(), strict=True)]
    words = 'of 5 sentences outside the training data are translated correctly, among them "He drives the car.": '
    words += texts[0]
    return Measurement(sum(right), words, right[0] and sum(right) >= 4)


def airplane(x: Array, y: Array, r: float) -> Array:
    """The pixels of an airplane: a fuselage, swept wings and a tail. x and y are relative to its center."""
    fuselage = (abs(y) <= r / 5) & (abs(x) <= r)
    wings = (abs(x - abs(y) / 2) <= r / 5) & (abs(y) <= r)
    return fuselage | wings | ((abs(x - r) <= r / 5) & (abs(y) <= r / 2))


SHAPES = {
    "airplane": airplane,
    "balloon": lambda x, y, r: np.hypot(x, y) <= r,
    "kite": lambda x, y, r: abs(x) + abs(y) <= r,
}


def flying(count: int) -> Iterator[tuple[Array, str]]:
    """Images of an object in a sky, with captions: all combinations in turn, positions and noise at random."""
    rng = np.random.default_rng(0)
    combinations = list(product(HALF_WIDTHS, SHAPES, SKIES))
    for n in range(count):
        size, kind, sky = combinations[n % len(combinations)]
        r = HALF_WIDTHS[size]
        y, x = np.mgrid[:SIZE, :SIZE] - rng.integers(6, 11, 2)[:, None, None]
        image = np.where(SHAPES[kind](x, y, r)[..., None], 250, SKIES[sky]) + rng.normal(0, 8, (SIZE, SIZE, 3))
        yield np.clip(image, 0, 255).astype(np.uint8), f"a {size} {kind} flying in the {sky} sky"


@show(slow=True)
def large_airplane() -> Measurement:
    """A small captioner names an airplane, its size and its sky in a combination that no training image shows."""
    examples = list(flying(24 * 100))
    seen = [n for n, (_, caption) in enumerate(examples) if caption != CAPTION]
    lines = [f"x.npz[{n}]\t{examples[n][1]}" for n in seen]
    settings = {"data.kind": "captions", "data.image_size": SIZE, "model.size": "tiny", "model.word_dropout": 0.15}
    settings |= {"train.batch": 48, "train.steps": 400, "train.lr": 2e-2}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "data").mkdir()
        x = np.stack([image for image, _ in examples])
        np.savez(Path(folder, "data", "x.npz"), x=x, y=np.zeros(len(x), np.uint8))
        head = ["image\tcaption"]
        run = train_on(folder, {"train": head + lines[100:], "valid": head + lines[:100]}, settings)
        captions = run.caption([image for image, caption in examples if caption == CAPTION])
    right = sum(caption == CAPTION for caption in captions)
    words = f'of {len(captions)} images get the caption "{CAPTION}", which no training image has'
    return Measurement(right, words, right >= 0.9 * len(captions))
