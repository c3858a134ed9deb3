"""Generated English sentences with French translations from a small grammar: pairs that need no download.

Both sides of a pair have the same meaning. A sentence has one translation per distinct wording of its interpretations.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TypeVar

from .clauses import (
    AVOIR_FORMS,
    ETRE_FORMS,
    GIVING,
    INTRANSITIVE,
    MODALS,
    TRANSITIVE,
    Predicate,
    Translatable,
    Verb,
    action,
    has_job,
    has_quality,
    has_state,
    no_clitic,
    sentence,
    to_english,
    to_french,
)
from .french import (
    ADJECTIVES,
    MASS_KINDS,
    NAME_ROWS,
    NOUNS,
    NUMBERS,
    POSSESSIVES,
    Adjective,
    Interpretation,
    Noun,
    Phrase,
    apply_elision,
    capitalize_first,
    noun_phrase,
    object_pronoun,
    pronoun,
    proper_name,
    split_rows,
)

MAX_WORDS = 8  # per English sentence
REPORTING_VERBS = """know:sais sais sait savons savez savent
think:pense penses pense pensons pensez pensent
say:dis dis dit disons dites disent
hope:espère espères espère espérons espérez espèrent"""
# states with avoir, and invariable states with être
AVOIR_STATES = "hungry faim|thirsty soif|right raison|wrong tort|afraid peur|sleepy sommeil"
ETRE_STATES = "late:en retard|here:ici|at home:à la maison|angry:en colère"
PREPOSITIONS = {"to": "à", "from": "de", "in": "dans", "near": "près de", "behind": "derrière", "in front of": "devant"}
TIME_ADVERBS = {
    "present": "now:maintenant|today:aujourd'hui|every day:tous les jours|on Sundays:le dimanche",
    "past": "yesterday:hier|this morning:ce matin|last week:la semaine dernière|today:aujourd'hui",
    "later": "tomorrow:demain|tonight:ce soir|next week:la semaine prochaine|today:aujourd'hui",
}
QUESTION_WORDS = "why:pourquoi|when:quand|where:où"
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
    car = noun_phrase("a", _find(NOUNS["thing"], "car"), adjective=_find(ADJECTIVES, "red"))
    student = has_job(_find(NOUNS["job"], "student"), "be", plural=False)
    have_car = action(_find(TRANSITIVE, "have"), "present", car)
    fixed = [sentence(pronoun("I"), predicate) for predicate in (student, have_car)]
    while count > 0:
        english, translate = fixed.pop(0) if fixed else rng.choices(generators, weights)[0](rng)
        if len(english.split()) > MAX_WORDS or english in sentences:
            continue
        sentences.add(english)
        wordings = dict.fromkeys(map(translate, INTERPRETATIONS))
        for french in list(dict.fromkeys(map(apply_elision, wordings)))[:count]:
            count -= 1
            yield capitalize_first(english), french


def _find(words: Sequence[Word], english: str) -> Word:
    return next(word for word in words if word.english == english)


# --- parts of a sentence ----------------------------------------------------------------------------------------------


def _mood(rng: random.Random) -> str:
    return rng.choice(["", "", "not", "?"])


def _possessive(rng: random.Random) -> str:
    return rng.choice([*POSSESSIVES, "your"])


def _subject(rng: random.Random) -> Phrase:
    return pronoun(rng.choice(SUBJECT_PRONOUNS)) if rng.random() < 0.6 else _person(rng)


def _person(rng: random.Random) -> Phrase:
    if rng.random() < 0.3:
        return proper_name(rng.choice(split_rows(NAME_ROWS)))
    kind = rng.choice(["person", "kin", "job"])
    det = _possessive(rng) if kind == "kin" else rng.choice(["the", "the", "this"])
    noun = rng.choice(NOUNS[kind])
    return noun_phrase(det, noun, _is_plural(rng, noun))


def _thing(rng: random.Random, kinds: Sequence[str], determiners: Sequence[str] = ()) -> Phrase:
    """A noun phrase of one of these kinds, with one of these determiners (default: any)."""
    kind, det = rng.choice(kinds), rng.choice(determiners or [*_indefinite(rng), *_definite(rng)])
    noun, plural_only = rng.choice(NOUNS[kind]), ("", "many", *NUMBERS)
    if kind == "kin" and det not in ("owner", "your", *POSSESSIVES):
        det = _possessive(rng)
    elif kind in MASS_KINDS and det in ("a", *plural_only):
        det = ""
    plural = det in plural_only or (det != "a" and _is_plural(rng, noun))
    adjectives = [adjective for adjective in ADJECTIVES if kind in adjective.noun_kinds]
    adjective = rng.choice(adjectives) if adjectives and rng.random() < 0.4 else None
    owner = _person(rng) if det == "owner" else None
    return noun_phrase("the" if owner else det, noun, plural and kind not in MASS_KINDS, adjective, owner)


def _is_plural(rng: random.Random, noun: Noun) -> bool:
    return noun.english not in ("father", "mother") and rng.random() < 0.3


def _indefinite(rng: random.Random) -> list[str]:
    return ["a", "a", "a", "", "many", rng.choice(list(NUMBERS))]


def _definite(rng: random.Random) -> list[str]:
    return ["the", "the", "this", _possessive(rng), "owner"]


def _direct_object(rng: random.Random, verb: Verb) -> Phrase:
    """An object of the verb; 'aimer' takes something definite or a whole kind."""
    return _thing(rng, verb.complements, ["", *_definite(rng)] if verb.infinitive == "aimer" else ())


def _place(rng: random.Random, prepositions: Sequence[str]) -> Translatable:
    """dans le jardin, près de l'école, au marché."""
    preposition, noun = rng.choice(prepositions), rng.choice(NOUNS["place"])
    adjective = rng.choice(_predicative("place")) if rng.random() < 0.2 else None
    place = noun_phrase("the", noun, adjective=adjective)
    return (
        f"{preposition} {place.english}",
        lambda reading: f"{PREPOSITIONS[preposition]} {place.to_french(reading, '').text}",
    )


