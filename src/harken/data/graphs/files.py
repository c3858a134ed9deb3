"""The contents of a graph file: from tables of nodes, edges, graphs and pairs of graphs, or from networkx.

An edge goes from its source to its target; messages flow in that direction.
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
from harken.errors import BadInput
from harken.suggestions import did_you_mean

from .columns import Columns

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]
Features: TypeAlias = "Floats | SparseFeatures"
ColumnNames = Mapping[str, Any]  # settings that name columns (node, ..., features) or say how to read them (directed)
_COLUMNS: dict[str, str] = preview.TABLES["graph_columns"]
COLUMN_PATTERNS = {**_COLUMNS, "label": f"{_COLUMNS['label']}|{preview.LABEL_NAME.pattern}"}  # if no setting names one
MAX_TYPES = 100  # of nodes or of edges
MAX_FLOAT32 = float(np.finfo(np.float32).max)


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
    labels: list[str] | None = None  # per node, graph or pair of graphs; "" if unlabelled
    splits: dict[str, dict[str, Ints]] = field(default_factory=dict)  # node, edge, graph or pair -> split -> indices
    graph_ids: Ints | None = None  # N: the graph of each node
    graph_names: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)  # messages for the user
    feature_names: list[str] = field(default_factory=list)  # columns of x; empty if they have no names
    pairs: Ints | None = None  # P 2: graphs that are compared; the labels are theirs
    node_types: list[str] | None = None  # N
    edge_types: list[str] | None = None  # E
    has_numbers: bool = False  # the name of the label column means a number, also if all of them are integers

    def unit_names(self, level: str) -> list[str]:
        """The names of the nodes, of the graphs, or of the pairs of graphs: "a--b"."""
        if level == "pair":
            pairs = [] if self.pairs is None else self.pairs.tolist()
            return [f"{self.graph_names[a]}--{self.graph_names[b]}" for a, b in pairs]
        return self.graph_names if level == "graph" else self.node_names


def folder_of_graph(path: Path) -> str:
    """What to do with one table of a graph in a folder of several tables; empty for other files."""
    second = {
        "edges.csv": "nodes.csv",
        "nodes.csv": "edges.csv",
        "graphs.csv": "edges.csv",
        "pairs.csv": "edges.csv",
    }.get(path.name)
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


def from_tables(location: str, tables: Mapping[str, Columns], columns: ColumnNames) -> GraphTables:
    """Build graphs from a table of edges and optional tables of nodes, graphs and pairs of graphs."""
    edges, nodes, in_edges = tables["edges"], tables.get("nodes"), f"{location}, edges"
    named = [_find_column(edges, role, columns, in_edges) for role in ("source", "target")]
    a, b = named if None not in named and named[0] != named[1] else list(edges)[:2] if len(edges) > 1 else (None, None)
    if a is None or b is None:
        fix = "name them: data.source=... data.target=..."
        raise BadInput(f"{location}: edges need two columns, source and target; {fix}")
    weight = _find_column(edges, "weight", columns, in_edges)
    table = nodes if nodes is not None else {"node": list(dict.fromkeys(edges[a] + edges[b]))}
    node = _find_column(table, "node", columns, f"{location}, nodes") or next(iter(table))
    roles = {role: _find_column(table, role, columns, f"{location}, nodes") for role in ("graph", "split")}
    level = columns.get("target_level", "auto")
    has_pairs = "pairs" in tables and level in ("auto", "pair")
    of_graphs = "graphs" in tables and level != "node"
    label = None if has_pairs or of_graphs or level == "edge" else label_column(table, columns, location)
    kind = _find_type(table, "node_type", columns, f"{location}, nodes")
    roles["type"] = None if kind == label else kind
    index = {name: n for n, name in enumerate(table[node])}
    if len(index) < len(table[node]):
        duplicate = next(name for name in index if table[node].count(name) > 1)
        raise BadInput(f"{location}: node {duplicate!r} has two rows; every node needs exactly one")
    weights = _read_weights(edges, weight, (a, b), columns, location) if weight else None
    x, feature_names, notices = _read_features(table, {node, label, *roles.values()}, columns, location)
    splits = {"edge": _read_split(edges, _find_column(edges, "split", columns, in_edges))}
    splits["node"] = _read_split(table, roles["split"])
    labels = table[label] if label else None
    graph_ids, graph_names = None, list[str]()
    if roles["graph"]:
        graph_names = list(dict.fromkeys(table[roles["graph"]]))
        graph_index = {name: n for n, name in enumerate(graph_names)}
        graph_ids = np.array([graph_index[name] for name in table[roles["graph"]]], np.int64)
    pairs, has_numbers = None, False
    if has_pairs:
        pairs, labels, splits["pair"], has_numbers = _read_pairs(tables["pairs"], graph_names, columns, location)
    elif of_graphs:
        labels, splits["graph"] = _read_graph_labels(tables["graphs"], graph_names, columns, location)
    elif level != "node" and (per_graph := graph_level_labels(labels, splits["node"], graph_ids)):
        labels, splits["graph"] = per_graph
    edge_type = _find_type(edges, "edge_type", columns, in_edges)
    ends = np.stack([_to_ids(index, edges[end], in_edges) for end in (a, b)], 1)
    return GraphTables(
        location, list(index), ends, None if weights is None else check_weights(weights, len(ends), in_edges), x,
        labels, {level: indices for level, indices in splits.items() if indices}, graph_ids, graph_names, notices,
        feature_names, pairs, table[roles["type"]] if roles["type"] else None, edges[edge_type] if edge_type else None,
        has_numbers,
    )  # fmt: skip


def _find_type(table: Columns, role: str, columns: ColumnNames, location: str) -> str | None:
    """The column with the types of the nodes or edges; none with data.types=false or too many types."""
    if not columns.get("types", True):
        return None
    name = _find_column(table, role, columns, location)
    if name is None or len(distinct := {*table[name]}) <= MAX_TYPES:
        return name
    if columns.get(role) is None:
        return None
    raise BadInput(f"{location}: column {name!r} has {len(distinct):,} types; at most {MAX_TYPES} are supported")


def _read_weights(edges: Columns, weight: str, ends: tuple[str, str], columns: ColumnNames, location: str) -> Floats:
    if rows := [row for row, cell in enumerate(edges[weight]) if is_missing(cell)]:
        what = f"the edge {edges[ends[0]][rows[0]]!r} - {edges[ends[1]][rows[0]]!r} has no {weight}"
        raise BadInput(f"{location}: {what} ({len(rows):,} such edges); fill it in or delete the row")
    weights, text = _parse_column(edges, weight, columns, f"{location}, edges")
    if weights is None:
        raise BadInput(f"{location}: column {weight!r} is not numeric ({text!r}); fix it, or rename the column")
    return weights


def label_column(nodes: Columns, columns: ColumnNames, location: str) -> str | None:
    """The column with the labels of the nodes; a type alone is the label, unless data.node_type names it."""
    node = _find_column(nodes, "node", columns, f"{location}, nodes") or next(iter(nodes))
    used = {node, *(_find_column(nodes, role, columns, f"{location}, nodes") for role in ("graph", "split"))}
    kind = _find_type(nodes, "node_type", columns, f"{location}, nodes")
    label = _find_label(nodes, used | {kind}, columns, location)
    return label if label or columns.get("node_type") else _find_label(nodes, used, columns, location)


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


def _read_pairs(
    table: Columns, graph_names: list[str], columns: ColumnNames, location: str
) -> tuple[Ints, list[str], dict[str, Ints], bool]:
    """The graphs of each row of pairs.csv (P 2), its labels and its splits, and whether the labels are numbers."""
    place, index = f"{location}, pairs", {name: n for n, name in enumerate(graph_names)}
    if not index:
        fix = "add a column graph, or name it: data.graph=..."
        raise BadInput(f"{location}: nodes.csv does not say to which graph of pairs.csv a node belongs; {fix}")
    ends = [_find_column(table, role, {}, place) for role in ("graph_a", "graph_b")]
    first, second = ends if None not in ends else [*table, None, None][:2]
    split = _find_column(table, "split", columns, place)
    rest = {name: cells for name, cells in table.items() if name not in (first, second, split)}
    number = _find_column(rest, "pair_number", {}, place) if columns.get("label") is None else None
    label = number or _find_column(rest, "label", columns, place) or next(iter(rest), None)
    if first is None or second is None:
        raise BadInput(f"{place}: two columns with names of graphs are needed; add graph_a,graph_b")
    for name in (*table[first], *table[second]):
        if name not in index:
            fix = f"add it there, or remove the pair.{did_you_mean(name, index)}"
            raise BadInput(f"{place}: {name!r} is not a graph of nodes.csv; {fix}")
    pairs = np.array([[index[name] for name in table[end]] for end in (first, second)], np.int64).T
    labels = table[label] if label else [""] * len(pairs)
    is_number = label is not None and re.fullmatch(COLUMN_PATTERNS["pair_number"], label, re.I) is not None
    return pairs, labels, _read_split(table, split), is_number


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


def from_networkx(G: object, columns: ColumnNames, location: str = "the graph") -> GraphTables:
    """Convert a networkx graph; its attributes become columns."""
    nodes, edges, directed = _networkx_columns(G)
    tables = from_tables(location, {"nodes": nodes, "edges": edges}, columns)
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
