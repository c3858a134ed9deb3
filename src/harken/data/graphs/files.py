"""Read graphs from a folder with nodes.csv and edges.csv, from .npz, GML or GraphML files, or from networkx.

An edge goes from its source to its target; messages flow in that direction. The arrays of an .npz file are untrusted:
all shapes, types and indices are checked.
"""

import csv
import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from harken.data.cache import cache_folder
from harken.data.detect import preview
from harken.data.partition import SPLIT_OF_NAME
from harken.data.tables.numbers import format_problem, is_missing, parse_number, workbook_numbers
from harken.data.tables.untrusted import Array, read_arrays
from harken.data.tables.vectors import to_floats
from harken.errors import BadInput
from harken.suggestions import did_you_mean, similar_path

from .columns import Columns, read_columns

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]
Features: TypeAlias = "Floats | SparseFeatures"
ColumnNames = Mapping[
    str, Any
]  # settings that name columns: node, label, graph, ..., features; `directed` and `encoding`
_COLUMNS: dict[str, str] = preview.TABLES["graph_columns"]
COLUMN_PATTERNS = {**_COLUMNS, "label": f"{_COLUMNS['label']}|{preview.LABEL_NAME.pattern}"}  # if no setting names one
MAX_SIZE = 10_000_000  # nodes, or features per node
MAX_FLOAT32 = float(np.finfo(np.float32).max)
NETWORKX_READERS = {".gml": "read_gml", ".graphml": "read_graphml"}


class SparseFeatures(NamedTuple):
    """Sparse feature matrix in COO format, sorted by row: node `row` has value `val` in feature `col`."""

    row: Ints
    col: Ints
    val: Floats
    n_features: int

    def select(self, cells: Ints, rows: Ints) -> "SparseFeatures":
        """These cells, with a new row for each row."""
        return SparseFeatures(rows[self.row[cells]], self.col[cells], self.val[cells], self.n_features)


@dataclass(frozen=True, eq=False)
class GraphTables:
    """The contents of a graph file. It may hold several graphs."""

    location: str  # for messages
    node_names: list[str]
    edges: Ints  # E 2: source, target
    weight: Floats | None = None  # E
    x: "Features | None" = None  # N F
    labels: list[str] | None = None  # per node or per graph; "" if unlabelled
    splits: dict[str, dict[str, Ints]] = field(default_factory=dict)  # node, edge or graph -> split -> indices
    graph_ids: Ints | None = None  # N: the graph of each node
    graph_names: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)  # messages for the user
    feature_names: list[str] = field(default_factory=list)  # columns of x; empty if they have no names


def read_graph(path: Path, columns: ColumnNames) -> GraphTables:
    """Read a folder of tables, a table of edges, arrays, or a file that networkx reads."""
    encoding = columns.get("encoding")
    if preview.is_folder(path):
        if not (edges := path / "edges.csv").exists():
            raise BadInput(f"{edges}: no such file; a graph is a folder with edges.csv and nodes.csv")
        files = (path / f"{name}.csv" for name in ("nodes", "graphs"))
        nodes, graphs = (read_columns(file, encoding) if file.exists() else None for file in files)
        return from_tables(str(path), nodes, read_columns(edges, encoding), graphs, columns)
    if path.suffix.lower() == ".npz":
        return from_arrays(path)
    if path.suffix.lower() in NETWORKX_READERS:
        return from_networkx(_read_networkx(path), columns, str(path))
    if path.name != "edges.csv" and (fix := folder_of_graph(path)):
        raise BadInput(f"{path}: {fix}")
    return from_tables(str(path), None, read_columns(path, encoding), None, columns)


def folder_of_graph(path: Path) -> str:
    """What to do with one table of a graph in a folder of several tables; empty for other files."""
    second = {"edges.csv": "nodes.csv", "nodes.csv": "edges.csv", "graphs.csv": "edges.csv"}.get(path.name)
    if not second or not path.with_name(second).is_file():
        return ""
    folder = shlex.quote(str(path.absolute().parent if path.parent == Path() else path.parent))
    fix = f"to learn the graph, give the folder: harken train {folder}"
    return f"the {path.stem} of a graph, next to {second}; {fix}"


def check_weights(weight: Floats, n_edges: int, location: str) -> Floats:
    """Return the edge weights as float32 if they are valid."""
    if weight.shape != (n_edges,) or weight.dtype.kind not in "biuf":
        what = f"weight is {weight.dtype} of shape {weight.shape}"
        raise BadInput(f"{location}: {what}; {n_edges:,} edges need one number each")
    if not ((weight >= 0) & (weight < MAX_FLOAT32)).all():
        raise BadInput(f"{location}: a weight is negative or not finite; fix it, or rename this column or array")
    return weight.astype(np.float32)


