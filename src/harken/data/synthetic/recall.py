"""Sequences in, sequences out, made here: copy, reverse, and recall of what stood a known number of steps back."""

import math
import random
from collections.abc import Iterator

from harken.errors import BadInput

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
KEYS = "ABCDEFGH"  # as many facts: an LSTM keeps four of them without fail (docs/log.md)
NEAREST, FARTHEST = 5, 500  # steps from the last token back to the far end of the facts
DISTANCES = (5, 10, 20, 50, 100, 200, 500)  # to which a sequence is counted
MANY = {"train": 60_000, "valid": 2000, "test": 2000}  # sequences of each split


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


def recall(split: str, many: int | None = None, *, farthest: int = FARTHEST) -> Iterator[tuple[str, str, int | str]]:
    """A sequence in which up to eight facts stand, one of them asked for; the answer; and about how far back.

    'C8 A7 E3 B6 G6 D0 F5 H0 w e ? A', '7', 10: what is asked is known only at the end, so all facts are to be kept.
    They stand in one stretch that reaches so many steps back from the last token, in its farther half where there is
    room (the shortest has room for four); any of them is asked for as often as any other, so that no place betrays the
    answer.

    All distances are judged alike. To learn from, long stretches are rarer, so that they have no more tokens than short
    ones, and every other sequence has fewer facts and tells no distance: something has to be easy to begin with.
    """
    if farthest < NEAREST:
        raise BadInput(f"recall: farthest = {farthest}; four facts and the question take {NEAREST}, give no fewer")
    rng, learned = random.Random(f"recall, {split}"), split == "train"
    for n in range(MANY[split] if many is None else many):
        share = farthest / NEAREST
        far = round(farthest / (1 + rng.random() * (share - 1)) if learned else NEAREST * share ** rng.random())
        room = min(len(KEYS), far - 1)  # the question mark stands between
        facts = rng.randint(1, room - 1) if learned and n % 2 else room
        about = min(DISTANCES, key=lambda near: abs(math.log(near / far)))
        yield *_asked(rng, far, facts), about if facts == room else ""


def _asked(rng: random.Random, far: int, many: int) -> tuple[str, str]:
    """A sequence with so many facts, and its answer."""
    steps = rng.sample(range(min(far // 2, far - many + 1), far + 1), many)
    facts = [key + rng.choice(DIGITS) for key in rng.sample(KEYS, many)]
    tokens = [*rng.choices(LETTERS, k=int(far ** rng.random()) + far - 2), "?", facts[0][0]]
    for back, fact in zip(steps, facts, strict=True):
        tokens[-1 - back] = fact
    return " ".join(tokens), facts[0][1]
