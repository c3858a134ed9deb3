"""Sequences in, sequences out, made here: copy, reverse, and recall of what stood a known number of steps back."""

import math
import random
from collections.abc import Iterator, Sequence

from harken.errors import BadInput

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
NEAREST = 2  # steps: the question stands between
DISTANCES = (2, 5, 10, 20, 50, 100, 200, 500)


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
    key: what is asked is known only at the end, so all of them must be kept until then.
    """
    if distance < NEAREST:
        raise BadInput(f"recall: a distance of {distance}; the question alone takes 2 steps, give {NEAREST} or more")
    rng = random.Random(seed)
    return (_asked(rng, distance, distance) for _ in range(count))


def mixed(count: int, seed: int = 0, *, farthest: int = DISTANCES[-1]) -> Iterator[tuple[str, str, int]]:
    """Recall over distances from 2 to the farthest: source, target, and which of DISTANCES is nearest.

    Few steps come as often as ten times as many. If the distances were a few alone, an answer would be found by where
    it stands; if all sequences were long, nothing would be easy enough to begin with.
    """
    rng = random.Random(seed)
    for _ in range(count):
        distance = round(NEAREST * (farthest / NEAREST) ** rng.random())
        about = min(DISTANCES, key=lambda near: abs(math.log(near / distance)))
        yield *_asked(rng, distance, farthest), about


def _asked(rng: random.Random, distance: int, most: int) -> tuple[str, str]:
    """A sequence and its answer; before the fact that is asked for there are fewer tokens than `most`."""
    key, value = rng.choice(LETTERS).upper(), rng.choice(DIGITS)
    others = [letter for letter in LETTERS.upper() if letter != key]
    lengths = int(most ** rng.random()) - 1, distance - 2
    before, between = (_facts(rng, others, length) for length in lengths)
    return " ".join([*before, key, value, *between, "?", key]), value


def _facts(rng: random.Random, keys: Sequence[str], count: int) -> list[str]:
    """So many tokens of facts; where they are odd, a letter that says nothing begins."""
    facts = (token for _ in range(count // 2) for token in (rng.choice(keys), rng.choice(DIGITS)))
    return [*rng.choices(LETTERS, k=count % 2), *facts]
