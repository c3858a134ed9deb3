"""Principal components: the directions in which vectors differ most; and a regression on the first few of them.

x = mean + sum_j z_j a_j, where the a_j are the eigenvectors of the covariance, the largest eigenvalue first. The z_j of
different j do not vary together, so the least-squares weight of one component does not depend on the others: one pass
gives the regressions on the first 1, 2, 3 ... components, and held-out examples say how many to take.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harken.errors import BadInput

Floats = npt.NDArray[np.floating]
Measure = Callable[[Floats], float]  # how good answers are, N C; more is better
BLOCK = 4096  # rows that are made float64 at once


@dataclass(frozen=True, eq=False)
class Components:
    """The directions of vectors, each of length 1, and how much they vary along each."""

    mean: Floats  # d
    axes: Floats  # m d
    variance: Floats  # m, of n - 1, as in scikit-learn
    share: Floats  # m: of the variance of all

    def project(self, x: Floats, many: int | None = None) -> Floats:  # N d -> N m
        axes = self.axes[:many]
        parts = [(x[n : n + BLOCK] - self.mean) @ axes.T for n in range(0, len(x), BLOCK)]
        return np.concatenate(parts) if parts else np.empty((0, len(axes)))


def components(x: Floats, many: int | None = None) -> Components:
    """The principal components of the rows of x, all or the first so many. The largest entry of each is positive."""
    n, d = x.shape
    if n < 2:
        raise BadInput(f"{n} vectors: components are directions in which vectors differ; give 2 or more")
    mean = x.mean(0, dtype=np.float64)
    if n <= d:
        _, s, axes = np.linalg.svd(x - mean, full_matrices=False)
        variance = s**2 / (n - 1)
    else:
        blocks = (x[start : start + BLOCK] - mean for start in range(0, n, BLOCK))
        values, vectors = np.linalg.eigh(sum(block.T @ block for block in blocks) / (n - 1))
        variance, axes = values[::-1].clip(0), vectors.T[::-1]
    largest = axes[np.arange(len(axes)), np.abs(axes).argmax(1)]
    axes = axes * np.where(largest < 0, -1.0, 1.0)[:, None]
    total = variance.sum()
    share = variance / total if total else np.zeros_like(variance)
    return Components(mean, axes[:many], variance[:many], share[:many])


@dataclass(frozen=True, eq=False)
class Regression:
    """y = mean + z B on the first `many` components."""

    components: Components
    mean: Floats  # C
    weights: Floats  # m C
    many: int
    tried: list[float]  # the measure with the first 1, 2, ... components

    def __call__(self, x: Floats) -> Floats:  # N d -> N C
        return self.mean + self.components.project(x, self.many) @ self.weights[: self.many]


def regression(x: Floats, y: Floats, held: Floats, measure: Measure) -> Regression:
    """Principal component regression of y (N C) on the rows of x; as many components as the held-out rows like best.

    Of equal numbers the least is taken. What does not vary explains nothing, and is left out.
    """
    found = components(x)
    rank = max(1, int((found.variance > found.variance.max() * 1e-10).sum()))
    mean, z = y.mean(0, dtype=np.float64), found.project(x, rank)
    spread = np.maximum((len(x) - 1) * found.variance[:rank, None], np.finfo(np.float64).tiny)
    weights = z.T @ (y - mean) / spread
    there, said, tried = found.project(held, rank), np.repeat(mean[None], len(held), 0), list[float]()
    for column, weight in zip(there.T, weights, strict=True):
        said = said + column[:, None] * weight
        tried.append(measure(said))
    return Regression(found, mean, weights, 1 + int(np.argmax(tried)), tried)
