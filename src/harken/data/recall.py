"""Sequences in, sequences out, made here: copy, reverse, and recall of what stood a known number of steps back."""

import math
import random
from collections.abc import Iterator

from harken.errors import BadInput

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
KEYS = "ABCD"
NEAREST, FARTHEST = len(KEYS) + 1, 500  # steps back from the end: the question mark stands between
DISTANCES = (5, 10, 20, 50, 100, 200, 500)  # to which a sequence is counted


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


def recall(count: int, seed: int = 0, *, farthest: int = FARTHEST) -> Iterator[tuple[str, str, int]]:
    """A sequence in which a few facts stand, one of them asked for at its end; the answer; and about how far back.

    'k B7 x D2 A4 r m C9 e ? D', '2', 10: what is asked is known only at the end, so all facts must be kept until then.
    They stand in one stretch that reaches so many steps back from the last token, in its farther half where there is
    room; any of them is asked for as often as any other, so that no place betrays the answer. Short stretches come more
    often than long ones: nothing else would be easy enough to begin with.
    """
    if farthest < NEAREST:
        raise BadInput(f"recall: farthest = {farthest}; the facts and the question take {NEAREST} steps, give no fewer")
    rng, ratio = random.Random(seed), math.sqrt(farthest / NEAREST)
    for _ in range(count):
        far = round(farthest / (1 + rng.random() * (ratio - 1)) ** 2)  # long ones are rare, yet most of the tokens
        steps = rng.sample(range(min(far // 2, far - len(KEYS) + 1), far + 1), len(KEYS))
        facts = [key + rng.choice(DIGITS) for key in rng.sample(KEYS, len(KEYS))]
        tokens = [*rng.choices(LETTERS, k=int(far ** rng.random()) + far - 2), "?", facts[0][0]]
        for back, fact in zip(steps, facts, strict=True):
            tokens[-1 - back] = fact
        yield " ".join(tokens), facts[0][1], min(DISTANCES, key=lambda about: abs(math.log(about / far)))
