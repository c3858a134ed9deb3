"""Choose the number of clusters by one of three criteria.

elbow: where more clusters stop reducing the inertia much. silhouette: how much nearer a point is to its own cluster
than to the next, (b - a) / max(a, b). stability: whether clusterings of random halves agree on all points.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from harken.events import Listener, silent

from .agreement import adjusted_rand_index
from .clusters import Clusters, Numbers, Start, Vectors, kmeans

MAX_SAMPLE = 3000  # points for the silhouette, which compares all pairs
N_HALVES, HALF_RESTARTS, MAX_HALF = 4, 3, 5000  # stability: halves, restarts per half, points per half


def sample_indices(n: int, seed: int = 0, max_sample: int = MAX_SAMPLE) -> Numbers:
    """All indices, or a random sample of them."""
    rng = np.random.default_rng(seed)
    return np.arange(n) if n <= max_sample else np.sort(rng.choice(n, max_sample, replace=False))


def silhouette(x: Vectors, labels: Numbers) -> float:
    """The mean of (b - a) / max(a, b) over the points: a is the mean distance to the other points of the cluster, b to
    the points of the nearest other cluster. 0 for a point that is alone; nan if there is only one cluster."""
    clusters, own = np.unique(labels, return_inverse=True)
    if len(clusters) < 2:
        return float("nan")
    x = x.astype(np.float64) - x.mean(0, dtype=np.float64)
    squares, one_hot = (x**2).sum(1), np.eye(len(clusters))[own]  # n k
    sums = np.empty_like(one_hot)
    for start in range(0, len(x), 1000):
        block = slice(start, start + 1000)
        distances = np.sqrt(np.maximum(squares[block, None] - 2 * x[block] @ x.T + squares, 0))
        distances[np.arange(len(distances)), np.arange(start, start + len(distances))] = 0
        sums[block] = distances @ one_hot
    counts, rows = one_hot.sum(0), np.arange(len(x))
    a = sums[rows, own] / np.maximum(counts[own] - 1, 1)
    means = sums / counts
    means[rows, own] = np.inf
    b = means.min(1)
    larger = np.maximum(a, b)
    return float(np.where((counts[own] > 1) & (larger > 0), (b - a) / np.where(larger > 0, larger, 1), 0).mean())


def stability(x: Vectors, k: int, *, start: Start = "k-means++", seed: int = 0) -> float:
    """The mean adjusted Rand index between the labels that clusterings of random halves give to a sample of all
    points; nan if there are too few points."""
    half = min(len(x) // 2, MAX_HALF)
    if half < k:
        return float("nan")
    rng, sample = np.random.default_rng(seed), x[sample_indices(len(x), seed)]
    labels = []
    for n in range(N_HALVES):
        points = x[rng.permutation(len(x))[:half]]
        clusters = kmeans(points, k, restarts=HALF_RESTARTS, start=start, seed=seed + n)
        labels.append(nearest_center(sample, clusters.centers))
    return float(np.mean([adjusted_rand_index(a, b) for a, b in combinations(labels, 2)]))


def nearest_center(x: Vectors, centers: Vectors) -> Numbers:
    """The index of the nearest center of each point."""
    x, centers = x - centers.mean(0), centers - centers.mean(0)  # squares of large numbers lose precision
    return np.asarray(((centers**2).sum(1) - 2 * x @ centers.T).argmin(1))


def elbow(ks: Sequence[int], inertias: Sequence[float]) -> int:
    """The k at which the inertia curve is farthest below the line between its ends."""
    first, last = inertias[0], inertias[-1]
    if len(ks) < 3 or first <= last:
        return ks[0]
    below = [
        first + (k - ks[0]) / (ks[-1] - ks[0]) * (last - first) - inertia
        for k, inertia in zip(ks, inertias, strict=True)
    ]
    return ks[int(np.argmax(below))]


def evaluate_ks(
    x: Vectors, ks: Sequence[int], *, start: Start, restarts: int, seed: int, listen: Listener = silent
) -> tuple[list[Clusters], list[dict[str, float]]]:
    """The clusters for each k, and the inertia, silhouette and stability of each."""
    clusterings, rows, sample = list[Clusters](), list[dict[str, float]](), sample_indices(len(x), seed)
    for n, k in enumerate(ks):
        listen("clusters", k=k, done=n, total=len(ks))
        clusters = kmeans(x, k, restarts=restarts, start=start, seed=seed)
        row = {"k": k, "inertia": clusters.inertia, "silhouette": silhouette(x[sample], clusters.labels[sample])}
        rows.append(row | {"stability": stability(x, k, start=start, seed=seed)})
        clusterings.append(clusters)
    return clusterings, rows
