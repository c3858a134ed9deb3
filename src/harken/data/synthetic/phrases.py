"""Generated English sentences with French translations from a small grammar: pairs that need no download.

Both sides of a pair have the same meaning. A sentence has one translation per distinct wording of its interpretations.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TypeVar

from . import grammar
from .grammar import WORDS, Adjective, Interpretation, Noun, Phrase, Predicate, Translatable, Verb

MAX_WORDS = 8  # per English sentence
HELD_OUT = "he drives the car."  # the lecture's sentence: the demo translates it without having seen it
MASS_KINDS = ("dish", "drink")  # uncountable: du pain, de la soupe
SUBJECT_PRONOUNS = ["I", "you", "he", "she", "we", "they"]
FRENCH_SUBJECTS = ("je", "tu", "il", "elle", "nous", "vous", "ils", "elles")
INTERPRETATIONS = [Interpretation(*parts) for parts in product(("friend", "stranger", "many"), (False, True))]
Word = TypeVar("Word", Noun, Adjective, Verb)


def phrases(count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Unique pairs (English, French); the translations of a sentence follow each other.

    A pure function of the seed. The first two sentences are fixed.
    """
    rng, sentences = random.Random(seed), set[str]()
    generators, weights = list(GENERATORS), list(GENERATORS.values())
    car = grammar.noun_phrase("a", _find(grammar.NOUNS["thing"], "car"), adjective=_find(grammar.ADJECTIVES, "red"))
    student = grammar.has_job(_find(grammar.NOUNS["job"], "student"), "be", plural=False)
    have_car = grammar.action(_find(grammar.TRANSITIVE, "have"), "present", car)
    fixed = [grammar.sentence(grammar.pronoun("I"), predicate) for predicate in (student, have_car)]
    while count > 0:
        english, translate = fixed.pop(0) if fixed else rng.choices(generators, weights)[0](rng)
        if len(english.split()) > MAX_WORDS or english in sentences or english == HELD_OUT:
            continue
        sentences.add(english)
        wordings = dict.fromkeys(map(translate, INTERPRETATIONS))
        for french in list(dict.fromkeys(map(grammar.apply_elision, wordings)))[:count]:
            count -= 1
            yield grammar.capitalize_first(english), french


def _find(words: Sequence[Word], english: str) -> Word:
    return next(word for word in words if word.english == english)


# --- parts of a sentence ----------------------------------------------------------------------------------------------


def _mood(rng: random.Random) -> str:
    return rng.choice(["", "", "not", "?"])


def _possessive(rng: random.Random) -> str:
    return rng.choice([*grammar.POSSESSIVES, "your"])


def _subject(rng: random.Random) -> Phrase:
    return grammar.pronoun(rng.choice(SUBJECT_PRONOUNS)) if rng.random() < 0.6 else _person(rng)


def _person(rng: random.Random) -> Phrase:
    if rng.random() < 0.3:
        return grammar.proper_name(rng.choice(WORDS["names"]))
    kind = rng.choice(["person", "kin", "job"])
    det = _possessive(rng) if kind == "kin" else rng.choice(["the", "the", "this"])
    noun = rng.choice(grammar.NOUNS[kind])
    return grammar.noun_phrase(det, noun, _is_plural(rng, noun))


def _thing(rng: random.Random, kinds: Sequence[str], determiners: Sequence[str] = ()) -> Phrase:
    """A noun phrase of one of these kinds, with one of these determiners (default: any)."""
    kind, det = rng.choice(kinds), rng.choice(determiners or [*_indefinite(rng), *_definite(rng)])
    noun, plural_only = rng.choice(grammar.NOUNS[kind]), ("", "many", *grammar.NUMBERS)
    if kind == "kin" and det not in ("owner", "your", *grammar.POSSESSIVES):
        det = _possessive(rng)
    elif kind in MASS_KINDS and det in ("a", *plural_only):
        det = ""
    plural = det in plural_only or (det != "a" and _is_plural(rng, noun))
    adjectives = [adjective for adjective in grammar.ADJECTIVES if kind in adjective.noun_kinds]
    adjective = rng.choice(adjectives) if adjectives and rng.random() < 0.4 else None
    owner = _person(rng) if det == "owner" else None
    return grammar.noun_phrase("the" if owner else det, noun, plural and kind not in MASS_KINDS, adjective, owner)


def _is_plural(rng: random.Random, noun: Noun) -> bool:
    return noun.english not in ("father", "mother") and rng.random() < 0.3


def _indefinite(rng: random.Random) -> list[str]:
    return ["a", "a", "a", "", "many", rng.choice(list(grammar.NUMBERS))]


def _definite(rng: random.Random) -> list[str]:
    return ["the", "the", "this", _possessive(rng), "owner"]


