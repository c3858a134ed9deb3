"""Read graphs from a folder with nodes.csv and edges.csv, from GML or GraphML files, or from networkx.

An edge goes from its source to its target; messages flow in that direction.
"""

import csv
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harken.data.cache import cache_folder
from harken.data.detect import preview
from harken.data.tables.read import parse_rows
from harken.errors import BadInput
from harken.suggestions import did_you_mean, similar_path

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]
Columns = dict[str, list[str]]  # column name -> cells
ColumnNames = Mapping[str, Any]  # settings that name columns: node, label, graph, ..., features; and `directed`

COLUMN_PATTERNS = {  # names by which a column is recognized if no setting names it
    "node": "id|node|node_?id|name|index",
    "label": f"{preview.LABEL_NAME.pattern}|club|community|group|field|party",
    "graph": "graph|graph_?id|molecule",
    "source": "source|src|from|u|a|node_?1|start",
    "target": "target|dst|to|v|b|node_?2|end",
    "weight": "weight|w",
    "split": "split|set|fold",
}
SPLITS = {"train": "train", "valid": "valid", "val": "valid", "dev": "valid", "test": "test"}
DELIMITERS = ",\t;|"
MAX_FLOAT32 = float(np.finfo(np.float32).max)
NETWORKX_READERS = {".gml": "read_gml", ".graphml": "read_graphml"}


class SparseFeatures(NamedTuple):
    """Sparse feature matrix in COO format, sorted by row: node `row` has value `val` in feature `col`."""

    row: Ints
    col: Ints
    val: Floats
    n_features: int


@dataclass(frozen=True, eq=False)
class GraphTables:
    """The contents of a graph file. It may hold several graphs."""

    location: str  # for messages
    node_names: list[str]
    edges: Ints  # E 2: source, target
    weight: Floats | None = None  # E
    x: Floats | SparseFeatures | None = None  # N F
    feature_names: list[str] = field(default_factory=list)
    labels: list[str] | None = None  # per node or per graph; "" if unlabelled
    splits: dict[str, dict[str, Ints]] = field(default_factory=dict)  # node, edge or graph -> split -> indices
    graph_ids: Ints | None = None  # N: the graph of each node
    graph_names: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)  # messages for the user


def read_graph(path: Path, columns: ColumnNames) -> GraphTables:
    """Read a folder of tables, a table of edges, or a file that networkx reads."""
    if preview.is_folder(path):
        nodes, edges, graphs = (_read_csv(path, name) for name in ("nodes", "edges", "graphs"))
        return from_tables(str(path), nodes, edges, graphs, columns)
    if path.suffix.lower() in NETWORKX_READERS:
        return from_networkx(_read_networkx(path), columns, str(path))
    return from_tables(str(path), None, _read_columns(path), None, columns)


def check_weights(weight: Floats, n_edges: int, location: str) -> Floats:
    """Return the edge weights as float32 if they are valid."""
    if weight.shape != (n_edges,) or weight.dtype.kind not in "biuf":
        what = f"weight is {weight.dtype} of shape {weight.shape}"
        raise BadInput(f"{location}: {what}; {n_edges:,} edges need one number each")
    if not ((weight >= 0) & (weight < MAX_FLOAT32)).all():
        raise BadInput(f"{location}: a weight is negative or not finite; fix it, or rename this column or array")
    return weight.astype(np.float32)


def sort_by_graph(tables: GraphTables) -> GraphTables:
    """The same graphs with the nodes of each graph next to each other."""
    assert tables.graph_ids is not None
    order = np.argsort(tables.graph_ids, kind="stable")
    new = np.empty_like(order)
    new[order] = np.arange(len(order))
    x = tables.x
    if isinstance(x, SparseFeatures):
        row = new[x.row]
        row_order = np.argsort(row, kind="stable")
        x = SparseFeatures(row[row_order], x.col[row_order], x.val[row_order], x.n_features)
    elif x is not None:
        x = x[order]
    labels, splits = tables.labels, dict(tables.splits)
    if labels is not None and len(labels) != len(tables.graph_names):  # one per node
        labels = [labels[n] for n in order.tolist()]
    if "node" in splits:
        splits["node"] = {name: np.sort(new[nodes]) for name, nodes in splits["node"].items()}
    names, graph_ids = [tables.node_names[n] for n in order.tolist()], tables.graph_ids[order]
    edges = new[tables.edges]
    return replace(tables, node_names=names, edges=edges, x=x, graph_ids=graph_ids, labels=labels, splits=splits)


