"""Execution accuracy: equal rows, wrong queries, and queries that must not run."""

import time

import pytest

from harken.data.synthetic.sql import sql
from harken.errors import BadInput
from harken.tasks.metrics.execution import execution_rows, find_schema

SOURCE = "table city (name, country, population): a question ?"


def score(query: str, reference: str, source: str = SOURCE) -> float:
    return execution_rows([query], [[reference]], [source])[0]


@pytest.mark.parametrize(
    ("query", "reference"),
    [
        ("SELECT name FROM city", "select name from city"),
        ("select count(name) from city", "select count(*) from city"),
        ("select name from city where 30 < population", "select name from city where population > 30"),
        ("select country, count(1) from city group by country", "select country, count(*) from city group by country"),
    ],
)
def test_another_query_with_the_same_rows_is_right(query, reference):
    assert score(query, reference) == 1


@pytest.mark.parametrize(
    ("query", "reference"),
    [
        ("select name from city", "select distinct name from city"),
        ("select name from city where population >= 30", "select name from city where population > 30"),
        ("select name from city where country = 'spain'", "select name from city where country = 'france'"),
        ("select min(population) from city", "select max(population) from city"),
        ("select name from city order by population limit 3", "select name from city order by population desc limit 3"),
        ("select name from town", "select name from city"),
        ("select names from city", "select name from city"),
        ("select name from", "select name from city"),
        ("", "select name from city"),
        ("select name from city\0", "select name from city"),
    ],
)
def test_other_rows_and_queries_that_do_not_run_are_wrong(query, reference):
    assert score(query, reference) == 0


@pytest.mark.parametrize(
    "query",
    [
        "delete from city",
        "drop table city",
        "attach database '/tmp/other.db' as other",
        "pragma journal_mode",
        "select name from city; drop table city",
        "select load_extension('x')",
        "select zeroblob(1000000000)",
        "with recursive n(x) as (select 1 union all select x + 1 from n) select count(*) from n",
        "select count(*) from city a, city b, city c, city d, city e, city f",
    ],
)
def test_queries_that_write_or_do_not_end_are_wrong_and_stop_soon(query):
    start = time.process_time()
    assert score(query, "select name from city") == 0
    assert time.process_time() - start < 2


def test_every_reference_of_the_generated_questions_is_right_and_most_others_are_wrong():
    rows = list(sql("test", 44))
    sources, queries = [row.source for row in rows], [row.sql for row in rows]
    assert execution_rows(queries, [[query] for query in queries], sources) == [1.0] * len(rows)
    shifted = execution_rows([*queries[1:], queries[0]], [[query] for query in queries], sources)
    assert sum(shifted) == 0


def test_a_source_without_schema_and_a_wrong_reference_are_errors():
    assert find_schema("how many city are there ?") is None
    with pytest.raises(BadInput, match="has no schema; a source needs its schema"):
        score("select 1", "select 1", "how many city are there ?")
    with pytest.raises(BadInput, match="does not run in sqlite"):
        score("select name from city", "select town from city")


@pytest.mark.parametrize(
    ("source", "reference", "problem"),
    [
        ("table city (name, Name): ?", "select name from city", "duplicate column name"),
        ("table sqlite_city (name): ?", "select name from sqlite_city", "reserved"),
        ("table city (name): ?", f"select name from city where name > {10**30}", "too large"),
    ],
)
def test_a_schema_that_sqlite_cannot_build_is_an_error_in_one_line(source, reference, problem):
    with pytest.raises(BadInput, match=f"^task.metric=execution: 'table .*{problem}.*; correct it$"):
        score("select 1", reference, source)
