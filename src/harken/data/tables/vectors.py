"""Vectors from a file: a NumPy array, or a table of numbers with one row per point. Nothing in it can run code."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harken.data.detect import dialect, preview
from harken.errors import BadInput
from harken.events import Listener
from harken.suggestions import did_you_mean, similar_path

from .columns import json_objects
from .numbers import Decimal, format_problem, is_missing, is_number, parse_number, workbook_numbers
from .read import parse_quoted
from .text_file import JSON_SUFFIXES, ROWS_SUFFIX, TABLE_SUFFIXES, iter_lines, text_file
from .untrusted import Array, check_memory

Floats = npt.NDArray[np.floating[Any]]
ACCEPTED = "vectors are read from .npy files and from tables (.csv, .tsv, .xlsx, .parquet, .json, .jsonl)"


class Vectors(NamedTuple):
    """Points with the names of their columns, the names of the rows if the file has a text column, and a target."""

    x: Floats  # N d
    columns: list[str]
    names: list[str] | None = None
    target: Floats | None = None  # N
    lines: Sequence[int] = ()  # of the rows of a table, in its file


def read_vectors(
    path: Path, listen: Listener, columns: Sequence[str] = (), decimal: Decimal = ".", target: str | None = None
) -> Vectors:
    """The vectors of a .npy file or the numbers of a table, all or these columns; its first text column names rows.

    The column `target` is not one of those of the vectors.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file; give a .npy file or a table of vectors{similar_path(path)}")
    is_array = path.suffix.lower() == ".npy"
    if not is_array and text_file(path).suffix not in (*TABLE_SUFFIXES, *JSON_SUFFIXES):
        fix = f"for a file of texts name a run first: harken cluster RUN {path.name}"
        raise BadInput(f"{path}: {ACCEPTED}; {fix}")
    if is_array:
        x = _read_npy(path)
        names = [str(n + 1) for n in range(x.shape[1])]
        vectors = _select(Vectors(x, names), *_wanted(path, columns, target, names))
    else:
        vectors = _read_table(path, listen, columns, decimal, target)
    x = vectors.x if vectors.target is None else np.column_stack([vectors.x, vectors.target])
    bad_rows = np.flatnonzero(~np.isfinite(x).all(1))
    if len(bad_rows):
        row, column = int(bad_rows[0]), int(np.flatnonzero(~np.isfinite(x[bad_rows[0]]))[0])
        problem = f"row {row + 1}, column {column + 1} is {x[row, column]} ({len(bad_rows):,} such rows)"
        raise BadInput(f"{path}: {problem}; distances need finite numbers; fix or delete these rows")
    return vectors


def _wanted(
    path: Path, columns: Sequence[str], target: str | None, names: Sequence[str]
) -> tuple[list[int], int | None]:
    """The indices of the selected columns (empty: all) without the target, and that of the target."""
    indices = _column_indices(path, columns, names)
    n = None if target is None else _column_indices(path, [target], names)[0]
    if indices == [n]:
        raise BadInput(f"{path}: the only column is the target {target!r}; select other columns too")
    return [i for i in indices if i != n], n


def _select(vectors: Vectors, indices: Sequence[int], target: int | None) -> Vectors:
    """These columns (empty: all others than the target), and the target."""
    indices = indices or [n for n in range(len(vectors.columns)) if n != target]
    x, names = vectors.x, vectors.columns
    y = None if target is None else x[:, target].astype(np.float64)
    return Vectors(x[:, indices], [names[n] for n in indices], vectors.names, y, vectors.lines)


def _read_npy(path: Path) -> Floats:
    try:
        raw = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        reason = str(error).split("\n")[0][:100]
        raise BadInput(f"{path}: not a valid NumPy array of numbers ({reason}); write it with numpy.save") from None
    if raw.dtype.kind not in "fiub":
        raise BadInput(f"{path}: an array of dtype {raw.dtype}; an array of numbers is needed")
    if raw.ndim != 2 or not raw.size:
        fix = "use x.reshape(-1, 1)" if raw.ndim == 1 else "store each point as one row"
        raise BadInput(f"{path}: an array of shape {raw.shape}; shape (points, dimensions) is needed; {fix}")
    check_memory(to_floats(raw[:0]).itemsize * raw.size, str(path))
    return to_floats(raw)


def to_floats(raw: Array) -> Floats:
    """Floats that keep all digits: a timestamp in seconds has more than a float32 holds."""
    return np.array(raw, np.float32 if raw.dtype in (np.float16, np.float32) else np.float64)


def _column_indices(path: Path, columns: Sequence[str], names: Sequence[str]) -> list[int]:
    """Indices of the columns with these names or numbers."""
    index = {str(n + 1): n for n in range(len(names))} | {name: n for n, name in enumerate(names)}
    for name in columns:
        if name not in index:
            hint = did_you_mean(name, names)
            raise BadInput(f"{path}: no column {name!r}; its columns are {', '.join(names)[:200]}{hint and '.' + hint}")
    return [index[name] for name in columns]


