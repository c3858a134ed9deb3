"""Read a graph from a folder of tables, a table of edges, an .npz file, or a file that networkx reads."""

from pathlib import Path
from typing import Any

from harken.data.detect import preview
from harken.errors import BadInput
from harken.suggestions import similar_path

from .arrays import from_arrays
from .columns import read_columns
from .files import ColumnNames, GraphTables, folder_of_graph, from_networkx, from_tables

TABLE_NAMES = ("nodes", "edges", "graphs", "pairs")  # files of a folder
NETWORKX_READERS = {".gml": "read_gml", ".graphml": "read_graphml"}


def read_graph(path: Path, columns: ColumnNames) -> GraphTables:
    """Read a folder of tables, a table of edges, arrays, or a file that networkx reads."""
    encoding = columns.get("encoding")
    if preview.is_folder(path):
        if not (edges := path / "edges.csv").exists():
            raise BadInput(f"{edges}: no such file; a graph is a folder with edges.csv and nodes.csv")
        files = {name: file for name in TABLE_NAMES if (file := path / f"{name}.csv").exists()}
        return from_tables(str(path), {name: read_columns(file, encoding) for name, file in files.items()}, columns)
    if path.suffix.lower() == ".npz":
        return from_arrays(path, columns)
    if path.suffix.lower() in NETWORKX_READERS:
        return from_networkx(_read_networkx(path), columns, str(path))
    if path.name != "edges.csv" and (fix := folder_of_graph(path)):
        raise BadInput(f"{path}: {fix}")
    return from_tables(str(path), {"edges": read_columns(path, encoding)}, columns)


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
