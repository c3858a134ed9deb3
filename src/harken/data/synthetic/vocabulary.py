"""Generated sentences of students who use a science word rightly or wrongly, each with a good example of the word.

A wrong use of a word is a right use of another word of its group: "evaporation turns steam into water". So every use is
as often right as wrong, and the same words occur in both; only the science word together with its use decides. The
textbook has right uses of every word. Some words have no labelled sentence in training.
"""

import random
import re
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from zlib import crc32

from .grammar import capitalize_first

TABLES = tomllib.loads(files(__package__).joinpath("vocabulary.toml").read_text("utf-8"))
TEMPLATES: dict[str, list[str]] = TABLES["templates"]
SPLIT_SIZES = {"train": 6000, "valid": 1000, "test": 2000, "new-words": 1000}
SHARES = {"train": 60, "valid": 80, "test": 100}  # of 100 sentences by hash: a sentence is in one split
FUNCTION_WORDS = frozenset(TABLES["function_words"])
P_DISFLUENCY = 0.4  # of a student's sentence, and of another one in it


def student_uses(split: str, count: int | None = None) -> Iterator[tuple[str, str, str, str]]:
    """Sentence, good example, label (right, wrong) and word of each row; a pure function of the split.

    "new-words" has only words that the other splits do not have.
    """
    rng, seen = random.Random(f"vocabulary, {split}"), set[str]()
    while len(seen) < (SPLIT_SIZES[split] if count is None else count):
        words = rng.choice(word_groups(new=split == "new-words"))
        word, other, *_ = rng.sample(sorted(words), len(words))
        right = rng.random() < 0.5
        use = _fill(rng, words[word if right else other])
        sentence = _spoken(rng, word, use)
        if sentence not in seen and split in ("new-words", _split_of(sentence)):
            seen.add(sentence)
            yield sentence, _good_example(rng, word, words[word], use), ("wrong", "right")[right], word


def textbook(count: int, seed: int = 0) -> Iterator[str]:
    """Paragraphs with right uses of every word, those in `new` included."""
    rng = random.Random(f"textbook, {seed}")
    for _ in range(count):
        uses: dict[str, list[str]] = rng.choice(TABLES["groups"])["uses"]
        word, other = rng.sample(sorted(uses), 2)
        first, *more = rng.sample(uses[word], rng.randint(2, 4))
        sentences = [rng.choice(TEMPLATES["book"]).format(word=word, use=_fill(rng, [first]))]
        sentences += [rng.choice(TEMPLATES["next"]).format(use=_fill(rng, [use])) for use in more]
        if rng.random() < 0.3:
            values = {"use": _fill(rng, uses[word]), "other": other, "other_use": _fill(rng, uses[other])}
            sentences.append(rng.choice(TEMPLATES["contrast"]).format(word=word, **values))
        yield " ".join(f"{capitalize_first(sentence)}." for sentence in sentences)


def word_groups(*, new: bool) -> list[dict[str, list[str]]]:
    """The uses of each word by group: of the words without labelled sentences in training, or of the others."""
    return [
        {word: uses for word, uses in group["uses"].items() if (word in group["new"]) == new}
        for group in TABLES["groups"]
    ]


def _split_of(sentence: str) -> str:
    rank = crc32(sentence.encode()) % 100
    return next(split for split, share in SHARES.items() if rank < share)


def _fill(rng: random.Random, uses: list[str]) -> str:
    """One of the uses with a random filler in each slot."""
    return re.sub(r"\{(\w+)\}", lambda slot: str(rng.choice(TABLES["slots"][slot[1]])), rng.choice(uses))


def _good_example(rng: random.Random, word: str, uses: list[str], student_use: str) -> str:
    """Another right use of the word, without a content word of the student's use: common words tell nothing."""
    content = {*student_use.split()} - FUNCTION_WORDS
    while content & {*(use := _fill(rng, uses)).split()}:
        pass
    return f"{capitalize_first(rng.choice(TEMPLATES['example']).format(word=word, use=use))}."


def _spoken(rng: random.Random, word: str, use: str) -> str:
    """A sentence as students say it: fillers, repeated words and false starts at random places."""
    words = rng.choice(TEMPLATES["spoken"]).format(word=word, use=use).split()
    while rng.random() < P_DISFLUENCY:
        n = rng.randrange(len(words))
        kind = rng.random()
        if kind < 0.6:
            words[n:n] = [rng.choice(TEMPLATES["fillers"])]
        elif kind < 0.85:
            words[n:n] = [words[n]]
        else:
            words[n:n] = [words[n], rng.choice(TEMPLATES["repairs"])]
    return " ".join(words)
