"""Clouds of points on the surface of a solid, turned, and stretched to one size: only how they stand tells which."""

from collections.abc import Callable, Iterator

import numpy as np

from harken.data.batch import dice
from harken.data.images.files import Numbers

POINTS = 32  # of a cloud
BLUR = 0.03  # how far a point lies off the surface
Surface = Callable[[np.random.Generator], Numbers]  # POINTS 3


def _sphere(rng: np.random.Generator) -> Numbers:
    x = rng.standard_normal((POINTS, 3))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def _cube(rng: np.random.Generator) -> Numbers:
    x = rng.uniform(-1, 1, (POINTS, 3))
    x[np.arange(POINTS), rng.integers(3, size=POINTS)] = rng.choice([-1.0, 1.0], POINTS)
    return x


def _ring(rng: np.random.Generator) -> Numbers:
    around, within = rng.uniform(0, 2 * np.pi, (2, POINTS))
    far = 1 + 0.4 * np.cos(within)
    return np.stack([far * np.cos(around), far * np.sin(around), 0.4 * np.sin(within)], 1)


def _cross(rng: np.random.Generator) -> Numbers:
    """Three bars through one middle."""
    x = rng.uniform(-0.15, 0.15, (POINTS, 3))
    x[np.arange(POINTS), rng.integers(3, size=POINTS)] = rng.uniform(-1, 1, POINTS)
    return x


SOLIDS: dict[str, Surface] = {"sphere": _sphere, "cube": _cube, "ring": _ring, "cross": _cross}


def clouds(count: int, seed: int = 0) -> Iterator[tuple[str, Numbers, str]]:
    """So many clouds: a name, the points (POINTS 3) and the solid."""
    for n in range(count):
        rng = dice(seed, n)
        solid = rng.choice([*SOLIDS])
        x = SOLIDS[solid](rng) @ np.linalg.qr(rng.standard_normal((3, 3)))[0]
        x = x - x.mean(0)
        yield f"c{n}", x / x.std() + BLUR * rng.standard_normal(x.shape), str(solid)


def rows(count: int) -> Iterator[tuple[str, str, str, str, str]]:
    """The same, a point in each row."""
    for name, points, solid in clouds(count):
        for x, y, z in points:
            yield name, f"{x:.3f}", f"{y:.3f}", f"{z:.3f}", solid
