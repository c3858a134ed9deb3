"""Graphs as model inputs: node features, and the node pairs that attend to each other with their distance in hops.

Several graphs are one graph with several components; a batch is a subset of them.
"""

import hashlib
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from harken.core import FULL, edges, same
from harken.core.backends.graph_sum import PairSum, TypedPairs
from harken.data.batch import Batch
from harken.data.cache import cache_folder
from harken.errors import BadSetting
from harken.files import atomic_file
from harken.settings import MAX_HOPS

from .files import Features, Floats, Ints, SparseFeatures

NodeEncoding = Literal["none", "laplacian", "walk"]
MAX_PAIRS = 50_000_000  # node pairs within reach
MAX_DENSE_NODES = 2048  # larger graphs use iterative eigenvectors and the cache
COLUMN_BLOCK = 512  # columns of the random-walk matrix computed at a time
SUBSPACE_ITERATIONS = 300


@dataclass(frozen=True, kw_only=True)
class GraphBatch(Batch):
    """`tokens` holds indices of nodes, of node pairs, or of graphs. The graph itself belongs to the task."""

    n_nodes: int = 0  # computed per step
    graph_sizes: Tensor | None = None  # B: nodes per graph, if only the graphs of the batch are computed

    @property
    def static_shape(self) -> bool:
        """Whether all batches have the same shapes."""
        return self.graph_sizes is None

    @property
    def n_targets(self) -> int:
        return int((~self.targets.isnan()).sum()) if self.targets.is_floating_point() else super().n_targets

    @property
    def n_tokens(self) -> int:
        return self.n_nodes if self.graph_sizes is None else int(self.graph_sizes.sum())


@dataclass(frozen=True, eq=False)
class TypedEdges:
    """Edges with types, unique and sorted by (i, j, type)."""

    i: Ints  # E
    j: Ints  # E
    type: Ints  # E
    a: Floats  # E: the share of the edge in the weights of its type at node i
    n_types: int

    def select(self, edges: Ints, nodes: Ints) -> "TypedEdges":
        """These edges, with a new index for each node."""
        return TypedEdges(nodes[self.i[edges]], nodes[self.j[edges]], self.type[edges], self.a[edges], self.n_types)


@dataclass(frozen=True, eq=False)
class Graph:
    """n nodes. Node i attends to node j and to itself; pairs are unique and sorted by (i, j)."""

    n: int
    x: Features  # N F
    i: Ints  # E
    j: Ints  # E
    a: Floats  # E: the GCN weight of j for i, w_ij / sqrt(d_i d_j)
    hops: Ints  # E: distance between i and j
    graph_ids: Ints  # N: the graph of each node, ascending
    n_graphs: int = 1
    positional_encoding: Floats | None = None  # N k
    fully_connected: bool = False  # all nodes of a graph attend to each other
    distance: bool = True  # fully connected: the number of hops between all nodes is an input
    typed_edges: TypedEdges | None = None

    def subset(self, selected: Ints) -> "Graph":
        """The selected graphs, in this order."""
        start, end = (np.searchsorted(self.graph_ids, selected, side) for side in ("left", "right"))
        nodes, sizes = _concat_ranges(start, end), end - start
        new = np.zeros(self.n, np.int64)
        new[nodes] = np.arange(len(nodes))
        pairs = _concat_ranges(np.searchsorted(self.i, start), np.searchsorted(self.i, end))
        if isinstance(self.x, SparseFeatures):
            cells = _concat_ranges(np.searchsorted(self.x.row, start), np.searchsorted(self.x.row, end))
            x: Features = self.x.select(cells, new)
        else:
            x = self.x[nodes]
        typed = self.typed_edges
        if typed is not None:
            typed = typed.select(_concat_ranges(np.searchsorted(typed.i, start), np.searchsorted(typed.i, end)), new)
        return replace(
            self, n=len(nodes), x=x, i=new[self.i[pairs]], j=new[self.j[pairs]], a=self.a[pairs],
            hops=self.hops[pairs], graph_ids=np.repeat(np.arange(len(selected)), sizes), n_graphs=len(selected),
            positional_encoding=None if self.positional_encoding is None else self.positional_encoding[nodes],
            typed_edges=typed,
        )  # fmt: skip

    def model_inputs(self, like: Tensor) -> dict[str, object]:
        """Keyword arguments of a graph model, with the dtype and device of `like`.

        `feature_sum` multiplies sparse features with a matrix, `message_passing` sums over the node pairs.
        """
        device = like.device
        i, j, hops, graph_ids = (torch.from_numpy(t).to(device) for t in (self.i, self.j, self.hops, self.graph_ids))
        if not self.fully_connected:
            structure = edges(i, j, self.n)
        else:
            structure = FULL if self.n_graphs == 1 else same(graph_ids[None])
        if self.fully_connected and self.distance:
            table = torch.full((self.n, self.n), MAX_HOPS, device=device)  # unlisted pairs are at the maximum
            table[i, j] = hops
            hops = table
        encoding = None if self.positional_encoding is None else torch.from_numpy(self.positional_encoding).to(like)
        x = feature_tensor(self.x, self.n).to(like)
        return {
            "x": x,
            "feature_sum": PairSum(*x.indices(), *x.shape) if x.is_sparse else None,
            "a": torch.from_numpy(self.a).to(like),
            "message_passing": PairSum(i, j, self.n, self.n),
            "layout": structure.layout(1, self.n, self.n, device),
            "hops": hops,
            "typed": None if self.typed_edges is None else self._typed_pairs(self.typed_edges, like),
            "positional_encoding": encoding,
            "graph_ids": graph_ids,
            "n_graphs": self.n_graphs,
        }

    def _typed_pairs(self, edges: TypedEdges, like: Tensor) -> TypedPairs:
        """The edges with types as inputs of a model."""
        listed = np.searchsorted(self.i * self.n + self.j, edges.i * self.n + edges.j)
        columns = (edges.i, edges.j * edges.n_types + edges.type, listed, edges.type)
        i, j_and_type, pair, kind = (torch.from_numpy(t).to(like.device) for t in columns)
        pair_sum = PairSum(i, j_and_type, self.n, self.n * edges.n_types)
        return TypedPairs(torch.from_numpy(edges.a).to(like), pair_sum, pair, kind)


