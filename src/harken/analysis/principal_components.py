"""Principal component analysis, and regression on the first components.

x = mean + sum_j z_j a_j, where the a_j are the eigenvectors of the covariance, the largest eigenvalue first. The z_j
are uncorrelated, so the least-squares weight of a component does not depend on the others: one pass gives the
regressions on the first 1, 2, 3 ... components, and held-out examples choose their number.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harken.errors import BadInput

Floats = npt.NDArray[np.floating]
Metric = Callable[[Floats], float]  # of predictions, N C; higher is better
BLOCK = 4096  # rows converted to float64 at a time


@dataclass(frozen=True, eq=False)
class PrincipalComponents:
    """Unit vectors by decreasing variance of the data along them."""

    mean: Floats  # d
    components: Floats  # m d
    explained_variance: Floats  # m, divided by n - 1 as in scikit-learn
    explained_variance_ratio: Floats  # m

    def project(self, x: Floats, n_components: int | None = None) -> Floats:  # N d -> N m
        components = self.components[:n_components]
        blocks = [(x[n : n + BLOCK] - self.mean) @ components.T for n in range(0, len(x), BLOCK)]
        return np.concatenate(blocks) if blocks else np.empty((0, len(components)))


def pca(x: Floats, n_components: int | None = None) -> PrincipalComponents:
    """The first or all principal components of the rows of x. The largest entry of each component is positive."""
    n, d = x.shape
    if n < 2:
        raise BadInput(f"{n} vectors: principal components need at least 2")
    mean = x.mean(0, dtype=np.float64)
    if n <= d:
        _, s, components = np.linalg.svd(x - mean, full_matrices=False)
        variance = s**2 / (n - 1)
    else:
        blocks = (x[start : start + BLOCK] - mean for start in range(0, n, BLOCK))
        values, vectors = np.linalg.eigh(sum(block.T @ block for block in blocks) / (n - 1))
        variance, components = values[::-1].clip(0), vectors.T[::-1]
    largest = components[np.arange(len(components)), np.abs(components).argmax(1)]
    components = components * np.where(largest < 0, -1.0, 1.0)[:, None]
    total = variance.sum()
    ratio = variance / total if total else np.zeros_like(variance)
    return PrincipalComponents(mean, components[:n_components], variance[:n_components], ratio[:n_components])


@dataclass(frozen=True, eq=False)
class ComponentPath:
    """y = mean + z B: least squares on the first 1, 2, ... components. Components without variance are dropped."""

    components: PrincipalComponents
    mean: Floats  # C
    weights: Floats  # m C

    @classmethod
    def fit(cls, x: Floats, y: Floats) -> "ComponentPath":
        """The regression of y (N C) on the principal components of the rows of x."""
        components = pca(x)
        variance = components.explained_variance
        rank = max(1, int((variance > variance.max() * 1e-10).sum()))
        mean, z = y.mean(0, dtype=np.float64), components.project(x, rank)
        scale = np.maximum((len(x) - 1) * variance[:rank, None], np.finfo(np.float64).tiny)
        return cls(components, mean, z.T @ (y - mean) / scale)

    def predictions(self, x: Floats) -> Iterator[Floats]:  # N d -> N C each
        """The predictions of the first 1, 2, ... components."""
        predictions = np.repeat(self.mean[None], len(x), 0)
        for column, weight in zip(self.components.project(x, len(self.weights)).T, self.weights, strict=True):
            predictions = predictions + column[:, None] * weight
            yield predictions


@dataclass(frozen=True, eq=False)
class ComponentRegression:
    """The regression on the first n_components."""

    path: ComponentPath
    n_components: int
    scores: list[float]  # of the first 1, 2, ... components on the held-out rows

    def __call__(self, x: Floats) -> Floats:  # N d -> N C
        path, m = self.path, self.n_components
        return path.mean + path.components.project(x, m) @ path.weights[:m]


def component_regression(x: Floats, y: Floats, held_out: Floats, metric: Metric) -> ComponentRegression:
    """Principal component regression of y (N C) on the rows of x, with the best number of components on the held-out
    rows, the smallest in a tie."""
    path = ComponentPath.fit(x, y)
    scores = [metric(predictions) for predictions in path.predictions(held_out)]
    return ComponentRegression(path, 1 + int(np.argmax(scores)), scores)
