"""Unsupervised learning: k-means, its initialization and k, and principal components as features."""

import itertools

import numpy as np
import torch

from harken.analysis import n_clusters, principal_components
from harken.analysis.clusters import kmeans
from harken.analysis.table_regression import table_regression

from . import Measurement, show


def _points(n_centers: int = 4, spread: float = 0.8, n_points: int = 100) -> np.ndarray:
    """Return points around the corners of a square, or around up to six centers."""
    centers = torch.tensor([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [6.0, 6.0], [3.0, 12.0], [12.0, 3.0]])[:n_centers]
    return (centers[:, None] + spread * torch.randn(n_centers, n_points, 2)).flatten(0, 1).numpy()


@show()
def k_means_objective() -> Measurement:
    """The sum of squared distances from the centers is sum_i |S_i| Var S_i."""
    x = _points()
    clustering = kmeans(x, 4)
    spread = sum((members := x[clustering.labels == i]).var(0).sum() * len(members) for i in range(4))
    off = abs(clustering.inertia / float(spread) - 1)
    return Measurement(off, "relative difference of the inertia from the sum of size times variance", off < 1e-5)


@show()
def random_assignment() -> Measurement:
    """Algorithm 12.2: random labels, then means and nearest means until convergence; the inertia never increases."""
    x = _points()
    steps = [kmeans(x, 4, restarts=1, start="random", max_iter=n, tolerance=0).inertia for n in range(1, 30)]
    rises = sum(b > a * (1 + 1e-6) for a, b in itertools.pairwise(steps))
    settled = steps[-1] == steps[-2]
    words = f"steps increased the inertia, which fell from {steps[0]:.0f} to {steps[-1]:.0f}"
    return Measurement(rises, words, not rises and settled)


@show()
def local_minima() -> Measurement:
    """The clusters depend on the initialization; several runs, and the smallest inertia is selected."""
    inertias = kmeans(_points(6), 6, restarts=20, start="random").inertias
    ratio = max(inertias) / min(inertias)
    n_best = sum(inertia < 1.001 * min(inertias) for inertia in inertias)
    words = f"ratio of the largest to the smallest inertia over 20 initializations; {n_best} reached the smallest"
    return Measurement(ratio, words, ratio > 1.2 and n_best > 0)


@show()
def all_partitions() -> Measurement:
    """Finding the best clusters is NP-hard: exhaustive search visits every partition, restarts find the same one."""
    x = _points(3, n_points=3).astype(float)  # 9 points
    labels = np.array([p for p in itertools.product(range(3), repeat=len(x) - 1) if len({0, *p}) == 3])
    labels = np.c_[np.zeros(len(labels), int), labels]  # the first point names its cluster 0
    members = (labels[:, None] == np.arange(3)[:, None]).astype(float)  # partition x cluster x point
    means = members @ x / members.sum(-1, keepdims=True)
    best = float((((x[None] - means[np.arange(len(labels))[:, None], labels]) ** 2).sum((1, 2))).min())
    near = kmeans(x.astype(np.float32), 3, restarts=20, start="random").inertia
    count = len(labels) // 2  # the other two names are interchangeable
    words = (
        "partitions of 9 points into 3 clusters, about 3^n / 6 for n points; 20 restarts of k-means find the best one"
    )
    return Measurement(count, words, abs(near / best - 1) < 1e-5)


@show()
def number_of_clusters() -> Measurement:
    """The clusters depend on k; the inertia always falls with k, so it cannot select k alone."""
    clusterings, rows = n_clusters.evaluate_ks(_points(), range(2, 8), start="k-means++", restarts=5, seed=0)
    falls = all(b["inertia"] < a["inertia"] for a, b in itertools.pairwise(rows))
    best = int(max(rows, key=lambda row: row["silhouette"])["k"])
    elbow = n_clusters.elbow([len(clustering.centers) for clustering in clusterings], [row["inertia"] for row in rows])
    words = f"clusters by the silhouette, {elbow} by the elbow, 4 in the data; the inertia falls with every k"
    return Measurement(best, words, best == elbow == 4 and falls)


@show()
def salient_descriptors() -> Measurement:
    """A few principal components explain nearly all of the variance."""
    hidden = torch.randn(500, 3) @ torch.randn(3, 50)
    ratios = principal_components.pca((hidden + 0.1 * torch.randn(500, 50)).numpy()).explained_variance_ratio
    first = float(ratios[:3].sum())
    return Measurement(first, f"of the variance in 3 of 50 directions; {ratios[3]:.2g} in the fourth", first > 0.98)


@show()
def component_regression() -> Measurement:
    """With features extracted without labels, a regression needs fewer labels: components against all columns."""
    hidden, wide = torch.randn(640, 3), torch.randn(3, 50)
    x, y = (
        (hidden @ wide + 0.3 * torch.randn(640, 50)).numpy(),
        (hidden.sum(1, keepdim=True) + 0.3 * torch.randn(640, 1)).numpy(),
    )
    train, valid, test = slice(0, 60), slice(60, 140), slice(140, None)

    def error(predicted: np.ndarray, part: slice) -> float:
        return float(((predicted - y[part]) ** 2).mean())

    fit = principal_components.component_regression(
        x[train], y[train], x[valid], lambda predicted: -error(predicted, valid)
    )
    weights = np.linalg.lstsq(np.c_[x[train], np.ones(60)], y[train], rcond=None)[0]
    pcr_error, full_error = error(fit(x[test]), test), error(np.c_[x[test], np.ones(500)] @ weights, test)
    words = f"ratio of the squared errors of a regression on all 50 columns and on {fit.n_components} components"
    return Measurement(full_error / pcr_error, f"{words}, with 60 labels", full_error > 1.5 * pcr_error)


@show()
def table_components() -> Measurement:
    """A table with three hidden factors needs three components; one fewer loses a factor."""
    hidden = torch.randn(300, 3, dtype=torch.float64)
    x = hidden @ torch.randn(3, 8, dtype=torch.float64) + 0.1 * torch.randn(300, 8, dtype=torch.float64)
    y = hidden @ torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64) + 0.1 * torch.randn(300, dtype=torch.float64)
    r2 = table_regression(x.numpy(), y.numpy(), 3).r2
    words = f"cross-validated R^2 with 3 components of a table with 3 hidden factors, {r2[1]:.2f} with 2"
    return Measurement(r2[2], words, r2[2] >= 0.95 > r2[1])