def _direct_object(rng: random.Random, verb: Verb) -> Phrase:
    """An object of the verb; 'aimer' takes something definite or a whole kind."""
    return _thing(rng, verb.complements, ["", *_definite(rng)] if verb.infinitive == "aimer" else ())


def _place(rng: random.Random, prepositions: Sequence[str]) -> Translatable:
    """dans le jardin, près de l'école, au marché."""
    preposition, noun = rng.choice(prepositions), rng.choice(grammar.NOUNS["place"])
    adjective = rng.choice(_predicative("place")) if rng.random() < 0.2 else None
    place = grammar.noun_phrase("the", noun, adjective=adjective)
    french = WORDS["prepositions"][preposition]
    return f"{preposition} {place.english}", lambda reading: f"{french} {place.to_french(reading, '').text}"


def _time(rng: random.Random, tense: str) -> Translatable:
    english, french = rng.choice(WORDS["adverbs"].get(tense, WORDS["adverbs"]["later"])).split(":")
    return english, lambda reading: french


def _tense(rng: random.Random, verb: Verb) -> str:
    """Verbs without a past form are states and occur only in the present."""
    return rng.choice(["present", "past", rng.choice(WORDS["modals"])]) if verb.past else "present"


def _object_pronouns(verb: Verb, subject: str) -> list[str]:
    """The object pronouns of the verb, except those that refer to the subject."""
    people = {"person", "kin"} & set(verb.complements)
    reflexive = {"I": ("me", "us"), "we": ("me", "us"), "you": ("you",)}.get(subject, ())
    words = ["it", "them"] if set(verb.complements) - {"person", "kin", "job"} else ["them"]
    return [word for word in (*words, *(("me", "you", "him", "her", "us") if people else ())) if word not in reflexive]


def _predicative(kind: str) -> list[Adjective]:
    """Adjectives for a predicate; without 'new', which would be 'neuf' instead of 'nouveau'."""
    return [word for word in grammar.ADJECTIVES if kind in word.noun_kinds and word.english != "new"]


# --- sentences --------------------------------------------------------------------------------------------------------


def _transitive(rng: random.Random) -> Translatable:
    """I see the cat in the garden. She has not bought it. Must we eat the bread now?"""
    subject, verb = _subject(rng), rng.choice(grammar.TRANSITIVE)
    tense, direct_object, clitic_object = _tense(rng, verb), None, None
    if rng.random() < 0.2:
        clitic_object = grammar.object_pronoun(rng.choice(_object_pronouns(verb, subject.english)))
    else:
        direct_object = _direct_object(rng, verb)
    adjuncts = [_time(rng, tense), _place(rng, ["in", "near", "in front of"])] if verb.past else []
    adjuncts = rng.sample(adjuncts, rng.randint(0, min(1, len(adjuncts))))
    return grammar.sentence(subject, grammar.action(verb, tense, direct_object, clitic_object, *adjuncts), _mood(rng))


def _ditransitive(rng: random.Random) -> Translatable:
    """He gives an apple to the children."""
    verb, thing, receiver = rng.choice(grammar.GIVING), _thing(rng, ["thing", "food", "clothes", "text"]), _person(rng)
    to: Translatable = (f"to {receiver.english}", lambda reading: f"à {receiver.to_french(reading, '').text}")
    return grammar.sentence(_subject(rng), grammar.action(verb, _tense(rng, verb), thing, None, to), _mood(rng))


def _intransitive(rng: random.Random) -> Translatable:
    """They went to the market. The child sleeps near the church."""
    verb = rng.choice(grammar.INTRANSITIVE)
    tense = _tense(rng, verb)
    adjuncts = [_place(rng, verb.complements), *([_time(rng, tense)] if rng.random() < 0.4 else [])]
    return grammar.sentence(_subject(rng), grammar.action(verb, tense, None, None, *adjuncts), _mood(rng))


def _copular(rng: random.Random) -> Translatable:
    """My sister is tired. Was the house old? They are students. He is ten years old. I am hungry."""
    tense, subject = rng.choice(["be", "be", "was"]), _subject(rng)
    u = rng.random()
    if u < 0.35:
        kind = rng.choice(["thing", "clothes", "animal", "text", "food", "dish", "drink", "door", "place"])
        subject = _thing(rng, [kind], _definite(rng)) if rng.random() < 0.9 else grammar.pronoun("it")
        predicate = grammar.has_quality(rng.choice(_predicative(kind)), tense)
    elif u < 0.55:
        predicate = grammar.has_quality(rng.choice(_predicative("person")), tense)
    elif u < 0.75:
        plural = subject.be == "are" and subject.english != "you"
        predicate = grammar.has_job(rng.choice(grammar.NOUNS["job"]), tense, plural=plural)
    elif u < 0.85:
        english, french = rng.choice(list(grammar.NUMBERS.items()))
        predicate = grammar.has_state(f"{english} years old", f"{french} ans", "avoir", tense)
    else:
        verb = "avoir" if u < 0.93 else "etre"
        english, french = rng.choice(WORDS["states"][verb]).split(":")
        predicate = grammar.has_state(english, french, verb, tense)
    return grammar.sentence(subject, predicate, _mood(rng))