def graph_paths(path: Path) -> list[Path]:
    """The files that `read_graph` reads."""
    names = [path / f"{name}.csv" for name in ("nodes", "edges", "graphs")] if preview.is_folder(path) else [path]
    return [file for file in names if file.exists()]


# --- tables -----------------------------------------------------------------------------------------------------------


def _read_csv(folder: Path, name: str) -> Columns | None:
    file = folder / f"{name}.csv"
    if not file.exists() and name == "edges":
        raise BadInput(f"{file}: no such file; a graph is a folder with edges.csv and nodes.csv")
    return _read_columns(file) if file.exists() else None


def _read_columns(file: Path) -> Columns:
    """The columns of a file with a header."""
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file}: cannot be read as UTF-8 ({error}); convert it: iconv -f latin1 -t utf-8") from None
    header = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=header.count)
    rows = [cells for _, cells in parse_rows(StringIO(text, newline=""), delimiter)]
    names = [cell.strip() for cell in rows[0]] if rows else []
    for line, row in enumerate(rows[1:], 2):
        if len(row) not in (0, len(names)):
            raise BadInput(f"{file}:{line}: {len(row)} cells, but the header has {len(names)}; fix this line")
    if len(set(names)) < len(names) or not any(map(len, rows[1:])):
        raise BadInput(f"{file}: a header with distinct column names and at least one row are needed")
    full = [row for row in rows[1:] if row]
    return {name: [row[n].strip() for row in full] for n, name in enumerate(names)}


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
    location: str, nodes: Columns | None, edges: Columns | None, graphs: Columns | None, columns: ColumnNames
) -> GraphTables:
    """Build graphs from a table of edges and optional tables of nodes and graphs."""
    assert edges is not None
    ends = [_find_column(edges, role, columns, f"{location}, edges") for role in ("source", "target")]
    a, b = ends if None not in ends and ends[0] != ends[1] else list(edges)[:2] if len(edges) > 1 else (None, None)
    if a is None or b is None:
        raise BadInput(
            f"{location}: edges need two columns, source and target; name them: data.source=... data.target=..."
        )
    weight = _find_column(edges, "weight", columns, f"{location}, edges")
    table = nodes if nodes is not None else {"node": list(dict.fromkeys(edges[a] + edges[b]))}
    node = _find_column(table, "node", columns, f"{location}, nodes") or next(iter(table))
    roles = {role: _find_column(table, role, columns, f"{location}, nodes") for role in ("graph", "split")}
    label = None if graphs is not None else _find_label(table, {node, *roles.values()}, columns, location)
    index = {name: n for n, name in enumerate(table[node])}
    if len(index) < len(table[node]):
        duplicate = next(name for name in index if table[node].count(name) > 1)
        raise BadInput(f"{location}: node {duplicate!r} has two rows; every node needs exactly one")
    if weight and "" in edges[weight]:
        row = edges[weight].index("")
        what = f"the edge {edges[a][row]!r} - {edges[b][row]!r} has no {weight}"
        raise BadInput(f"{location}: {what} ({edges[weight].count(''):,} such edges); fill it in or delete the row")
    x, feature_names, notices = _read_features(table, {node, label, *roles.values()}, columns, location)
    splits = {"edge": _read_split(edges, _find_column(edges, "split", columns, f"{location}, edges"))}
    splits["node"] = _read_split(table, roles["split"])
    labels = table[label] if label else None
    graph_ids, graph_names = None, list[str]()
    if roles["graph"]:
        graph_names = list(dict.fromkeys(table[roles["graph"]]))
        graph_ids = _to_ids(graph_names, table[roles["graph"]], f"{location}, nodes")
    if graphs is not None:
        labels, splits["graph"] = _read_graph_labels(graphs, graph_names, columns, location)
    elif per_graph := graph_level_labels(labels, splits["node"], graph_ids):
        labels, splits["graph"] = per_graph
    return GraphTables(
        location, list(index),
        np.stack([_to_ids(index, edges[end], f"{location}, edges") for end in (a, b)], 1),
        check_weights(_to_floats(edges[weight], location, weight), len(edges[a]), f"{location}, edges")
        if weight else None,
        x, feature_names, labels, {k: v for k, v in splits.items() if v}, graph_ids, graph_names, notices,
    )  # fmt: skip


