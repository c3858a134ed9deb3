"""Principal component regression of a number on the standardized columns of a table.

z = (x - mean) / std, y = y_mean + sum_j b_j <z, a_j> over the first m principal components a_j of z. m is chosen by
cross-validation; every fold is standardized and decomposed without its held-out rows.
"""

from dataclasses import dataclass

import numpy as np

from harken.errors import BadInput

from .principal_components import ComponentPath, Floats

FOLDS = 10
MIN_ROWS = 10


@dataclass(frozen=True, eq=False)
class TableRegression:
    """y = intercept + x coefficients, in the units of the columns."""

    n_components: int
    coefficients: Floats  # d
    intercept: float
    r2: list[float]  # cross-validated, of the first 1, 2, ... components
    best: int  # number of components with the largest of them
    explained: Floats  # fraction of the variance of each component
    held_out: Floats  # N: the prediction for each row by the fold that does not contain it
    n_folds: int

    def __call__(self, x: Floats) -> Floats:  # N d -> N
        return self.intercept + x @ self.coefficients


def table_regression(x: Floats, y: Floats, n_components: int | None = None, *, seed: int = 0) -> TableRegression:
    """The regression of y (N) on the columns of x (N d).

    Without `n_components`, the smallest number whose error is within one standard error of the smallest.
    """
    if len(x) < MIN_ROWS:
        raise BadInput(f"{len(x)} rows: a regression with cross-validation needs at least {MIN_ROWS}")
    if not (y != y[0]).any():
        raise BadInput(f"the target is {y[0]:g} in every row; there is nothing to predict")
    n_folds = min(FOLDS, len(x))
    fold = np.random.default_rng(seed).permutation(np.arange(len(x)) % n_folds)
    folds = [(fold == n, _fold_predictions(x, y, fold == n)) for n in range(n_folds)]
    path, mean, std = _fit(x, y)
    m = min(len(path.weights), *(predictions.shape[1] for _, predictions in folds))
    predictions = np.empty((len(x), m))
    for rows, values in folds:
        predictions[rows] = values[:, :m]
    squares = (y[:, None] - predictions) ** 2  # N m
    errors = np.stack([squares[rows].mean(0) for rows, _ in folds])  # folds m
    best = int(errors.mean(0).argmin())
    limit = errors.mean(0)[best] + errors[:, best].std(ddof=1) / np.sqrt(n_folds)
    if n_components is not None and not 1 <= n_components <= m:
        raise BadInput(f"components={n_components}: this table has 1 to {m} components with variance")
    chosen = n_components or 1 + int(np.argmax(errors.mean(0) <= limit))
    weights = path.components.components[:chosen].T @ path.weights[:chosen, 0]
    return TableRegression(
        n_components=chosen,
        coefficients=weights / std,
        intercept=float(path.mean[0] - mean @ (weights / std)),
        r2=(1 - squares.sum(0) / ((y - y.mean()) ** 2).sum()).tolist(),
        best=best + 1,
        explained=path.components.explained_variance_ratio,
        held_out=predictions[:, chosen - 1],
        n_folds=n_folds,
    )


def standardize(x: Floats) -> tuple[Floats, Floats, Floats]:
    """The columns with mean 0 and standard deviation 1, with their means and deviations; a constant column is 0."""
    mean, std = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    std = np.where(std > 1e-12 * np.abs(x).max(0, initial=0), std, 1.0)
    return (x - mean) / std, mean, std


def _fit(x: Floats, y: Floats) -> tuple[ComponentPath, Floats, Floats]:
    z, mean, std = standardize(x)
    return ComponentPath.fit(z, y[:, None]), mean, std


def _fold_predictions(x: Floats, y: Floats, rows: np.ndarray) -> Floats:  # -> n m
    """The predictions for these rows of the regressions on the others."""
    path, mean, std = _fit(x[~rows], y[~rows])
    return np.stack([values[:, 0] for values in path.predictions((x[rows] - mean) / std)], 1)
