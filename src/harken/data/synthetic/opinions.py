"""Generated opinions on films with the labels good and bad: labelled texts that need no download.

Single words do not determine the label: "not a good film" is bad, and the clause after "but" decides. All sentences of
a text agree, so unlabelled texts show which words belong together.
"""

import random
from collections.abc import Iterator

from .french import capitalize_first
from .tales import article

LABELS = ("bad", "good")
TOPICS = """film|plot|story|ending|script|dialogue|cast|opening|hero|villain|romance|soundtrack|final scene|middle part
cartoon|thriller|comedy|sequel|drama|chase|first half|main idea|costume|set|remake|love scene|dance number"""
ADJECTIVES = {  # by whether it is good
    True: """good|great|fine|funny|warm|clever|touching|fresh|gripping|lovely|charming|witty|brilliant|honest|tender
bold|elegant|thrilling|memorable|delightful|superb|smart|moving|graceful|rich|lively|convincing|beautiful""",
    False: """bad|poor|dull|boring|weak|tired|silly|clumsy|flat|stale|dreary|awful|lazy|ugly|confused|tedious|hollow
stupid|shallow|noisy|lifeless|predictable|bloated|pointless|messy|forgettable|wooden|tasteless""",
}
VERBS = {True: "love|enjoy|admire|praise|like|recommend", False: "hate|dislike|regret|despise|mock|loathe"}
REACTIONS = {
    True: "smiled all evening|forgot the time|want to see it again|left in high spirits|clapped at the end",
    False: "looked at my watch|fell asleep|want my money back|left in a bad temper|walked out early",
}
INTENSIFIERS = ("", "", "very ", "quite ", "rather ", "really ", "so ")
NEGATIONS = ("not ", "never ", "by no means ", "hardly ", "not at all ")
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


def _sentence(rng: random.Random, *, good: bool) -> str:
    if rng.random() < P_CONTRAST:
        return f"{_clause(rng, good=not good)}, but {_clause(rng, good=good)}"
    return _clause(rng, good=good)


def _clause(rng: random.Random, *, good: bool) -> str:
    """The plot is not dull. This is hardly a great film. I did not enjoy the music. I fell asleep."""
    subject, negated = _choose(rng, TOPICS), rng.random() < P_NEGATED
    adjective, verb = _choose(rng, ADJECTIVES[good != negated]), _choose(rng, VERBS[good != negated])
    template = rng.random()
    if template < 0.45:
        return f"the {subject} is {rng.choice(NEGATIONS if negated else INTENSIFIERS)}{adjective}"
    if template < 0.7:
        return f"this is {rng.choice(NEGATIONS) if negated else ''}{article(f'{adjective} {subject}')}"
    if template < 0.9:
        return f"I {'did not' if negated else 'really'} {verb} the {subject}"
    return f"I {_choose(rng, REACTIONS[good])}"


def _choose(rng: random.Random, options: str) -> str:
    return rng.choice(options.replace("\n", "|").split("|"))
