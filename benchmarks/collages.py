"""Collages: two photographs next to each other, with captions of both ("a sandal left of a coat").

Some pairs of classes occur only in the test split, and the splits share no photograph.
"""

import io
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from harken.data.images.files import Array
from harken.data.rng import rng_for
from harken.data.synthetic.scenes import HELD_OUT_PAIRS, INVERSE, RELATIONS
from harken.data.synthetic.tales import article

IMAGES, HELD_OUT, DRAW = 13, 14, 15  # streams of random numbers, not used by RngStream
SPLIT_SIZES = {"train": 12_000, "valid": 500, "test": 1000}
PHOTO_RANGES = {"train": (0.0, 0.8), "valid": (0.8, 0.9), "test": (0.9, 1.0)}  # fractions of the photographs per class


def collages(x: Array, y: Sequence[str], split_sizes: dict[str, int] | None = None) -> dict[str, bytes]:
    """The files of a captioned dataset from photographs (N S S, bytes) and their classes."""
    classes = sorted(set(y))
    photos = {
        name: rng_for(0, IMAGES, n).permutation(np.flatnonzero(np.array(y) == name)) for n, name in enumerate(classes)
    }
    pairs = [frozenset(pair) for pair in combinations(classes, 2)]
    order = rng_for(0, HELD_OUT).permutation(len(pairs))
    test_pairs = {pairs[n] for n in order[: round(HELD_OUT_PAIRS * len(pairs))]}
    images, files = list[Array](), dict[str, bytes]()
    for number, (split, remaining) in enumerate((split_sizes or SPLIT_SIZES).items()):
        rng, rows = rng_for(0, DRAW, number), ["image\tcaption\n"]
        low, high = PHOTO_RANGES[split]
        while remaining:
            a, b = (classes[n] for n in rng.integers(len(classes), size=2))
            if a == b or (frozenset((a, b)) in test_pairs) != (split == "test"):
                continue
            first, second = (
                x[indices[rng.integers(int(low * len(indices)), int(high * len(indices)))]]
                for indices in (photos[a], photos[b])
            )
            relation = list(RELATIONS)[rng.integers(len(RELATIONS))]
            captions = (f"{article(a)} {relation} {article(b)}", f"{article(b)} {INVERSE[relation]} {article(a)}")
            rows += [f"collages.npz[{len(images)}]\t{caption}\n" for caption in captions]
            images.append(_compose(first, second, RELATIONS[relation], rng))
            remaining -= 1
        files[f"{split}.tsv"] = "".join(rows).encode()
    file = io.BytesIO()
    np.savez_compressed(file, x=np.stack(images), y=np.zeros(len(images), np.uint8))
    return files | {"collages.npz": file.getvalue()}


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def _compose(first: Array, second: Array, direction: tuple[int, int], rng: np.random.Generator) -> Array:
    """Both photographs on a black square of twice their width, at a random offset across the relation."""
    side = len(first)
    canvas = np.zeros((2 * side, 2 * side), np.uint8)
    axis = direction.index(-1) if -1 in direction else direction.index(1)
    start = 0 if -1 in direction else side
    for photo, position in ((first, start), (second, side - start)):
        corner = [int(rng.integers(side + 1))] * 2
        corner[axis] = position
        canvas[corner[0] : corner[0] + side, corner[1] : corner[1] + side] = photo
    return canvas
