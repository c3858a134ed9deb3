"""Sequences in, sequences out, made here: copy, reverse, and recall of what stood a known number of steps back."""

import math
import random
from collections.abc import Iterator

from harken.errors import BadInput

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
KEYS = "ABCD"
NEAREST = 2  # steps: the question mark stands between
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
    """Pairs of a sequence in which a few facts stand, one of them asked for at its end, and the answer.

    'k B7 x D2 A4 r m C9 e ? D', '2': the fact stands `distance` tokens before the last one, the others before and
    behind it. What is asked is known only at the end, so all of them must be kept until then.
    """
    if distance < NEAREST:
        raise BadInput(f"recall: a distance of {distance}; the question alone takes a step, give {NEAREST} or more")
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
    before = int(most ** rng.random()) - 1
    tokens = rng.choices(LETTERS, k=before + distance - 1)
    key, *others = rng.sample(KEYS, len(KEYS))
    free = [place for place in range(len(tokens)) if place != before]
    for name, place in zip(others, rng.sample(free, min(len(others), len(free))), strict=False):
        tokens[place] = name + rng.choice(DIGITS)
    value = rng.choice(DIGITS)
    tokens[before] = key + value
    return " ".join([*tokens, "?", key]), value
