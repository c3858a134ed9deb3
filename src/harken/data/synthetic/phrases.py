"""English sentences and their French translations, made by a small grammar: pairs to learn when nothing can be fetched.

Both sides of a pair come from one meaning, and a sentence has as many translations as its readings have wordings.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TypeVar

from .clauses import (
    BE,
    GIVE,
    HAVE,
    MODALS,
    MOVE,
    VERB,
    Made,
    Predicate,
    Verb,
    does,
    in_english,
    in_french,
    is_a,
    is_like,
    is_still,
    nothing,
    said,
)
from .french import (
    ADJECTIVE,
    MASS,
    NAMES,
    NOUN,
    NUMBER,
    OWN,
    Adjective,
    Noun,
    Phrase,
    Reading,
    capital,
    named,
    object_pronoun,
    pronoun,
    rows,
    spelled,
    thing,
)

LONGEST = 8  # English words of a sentence
SAYING = """know:sais sais sait savons savez savent
think:pense penses pense pensons pensez pensent
say:dis dis dit disons dites disent
hope:espère espères espère espérons espérez espèrent"""
# what one is in English and has in French, then what does not agree
HAD = "hungry faim|thirsty soif|right raison|wrong tort|afraid peur|sleepy sommeil"
STILL = "late:en retard|here:ici|at home:à la maison|angry:en colère"
TO = {"to": "à", "from": "de", "in": "dans", "near": "près de", "behind": "derrière", "in front of": "devant"}
WHEN = {
    "present": "now:maintenant|today:aujourd'hui|every day:tous les jours|on Sundays:le dimanche",
    "past": "yesterday:hier|this morning:ce matin|last week:la semaine dernière|today:aujourd'hui",
    "later": "tomorrow:demain|tonight:ce soir|next week:la semaine prochaine|today:aujourd'hui",
}
WHY = "why:pourquoi|when:quand|where:où"
READINGS = [Reading(*some) for some in product(("friend", "stranger", "many"), (False, True))]
Word = TypeVar("Word", Noun, Adjective, Verb)


def phrases(count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """That many pairs (English, French), no two alike; the translations of a sentence follow each other.

    The same seed makes the same pairs. The first sentences are two that every translator is asked for.
    """
    rng, seen = random.Random(seed), set[str]()
    car = thing("a", _find(NOUN["thing"], "car"), adjective=_find(ADJECTIVE, "red"))
    student = is_a(_find(NOUN["job"], "student"), "be", plural=False)
    first = [said(pronoun("I"), it) for it in (student, does(_find(VERB, "have"), "present", car))]
    while count > 0:
        english, french = first.pop(0) if first else rng.choices(FRAMES, WEIGHTS)[0](rng)
        if len(english.split()) > LONGEST or english in seen:
            continue
        seen.add(english)
        for text in list(dict.fromkeys(map(spelled, dict.fromkeys(map(french, READINGS)))))[:count]:
            count -= 1
            yield capital(english), text


def _find(words: Sequence[Word], english: str) -> Word:
    return next(word for word in words if word.english == english)


def _mood(rng: random.Random) -> str:
    return rng.choice(["", "", "not", "?"])


def _own(rng: random.Random) -> str:
    return rng.choice([*OWN, "your"])


def _someone(rng: random.Random) -> Phrase:
    """Who does something."""
    if rng.random() < 0.6:
        return pronoun(rng.choice(["I", "you", "he", "she", "we", "they"]))
    return _person(rng)


def _person(rng: random.Random) -> Phrase:
    if rng.random() < 0.3:
        return named(rng.choice(rows(NAMES)))
    kind = rng.choice(["person", "kin", "job"])
    det = _own(rng) if kind == "kin" else rng.choice(["the", "the", "this"])
    noun = rng.choice(NOUN[kind])
    return thing(det, noun, _plural(rng, noun))


def _something(rng: random.Random, kinds: Sequence[str], dets: Sequence[str] = ()) -> Phrase:
    """What something is done to; dets: the determiners it may have, if not all."""
    kind, det = rng.choice(kinds), rng.choice(dets or [*_new(rng), *_known(rng)])
    noun, several = rng.choice(NOUN[kind]), ("", "many", *NUMBER)
    if kind == "kin" and det not in ("owner", "your", *OWN):
        det = _own(rng)
    elif kind in MASS and det in ("a", *several):
        det = ""
    plural = det in several or (det != "a" and _plural(rng, noun))
    fits = [adjective for adjective in ADJECTIVE if kind in adjective.of]
    adjective = rng.choice(fits) if fits and rng.random() < 0.4 else None
    owner = _person(rng) if det == "owner" else None
    return thing("the" if owner else det, noun, plural and kind not in MASS, adjective, owner)


def _plural(rng: random.Random, noun: Noun) -> bool:
    """One has only one father."""
    return noun.english not in ("father", "mother") and rng.random() < 0.3


def _new(rng: random.Random) -> list[str]:
    """Determiners of what has not been heard of before."""
    return ["a", "a", "a", "", "many", rng.choice(list(NUMBER))]


def _known(rng: random.Random) -> list[str]:
    """Determiners of what is known."""
    return ["the", "the", "this", _own(rng), "owner"]


def _object(rng: random.Random, verb: Verb) -> Phrase:
    """What one likes is what one knows, or all of its kind."""
    return _something(rng, verb.goes_with, ["", *_known(rng)] if verb.infinitive == "aimer" else ())


def _at(rng: random.Random, prepositions: Sequence[str]) -> Made:
    """Where: dans le jardin, près de l'école, au marché."""
    word, noun = rng.choice(prepositions), rng.choice(NOUN["place"])
    adjective = rng.choice(_fitting("place")) if rng.random() < 0.2 else None
    place = thing("the", noun, adjective=adjective)
    return f"{word} {place.english}", lambda r: f"{TO[word]} {place.hear(r, '').text}"


