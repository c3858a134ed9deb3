"""Opinions on films, good or bad, made by a small grammar: texts with labels when nothing can be fetched.

Words alone do not tell: "not a good film" is bad, and what stands behind "but" counts. All sentences of a text are of
one mind, so that whoever reads many of them without a label can find out which words go together.
"""

import random
from collections.abc import Iterator

from .french import capital
from .tales import article

LABELS = ("bad", "good")
WHAT = """film|plot|story|ending|script|dialogue|cast|opening|hero|villain|romance|soundtrack|final scene|middle part
cartoon|thriller|comedy|sequel|drama|chase|first half|main idea|costume|set|remake|love scene|dance number"""
LIKE = {  # by whether it is good
    True: """good|great|fine|funny|warm|clever|touching|fresh|gripping|lovely|charming|witty|brilliant|honest|tender
bold|elegant|thrilling|memorable|delightful|superb|smart|moving|graceful|rich|lively|convincing|beautiful""",
    False: """bad|poor|dull|boring|weak|tired|silly|clumsy|flat|stale|dreary|awful|lazy|ugly|confused|tedious|hollow
stupid|shallow|noisy|lifeless|predictable|bloated|pointless|messy|forgettable|wooden|tasteless""",
}
DO = {True: "love|enjoy|admire|praise|like|recommend", False: "hate|dislike|regret|despise|mock|loathe"}
FELT = {
    True: "smiled all evening|forgot the time|want to see it again|left in high spirits|clapped at the end",
    False: "looked at my watch|fell asleep|want my money back|left in a bad temper|walked out early",
}
VERY = ("", "", "very ", "quite ", "rather ", "really ", "so ")
NO = ("not ", "never ", "by no means ", "hardly ", "not at all ")
NEGATED = 0.3  # of all clauses
TURNED = 0.15  # of all sentences: the other view comes first, then "but"


def opinions(count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """That many texts of one to three sentences with their labels, no two alike. The same seed makes the same ones."""
    rng, seen = random.Random(seed), set[str]()
    while len(seen) < count:
        good = rng.random() < 0.5
        text = " ".join(capital(_sentence(rng, good=good)) + "." for _ in range(rng.choice([1, 2, 2, 3])))
        if text not in seen:
            seen.add(text)
            yield text, LABELS[good]


def _sentence(rng: random.Random, *, good: bool) -> str:
    if rng.random() < TURNED:
        return f"{_clause(rng, good=not good)}, but {_clause(rng, good=good)}"
    return _clause(rng, good=good)


def _clause(rng: random.Random, *, good: bool) -> str:
    """The plot is not dull. This is hardly a great film. I did not enjoy the music. I fell asleep."""
    what, negated = _one(rng, WHAT), rng.random() < NEGATED
    like, do = _one(rng, LIKE[good != negated]), _one(rng, DO[good != negated])
    frame = rng.random()
    if frame < 0.45:
        return f"the {what} is {rng.choice(NO if negated else VERY)}{like}"
    if frame < 0.7:
        return f"this is {rng.choice(NO) if negated else ''}{article(f'{like} {what}')}"
    if frame < 0.9:
        return f"I {'did not' if negated else 'really'} {do} the {what}"
    return f"I {_one(rng, FELT[good])}"


def _one(rng: random.Random, some: str) -> str:
    return rng.choice(some.replace("\n", "|").split("|"))