def _time(rng: random.Random, tense: str) -> Translatable:
    english, french = rng.choice(TIME_ADVERBS.get(tense, TIME_ADVERBS["later"]).split("|")).split(":")
    return english, lambda reading: french


def _tense(rng: random.Random, verb: Verb) -> str:
    """Verbs without a past form are states and occur only in the present."""
    return rng.choice(["present", "past", rng.choice(MODALS.split("\n"))]) if verb.past else "present"


def _object_pronouns(verb: Verb, subject: str) -> list[str]:
    """The object pronouns of the verb, except those that refer to the subject."""
    people = {"person", "kin"} & set(verb.complements)
    reflexive = {"I": ("me", "us"), "we": ("me", "us"), "you": ("you",)}.get(subject, ())
    words = ["it", "them"] if set(verb.complements) - {"person", "kin", "job"} else ["them"]
    return [word for word in (*words, *(("me", "you", "him", "her", "us") if people else ())) if word not in reflexive]


def _predicative(kind: str) -> list[Adjective]:
    """Adjectives for a predicate; without 'new', which would be 'neuf' instead of 'nouveau'."""
    return [adjective for adjective in ADJECTIVES if kind in adjective.noun_kinds and adjective.english != "new"]


# --- sentences --------------------------------------------------------------------------------------------------------


def _transitive(rng: random.Random) -> Translatable:
    """I see the cat in the garden. She has not bought it. Must we eat the bread now?"""
    subject, verb = _subject(rng), rng.choice(TRANSITIVE)
    tense, direct_object, clitic_object = _tense(rng, verb), None, None
    if rng.random() < 0.2:
        clitic_object = object_pronoun(rng.choice(_object_pronouns(verb, subject.english)))
    else:
        direct_object = _direct_object(rng, verb)
    adjuncts = [_time(rng, tense), _place(rng, ["in", "near", "in front of"])] if verb.past else []
    adjuncts = rng.sample(adjuncts, rng.randint(0, min(1, len(adjuncts))))
    return sentence(subject, action(verb, tense, direct_object, clitic_object, *adjuncts), _mood(rng))


def _ditransitive(rng: random.Random) -> Translatable:
    """He gives an apple to the children."""
    verb, thing, receiver = rng.choice(GIVING), _thing(rng, ["thing", "food", "clothes", "text"]), _person(rng)
    to: Translatable = (f"to {receiver.english}", lambda reading: f"à {receiver.to_french(reading, '').text}")
    return sentence(_subject(rng), action(verb, _tense(rng, verb), thing, None, to), _mood(rng))


def _intransitive(rng: random.Random) -> Translatable:
    """They went to the market. The child sleeps near the church."""
    verb = rng.choice(INTRANSITIVE)
    tense = _tense(rng, verb)
    adjuncts = [_place(rng, verb.complements), *([_time(rng, tense)] if rng.random() < 0.4 else [])]
    return sentence(_subject(rng), action(verb, tense, None, None, *adjuncts), _mood(rng))