def _existential(rng: random.Random) -> Translatable:
    """There is a black cat behind the house. There are no apples near the school."""
    mood = _mood(rng)
    thing = _thing(rng, ["animal", "thing", "person", "food", "drink"], ["no"] if mood == "not" else _indefinite(rng))
    where, place = _place(rng, ["in", "near", "behind", "in front of"])
    statement = f"there {thing.be} {thing.english} {where}."
    english = f"{thing.be} there {thing.english} {where}?" if mood == "?" else statement
    start = {"": "il y a", "not": "il ne y a pas", "?": "est-ce que il y a"}[mood]
    end = " ?" if mood == "?" else "."
    return english, lambda reading: f"{start} {thing.to_french(reading, '').text} {place(reading)}{end}"


def _demonstrative(rng: random.Random) -> Translatable:
    """This is my brother's car. Are these your keys?"""
    kinds = ["thing", "clothes", "text", "animal", "kin"]
    thing, mood = _thing(rng, kinds, ["owner", _possessive(rng)]), _mood(rng)
    plural = thing.be == "are"
    this, is_, is_not = ("these", "ce sont", "ce ne sont pas") if plural else ("this", "c'est", "ce n'est pas")
    if mood == "?":
        question = f"{thing.be} {this} {thing.english}?"
        return question, lambda reading: f"est-ce que {is_} {thing.to_french(reading, '').text} ?"
    english, verb = (f"{thing.be} not", is_not) if mood else (thing.be, is_)
    return f"{this} {english} {thing.english}.", lambda reading: f"{verb} {thing.to_french(reading, '').text}."


def _where_question(rng: random.Random) -> Translatable:
    """Where is my key? Where are they?"""
    kinds = ["thing", "clothes", "text", "animal"]
    subject = _subject(rng) if rng.random() < 0.4 else _thing(rng, kinds, ["the", "the", "owner", _possessive(rng)])

    def translate(reading: Interpretation) -> str:
        phrase = subject.to_french(reading, "")
        separator = "-" if phrase.text in FRENCH_SUBJECTS else " "
        return f"où {WORDS['etre']['be'].split()[phrase.person]}{separator}{phrase.text} ?"

    return f"where {subject.be} {subject.english}?", translate


def _open_question(rng: random.Random) -> Translatable:
    """What did you buy? Why is she sad? When are they going to sell the boat?"""
    subject, verb = _subject(rng), rng.choice([verb for verb in grammar.TRANSITIVE if verb.past])
    if rng.random() < 0.4 and "job" not in verb.complements:  # 'help' would need 'whom'
        place = [_place(rng, ["in", "near"])] if rng.random() < 0.5 else []
        return grammar.sentence(subject, grammar.action(verb, _tense(rng, verb), None, None, *place), "?", "what:que")
    if rng.random() < 0.3:
        quality = grammar.has_quality(rng.choice(_predicative("person")), rng.choice(["be", "was"]))
        return grammar.sentence(subject, quality, "?", "why:pourquoi")
    thing = _thing(rng, verb.complements, _definite(rng))
    predicate = grammar.action(verb, _tense(rng, verb), thing)
    return grammar.sentence(subject, predicate, "?", rng.choice(WORDS["question_words"]))


def _reported(rng: random.Random) -> Translatable:
    """I know that he is tired."""
    speaker, subject = grammar.pronoun(rng.choice(SUBJECT_PRONOUNS)), _subject(rng)
    verb, mood = rng.choice(grammar.TRANSITIVE), rng.choice(["", "", "not"])
    quality = grammar.has_quality(rng.choice(_predicative("person")), "be")
    predicate = rng.choice([quality, grammar.action(verb, _tense(rng, verb), _direct_object(rng, verb))])
    say, finite = rng.choice(WORDS["reporting_verbs"]).split(":")
    english = f"that {grammar.to_english(subject, predicate, mood)}"

    def content(reading: Interpretation, *_: object) -> str:
        return f"que {grammar.to_french(subject, predicate, bool(mood), reading)}"

    return grammar.sentence(speaker, Predicate("do", say, "", english, finite, content))


GENERATORS = {  # with weights
    _transitive: 30, _ditransitive: 6, _intransitive: 12, _copular: 18, _existential: 8, _demonstrative: 6,
    _where_question: 5, _open_question: 8, _reported: 7,
}  # fmt: skip