def feature_tensor(x: Features, n: int) -> Tensor:  # N F
    """The features as a dense or sparse tensor."""
    if not isinstance(x, SparseFeatures):
        return torch.from_numpy(x)
    indices, values = torch.from_numpy(np.stack([x.row, x.col])), torch.from_numpy(x.val)
    return torch.sparse_coo_tensor(indices, values, (n, x.n_features), is_coalesced=True, check_invariants=False)


def _concat_ranges(start: Ints, end: Ints) -> Ints:
    """Concatenate the ranges start[k] ... end[k] - 1."""
    sizes = end - start
    return np.arange(sizes.sum()) + np.repeat(start - np.cumsum(sizes) + sizes, sizes)


def build_graph(
    x: Features, pairs: Ints, weight: Floats | None, graph_ids: Ints, *, reach: int = 1, distance: bool = True
) -> Graph:
    """The graph with these edges (E 2: j, i). Nodes attend to nodes within `reach` hops; 0: to the whole graph.

    Without `distance` only the edges of a fully connected graph are listed, not the pairs within MAX_HOPS hops.
    """
    n = len(graph_ids)
    i, j, w = _unique_edges(pairs, weight, n)
    degree = np.ones(n, np.float32)  # the self-loop
    np.add.at(degree, i, w)
    codes, hops = _pairs_within_reach(i, j, n, reach or (MAX_HOPS - 1 if distance else 1))
    a = np.zeros(len(codes), np.float32)
    root = 1 / np.sqrt(degree)
    a[np.searchsorted(codes, i * n + j)] = w * root[i] * root[j]
    a[np.searchsorted(codes, np.arange(n) * (n + 1))] = root * root
    n_graphs = int(graph_ids.max(initial=0)) + 1
    i, j = codes // n, codes % n
    return Graph(n, x, i, j, a, hops, graph_ids, n_graphs, fully_connected=not reach, distance=distance)


def typed_edges(pairs: Ints, weight: Floats | None, types: Ints, n: int, n_types: int) -> TypedEdges:
    """Edges (E 2: j, i) with types, without self-loops; the weights of duplicates are averaged."""
    distinct = pairs[:, 0] != pairs[:, 1]
    codes = (pairs[distinct, 1] * n + pairs[distinct, 0]) * n_types + types[distinct]
    codes, inverse = np.unique(codes, return_inverse=True)
    w = np.ones(len(codes)) if weight is None else np.bincount(inverse, weight[distinct]) / np.bincount(inverse)
    i, j, kind = codes // n_types // n, codes // n_types % n, codes % n_types
    total = np.bincount(i * n_types + kind, w, n * n_types)[i * n_types + kind]
    return TypedEdges(i, j, kind, (w / np.maximum(total, 1e-9)).astype(np.float32), n_types)


def _unique_edges(pairs: Ints, weight: Floats | None, n: int) -> tuple[Ints, Ints, Floats]:
    """Edges (i, j) without self-loops, and their weights; duplicates are averaged."""
    distinct = pairs[:, 0] != pairs[:, 1]
    codes, inverse = np.unique(pairs[distinct, 1] * n + pairs[distinct, 0], return_inverse=True)
    if weight is None:
        return codes // n, codes % n, np.ones(len(codes), np.float32)
    return codes // n, codes % n, (np.bincount(inverse, weight[distinct]) / np.bincount(inverse)).astype(np.float32)