def _time(rng: random.Random, how: str) -> Made:
    english, french = rng.choice(WHEN.get(how, WHEN["later"]).split("|")).split(":")
    return english, lambda r: french


def _how(rng: random.Random, verb: Verb) -> str:
    """A state is only now."""
    return rng.choice(["present", "past", rng.choice(MODALS.split("\n"))]) if verb.past else "present"


def _doing(rng: random.Random) -> Made:
    """I see the cat in the garden. She has not bought it. Must we eat the bread now?"""
    who, verb = _someone(rng), rng.choice(VERB)
    how, what, weak = _how(rng, verb), None, None
    if rng.random() < 0.2:
        weak = object_pronoun(rng.choice(_objects(verb, who.english)))
    else:
        what = _object(rng, verb)
    more = [_time(rng, how), _at(rng, ["in", "near", "in front of"])] if verb.past else []
    return said(who, does(verb, how, what, weak, *rng.sample(more, rng.randint(0, min(1, len(more))))), _mood(rng))


def _objects(verb: Verb, who: str) -> list[str]:
    """The pronouns that verb may take, none of them for the one who does it."""
    people = {"person", "kin"} & set(verb.goes_with)
    own = {"I": ("me", "us"), "we": ("me", "us"), "you": ("you",)}.get(who, ())
    words = ["it", "them"] if set(verb.goes_with) - {"person", "kin", "job"} else ["them"]
    return [word for word in (*words, *(("me", "you", "him", "her", "us") if people else ())) if word not in own]


def _giving(rng: random.Random) -> Made:
    """He gives an apple to the children."""
    verb, what, whom = rng.choice(GIVE), _something(rng, ["thing", "food", "clothes", "text"]), _person(rng)
    to: Made = (f"to {whom.english}", lambda r: f"à {whom.hear(r, '').text}")
    return said(_someone(rng), does(verb, _how(rng, verb), what, None, to), _mood(rng))


def _moving(rng: random.Random) -> Made:
    """They went to the market. The child sleeps near the church."""
    verb = rng.choice(MOVE)
    how = _how(rng, verb)
    more = [_at(rng, verb.goes_with), *([_time(rng, how)] if rng.random() < 0.4 else [])]
    return said(_someone(rng), does(verb, how, None, None, *more), _mood(rng))


def _being(rng: random.Random) -> Made:
    """My sister is tired. Was the house old? They are students. He is ten years old. I am hungry."""
    tense, who = rng.choice(["be", "be", "was"]), _someone(rng)
    choice = rng.random()
    if choice < 0.35:
        return said(*_quality(rng, tense), _mood(rng))
    if choice < 0.55:
        return said(who, is_like(rng.choice(_fitting("person")), tense), _mood(rng))
    if choice < 0.75:
        job = is_a(rng.choice(NOUN["job"]), tense, plural=who.be == "are" and who.english != "you")
        return said(who, job, _mood(rng))
    if choice < 0.85:
        english, french = rng.choice(list(NUMBER.items()))
        return said(who, is_still(f"{english} years old", f"{french} ans", HAVE, tense), _mood(rng))
    had = choice < 0.93
    english, french = rng.choice(rows(HAD)).split() if had else rng.choice(rows(STILL)).split(":")
    return said(who, is_still(english, french, HAVE if had else BE, tense), _mood(rng))


