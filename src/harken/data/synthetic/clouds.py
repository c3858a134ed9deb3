"""Point clouds on the surfaces of solids, randomly rotated and scaled to unit variance."""

from collections.abc import Callable, Iterator

import numpy as np

from harken.data.images.files import Array
from harken.data.rng import rng_for

N_POINTS = 32  # per cloud
NOISE = 0.03  # standard deviation of the distance from the surface
Surface = Callable[[np.random.Generator], Array]  # N_POINTS 3


def _sphere(rng: np.random.Generator) -> Array:
    x = rng.standard_normal((N_POINTS, 3))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def _cube(rng: np.random.Generator) -> Array:
    x = rng.uniform(-1, 1, (N_POINTS, 3))
    x[np.arange(N_POINTS), rng.integers(3, size=N_POINTS)] = rng.choice([-1.0, 1.0], N_POINTS)
    return x


def _ring(rng: np.random.Generator) -> Array:
    """A torus."""
    around, tube = rng.uniform(0, 2 * np.pi, (2, N_POINTS))
    radius = 1 + 0.4 * np.cos(tube)
    return np.stack([radius * np.cos(around), radius * np.sin(around), 0.4 * np.sin(tube)], 1)


def _cross(rng: np.random.Generator) -> Array:
    """Three orthogonal bars with a common center."""
    x = rng.uniform(-0.15, 0.15, (N_POINTS, 3))
    x[np.arange(N_POINTS), rng.integers(3, size=N_POINTS)] = rng.uniform(-1, 1, N_POINTS)
    return x


SOLIDS: dict[str, Surface] = {"sphere": _sphere, "cube": _cube, "ring": _ring, "cross": _cross}


def clouds(count: int, seed: int = 0) -> Iterator[tuple[str, Array, str]]:
    """Generate clouds: a name, the points (N_POINTS 3) and the solid."""
    for n in range(count):
        rng = rng_for(seed, n)
        solid = rng.choice([*SOLIDS])
        x = SOLIDS[solid](rng) @ np.linalg.qr(rng.standard_normal((3, 3)))[0]
        x = x - x.mean(0)
        yield f"c{n}", x / x.std() + NOISE * rng.standard_normal(x.shape), str(solid)


def rows(count: int) -> Iterator[tuple[str, str, str, str, str]]:
    """The clouds as a table with one point per row."""
    for name, points, solid in clouds(count):
        for x, y, z in points:
            yield name, f"{x:.3f}", f"{y:.3f}", f"{z:.3f}", solid