def _pairs_within_reach(i: Ints, j: Ints, n: int, reach: int) -> tuple[Ints, Ints]:
    """All pairs within `reach` hops, as sorted codes i n + j, and their distances."""
    starts, degree = np.searchsorted(i, np.arange(n + 1)), np.bincount(i, minlength=n)
    codes, hops = np.arange(n) * n + np.arange(n), np.zeros(n, np.int64)
    frontier = codes
    for hop in range(1, reach + 1):
        middle = frontier % n
        if len(codes) + degree[middle].sum() > MAX_PAIRS:
            raise BadSetting(f"model.reach: more than {MAX_PAIRS:,} node pairs are within {hop} hops; use fewer")
        neighbors = j[_concat_ranges(starts[middle], starts[middle + 1])]
        frontier = np.setdiff1d(np.repeat(frontier // n, degree[middle]) * n + neighbors, codes)
        codes, hops = np.concatenate([codes, frontier]), np.concatenate([hops, np.full(len(frontier), hop)])
        order = np.argsort(codes)
        codes, hops = codes[order], hops[order]
    return codes, hops


def add_positional_encoding(graph: Graph, kind: NodeEncoding, k: int) -> Graph:
    """The graph with a positional encoding of k numbers per node."""
    if kind == "none":
        return graph
    direct = graph.hops == 1
    pairs = np.stack([graph.i[direct], graph.j[direct]])
    starts = np.searchsorted(graph.graph_ids, np.arange(graph.n_graphs + 1))
    if graph.n <= MAX_DENSE_NODES:
        return replace(graph, positional_encoding=_encode_nodes(pairs, starts, kind, k))
    name = hashlib.sha256(b"%s %d 1 " % (kind.encode(), k) + starts.tobytes() + pairs.tobytes()).hexdigest()
    file = cache_folder("node-encodings") / f"{name}.npy"
    try:  # computing it may take minutes
        encoding = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        encoding = _encode_nodes(pairs, starts, kind, k)
        with suppress(OSError), atomic_file(file) as temporary:
            np.save(temporary, encoding)
    return replace(graph, positional_encoding=encoding)


def _encode_nodes(pairs: Ints, starts: Ints, kind: NodeEncoding, k: int) -> Floats:  # N k
    i, j = torch.from_numpy(pairs)
    bounds, encode = np.searchsorted(pairs[0], starts), _laplacian if kind == "laplacian" else _random_walk
    encodings = []
    for g in range(len(starts) - 1):
        n, part = int(starts[g + 1] - starts[g]), slice(int(bounds[g]), int(bounds[g + 1]))
        encodings.append(encode(i[part] - starts[g], j[part] - starts[g], n, k))
    encoding: Floats = torch.cat(encodings).float().numpy()
    return encoding


def _random_walk(i: Tensor, j: Tensor, n: int, k: int) -> Tensor:  # N k
    """Return probabilities of random walks of 1 ... k steps (Dwivedi 2021)."""
    a, hop = 1 / torch.bincount(i, minlength=n).clamp_min(1).double()[i], PairSum(i, j, n, n)
    encoding = torch.zeros(n, k, dtype=torch.float64)
    for block in torch.arange(n).split(COLUMN_BLOCK):
        v = torch.zeros(n, len(block), dtype=torch.float64)
        v[block, torch.arange(len(block))] = 1
        for step in range(k):
            v = hop(a, v)
            encoding[block, step] = v[block, torch.arange(len(block))]
    return encoding


def _laplacian(i: Tensor, j: Tensor, n: int, k: int) -> Tensor:  # N k
    """Eigenvectors of I - D^-1/2 A D^-1/2, from the second smallest eigenvalue on; edges count in both directions."""
    order = torch.argsort(torch.cat([i, j]), stable=True)
    i, j = torch.cat([i, j])[order], torch.cat([j, i])[order]
    root = torch.bincount(i, minlength=n).clamp_min(1).double().rsqrt()
    a, m, hop = root[i] * root[j], min(k, n - 1), PairSum(i, j, n, n)
    if n <= MAX_DENSE_NODES:
        S = hop(a, torch.eye(n, dtype=torch.float64))
        vectors = torch.linalg.eigh(-S)[1][:, 1 : m + 1]
    else:  # subspace iteration with (I + S) / 2
        rng = torch.Generator().manual_seed(0)
        Q = torch.randn(n, m + 9, generator=rng, dtype=torch.float64)
        for _ in range(SUBSPACE_ITERATIONS):
            Q = torch.linalg.qr(Q + hop(a, Q))[0]
        rotation = torch.linalg.eigh(-Q.mT @ hop(a, Q))[1]
        vectors = (Q @ rotation)[:, 1 : m + 1]
    return torch.nn.functional.pad(vectors * n**0.5, (0, k - m))
