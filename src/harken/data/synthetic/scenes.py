"""Scenes of two coloured shapes, with captions that say what they are and how they stand to each other.

Made here, seeded. Two kinds of combinations are never learned from: two things that do not meet in one picture of the
training, though each is there beside others; and things whose colour never has that shape in training.
"""

import io
from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from harken.data.batch import dice
from harken.data.images.files import Numbers

SIDE, MANY = 32, {"train": 30_000, "valid": 500, "test": 1000}  # pixels, and pictures of each split
SIZES = {"small": 4.0, "large": 7.0}  # half of a thing's width
SHAPES = ("circle", "square", "triangle", "cross", "diamond", "ring")
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (60, 90, 230),
    "yellow": (230, 210, 50),
    "purple": (160, 60, 190),
    "white": (240, 240, 240),
    "orange": (240, 130, 30),
    "cyan": (50, 210, 220),
}
# how the first stands to the second: the step from the second to the first, and the word for the way back
RELATIONS = {"left of": (0, -1), "right of": (0, 1), "above": (-1, 0), "below": (1, 0)}
BACK = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
PAIR, THING = "pair", "thing"  # what is new in a held-out picture
APART = 0.15  # share of the pairs of things that never meet in training
FILES = ("scenes.npz", *(f"{split}.tsv" for split in MANY))


class Thing(NamedTuple):
    """What a caption says of one of the two."""

    size: str
    colour: str
    shape: str

    def __str__(self) -> str:
        return f"a {self.size} {self.colour} {self.shape}"

    @property
    def kind(self) -> tuple[str, str]:
        return self.colour, self.shape


class Scene(NamedTuple):
    """Two things and how they stand; `new`: what of it is not in the training."""

    first: Thing
    second: Thing
    relation: str
    new: str = ""

    def captions(self) -> tuple[str, str]:
        """The same said from either side."""
        one, other = self.first, self.second
        return f"{one} {self.relation} {other}", f"{other} {BACK[self.relation]} {one}"


def held_out() -> tuple[set[tuple[str, str]], set[frozenset[tuple[str, str]]]]:
    """The things that are never learned from, one of each shape and of another colour each; and the pairs of others."""
    colours = list(COLOURS)
    things = {(colours[n], shape) for n, shape in enumerate(SHAPES)}
    others = [(c, s) for c in COLOURS for s in SHAPES if (c, s) not in things]
    pairs = [frozenset(pair) for pair in combinations(others, 2)]
    picks = dice(0, 10).permutation(len(pairs))[: round(APART * len(pairs))]
    return things, {pairs[n] for n in picks}


def scenes(split: str, many: int | None = None) -> Iterator[Scene]:
    """The scenes of a split, each by its own dice. In the test half have a new pair, half a new thing; valid: as train.

    What is chosen by the valid split is thereby chosen without a look at what is held out.
    """
    rng, wanted = dice(0, 11, list(MANY).index(split)), many or MANY[split]
    things, apart = held_out()
    every = [Thing(*parts) for parts in product(SIZES, COLOURS, SHAPES)]
    while wanted:
        first, second = (every[n] for n in rng.integers(len(every), size=2))
        relation = list(RELATIONS)[rng.integers(len(RELATIONS))]
        if first.kind == second.kind:
            continue  # two alike could not be told from one another
        both = frozenset((first.kind, second.kind))
        new = THING if both & things else PAIR if both in apart else ""
        asked = (PAIR, THING)[wanted % 2] if split == "test" else ""
        if new == asked:
            wanted -= 1
            yield Scene(first, second, relation, new)


def drawn(scene: Scene, rng: np.random.Generator) -> Numbers:  # S S 3
    """The picture: somewhere on a dark ground, colours a little different each time."""
    picture = np.full((SIDE, SIDE, 3), rng.uniform(10, 60, 3))
    half = [SIZES[thing.size] for thing in (scene.first, scene.second)]
    down, right = RELATIONS[scene.relation]
    far = sum(half) + rng.uniform(0.5, 2.0)  # between their middles, along the relation; across it little
    step = np.array([down, right]) * far + np.array([right, down]) * rng.uniform(-2, 2)
    low = np.array([max(half[1], half[0] - s) for s in step])
    high = np.array([SIDE - max(half[1], half[0] + s) for s in step])
    second = rng.uniform(low, np.maximum(low, high))
    for thing, middle, size in zip((scene.first, scene.second), (second + step, second), half, strict=True):
        colour = np.array(COLOURS[thing.colour]) + rng.normal(0, 12, 3)
        picture = np.where(_inside(thing.shape, middle, size)[..., None], colour, picture)
    return np.clip(np.round(picture), 0, 255).astype(np.uint8)


def _inside(shape: str, middle: Numbers, size: float) -> Numbers:  # S S
    y, x = (np.indices((SIDE, SIDE)) + 0.5) - middle[:, None, None]
    match shape:
        case "circle":
            inside = np.hypot(x, y) <= size
        case "square":
            inside = np.maximum(abs(x), abs(y)) <= size
        case "triangle":
            inside = (y <= size) & (2 * abs(x) <= y + size)
        case "diamond":
            inside = abs(x) + abs(y) <= size
        case "ring":
            inside = abs(np.hypot(x, y) - 0.775 * size) <= 0.225 * size  # from 0.55 to 1
        case _:
            inside = (np.minimum(abs(x), abs(y)) <= size / 4) & (np.maximum(abs(x), abs(y)) <= size)
    return np.asarray(inside)


def scene_file(name: str) -> list[str | bytes]:
    """A file of the set: the pictures of all splits as one array, or the table of a split."""
    if name == FILES[0]:
        pictures = [drawn(s, dice(0, 12, n, k)) for n, split in enumerate(MANY) for k, s in enumerate(scenes(split))]
        file = io.BytesIO()
        np.savez_compressed(file, x=np.stack(pictures), y=np.zeros(len(pictures), np.uint8))
        return [file.getvalue()]
    split = name.removesuffix(".tsv")
    begin = sum(many for other, many in list(MANY.items())[: list(MANY).index(split)])
    rows = (
        f"{FILES[0]}[{begin + n}]\t{caption}\t{scene.new}\n"
        for n, scene in enumerate(scenes(split))
        for caption in scene.captions()
    )
    return ["image\tcaption\tnew\n", *rows]
