"""Generated opinions on films with the labels good and bad: labelled texts that need no download.

Single words do not determine the label: "not a good film" is bad, and the clause after "but" decides. All sentences of
a text agree, so unlabelled texts show which words belong together.
"""

import random
import tomllib
from collections.abc import Iterator
from importlib.resources import files

from .grammar import capitalize_first
from .tales import article

LABELS = ("bad", "good")
WORDS = tomllib.loads(files(__package__).joinpath("opinions.toml").read_text("utf-8"))
P_NEGATED = 0.3  # of a clause
P_CONTRAST = 0.15  # of a sentence: the opposite opinion first, then "but"


def opinions(count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Unique texts of one to three sentences with their labels; a pure function of the seed."""
    rng, texts = random.Random(seed), set[str]()
    while len(texts) < count:
        good = rng.random() < 0.5
        text = " ".join(capitalize_first(_sentence(rng, good=good)) + "." for _ in range(rng.choice([1, 2, 2, 3])))
        if text not in texts:
            texts.add(text)
            yield text, LABELS[good]


def opinion_texts(count: int, seed: int) -> Iterator[str]:
    """The texts without their labels, each followed by a blank line."""
    return (f"{text}\n\n" for text, _ in opinions(count, seed))


def _sentence(rng: random.Random, *, good: bool) -> str:
    if rng.random() < P_CONTRAST:
        return f"{_clause(rng, good=not good)}, but {_clause(rng, good=good)}"
    return _clause(rng, good=good)


def _clause(rng: random.Random, *, good: bool) -> str:
    """The plot is not dull. This is hardly a great film. I did not enjoy the music. I fell asleep."""
    subject, negated = rng.choice(WORDS["topics"]), rng.random() < P_NEGATED
    words = WORDS[LABELS[good != negated]]
    adjective, verb = rng.choice(words["adjectives"]), rng.choice(words["verbs"])
    template = rng.random()
    if template < 0.45:
        return f"the {subject} is {rng.choice(WORDS['negations' if negated else 'intensifiers'])}{adjective}"
    if template < 0.7:
        return f"this is {rng.choice(WORDS['negations']) if negated else ''}{article(f'{adjective} {subject}')}"
    if template < 0.9:
        return f"I {'did not' if negated else 'really'} {verb} the {subject}"
    return f"I {rng.choice(WORDS[LABELS[good]]['reactions'])}"
