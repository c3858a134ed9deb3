"""Vectors from a file: a NumPy array, or a table of numbers with a row for each point. Nothing in it can run."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harken.data.detect import preview
from harken.errors import BadInput, near_name
from harken.events import Listener

from .untrusted import refuse_large

Floats = npt.NDArray[np.floating[Any]]
SUFFIXES = (".npy", ".csv", ".tsv")


class Vectors(NamedTuple):
    """Points, and what they are called where the file says it."""

    x: Floats  # N d
    names: list[str] | None = None


def read_vectors(path: Path, listen: Listener, columns: Sequence[str] = ()) -> Vectors:
    """The vectors of a .npy file, or the columns of numbers of a table; its first column of text names the rows.

    `columns` are those that are taken, by name or number; without them all are.
    """
    if not path.is_file():
        raise BadInput(f"{path}: there is no such file; name a .npy, .csv or .tsv file of vectors{near_name(path)}")
    if path.suffix.lower() not in SUFFIXES:
        way = f"for a file of texts name a run first: harken cluster RUN {path.name}"
        raise BadInput(f"{path}: vectors are read from {', '.join(SUFFIXES)} files; {way}")
    if path.suffix.lower() == ".npy":
        x = _array(path)
        found = Vectors(x[:, _asked(path, columns, [str(n + 1) for n in range(x.shape[1])])] if columns else x)
    else:
        found = _table(path, listen, columns)
    bad = np.flatnonzero(~np.isfinite(found.x).all(1))
    if len(bad):
        row, column = int(bad[0]), int(np.flatnonzero(~np.isfinite(found.x[bad[0]]))[0])
        what = f"row {row + 1}, column {column + 1} is {found.x[row, column]}"
        raise BadInput(
            f"{path}: {what} ({len(bad):,} such rows); distances need finite numbers; mend them or leave them out"
        )
    return found


def _array(path: Path) -> Floats:
    try:
        raw = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        why = str(error).split("\n")[0][:100]
        raise BadInput(f"{path}: is no sound NumPy array of numbers ({why}); write it with numpy.save") from None
    if raw.dtype.kind not in "fiub":
        raise BadInput(f"{path}: an array of {raw.dtype}; an array of numbers is needed")
    if raw.ndim != 2 or not raw.size:
        way = "x.reshape(-1, 1) makes a column of it" if raw.ndim == 1 else "lay each point out as one row"
        raise BadInput(f"{path}: an array of shape {raw.shape}; a row for each point is needed, N x d; {way}")
    refuse_large(_type(raw).itemsize * raw.size, str(path))
    return floats(raw)


def floats(raw: npt.NDArray[Any]) -> Floats:
    """Numbers as they are: a time in seconds has more digits than a float32 keeps."""
    return np.array(raw, _type(raw))


def _type(raw: npt.NDArray[Any]) -> np.dtype[Any]:
    """The type that keeps all digits of such an array, float32 at least."""
    return np.dtype(np.float32 if raw.dtype in (np.float16, np.float32) else np.float64)


def _asked(path: Path, columns: Sequence[str], heads: Sequence[str]) -> list[int]:
    """Where the columns with these names or numbers stand."""
    known = {str(n + 1): n for n in range(len(heads))} | {head: n for n, head in enumerate(heads)}
    for name in columns:
        if name not in known:
            raise BadInput(f"{path}: there is no column {name!r}; there are: {', '.join(heads)[:200]}")
    return [known[name] for name in columns]


def _table(path: Path, listen: Listener, asked: Sequence[str]) -> Vectors:
    """The columns that are asked for, or whose cells are numbers; one that is mostly numbers must be so everywhere."""
    heads, rows = _rows(path)
    columns = list(zip(*(cells for _, cells in rows), strict=True))
    mostly = [n for n, column in enumerate(columns) if 2 * sum(map(_number, column)) > len(column)]
    numbers = _asked(path, asked, heads) or mostly
    if not numbers:
        way = f"to cluster texts name a run first: harken cluster RUN {path.name}"
        raise BadInput(f"{path}: its columns ({', '.join(heads)[:100]}) hold text, not numbers; {way}")
    for n in numbers:
        for (line, _), cell in zip(rows, columns[n], strict=True):
            if not _number(cell) or not math.isfinite(float(cell)):
                what = f"column {heads[n]!r} is {cell[:40]!r}" if cell.strip() else f"column {heads[n]!r} is empty"
                raise BadInput(f"{path}:{line}: {what}; a number is needed in each row; mend it or leave the row out")
    texts = [n for n in range(len(columns)) if n not in numbers and n not in mostly]
    if texts:
        rest = f"; left out: {', '.join(heads[n] for n in texts[1:])}" if texts[1:] else ""
        listen("notice", text=f"{path}: the column of text {heads[texts[0]]!r} names the rows{rest}")
    x = np.array([columns[n] for n in numbers], np.float64).T
    return Vectors(np.ascontiguousarray(x), list(columns[texts[0]]) if texts else None)


def _rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names of the columns, and each row that is not empty with the number of its line."""
    preview.refuse_binary(preview.start_of(path))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            between = max("\t,;|", key=first.count)
            reader = csv.reader(file, delimiter=between)
            rows = [(reader.line_num, cells) for cells in reader if any(map(str.strip, cells))]
    except UnicodeDecodeError as error:
        raise preview.not_utf8(path, error.start) from None
    except csv.Error as error:
        raise BadInput(f"{path}: is no sound table ({error}); mend it, or write the vectors with numpy.save") from None
    wide = len(rows[0][1]) if rows else 0
    for line, cells in rows:
        if len(cells) != wide:
            raise BadInput(f"{path}:{line}: {len(cells)} cells where the first row has {wide}; mend it or leave it out")
    headed = bool(rows) and not any(map(_number, rows[0][1]))
    heads = rows.pop(0)[1] if headed and len(rows) > 1 else [str(n + 1) for n in range(wide)]
    if not rows:
        raise BadInput(f"{path}: nothing is in it; a table with a row for each point is needed")
    return heads, rows


def _number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
