"""A graph as a model reads it: features, and the pairs of nodes that look at each other with how far apart they are.

Many graphs are one graph whose parts do not touch, so a batch of them is a part of the whole.
"""

import hashlib
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from harken.core import FULL, Layout, edges, same
from harken.core.backends.graph_sum import Sums
from harken.data.batch import Batch
from harken.data.cache import cache_folder
from harken.errors import BadSetting
from harken.settings import FAR

from .files import Bag, Floats, Ints

Places = Literal["none", "laplacian", "walk"]
MOST = 50_000_000  # pairs within reach
SMALL = 2048  # nodes of a graph whose matrices are laid out whole
BLOCK = 512  # columns computed at a time of one that is not
ROUNDS = 300  # of the iteration that finds a large graph's eigenvectors


@dataclass(frozen=True, kw_only=True)
class GraphBatch(Batch):
    """What is asked: numbers of nodes, pairs of them, or numbers of graphs; the graph itself is the task's."""

    nodes: int = 0  # computed, whatever is asked of them
    sizes: Tensor | None = None  # B: nodes of each graph, where only those are computed

    @property
    def steady(self) -> bool:
        """Whether every batch is computed alike; some graphs are looked up by their numbers, and have their sizes."""
        return self.sizes is None

    @property
    def count(self) -> int:
        return int((~self.targets.isnan()).sum()) if self.targets.is_floating_point() else super().count

    @property
    def size(self) -> int:
        return self.nodes if self.sizes is None else int(self.sizes.sum())


@dataclass(frozen=True, eq=False)
class Graph:
    """n nodes. Node i looks at node j, itself among them: pairs in order, each once."""

    n: int
    x: Floats | Bag  # N F
    i: Ints  # E
    j: Ints  # E
    a: Floats  # E: the weight of j for i where weights are fixed, w_ij / sqrt(d_i d_j)
    hops: Ints  # E: how far apart they are
    of: Ints  # N: which graph a node is of, in order
    graphs: int = 1
    places: Floats | None = None  # N k
    everyone: bool = False  # all nodes of a graph look at each other

    def some(self, which: Ints) -> "Graph":
        """The graphs of these numbers, in this order."""
        begin, end = (np.searchsorted(self.of, which, side) for side in ("left", "right"))
        nodes, sizes = _ranges(begin, end), end - begin
        new = np.zeros(self.n, np.int64)
        new[nodes] = np.arange(len(nodes))
        pairs = _ranges(np.searchsorted(self.i, begin), np.searchsorted(self.i, end))
        if isinstance(self.x, Bag):
            cells = _ranges(np.searchsorted(self.x.row, begin), np.searchsorted(self.x.row, end))
            row, col, val, many = self.x
            x: Floats | Bag = Bag(new[row[cells]], col[cells], val[cells], many)
        else:
            x = self.x[nodes]
        return replace(
            self, n=len(nodes), x=x, i=new[self.i[pairs]], j=new[self.j[pairs]], a=self.a[pairs],
            hops=self.hops[pairs], of=np.repeat(np.arange(len(which)), sizes), graphs=len(which),
            places=None if self.places is None else self.places[nodes],
        )  # fmt: skip

    def told(self, like: Tensor) -> dict[str, Any]:
        """What a model is told: features, who looks at whom, how far apart, where nodes stand, and which graph.

        Numbers are of the type and on the device of its weights; `words` and `heard` sum over the features that are
        there and over the pairs.
        """
        device = like.device
        i, j, hops, of = (torch.from_numpy(t).to(device) for t in (self.i, self.j, self.hops, self.of))
        layout: Layout | None = None
        if self.everyone:
            # who is farther counts as that far
            far = torch.full((self.n, self.n), FAR, device=device)
            far[i, j] = hops
            structure, hops = FULL if self.graphs == 1 else same(of[None]), far
            layout = structure.lay(1, self.n, self.n, device)
        else:
            layout = edges(i, j, self.n).lay(1, self.n, self.n, device)
        places = None if self.places is None else torch.from_numpy(self.places).to(like)
        x = features(self.x, self.n).to(like)
        words = Sums(*x.indices(), *x.shape) if x.is_sparse else None
        told = {"x": x, "words": words, "a": torch.from_numpy(self.a).to(like), "heard": Sums(i, j, self.n, self.n)}
        return told | {"layout": layout, "hops": hops, "places": places, "of": of, "graphs": self.graphs}


def features(x: Floats | Bag, n: int) -> Tensor:  # N F
    """As a tensor, sparse where most are 0."""
    if not isinstance(x, Bag):
        return torch.from_numpy(x)
    place, values = torch.from_numpy(np.stack([x.row, x.col])), torch.from_numpy(x.val)
    return torch.sparse_coo_tensor(place, values, (n, x.many), is_coalesced=True, check_invariants=False)


def _ranges(begin: Ints, end: Ints) -> Ints:
    """The numbers from each begin to its end, one range after the other."""
    sizes = end - begin
    return np.arange(sizes.sum()) + np.repeat(begin - np.cumsum(sizes) + sizes, sizes)


# --- who is near ------------------------------------------------------------------------------------------------------


def graph_of(x: Floats | Bag, pairs: Ints, weight: Floats | None, of: Ints, *, reach: int = 1) -> Graph:
    """The graph of these edges (E 2: j, i), of which each node sees those within so many hops; 0: all of its graph."""
    n = len(of)
    i, j, w = _each_once(pairs, weight, n)
    loops = np.arange(n)
    degree = np.ones(n, np.float32)  # a node is its own neighbour
    np.add.at(degree, i, w)
    codes, hops = _reached(i, j, n, reach or FAR - 1)
    a = np.zeros(len(codes), np.float32)
    root = 1 / np.sqrt(degree)
    a[np.searchsorted(codes, np.concatenate([i * n + j, loops * n + loops]))] = np.concatenate(
        [w * root[i] * root[j], root * root]
    )
    near = codes // n, codes % n
    return Graph(n, x, *near, a, hops, of, int(of.max(initial=0)) + 1, everyone=not reach)


