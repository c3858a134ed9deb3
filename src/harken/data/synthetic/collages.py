"""Collages: two photographs beside or above each other, with captions that name both ("a sandal left of a coat").

Of the pairs of things some never meet in training; and no photograph of a held-out collage is in one to learn from.
"""

import io
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from harken.data.batch import dice
from harken.data.images.files import Numbers

from .scenes import APART, BACK, RELATIONS

MANY = {"train": 12_000, "valid": 500, "test": 1000}
HELD = {"train": (0.0, 0.8), "valid": (0.8, 0.9), "test": (0.9, 1.0)}  # which photographs of each kind a split may take


def collages(x: Numbers, y: Sequence[str], many: dict[str, int] | None = None) -> dict[str, bytes]:
    """The files of a set of captions, made of photographs (N S S, bytes) and what each shows."""
    kinds = sorted(set(y))
    of = {kind: dice(0, 13, n).permutation(np.flatnonzero(np.array(y) == kind)) for n, kind in enumerate(kinds)}
    pairs = [frozenset(pair) for pair in combinations(kinds, 2)]
    apart = {pairs[n] for n in dice(0, 14).permutation(len(pairs))[: round(APART * len(pairs))]}
    pictures, files = list[Numbers](), dict[str, bytes]()
    for number, (split, wanted) in enumerate((many or MANY).items()):
        rng, rows = dice(0, 15, number), ["image\tcaption\n"]
        low, high = HELD[split]
        while wanted:
            one, other = (kinds[n] for n in rng.integers(len(kinds), size=2))
            if one == other or (frozenset((one, other)) in apart) != (split == "test"):
                continue
            shots = [
                x[some[rng.integers(int(low * len(some)), int(high * len(some)))]] for some in (of[one], of[other])
            ]
            relation = list(RELATIONS)[rng.integers(len(RELATIONS))]
            said = f"{_a(one)} {relation} {_a(other)}", f"{_a(other)} {BACK[relation]} {_a(one)}"
            rows += [f"collages.npz[{len(pictures)}]\t{caption}\n" for caption in said]
            pictures.append(_laid(shots[0], shots[1], RELATIONS[relation], rng))
            wanted -= 1
        files[f"{split}.tsv"] = "".join(rows).encode()
    file = io.BytesIO()
    np.savez_compressed(file, x=np.stack(pictures), y=np.zeros(len(pictures), np.uint8))
    return files | {"collages.npz": file.getvalue()}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def _a(kind: str) -> str:
    return f"a{'n' * (kind[0] in 'aeiou')} {kind}"


def _laid(one: Numbers, other: Numbers, way: tuple[int, int], rng: np.random.Generator) -> Numbers:
    """Both on a black square twice as wide, somewhere across the relation."""
    side = len(one)
    canvas = np.zeros((2 * side, 2 * side), np.uint8)
    along = way.index(-1) if -1 in way else way.index(1)
    first = 0 if -1 in way else side
    for photo, at in ((one, first), (other, side - first)):
        place = [int(rng.integers(side + 1))] * 2
        place[along] = at
        canvas[place[0] : place[0] + side, place[1] : place[1] + side] = photo
    return canvas
