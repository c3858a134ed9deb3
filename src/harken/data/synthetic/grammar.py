"""English phrases and sentences with their French translations: gender, number, person, tense, elision, pronouns.

English does not distinguish who "you" is and whether "I" or "the student" is a woman; French does. So an English
phrase has one French translation per Interpretation.
"""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import NamedTuple

from .tales import article

VOWEL = "[aeiouyhâàéèêîôœAEIOH]"  # all h in the vocabulary are mute


class Interpretation(NamedTuple):
    """What English leaves open: `you` is a friend, a stranger or many; people of unknown gender are female or not."""

    you: str
    female: bool


class FrenchPhrase(NamedTuple):
    """French text with its agreement features: the grammatical person 0-5 of the verb, gender and number."""

    text: str
    person: int
    female: bool
    plural: bool


Translatable = tuple[str, Callable[[Interpretation], str]]  # English text, and its French translation


@dataclass(frozen=True)
class Phrase:
    """A noun phrase in both languages. The French article for 'a' or none depends on the verb (`sense`)."""

    english: str
    be: str  # am, are, is
    to_french: Callable[[Interpretation, str], FrenchPhrase]


@dataclass(frozen=True)
class Predicate:
    """An English verb with its auxiliary, and the French words before and after 'pas'."""

    aux: str  # be, was, do, did, can, must
    verb: str
    past: str
    rest: str
    finite: str
    after: Callable[[Interpretation, FrenchPhrase, bool], str]
    clitic: Callable[[Interpretation], str] = lambda reading: ""


class Noun(NamedTuple):
    """A row of the nouns of phrases.toml."""

    english: str
    french: str
    gender: str = ""


class Adjective(NamedTuple):
    """A row of the adjectives of phrases.toml."""

    english: str
    masculine: str
    feminine: str
    side: str
    noun_kinds: list[str]


class Verb(NamedTuple):
    """A row of the verbs of phrases.toml."""

    english: str
    past: str
    infinitive: str
    present: str
    participle: str
    complements: list[str]  # kinds of objects, or prepositions


def _parse_adjective(row: str) -> Adjective:
    english, masculine, feminine, side, *noun_kinds = row.split()
    return Adjective(english, masculine, feminine, side, noun_kinds)


def _parse_verb(row: str) -> Verb:
    """Parse a row; empty forms are those of regular -er verbs."""
    english, past, infinitive, present, participle, complements = row.split("|")
    stem = infinitive[:-2]
    soft = f"{stem}e" if stem.endswith("g") else stem  # nous mangeons
    present = present or f"{stem}e {stem}es {stem}e {soft}ons {stem}ez {stem}ent"
    return Verb(english, past, infinitive, present, participle or f"{stem}é", complements.split())


WORDS = tomllib.loads(files(__package__).joinpath("phrases.toml").read_text("utf-8"))
NOUNS = {kind: [Noun(*row.split()) for row in rows] for kind, rows in WORDS["nouns"].items()}
ADJECTIVES = [_parse_adjective(row) for row in WORDS["adjectives"]]
TRANSITIVE, GIVING, INTRANSITIVE = (
    [_parse_verb(row) for row in WORDS[kind]] for kind in ("transitive", "giving", "intransitive")
)
NUMBERS: dict[str, str] = WORDS["numbers"]
POSSESSIVES: dict[str, str] = WORDS["possessives"]


# --- words ------------------------------------------------------------------------------------------------------------


def inflect(word: str) -> str:
    """The third person of an English verb, or the plural of a noun; of several words the first changes."""
    first, space, rest = word.partition(" ")
    if first == "have":
        first = "has"
    elif re.search("[^aeiou]y$", first):
        first = f"{first[:-1]}ies"
    else:
        first += "es" if re.search("(s|sh|ch|x|o)$", first) else "s"
    return first + space + rest


def agree(word: str, plural: bool, female: bool = False) -> str:
    """A French noun, adjective or participle with -e for the feminine, then in the plural."""
    word += "e" if female else ""
    if not plural or word[-1] in "sxz":
        return word
    return f"{word[:-1]}ux" if word.endswith("al") else f"{word}x" if word.endswith("eau") else f"{word}s"


