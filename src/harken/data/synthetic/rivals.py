"""People of two teams with friends, mostly of the own team, and rivals, mostly of the other one.

A person has as many friends as rivals, so without the types of the edges the neighbors say nothing about the team. The
number of each person is only a weak hint.
"""

import csv
import io
from collections.abc import Iterator

import numpy as np

from harken.data.rng import rng_for

TEAMS = ("north", "south")
RELIABLE = 0.9  # share of the friends in the own team, and of the rivals in the other one
EDGES_PER_PERSON = 4  # of each type
NOISE = 2.0  # standard deviation of the hint; the means of the teams are -1 and 1


def table(name: str, count: int, seed: int = 0) -> Iterator[str]:
    """One of the tables nodes and edges of `count` people, as lines."""
    rng = rng_for(seed, count)
    team = rng.permutation(np.arange(count) % 2)
    hint = 2 * team - 1 + NOISE * rng.standard_normal(count)
    rows: list[list[object]] = [["name", "team", "hint"]]
    rows += [[f"p{n}", TEAMS[team[n]], f"{hint[n]:.3f}"] for n in range(count)]
    if name == "edges":
        rows = [["source", "target", "type"]]
        for kind, is_friend in (("friend", True), ("rival", False)):
            for n in range(count):
                for _ in range(EDGES_PER_PERSON // 2):  # the other half comes from the others
                    wanted = team[n] if (rng.random() < RELIABLE) == is_friend else 1 - team[n]
                    rows.append([f"p{n}", f"p{rng.choice(np.flatnonzero(team == wanted))}", kind])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    yield text.getvalue()
