"""Generated questions about tables and their SQL. Names of tables, columns and texts are invented words.

The three splits have no name in common. Half of the questions of a held-out split have a wording that the training
split does not have. The schema is a part of the source: "table bakor (temi, losa, ruve): how many bakor are there ?".
"""

import random
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

SPLIT_SIZES = {"train": 16_000, "valid": 1000, "test": 1000}
POOL_SIZES = {"train": 3000, "valid": 600, "test": 600}  # names of a split
CONSONANTS, VOWELS, ENDINGS = "bdfgklmnprstvz", "aeiou", ("", "", "k", "l", "n", "r", "s")
MIN_COLUMNS, MAX_COLUMNS = 3, 5
MAX_NUMBER, MAX_LIMIT = 999, 9
NEW_WORDING, KNOWN_WORDING = "new", "known"


class Question(NamedTuple):
    """A question with the schema before it, its SQL, and whether its wording is new or known from the training."""

    source: str
    sql: str
    wording: str


@cache
def _grammar() -> dict[str, Any]:
    return tomllib.loads(files("harken.data.synthetic").joinpath("sql.toml").read_text("utf-8"))


@cache
def names(split: str) -> tuple[str, ...]:
    """The invented names of a split; no two splits share one, and none is a word of a question or of SQL."""
    rng, grammar = random.Random("names of sql"), _grammar()
    used = set(re.findall(r"\w+", str(grammar)))
    pool = dict[str, None]()
    while len(pool) < sum(POOL_SIZES.values()):
        syllables = (rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(2, 3)))
        name = "".join(syllables) + rng.choice(ENDINGS)
        if name not in used:
            pool[name] = None
    start = 0
    for other, size in POOL_SIZES.items():
        if other == split:
            return tuple(pool)[start : start + size]
        start += size
    raise KeyError(split)


def sql(split: str, count: int | None = None) -> Iterator[Question]:
    """The questions of a split, each about its own table."""
    rng, shapes = random.Random(f"sql, {split}"), list(_grammar()["shapes"].values())
    for n in range(SPLIT_SIZES[split] if count is None else count):
        wording = NEW_WORDING if split != "train" and n % 2 else KNOWN_WORDING
        yield _question(rng, shapes[n // 2 % len(shapes)], split, wording)


def _question(rng: random.Random, shape: dict[str, Any], split: str, wording: str) -> Question:
    """A question of this shape about a random table."""
    table, value, *columns = rng.sample(names(split), 2 + rng.randint(MIN_COLUMNS, MAX_COLUMNS))
    used = rng.sample(columns, 3)
    limit = "limit" in shape["sql"]
    slots: dict[str, object] = {"t": table, "v": value, **dict(zip("abc", used, strict=True))}
    slots["n"] = rng.randint(2, MAX_LIMIT) if limit else rng.randint(2, MAX_NUMBER)
    symbols, words = dict[str, str](), dict[str, str]()
    for slot, table_of_words in _grammar()["words"].items():
        symbols[slot] = rng.choice(list(table_of_words))
        words[slot] = rng.choice(table_of_words[symbols[slot]])
    text = rng.choice(shape[split if wording == NEW_WORDING else "train"]).format(**slots, **words)
    source = f"table {table} ({', '.join(columns)}): {text}"
    return Question(source, shape["sql"].format(**slots, **symbols), wording)