def _fitting(kind: str) -> list[Adjective]:
    """What something of that kind may be: what is new is not 'nouveau' but, as a car, 'neuf'."""
    return [adjective for adjective in ADJECTIVE if kind in adjective.of and adjective.english != "new"]


def _quality(rng: random.Random, tense: str) -> tuple[Phrase, Predicate]:
    """The house is white. It was heavy."""
    kind = rng.choice(["thing", "clothes", "animal", "text", "food", "dish", "drink", "door", "place"])
    who = _something(rng, [kind], _known(rng)) if rng.random() < 0.9 else pronoun("it")
    return who, is_like(rng.choice(_fitting(kind)), tense)


def _there(rng: random.Random) -> Made:
    """There is a black cat behind the house. There are no apples near the school."""
    mood = _mood(rng)
    what = _something(rng, ["animal", "thing", "person", "food", "drink"], ["no"] if mood == "not" else _new(rng))
    where, place = _at(rng, ["in", "near", "behind", "in front of"])
    told = f"{what.be} there {what.english} {where}?" if mood == "?" else f"there {what.be} {what.english} {where}."
    opening = {"": "il y a", "not": "il ne y a pas", "?": "est-ce que il y a"}[mood]
    return told, lambda r: f"{opening} {what.hear(r, '').text} {place(r)}{' ?' if mood == '?' else '.'}"


def _this(rng: random.Random) -> Made:
    """This is my brother's car. Are these your keys?"""
    what, mood = _something(rng, ["thing", "clothes", "text", "animal", "kin"], ["owner", _own(rng)]), _mood(rng)
    this, one, none = ("these", "ce sont", "ce ne sont pas") if what.be == "are" else ("this", "c'est", "ce n'est pas")
    if mood == "?":
        return f"{what.be} {this} {what.english}?", lambda r: f"est-ce que {one} {what.hear(r, '').text} ?"
    told, ce = (f"{this} {what.be} not", none) if mood else (f"{this} {what.be}", one)
    return f"{told} {what.english}.", lambda r: f"{ce} {what.hear(r, '').text}."


def _where(rng: random.Random) -> Made:
    """Where is my key? Where are they?"""
    things = ["thing", "clothes", "text", "animal"]
    who = _someone(rng) if rng.random() < 0.4 else _something(rng, things, ["the", "the", "owner", _own(rng)])

    def french(r: Reading) -> str:
        heard = who.hear(r, "")
        joint = "-" if heard.text in ("je", "tu", "il", "elle", "nous", "vous", "ils", "elles") else " "
        return f"où {BE['be'].split()[heard.person]}{joint}{heard.text} ?"

    return f"where {who.be} {who.english}?", french


def _asking(rng: random.Random) -> Made:
    """What did you buy? Why is she sad? When are they going to sell the boat?"""
    who, verb = _someone(rng), rng.choice([verb for verb in VERB if verb.past])
    if rng.random() < 0.4 and "job" not in verb.goes_with:  # whom does one help?
        place = [_at(rng, ["in", "near"])] if rng.random() < 0.5 else []
        return said(who, does(verb, _how(rng, verb), None, None, *place), "?", "what:que")
    if rng.random() < 0.3:
        return said(who, is_like(rng.choice(_fitting("person")), rng.choice(["be", "was"])), "?", "why:pourquoi")
    what = _something(rng, verb.goes_with, _known(rng))
    return said(who, does(verb, _how(rng, verb), what), "?", rng.choice(rows(WHY)))


def _saying(rng: random.Random) -> Made:
    """I know that he is tired."""
    who, whom = pronoun(rng.choice(["I", "you", "he", "she", "we", "they"])), _someone(rng)
    verb, mood = rng.choice(VERB), rng.choice(["", "", "not"])
    like = is_like(rng.choice(_fitting("person")), "be")
    it = rng.choice([like, does(verb, _how(rng, verb), _object(rng, verb))])
    say, finite = rng.choice(rows(SAYING)).split(":")
    told = f"that {in_english(whom, it, mood)}"

    def what(r: Reading, *_: object) -> str:
        return f"que {in_french(whom, it, bool(mood), r)}"

    return said(who, Predicate("do", say, "", told, finite, nothing, what))


FRAMES = (_doing, _giving, _moving, _being, _there, _this, _where, _asking, _saying)
WEIGHTS = (30, 6, 12, 18, 8, 6, 5, 8, 7)
