"""Generated questions with SQL: valid queries, held-out names and wordings."""

import re
import sqlite3
from itertools import combinations

import pytest

from harken.data.synthetic.sql import KNOWN_WORDING, NEW_WORDING, Question, names, sql

COUNT = 220
SPLITS = ("train", "valid", "test")
NAMES = {name for split in SPLITS for name in names(split)}


@pytest.fixture(scope="module")
def questions() -> dict[str, list[Question]]:
    return {split: list(sql(split, COUNT)) for split in SPLITS}


def columns(source: str) -> tuple[str, list[str]]:
    table, inside = re.match(r"table (\w+) \(([^)]*)\): ", source).groups()
    return table, inside.split(", ")


@pytest.mark.parametrize("split", SPLITS)
def test_every_query_runs_in_sqlite_on_its_schema(questions, split):
    for source, query, _ in questions[split]:
        table, fields = columns(source)
        with sqlite3.connect(":memory:") as database:
            database.execute(f"create table {table} ({', '.join(fields)})")
            database.execute(query).fetchall()


def test_no_two_splits_share_a_name(questions):
    assert all(not {*names(a)} & {*names(b)} for a, b in combinations(SPLITS, 2))
    for split in SPLITS:
        used = {name for row in questions[split] for name in (columns(row.source)[0], *columns(row.source)[1])}
        assert used <= {*names(split)}


def test_there_are_at_least_eight_shapes_of_queries(questions):
    for split in SPLITS:
        known = {*names(split)}
        shapes = {" ".join("_" if w in known else w for w in re.findall(r"\w+", row.sql)) for row in questions[split]}
        assert len({re.sub(r"\d+|max|min|avg|sum|desc|asc|<|>", "_", shape) for shape in shapes}) >= 8


def wording(row: Question) -> str:
    """A question without its names and numbers."""
    words = row.source.partition("): ")[2].split()
    return " ".join("_" if word in NAMES or word.isdigit() else word for word in words)


def test_new_wordings_do_not_occur_in_training_and_known_ones_do(questions):
    trained = {wording(row) for row in sql("train", 4000)}
    for split in ("valid", "test"):
        rows = questions[split]
        new = [wording(row) in trained for row in rows if row.wording == NEW_WORDING]
        known = [wording(row) in trained for row in rows if row.wording == KNOWN_WORDING]
        assert len(new) == len(known) == COUNT / 2
        assert not any(new)
        assert all(known)


def test_the_questions_of_a_split_are_always_the_same(questions):
    assert questions["test"][:5] == list(sql("test", 5))