def _find_label(table: Columns, used: set[str | None], columns: ColumnNames, location: str) -> str | None:
    if (label := _find_column(table, "label", columns, f"{location}, nodes")) is not None:
        return label
    for name, cells in table.items():  # the first column of text with few distinct values
        values = {cell for cell in cells if cell}
        if name not in used and 2 <= len(values) <= min(100, len(cells) / 5) and _parse_floats(cells) is None:
            return name
    return None


def _read_features(
    table: Columns, used: set[str | None], columns: ColumnNames, location: str
) -> tuple[Floats | None, list[str], list[str]]:
    """The features (N F), the names of their columns, and notices about the other columns."""
    wanted = columns.get("features")  # an empty list: no features
    for name in wanted or ():
        _find_column(table, "features", {"features": name}, f"{location}, nodes")
    parsed = {
        name: _parse_floats(table[name]) for name in ([n for n in table if n not in used] if wanted is None else wanted)
    }
    if wanted and (text_column := next((name for name, x in parsed.items() if x is None), None)):
        raise BadInput(f"{location}: data.features={text_column!r} is not numeric; name numeric columns only")
    numeric = {name: x for name, x in parsed.items() if x is not None}
    notices, ignored = list[str](), [name for name in parsed if name not in numeric]
    if ignored:
        notices.append(f"{location}: ignored non-numeric columns: {', '.join(ignored)}")
    if empty := {name: n_empty for name in numeric if (n_empty := table[name].count(""))}:
        counts = ", ".join(f"{name} {n_empty:,}" for name, n_empty in empty.items())
        notices.append(f"{location}: empty cells are read as 0: {counts}")
    return (np.stack([*numeric.values()], 1) if numeric else None), list(numeric), notices


def _parse_floats(cells: Iterable[str]) -> Floats | None:
    try:
        values = np.array([float(cell or 0) for cell in cells])
    except (ValueError, OverflowError):
        return None
    return values if (abs(values) < MAX_FLOAT32).all() else None


def _to_floats(cells: list[str], location: str, name: str) -> Floats:
    if (values := _parse_floats(cells)) is None:
        raise BadInput(f"{location}: column {name!r} is not numeric; fix it, or rename the column")
    return values


def _to_ids(names: Mapping[str, int] | list[str], cells: list[str], location: str) -> Ints:
    index = names if isinstance(names, Mapping) else {name: n for n, name in enumerate(names)}
    try:
        return np.array([index[cell] for cell in cells], np.int64)
    except KeyError as error:
        name = str(error.args[0])
        raise BadInput(f"{location}: {name!r} is not a node in nodes.csv; add it there, or delete its edges") from None


def _read_split(table: Columns, column: str | None) -> dict[str, Ints]:
    """The row indices of each split, if a column assigns them."""
    if column is None:
        return {}
    cells = np.array([SPLITS.get(cell.lower(), "") for cell in table[column]])
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


# --- networkx ---------------------------------------------------------------------------------------------------------


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


def from_networkx(G: Any, columns: ColumnNames, location: str = "the graph") -> GraphTables:
    """Convert a networkx graph; its attributes become columns."""
    tables = from_tables(location, *_networkx_columns(G), None, columns)
    if G.is_directed() and not columns.get("directed"):
        tables.notices.append(
            f"{location}: its edges are directed but read as undirected; data.directed=true keeps the direction"
        )
    return tables


def _networkx_columns(G: Any) -> tuple[Columns, Columns]:
    nodes, edges = list(G.nodes(data=True)), list(G.edges(data=True))
    ends = {"source": [str(a) for a, _, _ in edges], "target": [str(b) for _, b, _ in edges]}
    return (
        {"node": [str(node) for node, _ in nodes]} | _attribute_columns([attrs for _, attrs in nodes], {"node"}),
        ends | _attribute_columns([attrs for _, _, attrs in edges], {*ends}),
    )


def _attribute_columns(rows: list[dict[Any, Any]], used: set[str]) -> Columns:
    names = dict.fromkeys(key for row in rows for key in row)
    return {str(name): [str(row.get(name, "")) for row in rows] for name in names if str(name) not in used}


def save_networkx(G: Any) -> Path:
    """Save a networkx graph to a cache folder, so that the run can be repeated."""
    if not all(hasattr(G, name) for name in ("nodes", "edges", "is_directed")):
        raise BadInput(f"{type(G).__name__}: a path, a recipe or a networkx graph is accepted")
    tables = dict(zip(("nodes", "edges"), _networkx_columns(G), strict=True))
    digest = hashlib.sha256(json.dumps(tables).encode()).hexdigest()[:16]
    folder = cache_folder("graphs", digest, "graph")
    for name, table in tables.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))
    return folder
