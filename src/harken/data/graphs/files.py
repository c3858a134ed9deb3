"""Graphs from files: a folder with nodes.csv and edges.csv, arrays in .npz, GML or GraphML, or a networkx graph.

An edge is read from its source to its target, and what stands at the source is heard at the target.
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
from harken.errors import BadInput, did_you_mean, near_name

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]
Table = dict[str, list[str]]  # the cells of each column
Asked = Mapping[str, Any]  # columns that are named: node, label, graph, ..., features; and whether it is directed

CALLED = {  # what a column may be called where nobody names it
    "node": "id|node|node_?id|name|index",
    "label": f"{preview.LABEL.pattern}|club|community|group|field|party",
    "graph": "graph|graph_?id|molecule",
    "source": "source|src|from|u|a|node_?1|start",
    "target": "target|dst|to|v|b|node_?2|end",
    "weight": "weight|w",
    "split": "split|set|fold",
}
SPLITS = {"train": "train", "valid": "valid", "val": "valid", "dev": "valid", "test": "test"}
DELIMITERS = ",\t;|"
LARGEST = float(np.finfo(np.float32).max)  # number: what is not below it is not finite
FILES = {".gml": "read_gml", ".graphml": "read_graphml"}  # networkx reads them


class Bag(NamedTuple):
    """Features of which most are 0: node `row` has `val` of feature `col`. Sorted by row; `many` features in all."""

    row: Ints
    col: Ints
    val: Floats
    many: int


@dataclass(frozen=True, eq=False)
class Raw:
    """What a file says of a graph, or of many of them at once."""

    place: str
    names: list[str]  # of the nodes
    pairs: Ints  # E 2: from which node to which
    weight: Floats | None = None
    x: Floats | Bag | None = None
    columns: list[str] = field(default_factory=list)  # the features' names, where they have some
    said: list[str] | None = None  # of each node, or of each graph; "" where nothing is said
    splits: dict[str, dict[str, Ints]] = field(default_factory=dict)  # of node, edge or graph: those of each split
    of: Ints | None = None  # which graph a node is of
    graphs: list[str] = field(default_factory=list)  # names of the graphs
    notices: list[str] = field(default_factory=list)  # what a reader should know of how it was read


def read(path: Path, asked: Asked) -> Raw:
    """The graph of a folder of tables, of a table of edges, or of a file that networkx reads."""
    if preview.is_folder(path):
        nodes, edges, graphs = (_csv(path, name) for name in ("nodes", "edges", "graphs"))
        return from_tables(str(path), nodes, edges, graphs, asked)
    if path.suffix.lower() in FILES:
        return from_networkx(_networkx(path), asked, str(path))
    return from_tables(str(path), None, _cells(path), None, asked)


def weights(w: Floats, many: int, place: str) -> Floats:
    """The weights of so many edges, if that is what they are."""
    if w.shape != (many,) or w.dtype.kind not in "biuf":
        raise BadInput(f"{place}: weight is {w.dtype} of shape {w.shape}; {many:,} edges need a number each")
    if not ((w >= 0) & (w < LARGEST)).all():
        raise BadInput(f"{place}: a weight is below 0 or not finite; mend it, or call that column or array otherwise")
    return w.astype(np.float32)


def ordered(raw: Raw) -> Raw:
    """The same graphs with their nodes in the order of the graphs."""
    assert raw.of is not None
    order = np.argsort(raw.of, kind="stable")
    new = np.empty_like(order)
    new[order] = np.arange(len(order))
    x = raw.x
    if isinstance(x, Bag):
        row = new[x.row]
        again = np.argsort(row, kind="stable")
        x = Bag(row[again], x.col[again], x.val[again], x.many)
    elif x is not None:
        x = x[order]
    names, said, splits = [raw.names[n] for n in order.tolist()], raw.said, dict(raw.splits)
    if said is not None and len(said) != len(raw.graphs):  # of each node
        said = [said[n] for n in order.tolist()]
    if "node" in splits:
        splits["node"] = {name: np.sort(new[some]) for name, some in splits["node"].items()}
    return replace(raw, names=names, pairs=new[raw.pairs], x=x, of=raw.of[order], said=said, splits=splits)


def files(path: Path) -> list[Path]:
    """The files that are read."""
    found = [path / f"{name}.csv" for name in ("nodes", "edges", "graphs")] if preview.is_folder(path) else [path]
    return [file for file in found if file.exists()]


# --- tables -----------------------------------------------------------------------------------------------------------


def _csv(folder: Path, name: str) -> Table | None:
    file = folder / f"{name}.csv"
    if not file.exists() and name == "edges":
        raise BadInput(f"{file}: there is no such file; a graph is a folder with edges.csv and nodes.csv")
    return _cells(file) if file.exists() else None


def _cells(file: Path) -> Table:
    """The columns of a file with a header."""
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file}: cannot be read as UTF-8 ({error}); convert it: iconv -f latin1 -t utf-8") from None
    head = text.partition("\n")[0]
    rows = list(csv.reader(StringIO(text, newline=""), delimiter=max(DELIMITERS, key=head.count)))
    names = [cell.strip() for cell in rows[0]] if rows else []
    for line, row in enumerate(rows[1:], 2):
        if len(row) not in (0, len(names)):
            raise BadInput(f"{file}:{line}: {len(row)} cells where the first line names {len(names)}; mend the line")
    if len(set(names)) < len(names) or not any(map(len, rows[1:])):
        raise BadInput(f"{file}: a first line with different names of columns, and lines below it, are needed")
    full = [row for row in rows[1:] if row]
    return {name: [row[n].strip() for row in full] for n, name in enumerate(names)}


def _column(table: Table, role: str, asked: Asked, place: str) -> str | None:
    """The name of the column that has this role: the one that is named, else one that is called so."""
    if (name := asked.get(role)) is not None:
        if str(name) not in table:
            known = f"there are {', '.join(table)}.{did_you_mean(str(name), table)}"
            raise BadInput(f"{place}: data.{role} = {name!r} is no column of it; {known}")
        return str(name)
    form = re.compile(CALLED[role], re.I)
    return next((name for name in table if form.fullmatch(name)), None)


def from_tables(place: str, nodes: Table | None, edges: Table | None, graphs: Table | None, asked: Asked) -> Raw:
    """The graph of a table of edges and, where there are any, of nodes and of graphs."""
    assert edges is not None
    ends = [_column(edges, role, asked, f"{place}, edges") for role in ("source", "target")]
    a, b = ends if None not in ends and ends[0] != ends[1] else list(edges)[:2] if len(edges) > 1 else (None, None)
    if a is None or b is None:
        raise BadInput(
            f"{place}: edges need two columns, source and target; name them: data.source=... data.target=..."
        )
    weight = _column(edges, "weight", asked, f"{place}, edges")
    table = nodes if nodes is not None else {"node": list(dict.fromkeys(edges[a] + edges[b]))}
    own = _column(table, "node", asked, f"{place}, nodes") or next(iter(table))
    roles = {role: _column(table, role, asked, f"{place}, nodes") for role in ("graph", "split")}
    label = None if graphs is not None else _label(table, {own, *roles.values()}, asked, place)
    numbers = {name: n for n, name in enumerate(table[own])}
    if len(numbers) < len(table[own]):
        twice = next(name for name in numbers if table[own].count(name) > 1)
        raise BadInput(f"{place}: node {twice!r} stands there twice; each node has a line of its own")
    if weight and "" in edges[weight]:
        lost = edges[weight].index("")
        what = f"the edge of {edges[a][lost]!r} and {edges[b][lost]!r} has no {weight}"
        raise BadInput(f"{place}: {what} ({edges[weight].count(''):,} such edges); give it one, or take it out")
    x, columns, notices = _features(table, {own, label, *roles.values()}, asked, place)
    splits = {"edge": _split(edges, _column(edges, "split", asked, f"{place}, edges"))}
    splits["node"] = _split(table, roles["split"])
    said = table[label] if label else None
    of, ids = None, list[str]()
    if roles["graph"]:
        ids = list(dict.fromkeys(table[roles["graph"]]))
        of = _ids(ids, table[roles["graph"]], f"{place}, nodes")
    if graphs is not None:
        said, splits["graph"] = _of_graphs(graphs, ids, asked, place)
    elif of is not None and said is not None and alike(said, of):  # the label of a graph stands at each of its nodes
        said, splits["graph"] = of_nodes(said, splits["node"], of)
    return Raw(
        place, list(numbers),
        np.stack([_ids(numbers, edges[end], f"{place}, edges") for end in (a, b)], 1),
        weights(_numbers(edges[weight], place, weight), len(edges[a]), f"{place}, edges") if weight else None,
        x, columns, said, {k: v for k, v in splits.items() if v}, of, ids, notices,
    )  # fmt: skip


def _label(table: Table, taken: set[str | None], asked: Asked, place: str) -> str | None:
    if (named := _column(table, "label", asked, f"{place}, nodes")) is not None:
        return named
    for name, cells in table.items():  # words that come again and again
        kinds = {cell for cell in cells if cell}
        if name not in taken and 2 <= len(kinds) <= min(100, len(cells) / 5) and _amounts(cells) is None:
            return name
    return None


def _features(
    table: Table, taken: set[str | None], asked: Asked, place: str
) -> tuple[Floats | None, list[str], list[str]]:
    """The columns of numbers that are not something else, their names, and what is to be told of the others."""
    wanted = asked.get("features")  # none of them: nodes are known by their names alone
    for name in wanted or ():
        _column(table, "features", {"features": name}, f"{place}, nodes")
    found = {
        name: _amounts(table[name]) for name in ([n for n in table if n not in taken] if wanted is None else wanted)
    }
    if wanted and (odd := next((name for name, x in found.items() if x is None), None)):
        raise BadInput(f"{place}: data.features names {odd!r}, which holds more than numbers; name other columns")
    kept = {name: x for name, x in found.items() if x is not None}
    notices, unread = list[str](), [name for name in found if name not in kept]
    if unread:
        notices.append(f"{place}: columns left out, as they hold no numbers: {', '.join(unread)}")
    if empty := {name: many for name in kept if (many := table[name].count(""))}:
        some = ", ".join(f"{many:,} of {name}" for name, many in empty.items())
        notices.append(f"{place}: empty cells are read as 0: {some}")
    return (np.stack([*kept.values()], 1) if kept else None), list(kept), notices


def _amounts(cells: Iterable[str]) -> Floats | None:
    try:
        found = np.array([float(cell or 0) for cell in cells])
    except (ValueError, OverflowError):
        return None
    return found if (abs(found) < LARGEST).all() else None


def _numbers(cells: list[str], place: str, name: str) -> Floats:
    if (found := _amounts(cells)) is None:
        raise BadInput(f"{place}: column {name!r} holds something that is no number; mend it, or rename the column")
    return found


def _ids(numbers: Mapping[str, int] | list[str], cells: list[str], place: str) -> Ints:
    known = numbers if isinstance(numbers, Mapping) else {name: n for n, name in enumerate(numbers)}
    try:
        return np.array([known[cell] for cell in cells], np.int64)
    except KeyError as error:
        lost = str(error.args[0])
        raise BadInput(f"{place}: {lost!r} is no node of nodes.csv; add it there, or take its edges out") from None


def _split(table: Table, column: str | None) -> dict[str, Ints]:
    """The numbers of the rows of each split, where a column says so."""
    if column is None:
        return {}
    cells = [SPLITS.get(cell.lower(), "") for cell in table[column]]
    return {split: found for split in ("train", "valid", "test") if len(found := _where(cells, split))}


def _where(cells: list[str], wanted: str) -> Ints:
    return np.array([n for n, cell in enumerate(cells) if cell == wanted], np.int64)


def _of_graphs(graphs: Table, ids: list[str], asked: Asked, place: str) -> tuple[list[str] | None, dict[str, Ints]]:
    """What graphs.csv says, in the order in which the graphs are met in nodes.csv."""
    own = _column(graphs, "graph", asked, f"{place}, graphs") or next(iter(graphs))
    label, split = (_column(graphs, role, asked, f"{place}, graphs") for role in ("label", "split"))
    row = {name: n for n, name in enumerate(graphs[own])}
    if lost := next((name for name in ids if name not in row), None):
        raise BadInput(f"{place}: graph {lost!r} of nodes.csv is not in graphs.csv; add it there")
    order = [row[name] for name in ids]
    table = {name: [cells[n] for n in order] for name, cells in graphs.items()}
    return table[label] if label else None, _split(table, split)


def alike(said: list[str], of: Ints) -> bool:
    """Whether all nodes of a graph have one label, in every one of several graphs."""
    graphs = len(np.unique(of))
    return graphs > 1 and len({*zip(of.tolist(), said, strict=True)}) == graphs


def of_nodes(said: list[str], split: dict[str, Ints], of: Ints) -> tuple[list[str], dict[str, Ints]]:
    """What is said of a graph where it is said at its nodes: what stands at the first."""
    first = np.unique(of, return_index=True)[1]
    return [said[n] for n in first], {name: np.flatnonzero(np.isin(first, some)) for name, some in split.items()}


# --- networkx ---------------------------------------------------------------------------------------------------------


def _networkx(path: Path) -> Any:
    try:
        import networkx
    except ImportError:  # it comes with torch
        raise BadInput(f"{path}: networkx reads such files; install it with: pip install networkx") from None
    if not path.exists():
        raise BadInput(f"{path}: there is no such file; check the name{near_name(path)}")
    try:
        return getattr(networkx, FILES[path.suffix.lower()])(path)
    except Exception as error:  # its readers fail in many ways
        told = " ".join(str(error).split())[:100]
        raise BadInput(f"{path}: networkx cannot read it ({told}); write it again") from None


def from_networkx(G: Any, asked: Asked, place: str = "the graph") -> Raw:
    """A networkx graph, its attributes as columns."""
    raw = from_tables(place, *_tables(G), None, asked)
    if G.is_directed() and not asked.get("directed"):
        way = "data.directed=true hears them at their target alone"
        raw.notices.append(f"{place}: its edges have a direction, and are heard at both ends; {way}")
    return raw


def _tables(G: Any) -> tuple[Table, Table]:
    nodes, edges = list(G.nodes(data=True)), list(G.edges(data=True))
    ends = {"source": [str(a) for a, _, _ in edges], "target": [str(b) for _, b, _ in edges]}
    return (
        {"node": [str(node) for node, _ in nodes]} | _attributes([about for _, about in nodes], {"node"}),
        ends | _attributes([about for _, _, about in edges], {*ends}),
    )


def _attributes(rows: list[dict[Any, Any]], taken: set[str]) -> Table:
    names = dict.fromkeys(key for row in rows for key in row)
    return {str(name): [str(row.get(name, "")) for row in rows] for name in names if str(name) not in taken}


def kept(G: Any) -> Path:
    """A networkx graph as a folder in the cache: a run must be repeatable, and what is in memory is not."""
    if not all(hasattr(G, name) for name in ("nodes", "edges", "is_directed")):
        raise BadInput(f"{type(G).__name__}: a path, a recipe or a networkx graph is accepted")
    tables = dict(zip(("nodes", "edges"), _tables(G), strict=True))
    digest = hashlib.sha256(json.dumps(tables).encode()).hexdigest()[:16]
    folder = cache_folder("graphs", digest, "graph")
    for name, table in tables.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(table)
            rows.writerows(zip(*table.values(), strict=True))
    return folder
