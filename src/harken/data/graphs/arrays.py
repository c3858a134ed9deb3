"""Read graphs from the arrays of an .npz file. They are untrusted: all shapes, types and indices are checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harken.data.partition import SPLIT_OF_NAME
from harken.data.tables.untrusted import Array, read_arrays
from harken.data.tables.vectors import to_floats
from harken.errors import BadInput

from .files import (
    MAX_FLOAT32,
    ColumnNames,
    Features,
    GraphTables,
    Ints,
    SparseFeatures,
    check_weights,
    graph_level_labels,
)

MAX_SIZE = 10_000_000  # nodes, or features per node
ONE_PER = {"name": "node", "graph": "node", "node_type": "node", "edge_type": "edge"}  # arrays with one value per ...


def from_arrays(path: Path, columns: ColumnNames) -> GraphTables:
    """Array names: edges; x, or feature_row, feature_col, feature_val and shape; label; train, valid, test; ..."""
    arrays = read_arrays(path)
    edges = _integer_pairs(path, "edges", arrays)
    x, n = _array_features(path, arrays)
    graph, labels = arrays.get("graph"), arrays.get("label", arrays.get("y"))
    if n is None:
        per_node = next((arrays[name] for name in ("name", "graph", "node_type") if name in arrays), labels)
        n = int(edges.max(initial=-1)) + 1 if per_node is None else per_node.size
    if n > MAX_SIZE:
        raise BadInput(f"{path}: {n:,} nodes; at most {MAX_SIZE:,} are supported; use a smaller graph")
    if len(edges) and not 0 <= edges.min() <= edges.max() < n:
        raise BadInput(f"{path}: edges contains node {edges.max()}; nodes are numbered 0 to {n - 1:,}; fix the array")
    for name, unit in ONE_PER.items():
        size = n if unit == "node" else len(edges)
        if name in arrays and arrays[name].shape != (size,):
            raise BadInput(f"{path}: {name} has shape {arrays[name].shape}; one value per {unit} ({size:,}) is needed")
    names, graph_ids = (np.empty(0), None) if graph is None else np.unique(graph, return_inverse=True)
    pairs = _graph_pairs(path, arrays, columns, len(names))
    level = "node" if graph is None or labels is None or labels.size == n else "graph"
    level, count = ("pair", len(pairs)) if pairs is not None else (level, n if level == "node" else len(names))
    splits = _array_splits(path, arrays, count)
    if labels is not None and labels.shape != (count,):
        what = f"{len(labels):,} labels" if labels.ndim == 1 else f"labels of shape {labels.shape}"
        accepted = f"one label per pair ({count:,})" if level == "pair" else "one label per node or per graph"
        raise BadInput(f"{path}: {what} for {n:,} nodes; {accepted} is needed")
    label_names = None if labels is None else [_label_name(label) for label in labels.tolist()]
    weight = check_weights(arrays["weight"], len(edges), str(path)) if "weight" in arrays else None
    level_splits = {level: splits} if splits else {}
    if level == "node" and (per_graph := graph_level_labels(label_names, splits, graph_ids)):
        label_names, graph_splits = per_graph
        level_splits = {"graph": graph_splits} if graph_splits else {}
    node_names, graph_names = ([*map(str, x.tolist())] for x in (arrays.get("name", np.arange(n)), names))
    types = [
        [*map(str, arrays[name].tolist())] if name in arrays and columns.get("types", True) else None
        for name in ("node_type", "edge_type")
    ]
    return GraphTables(
        str(path), node_names, edges, weight, x, label_names, level_splits, graph_ids, graph_names,
        pairs=pairs, node_types=types[0], edge_types=types[1],
    )  # fmt: skip


def _integer_pairs(path: Path, name: str, arrays: Mapping[str, Array]) -> Ints:  # E 2
    """An array of two indices per row, or its transpose."""
    array, what = arrays.get(name, np.empty(0)), {"edges": "node indices per edge"}.get(name, "graph indices per pair")
    if array.ndim != 2 or 2 not in array.shape:
        raise BadInput(f"{path}: {name} has shape {array.shape}; two {what} are needed")
    return _to_integers(path, name, array if array.shape[1] == 2 else array.T)


def _graph_pairs(path: Path, arrays: Mapping[str, Array], columns: ColumnNames, n_graphs: int) -> Ints | None:
    """The pairs of graphs that are compared, if these are the targets."""
    if "pairs" not in arrays or columns.get("target_level", "auto") not in ("auto", "pair"):
        return None
    pairs = _integer_pairs(path, "pairs", arrays)
    if len(pairs) and not 0 <= pairs.min() <= pairs.max() < n_graphs:
        problem = f"pairs contains graph {pairs.max()}, and the array graph has {n_graphs:,} graphs"
        raise BadInput(f"{path}: {problem}, numbered from 0 in sorted order; fix the array")
    return pairs


def _to_integers(path: Path, name: str, array: Array) -> Ints:
    with np.errstate(invalid="ignore"):
        if array.dtype.kind not in "biuf" or not np.array_equal(array, integers := array.astype(np.int64)):
            raise BadInput(f"{path}: {name} is {array.dtype} with values that are not integers; fix the array")
    return integers


def _label_name(label: Any) -> str:
    """The label as text; -1 and NaN mean unlabelled."""
    if isinstance(label, float):
        return "" if label != label else str(int(label)) if label.is_integer() else repr(label)
    return "" if label == -1 else str(label)


def _array_features(path: Path, arrays: Mapping[str, Array]) -> "tuple[Features | None, int | None]":
    """The features, and the number of nodes that they imply."""
    if "x" in arrays:
        x = arrays["x"]
        if x.ndim != 2 or x.dtype.kind not in "biuf" or not (abs(x := to_floats(x)) < MAX_FLOAT32).all():
            raise BadInput(f"{path}: x is {x.dtype} of shape {x.shape}; finite numbers, one row per node, are needed")
        return x, len(x)
    if "feature_row" not in arrays:
        return None, None
    try:
        row, col = (_to_integers(path, name, arrays[name]) for name in ("feature_row", "feature_col"))
        n, n_features = map(int, arrays["shape"])
        val = arrays.get("feature_val", np.ones(len(row)))
        valid = len(row) == len(col) == len(val) and row.min(initial=0) >= 0 and row.max(initial=0) < n
        valid = valid and col.min(initial=0) >= 0 and col.max(initial=0) < n_features
        valid = valid and bool((abs(val) < MAX_FLOAT32).all())
    except BadInput:
        raise
    except (KeyError, ValueError, TypeError, OverflowError):
        valid = False
    if not valid or n_features > MAX_SIZE:
        accepted = f"feature_row, feature_col and feature_val of one length, and shape (below {MAX_SIZE:,})"
        raise BadInput(f"{path}: its feature arrays are inconsistent; accepted: {accepted}")
    order = np.argsort(row, kind="stable")
    return SparseFeatures(row[order], col[order], val[order].astype(np.float32), n_features), n


def _array_splits(path: Path, arrays: Mapping[str, Array], n: int) -> dict[str, Ints]:
    """Splits, stored as indices or as boolean masks."""
    splits = {}
    for name, split in SPLIT_OF_NAME.items():
        for array in (arrays.get(name), arrays.get(f"{name}_mask"), arrays.get(f"{name}_index")):
            if array is not None and array.ndim == 1:
                indices = np.flatnonzero(array) if array.dtype == bool else _to_integers(path, name, array)
                if len(indices) and not 0 <= indices.min() <= indices.max() < n:
                    raise BadInput(f"{path}: {name} contains index {indices.max()}; there are {n:,}; fix the array")
                splits[split] = indices
    return splits
