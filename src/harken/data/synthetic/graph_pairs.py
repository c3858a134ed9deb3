"""Pairs of small random graphs with their exact edit distance.

An edit adds or removes an edge or a node without edges; each costs 1. It never pays to remove a node and to add another
one, so the distance is the smallest number of different edges over all ways to place the nodes of the smaller graph on
those of the larger one, plus the difference of the numbers of nodes.
"""

import csv
import io
from collections.abc import Iterator
from functools import cache
from itertools import permutations
from typing import NamedTuple

import numpy as np

from harken.data.images.files import Array
from harken.data.rng import rng_for

SIZES = (6, 7, 8)  # nodes per graph
DENSITY = 0.3, 0.6  # fraction of the node pairs with an edge
MAX_MOVES = 6  # of edges of the second graph, which is a changed copy of the first
SPLITS = {8: "valid", 9: "test"}  # by the last digit of the number of a pair


class Pair(NamedTuple):
    """Two graphs as adjacency matrices, and their edit distance."""

    a: Array
    b: Array
    distance: int


@cache
def _relabelled_edges(n: int) -> Array:  # n! E
    """Of each order of n nodes, where each edge (i < j) of the complete graph goes, as an index of these edges."""
    i, j = np.triu_indices(n, 1)
    index = np.zeros((n, n), np.int64)
    index[i, j] = index[j, i] = np.arange(len(i))
    orders = np.array([*permutations(range(n))])
    return np.asarray(index[orders[:, i], orders[:, j]])


def edit_distance(a: Array, b: Array) -> int:
    """The exact edit distance of two graphs without types, given as adjacency matrices; at most about 8 nodes."""
    n = max(len(a), len(b))
    edges = []
    for A in (a, b):
        padded = np.zeros((n, n), np.int64)
        padded[: len(A), : len(A)] = A
        edges.append(padded[np.triu_indices(n, 1)])
    different = (edges[0] != edges[1][_relabelled_edges(n)]).sum(1).min()
    return int(different) + abs(len(a) - len(b))


def _random_graph(rng: np.random.Generator) -> Array:
    n = int(rng.choice(SIZES))
    upper = np.triu(rng.random((n, n)) < rng.uniform(*DENSITY), 1).astype(np.int64)
    return np.asarray(upper + upper.T)


def _changed(A: Array, rng: np.random.Generator) -> Array:
    """The graph with some edges moved, one edge added or removed at times, and its nodes in another order."""
    n = len(A)
    upper = A[np.triu_indices(n, 1)]
    for _ in range(rng.integers(MAX_MOVES + 1)):
        present, absent = np.flatnonzero(upper), np.flatnonzero(upper == 0)
        if len(present) and len(absent):
            upper[rng.choice(present)], upper[rng.choice(absent)] = 0, 1
    if rng.random() < 0.5:
        upper[rng.integers(len(upper))] ^= 1
    B, order = np.zeros((n, n), np.int64), rng.permutation(n)
    B[np.triu_indices(n, 1)] = upper
    return np.asarray((B + B.T)[np.ix_(order, order)])


def graph_pairs(count: int, seed: int = 0) -> Iterator[Pair]:
    """A random graph and a changed copy of it; every fifth pair are two random graphs."""
    for n in range(count):
        rng = rng_for(seed, n)
        a = _random_graph(rng)
        b = _changed(a, rng) if n % 5 else _random_graph(rng)
        yield Pair(a, b, edit_distance(a, b))


def table(name: str, count: int) -> Iterator[str]:
    """One of the tables nodes, edges and pairs of the generated pairs, as lines. No graph is in two pairs."""
    headers = {"nodes": ["node", "graph"], "edges": ["source", "target"]}
    rows: list[list[object]] = [[*headers.get(name, ["graph_a", "graph_b", "distance", "split"])]]
    for n, pair in enumerate(graph_pairs(count)):
        for side, A in (("a", pair.a), ("b", pair.b)):
            graph = f"g{n}{side}"
            if name == "nodes":
                rows += [[f"{graph}-{k}", graph] for k in range(len(A))]
            elif name == "edges":
                rows += [[f"{graph}-{i}", f"{graph}-{j}"] for i, j in np.argwhere(np.triu(A)).tolist()]
        if name == "pairs":
            rows.append([f"g{n}a", f"g{n}b", pair.distance, SPLITS.get(n // 5 % 10, "train")])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    yield text.getvalue()