def capitalize_first(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[0].upper() + text[1:]


def apply_elision(text: str) -> str:
    """French spelling: l'arbre for le arbre, mon amie for ma amie, cet homme for ce homme, du for de le."""
    text = " ".join(text.split())
    text = re.sub(rf"\b(j|n|l|d|m|t|qu)(?:e|(?<=l)a) (?={VOWEL})", r"\1'", text)
    text = re.sub(rf"\b([mts])a (?={VOWEL})", r"\1on ", text)
    text = re.sub(rf"\bce (?={VOWEL})", "cet ", text)
    for words, contraction in {"de le": "du", "de les": "des", "à le": "au", "à les": "aux"}.items():
        text = re.sub(rf"\b{words} ", f"{contraction} ", text)
    return capitalize_first(text)


# --- noun phrases -----------------------------------------------------------------------------------------------------


def pronoun(word: str) -> Phrase:
    """I, you, he, she, it, we, they."""

    def to_french(reading: Interpretation, sense: str) -> FrenchPhrase:
        female = (reading.female or word == "she") and word != "he"
        informal = reading.you == "friend"
        forms = {
            "I": FrenchPhrase("je", 0, female, False),
            "we": FrenchPhrase("nous", 3, female, True),
            "you": FrenchPhrase("tu" if informal else "vous", 1 if informal else 4, female, reading.you == "many"),
            "they": FrenchPhrase("elles" if female else "ils", 5, female, True),
        }
        return forms.get(word, FrenchPhrase("elle" if female else "il", 2, female, False))

    return Phrase(word, {"I": "am"}.get(word, "are" if word in ("you", "we", "they") else "is"), to_french)


def object_pronoun(word: str) -> Phrase:
    """me, you, him, her, it, us, them: in French they precede the verb."""
    subject = {"me": "I", "him": "he", "her": "she", "us": "we", "them": "they"}.get(word, word)

    def to_french(reading: Interpretation, sense: str) -> FrenchPhrase:
        phrase = pronoun(subject).to_french(reading, sense)
        clitics = {"je": "me", "tu": "te", "il": "le", "elle": "la", "ils": "les", "elles": "les"}
        return phrase._replace(text=clitics.get(phrase.text, phrase.text))

    return Phrase(word, "", to_french)


def proper_name(row: str) -> Phrase:
    """A first name with its gender, m or f."""
    name, gender = row.split()
    return Phrase(name, "is", lambda reading, sense: FrenchPhrase(name, 2, gender == "f", False))


def noun_phrase(
    det: str, noun: Noun, plural: bool = False, adjective: Adjective | None = None, owner: Phrase | None = None
) -> Phrase:
    """A noun with its determiner: the, a, this, a number, many, no, my..., or none; or with its owner."""
    singular, _, irregular = noun.english.partition("/")
    form = (irregular or inflect(singular)) if plural else singular
    words = f"{adjective.english if adjective else ''} {form}".strip()
    determined = {"a": article(words), "this": f"{'these' if plural else 'this'} {words}"}
    english = determined.get(det, f"{det} {words}".strip())
    if owner:
        english = f"{owner.english}' {words}" if owner.english.endswith("s") else f"{owner.english}'s {words}"

    def to_french(reading: Interpretation, sense: str) -> FrenchPhrase:
        masculine, _, feminine = noun.french.partition("/")
        female = reading.female if feminine else noun.gender == "f"
        text = agree(feminine if feminine and female else masculine, plural)
        precedes = bool(adjective and adjective.side == "before")
        if adjective:
            regular, _, before_vowel = adjective.masculine.partition("/")
            use_vowel_form = before_vowel and precedes and not plural and re.match(VOWEL, text)
            attribute = agree(adjective.feminine if female else before_vowel if use_vowel_form else regular, plural)
            text = f"{attribute} {text}" if precedes else f"{text} {attribute}"
        text = f"{_determiner(det, 2 if plural else int(female), precedes, sense, reading)} {text}"
        text = f"{text} de {owner.to_french(reading, '').text}" if owner else text
        return FrenchPhrase(text, 5 if plural else 2, female, plural)

    return Phrase(english, "are" if plural else "is", to_french)


def _determiner(det: str, form: int, adjective_precedes: bool, sense: str, reading: Interpretation) -> str:
    """The French determiner; form 0, 1, 2: masculine, feminine, plural.

    sense 'not' turns 'pas un' and 'pas du' into 'pas de'; 'all' turns "j'aime des" into "j'aime les".
    """
    the = ("le", "la", "les")[form]
    your = "ton ta tes" if reading.you == "friend" else "votre votre vos"
    forms = {"the": "le la les", "this": "ce cette ces", "your": your, **POSSESSIVES}
    if det in forms:
        return forms[det].split()[form]
    if det == "many" or det in NUMBERS:
        return NUMBERS.get(det, "beaucoup de")
    if det == "no" or sense == "not":
        return "de"
    if det == "a":
        return ("un", "une")[form]
    if sense == "all":
        return the
    return "de" if form == 2 and adjective_precedes else f"de {the}"


# --- sentences --------------------------------------------------------------------------------------------------------


def action(
    verb: Verb,
    tense: str,
    direct_object: Phrase | None = None,
    clitic_object: Phrase | None = None,
    *adjuncts: Translatable,
) -> Predicate:
    """A predicate in the present, the past, or with a modal (a row of the modals)."""
    objects = [phrase.english for phrase in (clitic_object, direct_object) if phrase]
    english = " ".join([*objects, *(text for text, _ in adjuncts)])

    def clitic(reading: Interpretation) -> str:
        return clitic_object.to_french(reading, "").text if clitic_object else ""

    def complements(reading: Interpretation, subject: FrenchPhrase, negated: bool) -> str:
        sense = "all" if verb.infinitive == "aimer" else "not" if negated else ""
        text = direct_object.to_french(reading, sense).text if direct_object else ""
        return " ".join([text, *(to_french(reading) for _, to_french in adjuncts)])

    def participle(reading: Interpretation, subject: FrenchPhrase, negated: bool) -> str:
        controller = clitic_object.to_french(reading, "") if clitic_object else None
        controller = subject if verb.infinitive in WORDS["etre_verbs"] else controller
        form = agree(verb.participle, controller.plural, controller.female) if controller else verb.participle
        return f"{form} {complements(reading, subject, negated)}"

    if tense == "present":
        return Predicate("do", verb.english, "", english, verb.present, complements, clitic)
    if tense == "past":
        finite = WORDS["etre" if verb.infinitive in WORDS["etre_verbs"] else "avoir"]["be"]
        return Predicate("did", verb.english, verb.past, english, finite, participle, clitic)
    aux, link, finite = tense.split("|")

    def infinitive(reading: Interpretation, subject: FrenchPhrase, negated: bool) -> str:
        return f"{clitic(reading)} {verb.infinitive} {complements(reading, subject, negated)}"

    return Predicate(aux, f"{link} {verb.english}".strip(), "", english, finite, infinitive)


def has_quality(adjective: Adjective, tense: str) -> Predicate:
    """'is' or 'was' with an adjective."""

    def after(reading: Interpretation, subject: FrenchPhrase, negated: bool) -> str:
        return agree(adjective.feminine if subject.female else adjective.masculine.split("/")[0], subject.plural)

    return Predicate(tense, "", "", adjective.english, WORDS["etre"][tense], after)


def has_job(job: Noun, tense: str, *, plural: bool) -> Predicate:
    """'is' or 'was' with a profession, which has no article in French."""

    def after(reading: Interpretation, subject: FrenchPhrase, negated: bool) -> str:
        return agree(job.french.split("/")[-1 if subject.female else 0], plural)

    english = inflect(job.english) if plural else article(job.english)
    return Predicate(tense, "", "", english, WORDS["etre"][tense], after)


def has_state(english: str, french: str, verb: str, tense: str) -> Predicate:
    """An invariable state with the verb etre, such as en retard, or avoir, such as faim."""
    return Predicate(tense, "", "", english, WORDS[verb][tense], lambda reading, subject, negated: french)


def to_english(subject: Phrase, predicate: Predicate, mood: str) -> str:
    """The English sentence without punctuation; mood: 'not', '?' or ''."""
    auxiliaries = {
        "be": subject.be,
        "was": "were" if subject.be == "are" else "was",
        "do": "does" if subject.be == "is" else "do",
    }
    aux = auxiliaries.get(predicate.aux, predicate.aux)
    if mood == "?":
        text = f"{aux} {subject.english} {predicate.verb}"
    elif mood == "not":
        text = f"{subject.english} {'cannot' if aux == 'can' else f'{aux} not'} {predicate.verb}"
    elif predicate.aux in ("do", "did"):
        text = f"{subject.english} {predicate.past or (inflect(predicate.verb) if aux == 'does' else predicate.verb)}"
    else:
        text = f"{subject.english} {aux} {predicate.verb}"
    return " ".join(f"{text} {predicate.rest}".split())


def to_french(subject: Phrase, predicate: Predicate, negated: bool, reading: Interpretation) -> str:
    """The French sentence without punctuation."""
    phrase = subject.to_french(reading, "")
    verb = f"{predicate.clitic(reading)} {predicate.finite.split()[phrase.person]}"
    verb = f"ne {verb} pas" if negated else verb
    return f"{phrase.text} {verb} {predicate.after(reading, phrase, negated)}".strip()


def sentence(subject: Phrase, predicate: Predicate, mood: str = "", question_word: str = ":") -> Translatable:
    """A statement, its negation ('not') or a question ('?'), with an optional question word: 'why:pourquoi'."""
    english = to_english(subject, predicate, mood)
    if mood != "?":
        return f"{english}.", lambda reading: f"{to_french(subject, predicate, mood == 'not', reading)}."
    word, mot = question_word.split(":")
    question = f"{word} {english}?".strip()
    return question, lambda reading: f"{mot} est-ce que {to_french(subject, predicate, False, reading)} ?"
