"""Unsupervised learning: k-means, its starts and its k, and principal components as features."""

import itertools

import numpy as np
import torch

from harken.analysis import n_clusters, principal_components
from harken.analysis.clusters import kmeans

from . import Seen, show


def _points(n_centers: int = 4, spread: float = 0.8, n_points: int = 100) -> np.ndarray:
    """Points around the corners of a square, or around more centers."""
    centers = torch.tensor([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [6.0, 6.0], [3.0, 12.0], [12.0, 3.0]])[:n_centers]
    return (centers[:, None] + spread * torch.randn(n_centers, n_points, 2)).flatten(0, 1).numpy()


@show()
def k_means_objective() -> Seen:
    """The sum of squared distances from the centres is sum_i |S_i| Var S_i."""
    x = _points()
    clustering = kmeans(x, 4)
    spread = sum((members := x[clustering.labels == i]).var(0).sum() * len(members) for i in range(4))
    off = abs(clustering.inertia / float(spread) - 1)
    return Seen(off, "relative difference of the inertia from the sum of size times variance", off < 1e-5)


@show()
def random_assignment() -> Seen:
    """Algorithm 12.2: random labels, means, nearest means, until nothing changes; no step makes it worse."""
    x = _points()
    steps = [kmeans(x, 4, restarts=1, start="random", max_iter=n, tolerance=0).inertia for n in range(1, 30)]
    rises = sum(b > a * (1 + 1e-6) for a, b in itertools.pairwise(steps))
    settled = steps[-1] == steps[-2]
    return Seen(rises, f"steps made the inertia worse, from {steps[0]:.0f} to {steps[-1]:.0f}", not rises and settled)


@show()
def local_minima() -> Seen:
    """The clusters depend on the start; several starts, and the best by inertia."""
    inertias = kmeans(_points(6), 6, restarts=20, start="random").inertias
    worst = max(inertias) / min(inertias)
    good = sum(inertia < 1.001 * min(inertias) for inertia in inertias)
    return Seen(
        worst, f"times the best inertia in the worst of 20 starts; {good} found the best", worst > 1.2 and good > 0
    )


@show()
def number_of_clusters() -> Seen:
    """k is a choice: with k = 2, 3, 4 ... the clusters are others, and inertia alone always asks for more."""
    clusterings, rows = n_clusters.evaluate_ks(_points(), range(2, 8), start="k-means++", restarts=5, seed=0)
    falls = all(b["inertia"] < a["inertia"] for a, b in itertools.pairwise(rows))
    best = int(max(rows, key=lambda row: row["silhouette"])["k"])
    elbow = n_clusters.elbow([len(clustering.centers) for clustering in clusterings], [row["inertia"] for row in rows])
    words = f"clusters by the silhouette, {elbow} by the elbow, of 4 that are there; the inertia falls with every k"
    return Seen(best, words, best == elbow == 4 and falls)


@show()
def salient_descriptors() -> Seen:
    """The most salient descriptors: few directions hold nearly all of the variance."""
    hidden = torch.randn(500, 3) @ torch.randn(3, 50)
    ratios = principal_components.pca((hidden + 0.1 * torch.randn(500, 50)).numpy()).explained_variance_ratio
    first = float(ratios[:3].sum())
    return Seen(first, f"of the variance in 3 of 50 directions; {ratios[3]:.2g} in the fourth", first > 0.98)


@show()
def component_regression() -> Seen:
    """Features made without labels let a learner do with fewer: components beside all columns."""
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
    words = f"times the squared error of all 50 columns beside {fit.n_components} components, learned from 60 labels"
    return Seen(full_error / pcr_error, words, full_error > 1.5 * pcr_error)
