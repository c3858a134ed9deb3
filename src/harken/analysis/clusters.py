"""k-means: points are sorted into k clusters so that sum_i sum_{x in S_i} ||x - mu_i||^2, the inertia, is small.

Algorithm 12.2 of the lecture: give each point a number from 1 to k by chance; then, until no number changes, (a) mu_i
is the mean of the points with number i, (b) each point takes the number of the nearest mean. What is found depends on
the start, so there are several, and they are one computation: the centres of every restart stand in one matrix, and
||x - c||^2 - ||x||^2 = ||c||^2 - 2 <x, c> = <(x, 1), (-2 c, ||c||^2)> for all of them is one product a block of points.

A point whose nearest centre is nearer than the second by more than the centres have moved since then keeps its number
unasked (Hamerly 2010). So late steps ask few points, and the numbers are the same.
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

Vectors = npt.NDArray[np.floating[Any]]  # N d: compared in float32, around their mean
Numbers = npt.NDArray[np.int64]  # N
Start = Literal["k-means++", "random"]
STARTS = ("k-means++", "random")
BLOCK = 8192  # points that are compared with all centres at once, or fewer: their scores shall stay in the cache
SCORES = 1 << 20
GATHER = 100  # to fetch one point from afar costs as much as to compare it with so many centres
ROOM = 1 << 26  # numbers that k-means++ may hold at once
STEPS, TOLERANCE = 300, 1e-4  # scikit-learn's


@dataclass(frozen=True, eq=False)
class Clusters:
    """The best of several restarts."""

    centres: Vectors  # k d
    labels: Numbers  # which cluster each point is in, from 0
    inertias: list[float]  # of each restart
    steps: list[int]  # that each restart took
    best: int  # which restart this is

    @property
    def inertia(self) -> float:
        return self.inertias[self.best]

    @property
    def sizes(self) -> Numbers:
        return np.bincount(self.labels, minlength=len(self.centres))


@torch.inference_mode()
def kmeans(
    x: Vectors,
    k: int,
    *,
    restarts: int = 10,
    start: Start | npt.ArrayLike = "k-means++",
    seed: int = 0,
    steps: int = STEPS,
    tolerance: float = TOLERANCE,
    listen: Listener = silent,
) -> Clusters:
    """Sort the rows of x into k clusters; the best of so many restarts by inertia.

    start: how a restart begins, "k-means++", "random" (a number by chance for each point), or the centres themselves,
    k d for one restart or R k d for R of them. A restart ends when no number changes, or when the squares of its
    centres' moves sum to at most tolerance times the mean variance of a column, as in scikit-learn.
    """
    check(x, k)
    points = _Points(x)
    if isinstance(start, str):
        if start not in STARTS:
            raise BadInput(f"start={start!r}: accepted are {', '.join(STARTS)}, or the centres")
        if restarts < 1:
            raise BadInput(f"restarts={restarts}: at least 1 is needed")
        draws = [torch.Generator().manual_seed(seed + n) for n in range(restarts)]
        begun = _assigned(points, k, draws) if start == "random" else _spread(points, k, draws)
    else:
        given = np.asarray(start, np.float64)
        given = given[None] if given.ndim == 2 else given
        if given.ndim != 3 or given.shape[1:] != (k, x.shape[1]) or not np.isfinite(given).all():
            raise BadInput(
                f"start: an array of shape {given.shape}; {k} centres of {x.shape[1]} finite numbers are needed"
            )
        begun = (torch.from_numpy(given) - points.mean).float()
    lloyd = _Lloyd(points, begun)
    lloyd.go(steps, tolerance * points.variance, listen)
    inertias = lloyd.inertias()
    best = min(range(len(inertias)), key=inertias.__getitem__)
    centres = (lloyd.centres[best] + points.mean).numpy()
    return Clusters(centres, lloyd.labels[best].numpy(), inertias, lloyd.took.tolist(), best)


def check(x: Vectors, k: int) -> None:
    """Refuse what has no k clusters."""
    if x.ndim != 2 or not x.size:
        raise BadInput(f"vectors of shape {x.shape}: a table is needed, a row for each point")
    if not 1 <= k <= len(x):
        raise BadInput(f"k={k}: there are {len(x):,} points; ask for 1 to {len(x):,} clusters")


class _Points:
    """The points around their mean, with a 1 behind each: n d+1."""

    def __init__(self, x: Vectors) -> None:
        raw = torch.from_numpy(np.ascontiguousarray(x, np.float64 if x.dtype == np.float64 else np.float32))
        self.mean = raw.mean(0, dtype=torch.float64).to(raw.dtype)
        self.rows = torch.ones(len(raw), raw.shape[1] + 1)
        torch.sub(raw, self.mean, out=self.rows[:, :-1])
        self.squares = torch.cat([x.double().square_().sum(1) for x in self.rows[:, :-1].split(256)])  # ||x||^2
        self.short = self.squares.float()
        if not self.short.isfinite().all():
            raise BadInput("the points lie more than 1e19 apart; divide them, or leave the farthest out")
        self.sum = torch.stack([x.sum(0) for x in self.rows.split(256)]).sum(0, dtype=torch.float64)
        self.variance = float(self.squares.mean() / raw.shape[1])

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self, size: int = BLOCK) -> Iterator[slice]:
        return (slice(n, min(n + size, len(self))) for n in range(0, len(self), size))


def _asking(centres: Tensor) -> Tensor:  # ... d -> ... d+1
    """(-2 c, ||c||^2): its product with (x, 1) is ||x - c||^2 - ||x||^2."""
    return torch.cat([-2 * centres, centres.square().sum(-1, keepdim=True)], -1)


# --- where a restart begins -------------------------------------------------------------------------------------------


def _assigned(points: _Points, k: int, draws: Sequence[torch.Generator]) -> Tensor:  # R k d
    """The means of points that were given numbers by chance; each number is given at least once."""
    n, found = len(points), []
    for draw in draws:
        labels = torch.randint(k, (n,), generator=draw)
        labels[torch.randperm(n, generator=draw)[:k]] = torch.arange(k)
        sums = torch.zeros(k, points.rows.shape[1], dtype=torch.float64)
        for part in points.blocks():
            _add(sums, labels[part], points.rows[part], torch.arange(len(labels[part])))
        found.append((sums[:, :-1] / sums[:, -1:]).float())
    return torch.stack(found)


def _spread(points: _Points, k: int, draws: Sequence[torch.Generator]) -> Tensor:  # R k d
    """k-means++ (Arthur and Vassilvitskii 2007): each next centre is a point, drawn with a chance proportional to its
    squared distance from the nearest of those there are; of some that are drawn, the one that leaves least inertia."""
    trials = 2 + int(np.log(k))  # scikit-learn's
    at_once = max(1, ROOM // (trials * len(points)))
    groups = [draws[n : n + at_once] for n in range(0, len(draws), at_once)]
    return torch.cat([_spread_group(points, k, trials, group) for group in groups])


def _spread_group(points: _Points, k: int, trials: int, draws: Sequence[torch.Generator]) -> Tensor:
    n, R = len(points), len(draws)
    chosen = torch.empty(R, k, dtype=torch.long)
    chosen[:, 0] = torch.cat([torch.randint(n, (1,), generator=draw) for draw in draws])
    left = _apart(points, chosen[:, :1])[:, 0]  # R n: squared distance from the nearest centre
    for c in range(1, k):
        up_to = left.cumsum(1, dtype=torch.float64)
        at = torch.stack([torch.rand(trials, generator=draw, dtype=torch.float64) for draw in draws]) * up_to[:, -1:]
        drawn = torch.searchsorted(up_to, at).clamp_max_(n - 1)  # R T
        apart = torch.minimum(_apart(points, drawn), left[:, None])  # R T n
        best = apart.sum(2).argmin(1)
        rows = torch.arange(R)
        chosen[:, c], left = drawn[rows, best], apart[rows, best]
    return points.rows[chosen][..., :-1]


def _apart(points: _Points, which: Tensor) -> Tensor:  # R T -> R T n
    """The squared distances of all points from these."""
    asking = _asking(points.rows[which.flatten()][:, :-1])
    return torch.mm(asking, points.rows.T).add_(points.short).clamp_min_(0).view(*which.shape, -1)


# --- the steps --------------------------------------------------------------------------------------------------------


def _add(sums: Tensor, into: Tensor, rows: Tensor, which: Tensor, weights: Tensor | None = None) -> None:
    """sums[into] += rows[which], weighted; sums in float64. The last column counts."""
    order = into.argsort()
    there, many = into[order].unique_consecutive(return_counts=True)
    weights = None if weights is None else weights[order]
    sums[there] += F.embedding_bag(which[order], rows, many.cumsum(0) - many, mode="sum", per_sample_weights=weights)


class _Lloyd:
    """Restarts that go side by side; one that has ended is left as it is."""

    def __init__(self, points: _Points, centres: Tensor) -> None:
        self.points, self.centres = points, centres  # R k d
        R, self.k, d = centres.shape
        self.labels = torch.zeros(R, len(points), dtype=torch.long)
        self.gap = torch.full((R, len(points)), -torch.inf)  # how much nearer the nearest centre is, at least
        self.sums = torch.zeros(R * self.k, d + 1, dtype=torch.float64)
        self.sums[:: self.k] = points.sum  # all points begin in the first cluster
        self.moved = torch.zeros(R, dtype=torch.long)
        self.took = torch.zeros(R, dtype=torch.long)

    def go(self, steps: int, tolerance: float, listen: Listener) -> None:
        """Until each restart has ended. Labels are those of the last centres."""
        live, loose = list(range(len(self.centres))), list[int]()
        for step in range(1, steps + 1):
            self._assign(live)
            shift = self._update(live)
            self.took[live] = step
            settled = [r for r in live if self.moved[r] == 0 and step > 1]
            near = [r for r, far in zip(live, shift, strict=True) if far <= tolerance and r not in settled]
            loose += near
            live = [r for r in live if r not in settled and r not in near]
            listen("cluster", done=len(self.centres) - len(live), total=len(self.centres), step=step)
            if not live:
                break
        self._assign(loose + live)

    def _assign(self, live: Sequence[int]) -> None:
        """(b): each point to its nearest centre. Restarts with many points to ask are asked together."""
        self.moved[:] = 0
        ask = [(self.gap[r] <= 0).nonzero()[:, 0] for r in live]
        few = len(self.points) * self.k // (self.k + GATHER)
        many = [r for r, rows in zip(live, ask, strict=True) if len(rows) > few]
        size = min(BLOCK, max(256, SCORES // (self.k * max(1, len(many)))))
        for part in self.points.blocks(size) if many else ():
            self.labels[many, part], self.gap[many, part] = self._nearest(
                many, self.labels[many, part], self.points.rows[part], self.points.short[part]
            )
        for r, asked in zip(live, ask, strict=True):
            for some in asked.split(BLOCK) if r not in many else ():
                rows = self.points.rows.index_select(0, some)
                labels, gap = self._nearest([r], self.labels[r, some][None], rows, self.points.short[some])
                self.labels[r, some], self.gap[r, some] = labels[0], gap[0]

    def _nearest(self, which: list[int], own: Tensor, rows: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        """The new labels of these points in these restarts, G b, and how much nearer they are than any other."""
        scores = torch.mm(_asking(self.centres[which]).flatten(0, 1), rows.T).view(len(which), self.k, -1)  # G k b
        best = scores.amin(1)
        g, b = (best < scores.gather(1, own[:, None])[:, 0]).nonzero(as_tuple=True)
        if len(g):
            to = scores.min(1).indices[g, b] if 8 * len(g) > best.numel() else scores[g, :, b].argmin(1)
            home = torch.tensor(which)[g]
            into = torch.cat([home * self.k + to, home * self.k + own[g, b]])
            signs = torch.ones(2, len(g)).mul_(torch.tensor([[1.0], [-1.0]])).flatten()
            _add(self.sums, into, rows, torch.cat([b, b]), signs)
            self.moved += torch.bincount(home, minlength=len(self.moved))
            own[g, b] = to
        other = scores.scatter_(1, own[:, None], torch.inf).amin(1)
        far, near = ((s + squares).clamp_min_(0).sqrt_() for s in (other, best))
        return own, far - near

    def _update(self, live: list[int]) -> list[float]:
        """(a): each centre to the mean of its points. The sum of the squared moves of each restart."""
        sums = self.sums.view(len(self.centres), self.k, -1)[live].clone()
        for n, r in enumerate(live):
            self._fill(sums[n], r)
        count, old = sums[..., -1:], self.centres[live]
        new = torch.where(count > 0.5, (sums[..., :-1] / count.clamp_min(1)).float(), old)
        moves = (new - old).norm(dim=-1)  # G k
        self.centres[live] = new
        self.gap[live] -= moves.gather(1, self.labels[live]) + moves.amax(1, keepdim=True)
        return moves.square().sum(1).tolist()

    def _fill(self, sums: Tensor, r: int) -> None:
        """A cluster without points takes the point that is farthest from its centre, as in scikit-learn."""
        empty = (sums[:, -1] < 0.5).nonzero()[:, 0]
        if not len(empty):
            return
        far = self._far(r)
        for into, point in zip(empty.tolist(), far.topk(len(empty)).indices.tolist(), strict=True):
            if far[point] > 0:
                sums[self.labels[r, point]] -= self.points.rows[point]
                sums[into] = self.points.rows[point]

    def _far(self, r: int) -> Tensor:  # n
        """The squared distance of each point from its centre, point by point."""
        own, of = self.centres[r], self.labels[r]
        return torch.cat([(self.points.rows[p, :-1] - own[of[p]]).square().sum(1) for p in self.points.blocks()])

    def inertias(self) -> list[float]:
        """sum ||x||^2 - 2 <c, sum of its points> + count ||c||^2; point by point where that would cancel nearly all."""
        sums, c = self.sums.view(len(self.centres), self.k, -1), self.centres.double()
        cross = (c * sums[..., :-1]).sum((1, 2))
        own = (c.square().sum(-1) * sums[..., -1]).sum(1)
        total = float(self.points.squares.sum())
        found = (total - 2 * cross + own).tolist()
        return [x if x > total / 100 else float(self._far(r).sum(dtype=torch.float64)) for r, x in enumerate(found)]