def _find_column(table: Columns, role: str, columns: ColumnNames, location: str) -> str | None:
    """The column with this role: the one a setting names, otherwise the first with a matching name."""
    if (name := columns.get(role)) is not None:
        if str(name) not in table:
            known = f"columns: {', '.join(table)}.{did_you_mean(str(name), table)}"
            raise BadInput(f"{location}: data.{role}={name!r} is not a column; {known}")
        return str(name)
    pattern = re.compile(COLUMN_PATTERNS[role], re.I)
    return next((name for name in table if pattern.fullmatch(name)), None)


def from_tables(
    location: str, nodes: Columns | None, edges: Columns, graphs: Columns | None, columns: ColumnNames
) -> GraphTables:
    """Build graphs from a table of edges and optional tables of nodes and graphs."""
    named = [_find_column(edges, role, columns, f"{location}, edges") for role in ("source", "target")]
    a, b = named if None not in named and named[0] != named[1] else list(edges)[:2] if len(edges) > 1 else (None, None)
    if a is None or b is None:
        fix = "name them: data.source=... data.target=..."
        raise BadInput(f"{location}: edges need two columns, source and target; {fix}")
    weight = _find_column(edges, "weight", columns, f"{location}, edges")
    table = nodes if nodes is not None else {"node": list(dict.fromkeys(edges[a] + edges[b]))}
    node = _find_column(table, "node", columns, f"{location}, nodes") or next(iter(table))
    roles = {role: _find_column(table, role, columns, f"{location}, nodes") for role in ("graph", "split")}
    label = None if graphs is not None else _find_label(table, {node, *roles.values()}, columns, location)
    index = {name: n for n, name in enumerate(table[node])}
    if len(index) < len(table[node]):
        duplicate = next(name for name in index if table[node].count(name) > 1)
        raise BadInput(f"{location}: node {duplicate!r} has two rows; every node needs exactly one")
    weights = _read_weights(edges, weight, (a, b), columns, location) if weight else None
    x, feature_names, notices = _read_features(table, {node, label, *roles.values()}, columns, location)
    splits = {"edge": _read_split(edges, _find_column(edges, "split", columns, f"{location}, edges"))}
    splits["node"] = _read_split(table, roles["split"])
    labels = table[label] if label else None
    graph_ids, graph_names = None, list[str]()
    if roles["graph"]:
        graph_names = list(dict.fromkeys(table[roles["graph"]]))
        graph_index = {name: n for n, name in enumerate(graph_names)}
        graph_ids = np.array([graph_index[name] for name in table[roles["graph"]]], np.int64)
    if graphs is not None:
        labels, splits["graph"] = _read_graph_labels(graphs, graph_names, columns, location)
    elif per_graph := graph_level_labels(labels, splits["node"], graph_ids):
        labels, splits["graph"] = per_graph
    splits = {level: indices for level, indices in splits.items() if indices}
    ends = np.stack([_to_ids(index, edges[end], f"{location}, edges") for end in (a, b)], 1)
    weights = None if weights is None else check_weights(weights, len(ends), f"{location}, edges")
    graphs_of_nodes = (graph_ids, graph_names, notices, feature_names)
    return GraphTables(location, list(index), ends, weights, x, labels, splits, *graphs_of_nodes)


def _read_weights(edges: Columns, weight: str, ends: tuple[str, str], columns: ColumnNames, location: str) -> Floats:
    if rows := [row for row, cell in enumerate(edges[weight]) if is_missing(cell)]:
        what = f"the edge {edges[ends[0]][rows[0]]!r} - {edges[ends[1]][rows[0]]!r} has no {weight}"
        raise BadInput(f"{location}: {what} ({len(rows):,} such edges); fill it in or delete the row")
    weights, text = _parse_column(edges, weight, columns, f"{location}, edges")
    if weights is None:
        raise BadInput(f"{location}: column {weight!r} is not numeric ({text!r}); fix it, or rename the column")
    return weights


def _find_label(table: Columns, used: set[str | None], columns: ColumnNames, location: str) -> str | None:
    if (label := _find_column(table, "label", columns, f"{location}, nodes")) is not None:
        return label
    for name, cells in table.items():  # the first column of text with few distinct values
        few = 2 <= len({*cells} - {""}) <= min(100, len(cells) / 5)
        if name not in used and few and _parse_column(table, name, columns, f"{location}, nodes")[0] is None:
            return name
    return None


