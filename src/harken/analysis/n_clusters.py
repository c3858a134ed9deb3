"""How many clusters there are: three ways to ask, of which none is the truth.

elbow: where more clusters begin to gain little inertia. silhouette: how much nearer a point is to its own cluster than
to the next one, (b - a) / max(a, b). stability: whether halves of the points, each clustered by itself, sort all alike.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from harken.events import Listener, silent

from .clusters import Clusters, Numbers, Start, Vectors, kmeans

SAMPLE = 3000  # points that a silhouette is computed from: every pair of them is compared
HALVES, RESTARTS, MOST = 4, 3, 5000  # for the stability: halves, restarts of each, points of each at most


def sampled(n: int, seed: int = 0, most: int = SAMPLE) -> Numbers:
    """All points, or so many drawn by chance."""
    return np.arange(n) if n <= most else np.sort(np.random.default_rng(seed).choice(n, most, replace=False))


def silhouette(x: Vectors, labels: Numbers) -> float:
    """The mean over the points of (b - a) / max(a, b): a is the mean distance from the others of its cluster, b that
    from the points of the nearest other one. 0 for a point that is alone; nan if there is only one cluster."""
    there, own = np.unique(labels, return_inverse=True)
    if len(there) < 2:
        return float("nan")
    x = x.astype(np.float64) - x.mean(0, dtype=np.float64)
    squares, each = (x**2).sum(1), np.eye(len(there))[own]  # n k
    sums = np.empty_like(each)
    for start in range(0, len(x), 1000):
        block = slice(start, start + 1000)
        apart = np.sqrt(np.maximum(squares[block, None] - 2 * x[block] @ x.T + squares, 0))
        apart[np.arange(len(apart)), np.arange(start, start + len(apart))] = 0
        sums[block] = apart @ each
    counts, rows = each.sum(0), np.arange(len(x))
    a = sums[rows, own] / np.maximum(counts[own] - 1, 1)
    means = sums / counts
    means[rows, own] = np.inf
    b = means.min(1)
    larger = np.maximum(a, b)
    return float(np.where((counts[own] > 1) & (larger > 0), (b - a) / np.where(larger > 0, larger, 1), 0).mean())


def alike(one: Numbers, other: Numbers) -> float:
    """The adjusted Rand index of two sortings: 1 if they are the same up to names, about 0 if by chance."""
    a, b = np.unique(one, return_inverse=True)[1], np.unique(other, return_inverse=True)[1]
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1)
    both, rows, columns = ((t * (t - 1) / 2).sum() for t in (table, table.sum(1), table.sum(0)))
    expected, most = rows * columns / (len(a) * (len(a) - 1) / 2), (rows + columns) / 2
    return float((both - expected) / (most - expected)) if most != expected else 1.0


def stability(x: Vectors, k: int, *, start: Start = "k-means++", seed: int = 0) -> float:
    """The mean likeness of how halves of the points, each clustered by itself, sort a sample of all; nan if they are
    too few."""
    half = min(len(x) // 2, MOST)
    if half < k:
        return float("nan")
    draw, judged = np.random.default_rng(seed), x[sampled(len(x), seed)]
    said = []
    for n in range(HALVES):
        some = x[draw.permutation(len(x))[:half]]
        said.append(nearest(judged, kmeans(some, k, restarts=RESTARTS, start=start, seed=seed + n).centres))
    return float(np.mean([alike(one, other) for one, other in combinations(said, 2)]))


def nearest(x: Vectors, centres: Vectors) -> Numbers:
    """Which centre is nearest to each point."""
    x, centres = x - centres.mean(0), centres - centres.mean(0)  # squares of large numbers lose what they differ in
    return np.asarray(((centres**2).sum(1) - 2 * x @ centres.T).argmin(1))


def elbow(ks: Sequence[int], inertias: Sequence[float]) -> int:
    """Where the line of the inertia over k lies farthest below the straight line between its ends."""
    first, last = inertias[0], inertias[-1]
    if len(ks) < 3 or first <= last:
        return ks[0]
    below = [
        first + (k - ks[0]) / (ks[-1] - ks[0]) * (last - first) - inertia
        for k, inertia in zip(ks, inertias, strict=True)
    ]
    return ks[int(np.argmax(below))]


def tried(
    x: Vectors, ks: Sequence[int], *, start: Start, restarts: int, seed: int, listen: Listener = silent
) -> tuple[list[Clusters], list[dict[str, float]]]:
    """The clusters for each k, and what is asked of each: inertia, silhouette, stability."""
    found, rows, some = list[Clusters](), list[dict[str, float]](), sampled(len(x), seed)
    for n, k in enumerate(ks):
        listen("clusters", k=k, done=n, total=len(ks))
        made = kmeans(x, k, restarts=restarts, start=start, seed=seed)
        row = {"k": k, "inertia": made.inertia, "silhouette": silhouette(x[some], made.labels[some])}
        rows.append(row | {"stability": stability(x, k, start=start, seed=seed)})
        found.append(made)
    return found, rows
