"""Graphs from arrays in .npz, which may come from anywhere: they are held to each other before they are used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harken.data.tables.untrusted import Array, read_arrays
from harken.data.tables.vectors import floats
from harken.errors import BadInput

from .files import LARGEST, SPLITS, Bag, Floats, Ints, Raw, alike, of_nodes, weights

MOST = 10_000_000  # nodes, or features of one


def from_arrays(path: Path) -> Raw:
    """Arrays by name: edges; x, or feature_row, feature_col, feature_val and shape; label; train, valid, test."""
    arrays = read_arrays(path)
    pairs = _pairs(path, arrays)
    x, n = _x(path, arrays)
    of, labels = arrays.get("graph"), arrays.get("label", arrays.get("y"))
    if n is None:
        told = next((some for some in (arrays.get("name"), of, labels) if some is not None), None)
        n = int(pairs.max(initial=-1)) + 1 if told is None else told.size
    if n > MOST:
        raise BadInput(f"{path}: has {n:,} nodes; {MOST:,} at most are read; take a part of it")
    if len(pairs) and not 0 <= pairs.min() <= pairs.max() < n:
        raise BadInput(f"{path}: edges names node {pairs.max()}, and there are {n:,} (0 to {n - 1:,}); mend it")
    for name in ("name", "graph"):
        if name in arrays and arrays[name].shape != (n,):
            raise BadInput(f"{path}: {name} has the shape {arrays[name].shape}; one for each of {n:,} nodes is needed")
    ids, place = (np.empty(0), None) if of is None else np.unique(of, return_inverse=True)
    about = "node" if of is None or labels is None or labels.size == n else "graph"
    splits = _masks(path, arrays, n if about == "node" else len(ids))
    if labels is not None and labels.shape not in ((n,), (len(ids),)):
        what = f"{len(labels):,} labels" if labels.ndim == 1 else f"labels of the shape {labels.shape}"
        raise BadInput(f"{path}: {what} for {n:,} nodes; give one for each, or for each graph")
    said = None if labels is None else [_word(label) for label in labels.tolist()]
    names = [str(name) for name in arrays.get("name", np.arange(n)).tolist()]
    weight = weights(arrays["weight"], len(pairs), str(path)) if "weight" in arrays else None
    found_splits = {about: splits} if splits else {}
    if about == "node" and place is not None and said is not None and alike(said, place):
        said, of_graphs = of_nodes(said, splits, place)
        found_splits = {"graph": of_graphs} if of_graphs else {}
    return Raw(str(path), names, pairs, weight, x, [], said, found_splits, place, [str(name) for name in ids.tolist()])


def _pairs(path: Path, arrays: Mapping[str, Array]) -> Ints:  # E 2
    pairs = arrays.get("edges", np.empty(0))
    if pairs.ndim != 2 or 2 not in pairs.shape:
        raise BadInput(f"{path}: edges has the shape {pairs.shape}; two numbers of nodes for each edge are accepted")
    return _whole(path, "edges", pairs if pairs.shape[1] == 2 else pairs.T)


def _whole(path: Path, name: str, given: Array) -> Ints:
    with np.errstate(invalid="ignore"):
        if given.dtype.kind not in "biuf" or not np.array_equal(given, made := given.astype(np.int64)):
            raise BadInput(f"{path}: {name} holds {given.dtype} that are no whole numbers; mend it")
    return made


def _word(label: Any) -> str:
    """A label as it is written; -1 and NaN say nothing."""
    if isinstance(label, float):
        return "" if label != label else str(int(label)) if label.is_integer() else repr(label)
    return "" if label == -1 else str(label)


def _x(path: Path, arrays: Mapping[str, Array]) -> tuple[Floats | Bag | None, int | None]:
    """The features, and how many nodes have them."""
    if "x" in arrays:
        x = arrays["x"]
        if x.ndim != 2 or x.dtype.kind not in "biuf" or not (abs(x := floats(x)) < LARGEST).all():
            what = f"x is {x.dtype} of the shape {x.shape}"
            raise BadInput(f"{path}: {what}; finite numbers are accepted, a row for each node")
        return x, len(x)
    if "feature_row" not in arrays:
        return None, None
    try:
        row, col = (_whole(path, name, arrays[name]) for name in ("feature_row", "feature_col"))
        n, many = map(int, arrays["shape"])
        val = arrays.get("feature_val", np.ones(len(row)))
        good = len(row) == len(col) == len(val) and row.min(initial=0) >= 0 and row.max(initial=0) < n
        good = good and col.min(initial=0) >= 0 and col.max(initial=0) < many and bool((abs(val) < LARGEST).all())
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        if isinstance(error, BadInput):
            raise
        good = False
    if not good or many > MOST:
        way = f"feature_row, feature_col and feature_val of one length, and shape (below {MOST:,}), are accepted"
        raise BadInput(f"{path}: its features do not fit together; {way}")
    order = np.argsort(row, kind="stable")
    return Bag(row[order], col[order], val[order].astype(np.float32), many), n


def _masks(path: Path, arrays: Mapping[str, Array], n: int) -> dict[str, Ints]:
    """Splits as lists of numbers, or as masks."""
    found = {}
    for name, split in SPLITS.items():
        for given in (arrays.get(name), arrays.get(f"{name}_mask"), arrays.get(f"{name}_index")):
            if given is not None and given.ndim == 1:
                some = np.flatnonzero(given) if given.dtype == bool else _whole(path, name, given)
                if len(some) and not 0 <= some.min() <= some.max() < n:
                    raise BadInput(f"{path}: {name} names number {some.max()}, and there are {n:,}; mend it")
                found[split] = some
    return found