def _read_features(
    table: Columns, used: set[str | None], columns: ColumnNames, location: str
) -> tuple[Floats | None, list[str], list[str]]:
    """The features (N F), their names, and notices about the other columns."""
    wanted = columns.get("features")  # an empty list: no features
    for name in wanted or ():
        _find_column(table, "features", {"features": name}, f"{location}, nodes")
    names = [name for name in table if name not in used] if wanted is None else wanted
    parsed = {name: _parse_column(table, name, columns, f"{location}, nodes") for name in names}
    texts = {name: cell for name, (x, cell) in parsed.items() if x is None}
    if wanted and texts:
        name, cell = next(iter(texts.items()))
        raise BadInput(f"{location}: data.features={name!r} is not numeric ({cell!r}); name numeric columns only")
    numeric = {name: x for name, (x, _) in parsed.items() if x is not None}
    notices = list[str]()
    if texts:
        ignored = ", ".join(f"{name} ({cell!r})" for name, cell in texts.items())
        notices.append(f"{location}: ignored non-numeric columns: {ignored}")
    if missing := {name: count for name in numeric if (count := sum(map(is_missing, table[name])))}:
        counts = ", ".join(f"{name} {count:,}" for name, count in missing.items())
        notices.append(f"{location}: missing values (empty, NA) are read as 0: {counts}")
    return (np.stack([*numeric.values()], 1) if numeric else None), list(numeric), notices


def _parse_column(table: Columns, name: str, columns: ColumnNames, location: str) -> tuple[Floats | None, str]:
    """The numbers of a column, 0 for missing ones; or None and the first cell that is not a number."""
    decimal = columns.get("decimal", ".")
    cells = workbook_numbers(table[name], decimal, location.removesuffix(", edges").removesuffix(", nodes"))
    if problem := format_problem(cells, decimal):
        raise BadInput(f"{location}: column {name!r}: {problem}")
    numbers = [0.0 if is_missing(cell) else parse_number(cell, decimal) for cell in cells]
    values = np.array([MAX_FLOAT32 if number is None else number for number in numbers])
    unread = np.flatnonzero(abs(values) >= MAX_FLOAT32)
    return (None, table[name][unread[0]][:40]) if len(unread) else (values, "")


def _to_ids(index: Mapping[str, int], cells: list[str], location: str) -> Ints:
    try:
        return np.array([index[cell] for cell in cells], np.int64)
    except KeyError as error:
        name = str(error.args[0])
        raise BadInput(f"{location}: {name!r} is not a node in nodes.csv; add it there, or delete its edges") from None


def _read_split(table: Columns, column: str | None) -> dict[str, Ints]:
    """The row indices of each split, if a column assigns them."""
    if column is None:
        return {}
    cells = np.array([SPLIT_OF_NAME.get(cell.lower(), "") for cell in table[column]])
    return {split: rows for split in ("train", "valid", "test") if len(rows := np.flatnonzero(cells == split))}


def _read_graph_labels(
    graphs: Columns, graph_names: list[str], columns: ColumnNames, location: str
) -> tuple[list[str] | None, dict[str, Ints]]:
    """The labels and splits of graphs.csv, in the order in which the graphs occur in nodes.csv."""
    graph = _find_column(graphs, "graph", columns, f"{location}, graphs") or next(iter(graphs))
    label, split = (_find_column(graphs, role, columns, f"{location}, graphs") for role in ("label", "split"))
    row = {name: n for n, name in enumerate(graphs[graph])}
    if missing := next((name for name in graph_names if name not in row), None):
        raise BadInput(f"{location}: graph {missing!r} of nodes.csv is not in graphs.csv; add it there")
    order = [row[name] for name in graph_names]
    table = {name: [cells[n] for n in order] for name, cells in graphs.items()}
    return table[label] if label else None, _read_split(table, split)


def graph_level_labels(
    labels: list[str] | None, splits: dict[str, Ints], graph_ids: Ints | None
) -> tuple[list[str], dict[str, Ints]] | None:
    """The label and split of each graph, from its first node, if all nodes of each of several graphs agree."""
    if labels is None or graph_ids is None:
        return None
    first = np.unique(graph_ids, return_index=True)[1]
    if len(first) < 2 or len({*zip(graph_ids.tolist(), labels, strict=True)}) != len(first):
        return None
    return [labels[n] for n in first], {name: np.flatnonzero(np.isin(first, nodes)) for name, nodes in splits.items()}


