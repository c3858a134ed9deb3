"""Generated images of two colored shapes, with captions of the shapes and their spatial relation.

The test split has combinations that are not in the training split: pairs of objects that never occur in one image,
and objects with a color and shape that never occur together.
"""

import io
from collections.abc import Callable, Iterator
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from harken.data.images.files import Array
from harken.data.rng import RngStream, rng_for

IMAGE_SIZE, SPLIT_SIZES = 32, {"train": 30_000, "valid": 500, "test": 1000}  # pixels, images
SIZES = {"small": 4.0, "large": 7.0}  # half the width of an object
SHAPES: dict[str, Callable[[Array, Array, float], Array]] = {  # masks of pixels x, y relative to the center
    "circle": lambda x, y, radius: np.hypot(x, y) <= radius,
    "square": lambda x, y, radius: np.maximum(abs(x), abs(y)) <= radius,
    "triangle": lambda x, y, radius: (y <= radius) & (2 * abs(x) <= y + radius),
    "cross": lambda x, y, radius: (np.minimum(abs(x), abs(y)) <= radius / 4) & (np.maximum(abs(x), abs(y)) <= radius),
    "diamond": lambda x, y, radius: abs(x) + abs(y) <= radius,
    "ring": lambda x, y, radius: abs(np.hypot(x, y) - 0.775 * radius) <= 0.225 * radius,  # from 0.55 to 1
}
COLORS = {
    "red": (220, 40, 40), "green": (40, 180, 60), "blue": (60, 90, 230), "yellow": (230, 210, 50),
    "purple": (160, 60, 190), "white": (240, 240, 240), "orange": (240, 130, 30), "cyan": (50, 210, 220),
}  # fmt: skip
RELATIONS = {"left of": (0, -1), "right of": (0, 1), "above": (-1, 0), "below": (1, 0)}  # direction to the first object
INVERSE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
NEW_PAIR, NEW_OBJECT = "pair", "thing"  # what is new in a test image
HELD_OUT_PAIRS = 0.15  # fraction of the pairs of objects
Kind = tuple[str, str]  # color and shape


class SceneObject(NamedTuple):
    """One of the two objects of a scene."""

    size: str
    color: str
    shape: str

    def __str__(self) -> str:
        return f"a {self.size} {self.color} {self.shape}"

    @property
    def kind(self) -> Kind:
        return self.color, self.shape


class Scene(NamedTuple):
    """Two objects and their relation; `new`: the part that is not in the training split."""

    first: SceneObject
    second: SceneObject
    relation: str
    new: str = ""

    def captions(self) -> tuple[str, str]:
        """The caption from the view of either object."""
        return (f"{self.first} {self.relation} {self.second}", f"{self.second} {INVERSE[self.relation]} {self.first}")


def held_out() -> tuple[set[Kind], set[frozenset[Kind]]]:
    """The held-out kinds of objects, one per shape with distinct colors; and the held-out pairs of other kinds."""
    colors = list(COLORS)
    kinds = {(colors[n], shape) for n, shape in enumerate(SHAPES)}
    trained = [(color, shape) for color in COLORS for shape in SHAPES if (color, shape) not in kinds]
    pairs = [frozenset(pair) for pair in combinations(trained, 2)]
    order = rng_for(0, RngStream.SCENE_HELD_OUT).permutation(len(pairs))
    return kinds, {pairs[n] for n in order[: round(HELD_OUT_PAIRS * len(pairs))]}


def scenes(split: str, count: int | None = None) -> Iterator[Scene]:
    """The scenes of a split. Test scenes have a new pair or a new object, half each; valid scenes have nothing new.

    So model selection on the valid split does not use the held-out combinations.
    """
    rng, remaining = rng_for(0, RngStream.SCENE_DRAW, list(SPLIT_SIZES).index(split)), count or SPLIT_SIZES[split]
    new_kinds, new_pairs = held_out()
    objects = [SceneObject(*parts) for parts in product(SIZES, COLORS, SHAPES)]
    while remaining:
        first, second = (objects[n] for n in rng.integers(len(objects), size=2))
        relation = list(RELATIONS)[rng.integers(len(RELATIONS))]
        if first.kind == second.kind:
            continue  # the caption would be ambiguous
        kinds = frozenset((first.kind, second.kind))
        new = NEW_OBJECT if kinds & new_kinds else NEW_PAIR if kinds in new_pairs else ""
        if new == ((NEW_PAIR, NEW_OBJECT)[remaining % 2] if split == "test" else ""):
            remaining -= 1
            yield Scene(first, second, relation, new)


def render_scene(scene: Scene, rng: np.random.Generator) -> Array:  # S S 3
    """The image: random position, dark background, slightly varied colors."""
    image = np.full((IMAGE_SIZE, IMAGE_SIZE, 3), rng.uniform(10, 60, 3))
    radii = [SIZES[item.size] for item in (scene.first, scene.second)]
    down, right = RELATIONS[scene.relation]
    distance = sum(radii) + rng.uniform(0.5, 2.0)  # between the centers, along the relation
    offset = np.array([down, right]) * distance + np.array([right, down]) * rng.uniform(-2, 2)
    low = np.array([max(radii[1], radii[0] - d) for d in offset])
    high = np.array([IMAGE_SIZE - max(radii[1], radii[0] + d) for d in offset])
    second = rng.uniform(low, np.maximum(low, high))
    for item, center, radius in zip((scene.first, scene.second), (second + offset, second), radii, strict=True):
        color = np.array(COLORS[item.color]) + rng.normal(0, 12, 3)
        y, x = (np.indices((IMAGE_SIZE, IMAGE_SIZE)) + 0.5) - center[:, None, None]
        image = np.where(SHAPES[item.shape](x, y, radius)[..., None], color, image)
    return np.clip(np.round(image), 0, 255).astype(np.uint8)


def scene_file(stem: str) -> list[str] | bytes:
    """The contents of a file: the images of all splits as one array, or the table of a split."""
    if stem == "scenes":
        images = [
            render_scene(scene, rng_for(0, RngStream.SCENE_PIXELS, n, k))
            for n, split in enumerate(SPLIT_SIZES)
            for k, scene in enumerate(scenes(split))
        ]
        file = io.BytesIO()
        np.savez_compressed(file, x=np.stack(images), y=np.zeros(len(images), np.uint8))
        return file.getvalue()
    first = sum(list(SPLIT_SIZES.values())[: list(SPLIT_SIZES).index(stem)])
    rows = [
        f"scenes.npz[{n}]\t{caption}\t{scene.new}\n"
        for n, scene in enumerate(scenes(stem), first)
        for caption in scene.captions()
    ]
    return ["image\tcaption\tnew\n", *rows]
