"""Generated sequence tasks: copy, reverse, and recall of a fact at a known distance."""

import math
import random
from collections.abc import Iterator

from harken.errors import BadInput

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
KEYS = "ABCDEFGH"  # maximum number of facts: an LSTM keeps four of them reliably (docs/log.md)
MIN_DISTANCE, MAX_DISTANCE = 5, 500  # tokens from the last token back to the first fact
DISTANCES = (5, 10, 20, 50, 100, 200, 500)  # evaluation classes
SPLIT_SIZES = {"train": 60_000, "valid": 2000, "test": 2000}


def copy(count: int, seed: int = 0, *, lengths: tuple[int, int] = (3, 12)) -> Iterator[tuple[str, str]]:
    """Unique sequences of letters and digits, each as source and target."""
    rng, texts = random.Random(seed), set[str]()
    while len(texts) < count:
        text = " ".join(rng.choices(LETTERS + DIGITS, k=rng.randint(*lengths)))
        if text not in texts:
            texts.add(text)
            yield text, text


def reverse(count: int, seed: int = 0, *, lengths: tuple[int, int] = (3, 12)) -> Iterator[tuple[str, str]]:
    """Unique sequences of letters and digits, with the reversed sequence as target."""
    for text, _ in copy(count, seed, lengths=lengths):
        yield text, text[::-1]


def recall(
    split: str, count: int | None = None, *, max_distance: int = MAX_DISTANCE
) -> Iterator[tuple[str, str, int | str]]:
    """Sequences with up to eight facts and a question about one of them; the answer; and the distance class.

    'C8 A7 E3 B6 G6 D0 F5 H0 w e ? A', '7', 10: the question comes last, so the model must remember all facts. The
    facts are in the farther half of the distance if there is room (at the minimum there is room for four). Every fact
    is equally likely to be the answer, so that its position carries no information.

    Evaluation distances are log-uniform. In training, long distances are rarer, so that all distances have about the
    same number of tokens, and every other sequence has fewer facts and no distance class, as an easier start.
    """
    if max_distance < MIN_DISTANCE:
        raise BadInput(f"recall: max_distance={max_distance}; four facts and the question need at least {MIN_DISTANCE}")
    rng, is_train = random.Random(f"recall, {split}"), split == "train"
    for n in range(SPLIT_SIZES[split] if count is None else count):
        ratio, u = max_distance / MIN_DISTANCE, rng.random()
        distance = round(max_distance / (1 + u * (ratio - 1)) if is_train else MIN_DISTANCE * ratio**u)
        max_facts = min(len(KEYS), distance - 1)  # one position is the question mark
        n_facts = rng.randint(1, max_facts - 1) if is_train and n % 2 else max_facts
        nearest = min(DISTANCES, key=lambda d: abs(math.log(d / distance)))
        yield *_question(rng, distance, n_facts), nearest if n_facts == max_facts else ""


def _question(rng: random.Random, distance: int, n_facts: int) -> tuple[str, str]:
    """A sequence with this number of facts, and its answer."""
    offsets = rng.sample(range(min(distance // 2, distance - n_facts + 1), distance + 1), n_facts)
    facts = [key + rng.choice(DIGITS) for key in rng.sample(KEYS, n_facts)]
    tokens = [*rng.choices(LETTERS, k=int(distance ** rng.random()) + distance - 2), "?", facts[0][0]]
    for offset, fact in zip(offsets, facts, strict=True):
        tokens[-1 - offset] = fact
    return " ".join(tokens), facts[0][1]