def from_arrays(path: Path) -> GraphTables:
    """Array names: edges; x, or feature_row, feature_col, feature_val and shape; label; train, valid, test."""
    arrays = read_arrays(path)
    edges = arrays.get("edges", np.empty(0))
    if edges.ndim != 2 or 2 not in edges.shape:
        raise BadInput(f"{path}: edges has shape {edges.shape}; two node indices per edge are needed")
    edges = _to_integers(path, "edges", edges if edges.shape[1] == 2 else edges.T)
    x, n = _array_features(path, arrays)
    graph, labels = arrays.get("graph"), arrays.get("label", arrays.get("y"))
    if n is None:
        per_node = next((array for array in (arrays.get("name"), graph, labels) if array is not None), None)
        n = int(edges.max(initial=-1)) + 1 if per_node is None else per_node.size
    if n > MAX_SIZE:
        raise BadInput(f"{path}: {n:,} nodes; at most {MAX_SIZE:,} are supported; use a smaller graph")
    if len(edges) and not 0 <= edges.min() <= edges.max() < n:
        raise BadInput(f"{path}: edges contains node {edges.max()}; nodes are numbered 0 to {n - 1:,}; fix the array")
    for name in ("name", "graph"):
        if name in arrays and arrays[name].shape != (n,):
            raise BadInput(f"{path}: {name} has shape {arrays[name].shape}; one value per node ({n:,}) is needed")
    names, graph_ids = (np.empty(0), None) if graph is None else np.unique(graph, return_inverse=True)
    level = "node" if graph is None or labels is None or labels.size == n else "graph"
    splits = _array_splits(path, arrays, n if level == "node" else len(names))
    if labels is not None and labels.shape not in ((n,), (len(names),)):
        what = f"{len(labels):,} labels" if labels.ndim == 1 else f"labels of shape {labels.shape}"
        raise BadInput(f"{path}: {what} for {n:,} nodes; one label per node or per graph is needed")
    label_names = None if labels is None else [_label_name(label) for label in labels.tolist()]
    weight = check_weights(arrays["weight"], len(edges), str(path)) if "weight" in arrays else None
    level_splits = {level: splits} if splits else {}
    if level == "node" and (per_graph := graph_level_labels(label_names, splits, graph_ids)):
        label_names, graph_splits = per_graph
        level_splits = {"graph": graph_splits} if graph_splits else {}
    node_names, graph_names = ([*map(str, x.tolist())] for x in (arrays.get("name", np.arange(n)), names))
    return GraphTables(str(path), node_names, edges, weight, x, label_names, level_splits, graph_ids, graph_names)


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


def _read_networkx(path: Path) -> Any:
    try:
        import networkx
    except ImportError:
        raise BadInput(f"{path}: reading this file needs networkx; install it: pip install networkx") from None
    if not path.exists():
        raise BadInput(f"{path}: no such file; check the name{similar_path(path)}")
    try:
        return getattr(networkx, NETWORKX_READERS[path.suffix.lower()])(path)
    except Exception as error:  # its readers raise many types
        message = " ".join(str(error).split())[:100]
        raise BadInput(f"{path}: networkx cannot read it ({message}); export the graph again") from None


def from_networkx(G: object, columns: ColumnNames, location: str = "the graph") -> GraphTables:
    """Convert a networkx graph; its attributes become columns."""
    nodes, edges, directed = _networkx_columns(G)
    tables = from_tables(location, nodes, edges, None, columns)
    if directed and not columns.get("directed"):
        problem = "its edges are directed but read as undirected"
        tables.notices.append(f"{location}: {problem}; data.directed=true keeps the direction")
    return tables


def _networkx_columns(G: Any) -> tuple[Columns, Columns, bool]:
    nodes, edges = list(G.nodes(data=True)), list(G.edges(data=True))
    ends = {"source": [str(a) for a, _, _ in edges], "target": [str(b) for _, b, _ in edges]}
    names = {"node": [str(node) for node, _ in nodes]}
    node_columns = names | _attribute_columns([attrs for _, attrs in nodes], {"node"})
    return node_columns, ends | _attribute_columns([attrs for _, _, attrs in edges], {*ends}), G.is_directed()


def _attribute_columns(rows: list[dict[Any, Any]], used: set[str]) -> Columns:
    names = dict.fromkeys(key for row in rows for key in row)
    return {str(name): [str(row.get(name, "")) for row in rows] for name in names if str(name) not in used}


def save_networkx(G: object) -> Path:
    """Save a networkx graph to a cache folder, so that the run can be repeated."""
    if not all(hasattr(G, name) for name in ("nodes", "edges", "is_directed")):
        raise BadInput(f"{type(G).__name__}: a path, a recipe or a networkx graph is accepted")
    tables = dict(zip(("nodes", "edges"), _networkx_columns(G)[:2], strict=True))
    digest = hashlib.sha256(json.dumps(tables).encode()).hexdigest()[:16]
    folder = cache_folder("graphs", digest, "graph")
    for name, table in tables.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))
    return folder