def _each_once(pairs: Ints, weight: Floats | None, n: int) -> tuple[Ints, Ints, Floats]:
    """Who looks at whom, without loops, and the weight; of an edge that is written twice the mean."""
    w = np.ones(len(pairs), np.float32) if weight is None else weight
    apart = pairs[:, 0] != pairs[:, 1]
    codes, where = np.unique(pairs[apart, 1] * n + pairs[apart, 0], return_inverse=True)
    if weight is None:
        return codes // n, codes % n, np.ones(len(codes), np.float32)
    return codes // n, codes % n, (np.bincount(where, w[apart]) / np.bincount(where)).astype(np.float32)


def _reached(i: Ints, j: Ints, n: int, reach: int) -> tuple[Ints, Ints]:
    """The pairs within so many hops as codes i n + j, in order, and the hops between them."""
    starts, many = np.searchsorted(i, np.arange(n + 1)), np.bincount(i, minlength=n)
    codes, hops = np.arange(n) * n + np.arange(n), np.zeros(n, np.int64)
    last = codes
    for hop in range(1, reach + 1):
        middle = last % n
        if len(codes) + many[middle].sum() > MOST:
            raise BadSetting(f"model.reach: more than {MOST:,} pairs of nodes are within {hop} hops; take fewer")
        to = j[_ranges(starts[middle], starts[middle + 1])]
        last = np.setdiff1d(np.repeat(last // n, many[middle]) * n + to, codes)
        codes, hops = np.concatenate([codes, last]), np.concatenate([hops, np.full(len(last), hop)])
        order = np.argsort(codes)
        codes, hops = codes[order], hops[order]
    return codes, hops


# --- where a node stands ----------------------------------------------------------------------------------------------


def placed(graph: Graph, kind: Places, many: int) -> Graph:
    """The graph with so many numbers for each node that say where it stands among the others."""
    if kind == "none":
        return graph
    direct = graph.hops == 1
    pairs, starts = np.stack([graph.i[direct], graph.j[direct]]), np.searchsorted(graph.of, np.arange(graph.graphs + 1))
    if graph.n <= SMALL:
        return replace(graph, places=_places(pairs, starts, kind, many))
    name = hashlib.sha256(b"%s %d 1 " % (kind.encode(), many) + starts.tobytes() + pairs.tobytes()).hexdigest()
    file = cache_folder("places") / f"{name}.npy"
    try:  # what takes minutes is kept for the next who asks
        places = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        places = _places(pairs, starts, kind, many)
        with suppress(OSError), tempfile.TemporaryDirectory(prefix=".tmp-", dir=file.parent) as beside:
            np.save(Path(beside, "places.npy"), places)
            os.replace(Path(beside, "places.npy"), file)
    return replace(graph, places=places)


def _places(pairs: Ints, starts: Ints, kind: Places, many: int) -> Floats:  # N k
    i, j = torch.from_numpy(pairs)
    cuts, made = np.searchsorted(pairs[0], starts), []
    for g in range(len(starts) - 1):
        n, part = int(starts[g + 1] - starts[g]), slice(int(cuts[g]), int(cuts[g + 1]))
        made.append((_laplacian if kind == "laplacian" else _walk)(i[part] - starts[g], j[part] - starts[g], n, many))
    found: Floats = torch.cat(made).float().numpy()
    return found


def _walk(i: Tensor, j: Tensor, n: int, many: int) -> Tensor:  # N k
    """The chance that a walk of 1, 2, ... steps ends where it began (Dwivedi 2021)."""
    a, hop = 1 / torch.bincount(i, minlength=n).clamp_min(1).double()[i], Sums(i, j, n, n)
    found = torch.zeros(n, many, dtype=torch.float64)
    for block in torch.arange(n).split(BLOCK):
        v = torch.zeros(n, len(block), dtype=torch.float64)
        v[block, torch.arange(len(block))] = 1
        for step in range(many):
            v = hop(a, v)
            found[block, step] = v[block, torch.arange(len(block))]
    return found


def _laplacian(i: Tensor, j: Tensor, n: int, many: int) -> Tensor:  # N k
    """Eigenvectors of I - D^-1/2 A D^-1/2, from the second smallest eigenvalue on; of an edge both ways count."""
    order = torch.argsort(torch.cat([i, j]), stable=True)
    i, j = torch.cat([i, j])[order], torch.cat([j, i])[order]
    root = torch.bincount(i, minlength=n).clamp_min(1).double().rsqrt()
    a, k, hop = root[i] * root[j], min(many, n - 1), Sums(i, j, n, n)
    if n <= SMALL:
        S = hop(a, torch.eye(n, dtype=torch.float64))
        found = torch.linalg.eigh(-S)[1][:, 1 : k + 1]
    else:  # the largest of (I + S) / 2, by turning a few vectors again and again
        chance = torch.Generator().manual_seed(0)
        Q = torch.randn(n, k + 9, generator=chance, dtype=torch.float64)
        for _ in range(ROUNDS):
            Q = torch.linalg.qr(Q + hop(a, Q))[0]
        turn = torch.linalg.eigh(-Q.mT @ hop(a, Q))[1]
        found = (Q @ turn)[:, 1 : k + 1]
    return torch.nn.functional.pad(found * n**0.5, (0, many - k))