def _copular(rng: random.Random) -> Translatable:
    """My sister is tired. Was the house old? They are students. He is ten years old. I am hungry."""
    tense, subject = rng.choice(["be", "be", "was"]), _subject(rng)
    u = rng.random()
    if u < 0.35:
        return sentence(*_thing_with_quality(rng, tense), _mood(rng))
    if u < 0.55:
        return sentence(subject, has_quality(rng.choice(_predicative("person")), tense), _mood(rng))
    if u < 0.75:
        plural = subject.be == "are" and subject.english != "you"
        return sentence(subject, has_job(rng.choice(NOUNS["job"]), tense, plural=plural), _mood(rng))
    if u < 0.85:
        english, french = rng.choice(list(NUMBERS.items()))
        return sentence(subject, has_state(f"{english} years old", f"{french} ans", AVOIR_FORMS, tense), _mood(rng))
    use_avoir = u < 0.93
    row = rng.choice(split_rows(AVOIR_STATES if use_avoir else ETRE_STATES))
    english, french = row.split() if use_avoir else row.split(":")
    return sentence(subject, has_state(english, french, AVOIR_FORMS if use_avoir else ETRE_FORMS, tense), _mood(rng))


def _thing_with_quality(rng: random.Random, tense: str) -> tuple[Phrase, Predicate]:
    """The house is white. It was heavy."""
    kind = rng.choice(["thing", "clothes", "animal", "text", "food", "dish", "drink", "door", "place"])
    subject = _thing(rng, [kind], _definite(rng)) if rng.random() < 0.9 else pronoun("it")
    return subject, has_quality(rng.choice(_predicative(kind)), tense)


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
        return (
            f"{thing.be} {this} {thing.english}?",
            lambda reading: f"est-ce que {is_} {thing.to_french(reading, '').text} ?",
        )
    verb = is_not if mood else is_
    return (
        f"{this} {thing.be}{' not' if mood else ''} {thing.english}.",
        lambda reading: f"{verb} {thing.to_french(reading, '').text}.",
    )


def _where_question(rng: random.Random) -> Translatable:
    """Where is my key? Where are they?"""
    kinds = ["thing", "clothes", "text", "animal"]
    subject = _subject(rng) if rng.random() < 0.4 else _thing(rng, kinds, ["the", "the", "owner", _possessive(rng)])

    def translate(reading: Interpretation) -> str:
        phrase = subject.to_french(reading, "")
        separator = "-" if phrase.text in FRENCH_SUBJECTS else " "
        return f"où {ETRE_FORMS['be'].split()[phrase.person]}{separator}{phrase.text} ?"

    return f"where {subject.be} {subject.english}?", translate


def _open_question(rng: random.Random) -> Translatable:
    """What did you buy? Why is she sad? When are they going to sell the boat?"""
    subject, verb = _subject(rng), rng.choice([verb for verb in TRANSITIVE if verb.past])
    if rng.random() < 0.4 and "job" not in verb.complements:  # 'help' would need 'whom'
        place = [_place(rng, ["in", "near"])] if rng.random() < 0.5 else []
        return sentence(subject, action(verb, _tense(rng, verb), None, None, *place), "?", "what:que")
    if rng.random() < 0.3:
        quality = has_quality(rng.choice(_predicative("person")), rng.choice(["be", "was"]))
        return sentence(subject, quality, "?", "why:pourquoi")
    thing = _thing(rng, verb.complements, _definite(rng))
    return sentence(subject, action(verb, _tense(rng, verb), thing), "?", rng.choice(split_rows(QUESTION_WORDS)))


def _reported(rng: random.Random) -> Translatable:
    """I know that he is tired."""
    speaker, subject = pronoun(rng.choice(SUBJECT_PRONOUNS)), _subject(rng)
    verb, mood = rng.choice(TRANSITIVE), rng.choice(["", "", "not"])
    quality = has_quality(rng.choice(_predicative("person")), "be")
    predicate = rng.choice([quality, action(verb, _tense(rng, verb), _direct_object(rng, verb))])
    say, finite = rng.choice(split_rows(REPORTING_VERBS)).split(":")
    english = f"that {to_english(subject, predicate, mood)}"

    def content(reading: Interpretation, *_: object) -> str:
        return f"que {to_french(subject, predicate, bool(mood), reading)}"

    return sentence(speaker, Predicate("do", say, "", english, finite, no_clitic, content))


GENERATORS = {  # with weights
    _transitive: 30,
    _ditransitive: 6,
    _intransitive: 12,
    _copular: 18,
    _existential: 8,
    _demonstrative: 6,
    _where_question: 5,
    _open_question: 8,
    _reported: 7,
}
