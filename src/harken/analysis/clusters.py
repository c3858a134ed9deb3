"""k-means: assign points to k clusters with a small inertia, sum_i sum_{x in S_i} ||x - mu_i||^2.

Algorithm 12.2 of the lecture: assign every point to a random cluster; then, until no assignment changes, (a) mu_i is
the mean of the points in cluster i, (b) each point moves to the nearest mean. The outcome depends on the start, so
there are several restarts, computed together: the centers of all restarts form one matrix, and
||x - c||^2 - ||x||^2 = ||c||^2 - 2 <x, c> = <(x, 1), (-2 c, ||c||^2)> is one product per block of points.

A point keeps its cluster without a comparison if its nearest center was nearer than the second by more than the
centers have moved since (Hamerly 2010). Late steps compare few points; the assignments are the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.errors import BadInput
from harken.events import Listener, silent

Vectors = npt.NDArray[np.floating[Any]]  # N d: centered and compared in float32
Numbers = npt.NDArray[np.int64]  # N
Start = Literal["k-means++", "random"]
STARTS = ("k-means++", "random")
BLOCK = 8192  # points compared at a time; fewer if their scores would not fit into the cache
MAX_SCORES = 1 << 20
GATHER_COST = 100  # gathering one point costs as much as comparing it with this many centers
MAX_DISTANCES = 1 << 26  # distances that k-means++ holds at once
MAX_ITER, TOLERANCE = 300, 1e-4  # scikit-learn's defaults


@dataclass(frozen=True, eq=False)
class Clusters:
    """The best of several restarts."""

    centers: Vectors  # k d
    labels: Numbers  # N: cluster of each point, from 0
    inertias: list[float]  # per restart
    n_iter: list[int]  # per restart
    best: int  # index of this restart

    @property
    def inertia(self) -> float:
        return self.inertias[self.best]

    @property
    def sizes(self) -> Numbers:
        return np.bincount(self.labels, minlength=len(self.centers))


@torch.inference_mode()
def kmeans(
    x: Vectors,
    k: int,
    *,
    restarts: int = 10,
    start: Start | npt.ArrayLike = "k-means++",
    seed: int = 0,
    max_iter: int = MAX_ITER,
    tolerance: float = TOLERANCE,
    listen: Listener = silent,
) -> Clusters:
    """Cluster the rows of x; returns the restart with the smallest inertia.

    start: "k-means++", "random" (random assignment of the points), or the initial centers, k d for one restart or
    R k d for R of them. A restart ends when no assignment changes, or when the squared moves of its centers sum to at
    most tolerance times the mean variance of a column, as in scikit-learn.
    """
    check(x, k)
    points = _Points(x)
    if isinstance(start, str):
        if start not in STARTS:
            raise BadInput(f"start={start!r}: accepted are {', '.join(STARTS)}, or an array of centers")
        if restarts < 1:
            raise BadInput(f"restarts={restarts}: at least 1 is needed")
        rngs = [torch.Generator().manual_seed(seed + n) for n in range(restarts)]
        centers = _random_centers(points, k, rngs) if start == "random" else _kmeans_plus_plus(points, k, rngs)
    else:
        array = np.asarray(start, np.float64)
        array = array[None] if array.ndim == 2 else array
        if array.ndim != 3 or array.shape[1:] != (k, x.shape[1]) or not np.isfinite(array).all():
            raise BadInput(
                f"start: an array of shape {array.shape}; {k} centers of {x.shape[1]} finite numbers are needed"
            )
        centers = (torch.from_numpy(array) - points.mean).float()
    lloyd = _Lloyd(points, centers)
    lloyd.fit(max_iter, tolerance * points.variance, listen)
    inertias = lloyd.inertias()
    best = min(range(len(inertias)), key=inertias.__getitem__)
    best_centers = (lloyd.centers[best] + points.mean).numpy()
    return Clusters(best_centers, lloyd.labels[best].numpy(), inertias, lloyd.n_iter.tolist(), best)


def check(x: Vectors, k: int) -> None:
    """Raise if x cannot be split into k clusters."""
    if x.ndim != 2 or not x.size:
        raise BadInput(f"vectors of shape {x.shape}: a matrix with one row per point is needed")
    if not 1 <= k <= len(x):
        raise BadInput(f"k={k}: there are {len(x):,} points; k must be between 1 and {len(x):,}")


class _Points:
    """The centered points, each followed by a 1: n d+1."""

    def __init__(self, x: Vectors) -> None:
        vectors = torch.from_numpy(np.ascontiguousarray(x, np.float64 if x.dtype == np.float64 else np.float32))
        self.mean = vectors.mean(0, dtype=torch.float64).to(vectors.dtype)
        self.rows = torch.ones(len(vectors), vectors.shape[1] + 1)
        torch.sub(vectors, self.mean, out=self.rows[:, :-1])
        self.squares = torch.cat([x.double().square_().sum(1) for x in self.rows[:, :-1].split(256)])  # ||x||^2
        self.squares32 = self.squares.float()
        if not self.squares32.isfinite().all():
            raise BadInput("the points are more than 1e19 apart; rescale them, or drop the farthest")
        self.sum = torch.stack([x.sum(0) for x in self.rows.split(256)]).sum(0, dtype=torch.float64)
        self.variance = float(self.squares.mean() / vectors.shape[1])

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self, size: int = BLOCK) -> Iterator[slice]:
        return (slice(n, min(n + size, len(self))) for n in range(0, len(self), size))


def _queries(centers: Tensor) -> Tensor:  # ... d -> ... d+1
    """(-2 c, ||c||^2): its product with (x, 1) is ||x - c||^2 - ||x||^2."""
    return torch.cat([-2 * centers, centers.square().sum(-1, keepdim=True)], -1)


# --- initialization ---------------------------------------------------------------------------------------------------


def _random_centers(points: _Points, k: int, rngs: Sequence[torch.Generator]) -> Tensor:  # R k d
    """The means of a random assignment; every cluster gets at least one point."""
    n, centers = len(points), []
    for rng in rngs:
        labels = torch.randint(k, (n,), generator=rng)
        labels[torch.randperm(n, generator=rng)[:k]] = torch.arange(k)
        sums = torch.zeros(k, points.rows.shape[1], dtype=torch.float64)
        for block in points.blocks():
            _add_rows(sums, labels[block], points.rows[block], torch.arange(len(labels[block])))
        centers.append((sums[:, :-1] / sums[:, -1:]).float())
    return torch.stack(centers)


def _kmeans_plus_plus(points: _Points, k: int, rngs: Sequence[torch.Generator]) -> Tensor:  # R k d
    """k-means++ (Arthur and Vassilvitskii 2007): draw each next center from the points with probability proportional
    to the squared distance from the nearest center; of several candidates, keep the one with the least inertia."""
    n_trials = 2 + int(np.log(k))  # scikit-learn's
    group_size = max(1, MAX_DISTANCES // (n_trials * len(points)))
    groups = [rngs[n : n + group_size] for n in range(0, len(rngs), group_size)]
    return torch.cat([_kmeans_plus_plus_group(points, k, n_trials, group) for group in groups])


def _kmeans_plus_plus_group(points: _Points, k: int, n_trials: int, rngs: Sequence[torch.Generator]) -> Tensor:
    n, R = len(points), len(rngs)
    chosen = torch.empty(R, k, dtype=torch.long)
    chosen[:, 0] = torch.cat([torch.randint(n, (1,), generator=rng) for rng in rngs])
    nearest = _squared_distances(points, chosen[:, :1])[:, 0]  # R n: squared distance from the nearest center
    for c in range(1, k):
        cumulative = nearest.cumsum(1, dtype=torch.float64)
        u = torch.stack([torch.rand(n_trials, generator=rng, dtype=torch.float64) for rng in rngs])
        candidates = torch.searchsorted(cumulative, u * cumulative[:, -1:]).clamp_max_(n - 1)  # R T
        distances = torch.minimum(_squared_distances(points, candidates), nearest[:, None])  # R T n
        best = distances.sum(2).argmin(1)
        rows = torch.arange(R)
        chosen[:, c], nearest = candidates[rows, best], distances[rows, best]
    return points.rows[chosen][..., :-1]


def _squared_distances(points: _Points, indices: Tensor) -> Tensor:  # R T -> R T n
    """The squared distances of all points from these points."""
    queries = _queries(points.rows[indices.flatten()][:, :-1])
    return torch.mm(queries, points.rows.T).add_(points.squares32).clamp_min_(0).view(*indices.shape, -1)


# --- Lloyd's algorithm ------------------------------------------------------------------------------------------------


def _add_rows(sums: Tensor, into: Tensor, rows: Tensor, indices: Tensor, weights: Tensor | None = None) -> None:
    """sums[into] += weights * rows[indices], in float64. The last column counts the points."""
    order = into.argsort()
    targets, counts = into[order].unique_consecutive(return_counts=True)
    weights = None if weights is None else weights[order]
    offsets = counts.cumsum(0) - counts
    sums[targets] += F.embedding_bag(indices[order], rows, offsets, mode="sum", per_sample_weights=weights)


class _Lloyd:
    """Restarts that run in parallel; a finished restart does not change any more."""

    def __init__(self, points: _Points, centers: Tensor) -> None:
        self.points, self.centers = points, centers  # R k d
        R, self.k, d = centers.shape
        self.labels = torch.zeros(R, len(points), dtype=torch.long)
        self.gap = torch.full((R, len(points)), -torch.inf)  # lower bound: distance to the second minus the nearest
        self.sums = torch.zeros(R * self.k, d + 1, dtype=torch.float64)
        self.sums[:: self.k] = points.sum  # all points start in the first cluster
        self.n_moved = torch.zeros(R, dtype=torch.long)
        self.n_iter = torch.zeros(R, dtype=torch.long)

    def fit(self, max_iter: int, tolerance: float, listen: Listener) -> None:
        """Run every restart to its end. The labels belong to the final centers."""
        active, converged = list(range(len(self.centers))), list[int]()
        for step in range(1, max_iter + 1):
            self._assign(active)
            shifts = self._update(active)
            self.n_iter[active] = step
            unchanged = [r for r in active if self.n_moved[r] == 0 and step > 1]
            near = [r for r, shift in zip(active, shifts, strict=True) if shift <= tolerance and r not in unchanged]
            converged += near
            active = [r for r in active if r not in unchanged and r not in near]
            listen("cluster", done=len(self.centers) - len(active), total=len(self.centers), step=step)
            if not active:
                break
        self._assign(converged + active)

    def _assign(self, active: Sequence[int]) -> None:
        """(b): move each point to its nearest center. Restarts with many points to compare are computed together."""
        self.n_moved[:] = 0
        unsure = [(self.gap[r] <= 0).nonzero()[:, 0] for r in active]
        max_gather = len(self.points) * self.k // (self.k + GATHER_COST)
        dense = [r for r, rows in zip(active, unsure, strict=True) if len(rows) > max_gather]
        size = min(BLOCK, max(256, MAX_SCORES // (self.k * max(1, len(dense)))))
        for block in self.points.blocks(size) if dense else ():
            self.labels[dense, block], self.gap[dense, block] = self._nearest(
                dense, self.labels[dense, block], self.points.rows[block], self.points.squares32[block]
            )
        for r, indices in zip(active, unsure, strict=True):
            for chunk in indices.split(BLOCK) if r not in dense else ():
                rows = self.points.rows.index_select(0, chunk)
                labels, gap = self._nearest([r], self.labels[r, chunk][None], rows, self.points.squares32[chunk])
                self.labels[r, chunk], self.gap[r, chunk] = labels[0], gap[0]

    def _nearest(self, restarts: list[int], labels: Tensor, rows: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        """The new labels of these points, G b, and how much nearer that center is than any other."""
        scores = torch.mm(_queries(self.centers[restarts]).flatten(0, 1), rows.T).view(len(restarts), self.k, -1)
        best = scores.amin(1)  # G k b -> G b
        g, b = (best < scores.gather(1, labels[:, None])[:, 0]).nonzero(as_tuple=True)
        if len(g):
            to = scores.min(1).indices[g, b] if 8 * len(g) > best.numel() else scores[g, :, b].argmin(1)
            restart = torch.tensor(restarts)[g]
            into = torch.cat([restart * self.k + to, restart * self.k + labels[g, b]])
            signs = torch.ones(2, len(g)).mul_(torch.tensor([[1.0], [-1.0]])).flatten()
            _add_rows(self.sums, into, rows, torch.cat([b, b]), signs)
            self.n_moved += torch.bincount(restart, minlength=len(self.n_moved))
            labels[g, b] = to
        second = scores.scatter_(1, labels[:, None], torch.inf).amin(1)
        second_distance, distance = ((s + squares).clamp_min_(0).sqrt_() for s in (second, best))
        return labels, second_distance - distance

    def _update(self, active: list[int]) -> list[float]:
        """(a): move each center to the mean of its points. Returns the sum of squared moves per restart."""
        sums = self.sums.view(len(self.centers), self.k, -1)[active].clone()
        for n, r in enumerate(active):
            self._fill_empty(sums[n], r)
        count, old = sums[..., -1:], self.centers[active]
        new = torch.where(count > 0.5, (sums[..., :-1] / count.clamp_min(1)).float(), old)
        moves = (new - old).norm(dim=-1)  # G k
        self.centers[active] = new
        self.gap[active] -= moves.gather(1, self.labels[active]) + moves.amax(1, keepdim=True)
        return moves.square().sum(1).tolist()

    def _fill_empty(self, sums: Tensor, r: int) -> None:
        """An empty cluster takes the point that is farthest from its center, as in scikit-learn."""
        empty = (sums[:, -1] < 0.5).nonzero()[:, 0]
        if not len(empty):
            return
        distances = self._distances(r)
        for into, point in zip(empty.tolist(), distances.topk(len(empty)).indices.tolist(), strict=True):
            if distances[point] > 0:
                sums[self.labels[r, point]] -= self.points.rows[point]
                sums[into] = self.points.rows[point]

    def _distances(self, r: int) -> Tensor:  # n
        """The squared distance of each point from its center, by differences."""
        centers, labels = self.centers[r], self.labels[r]
        blocks = self.points.blocks()
        return torch.cat([(self.points.rows[b, :-1] - centers[labels[b]]).square().sum(1) for b in blocks])

    def inertias(self) -> list[float]:
        """sum ||x||^2 - 2 <c, sum of its points> + count ||c||^2; by differences where this would cancel."""
        sums, c = self.sums.view(len(self.centers), self.k, -1), self.centers.double()
        cross = (c * sums[..., :-1]).sum((1, 2))
        norms = (c.square().sum(-1) * sums[..., -1]).sum(1)
        total = float(self.points.squares.sum())
        inertias = (total - 2 * cross + norms).tolist()
        return [
            inertia if inertia > total / 100 else float(self._distances(r).sum(dtype=torch.float64))
            for r, inertia in enumerate(inertias)
        ]
