"""Sequences in, sequences out, made here: copy, reverse, and recall of what stood a known number of steps back."""

import random
from collections.abc import Iterator, Sequence

from harken.errors import BadInput

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
DISTANCES = (5, 10, 20, 50, 100, 200, 500)


def copy(count: int, seed: int = 0, *, lengths: tuple[int, int] = (3, 12)) -> Iterator[tuple[str, str]]:
    """Pairs of a sequence of letters and digits and itself, no two alike."""
    rng, seen = random.Random(seed), set[str]()
    while len(seen) < count:
        text = " ".join(rng.choices(LETTERS + DIGITS, k=rng.randint(*lengths)))
        if text not in seen:
            seen.add(text)
            yield text, text


def reverse(count: int, seed: int = 0, *, lengths: tuple[int, int] = (3, 12)) -> Iterator[tuple[str, str]]:
    """Pairs of a sequence of letters and digits and the same from its end to its start, no two alike."""
    for text, _ in copy(count, seed, lengths=lengths):
        yield text, text[::-1]


def recall(distance: int, count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Pairs of a sequence of facts, one of which is asked for at its end, and the answer: 'B 2 K 7 M 5 B 9 ? K', '7'.

    The answer stands `distance` tokens before the last one. Other facts stand before and behind it, none of the same
    key behind: what is asked is known only at the end, so all of them must be kept until then.
    """
    for source, target, _ in mixed(count, seed, distances=(distance,)):
        yield source, target


def mixed(count: int, seed: int = 0, *, distances: Sequence[int] = DISTANCES) -> Iterator[tuple[str, str, int]]:
    """Recall over one of these distances, drawn anew each time: source, target, distance.

    As much may stand before the answer as behind it: few words as often as ten times as many, so that there are short
    sequences to begin with. If little stood there, a guess among the first facts would be right too often.
    """
    if min(distances) < 2:
        raise BadInput(f"recall: a distance of {min(distances)}; the question alone takes 2 steps, give 2 or more")
    rng = random.Random(seed)
    for _ in range(count):
        distance, key, value = rng.choice(distances), rng.choice(LETTERS).upper(), rng.choice(DIGITS)
        others = [letter for letter in LETTERS.upper() if letter != key]
        lengths = int(max(distances) ** rng.random()), distance - 2
        before, between = (_facts(rng, others, length) for length in lengths)
        yield " ".join([*before, key, value, *between, "?", key]), value, distance


def _facts(rng: random.Random, keys: Sequence[str], count: int) -> list[str]:
    """So many tokens of facts; where they are odd, a letter that says nothing begins."""
    facts = (token for _ in range(count // 2) for token in (rng.choice(keys), rng.choice(DIGITS)))
    return [*rng.choices(LETTERS, k=count % 2), *facts]