def _read_table(path: Path, listen: Listener, selected: Sequence[str], decimal: Decimal, target: str | None) -> Vectors:
    """The selected columns, or the numeric ones; a column with more than half numbers must be completely numeric."""
    names, rows = _table_rows(path)
    columns = [
        workbook_numbers(column, decimal, str(path)) for column in zip(*(cells for _, cells in rows), strict=True)
    ]
    features, n_target = _wanted(path, selected, target, names)
    wanted = [*features, *([] if n_target is None else [n_target])] if selected else []
    for n in wanted or range(len(columns)):
        if problem := format_problem(columns[n], decimal, "--decimal "):
            raise BadInput(f"{path}: column {names[n]!r}: {problem}")
    numbers = [[parse_number(cell, decimal) for cell in column] for column in columns]
    numeric = [n for n, column in enumerate(columns) if 2 * _count_numbers(column, numbers[n]) > len(column)]
    indices = wanted or numeric
    if n_target is not None and n_target not in numeric:
        example = next((cell for cell in columns[n_target] if parse_number(cell, decimal) is None), "")
        problem = f"the target {names[n_target]!r} has text, such as {example[:40]!r}"
        known = ", ".join(names[n] for n in numeric)[:200] or "none"
        raise BadInput(f"{path}: {problem}; a regression needs numbers; its columns of numbers: {known}")
    if not indices or indices == [n_target]:
        fix = f"to cluster texts name a run first: harken cluster RUN {path.name}"
        raise BadInput(f"{path}: its columns ({', '.join(names)[:100]}) hold text, not numbers; {fix}")
    for n in indices:
        if None in numbers[n]:
            line, cells = rows[numbers[n].index(None)]
            value = repr(cells[n][:40]) if cells[n].strip() else "empty"
            problem = f"column {names[n]!r} is {value}; a number is needed"
            raise BadInput(f"{path}:{line}: {problem}; fix or delete the row")
    texts = [n for n in range(len(columns)) if n not in indices and n not in numeric]
    if texts:
        ignored = f"; ignored: {', '.join(names[n] for n in texts[1:])}" if texts[1:] else ""
        listen("notice", text=f"{path}: the text column {names[texts[0]]!r} names the rows{ignored}")
    x = np.array([numbers[n] for n in indices], np.float64).T
    text = list(columns[texts[0]]) if texts else None
    lines = [line for line, _ in rows]
    vectors = Vectors(np.ascontiguousarray(x), [names[n] for n in indices], text, lines=lines)
    return _select(vectors, [], None if n_target is None else indices.index(n_target))


def _count_numbers(column: Sequence[str], numbers: Sequence[float | None]) -> int:
    """The number of cells with a number or with a mark of a missing one."""
    cells = zip(column, numbers, strict=True)
    return sum(number is not None or bool(cell.strip() and is_missing(cell)) for cell, number in cells)


def _table_rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names of the columns, a number where a name is not unique, and each row that is not empty with its line."""
    numbered = _json_rows(path) if text_file(path).suffix in JSON_SUFFIXES else _split_rows(path)
    rows = [(line, cells) for line, cells in numbered if any(map(str.strip, cells))]
    width = len(rows[0][1]) if rows else 0
    for line, cells in rows:
        if len(cells) != width:
            raise BadInput(f"{path}:{line}: {len(cells)} cells, but the first row has {width}; fix or delete the row")
    has_header = len(rows) > 1 and not any(map(is_number, rows[0][1]))
    head = rows.pop(0)[1] if has_header else [""] * width
    counts = Counter(head)
    names = [name if name and counts[name] == 1 else str(n) for n, name in enumerate(head, 1)]
    if not rows:
        raise BadInput(f"{path}: the table is empty; one row per point is needed")
    return names, rows


def _split_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line below the lines before the table."""
    text = preview.preview_text(preview.read_head(path))
    table = dialect.reading_table(text)
    delimiter, skip = (table.delimiter, table.skip) if table else (",", 0)

    def stop(line: int, reason: str) -> None:
        _stop(path, line, reason)

    lines = ((n, line) for n, line in iter_lines(path, _stop) if line is not None and n > skip)
    if text.suffix != ROWS_SUFFIX:
        return parse_quoted(lines, delimiter, stop)
    width = len(table.rows[0]) if table else 0
    return ((n, preview.padded(json.loads(line), width)) for n, line in lines)


def _json_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The keys of the first object, then the values of each; "" for a missing one."""
    objects = json_objects(path, iter_lines(path, _stop), _stop)
    names: list[str] = []
    for line, value in objects:
        if not names:
            names = [*value]
            yield 0, names
        if unknown := [name for name in value if name not in names]:
            _stop(path, line, f"the key {unknown[0]!r} is not in the first object")
        yield line, ["" if value.get(name) is None else str(value[name]) for name in names]


def _stop(path: Path, line: int, reason: str) -> None:
    raise BadInput(f"{path}:{line}: {reason}; fix the row, or write the vectors with numpy.save")
