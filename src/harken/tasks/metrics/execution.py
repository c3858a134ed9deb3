"""Execution accuracy of SQL: the predicted query has the result of the reference on a random database of the schema.

The schema is a part of the source: "table city (name, population): ...". A query that does not run is wrong. Queries
only read, in memory, with limits on their work and on the size of their values.
"""

import random
import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from harken.errors import BadInput

from .generation import References

SCHEMA = re.compile(r"\btable +(\w+) *\(([^()]*)\)")
N_ROWS, MAX_ROWS = 40, 1000  # of a table; of a query that are compared
MAX_WORK, MAX_VALUE = 1_000_000, 100_000  # steps of the virtual machine of sqlite; bytes of a value
SMALL_NUMBERS = 20  # of a column without a condition: some rows are equal
READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
Rows = list[tuple[object, ...]]


class TableSchema(NamedTuple):
    """A table and its columns."""

    table: str
    columns: tuple[str, ...]


def find_schema(source: str) -> TableSchema | None:
    """The first table in a source; None if there is none."""
    if not (match := SCHEMA.search(source)):
        return None
    columns = tuple(dict.fromkeys(name.strip() for name in match[2].split(",")))
    return TableSchema(match[1], columns) if all(name.isidentifier() for name in columns) else None


def execution_rows(texts: Sequence[str], references: References, sources: Sequence[str]) -> list[float]:
    """Of each query whether it has the result of a reference: 1 or 0."""
    rows = zip(texts, references, sources, strict=True)
    return [max(float(_same_rows(text, ref, source)) for ref in refs) for text, refs, source in rows]


def check_references(references: References, sources: Sequence[str]) -> None:
    """Raise for a source without a valid schema, and for a reference that does not run on its table."""
    for refs, source in zip(references, sources, strict=True):
        for reference in refs:
            _same_rows(reference, reference, source)


def _same_rows(query: str, reference: str, source: str) -> bool:
    schema = find_schema(source)
    if schema is None:
        accepted = "a source needs its schema, as in: table city (name, population): how many city are there ?"
        raise BadInput(f"task.metric=execution: {source[:60]!r} has no schema; {accepted}")
    try:
        database = _database(schema, reference)
    except (sqlite3.Error, OverflowError) as error:  # equal or reserved names, a number of more than 64 bits
        raise BadInput(f"task.metric=execution: {source[:60]!r} has no table in sqlite: {error}; correct it") from None
    try:
        expected, rows = _run(database, reference), _run(database, query)
    finally:
        database.close()
    if expected is None:
        raise BadInput(f"task.metric=execution: the reference {reference[:80]!r} does not run in sqlite; correct it")
    if rows is None:
        return False
    return rows == expected if "order by" in reference.lower() else Counter(rows) == Counter(expected)


def _database(schema: TableSchema, reference: str) -> sqlite3.Connection:
    """The table with random rows, about half of which meet each condition of the reference."""
    rng, columns = random.Random(repr((schema, reference))), list[list[object]]()
    for name in schema.columns:
        values: list[object] = [*range(SMALL_NUMBERS)]
        if condition := re.search(rf"\b{re.escape(name)} *[<>=]+ *(?:'([^']*)'|(\d+))", reference):
            text, number = condition[1], int(condition[2] or 0)
            values = [number + k for k in (-9, -2, -1, 0, 1, 2, 9)] if text is None else [text, text, f"{text}x", "x"]
        columns.append(rng.choices(values, k=N_ROWS))
    database = sqlite3.connect(":memory:", isolation_level=None)
    names = ", ".join(f'"{name}"' for name in schema.columns)
    database.execute(f'create table "{schema.table}" ({names})')
    database.executemany(
        f'insert into "{schema.table}" values ({", ".join("?" * len(columns))})', zip(*columns, strict=True)
    )
    database.execute("pragma temp_store = memory")  # no file for a large sort
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
    database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READS else sqlite3.SQLITE_DENY)
    return database


def _run(database: sqlite3.Connection, query: str) -> Rows | None:
    """The result of a query, up to a number of rows; None if it does not run, or not within the limit of work."""
    database.set_progress_handler(lambda: 1, MAX_WORK)
    try:
        return database.execute(query).fetchmany(MAX_ROWS)
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError):  # ValueError: a null character
        return None
