"""Sentences in both languages: verbs with person and tense, negation, questions, and the position of pronouns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .french import Adjective, FrenchPhrase, Interpretation, Noun, Phrase, agree, inflect
from .tales import article

Translatable = tuple[str, Callable[[Interpretation], str]]  # English text, and its French translation
# base, past (empty: a state), infinitive, present and participle (empty: regular -er), kinds of its objects
TRANSITIVE_ROWS = """eat|ate|manger|||food dish
drink|drank|boire|bois bois boit buvons buvez boivent|bu|drink
read|read|lire|lis lis lit lisons lisez lisent|lu|text
write|wrote|écrire|écris écris écrit écrivons écrivez écrivent|écrit|text
see|saw|voir|vois vois voit voyons voyez voient|vu|thing animal clothes door person kin
take|took|prendre|prends prends prend prenons prenez prennent|pris|thing food clothes text
buy|bought|acheter|achète achètes achète achetons achetez achètent|acheté|thing food dish drink clothes text animal
sell|sold|vendre|vends vends vend vendons vendez vendent|vendu|thing food dish clothes animal
wash|washed|laver|||clothes thing animal
look for|looked for|chercher|||thing animal clothes text kin
find|found|trouver|||thing clothes text animal
lose|lost|perdre|perds perds perd perdons perdez perdent|perdu|thing clothes text
open|opened|ouvrir|ouvre ouvres ouvre ouvrons ouvrez ouvrent|ouvert|door
close|closed|fermer|||door
wear|wore|porter|||clothes
draw|drew|dessiner|||animal thing
visit|visited|visiter|||place
hear|heard|entendre|entends entends entend entendons entendez entendent|entendu|animal person kin
help|helped|aider|||person kin job
have||avoir|ai as a avons avez ont||thing animal clothes food text
want||vouloir|veux veux veut voulons voulez veulent||thing food dish drink clothes animal
like||aimer|||thing animal food dish drink clothes text place
love||aimer|||kin animal food dish drink"""
GIVING_ROWS = "give|gave|donner|||\nshow|showed|montrer|||\nlend|lent|prêter|||\nbring|brought|apporter|||"
# as above, with prepositions instead of objects
INTRANSITIVE_ROWS = """go|went|aller|vais vas va allons allez vont|allé|to
come|came|venir|viens viens vient venons venez viennent|venu|from
return|returned|retourner|||to
stay|stayed|rester|||in near
work|worked|travailler|||in near
sing|sang|chanter|||in near
dance|danced|danser|||in near
play|played|jouer|||in near behind
walk|walked|marcher|||in near
swim|swam|nager|||near
run|ran|courir|cours cours court courons courez courent|couru|in near
wait|waited|attendre|attends attends attend attendons attendez attendent|attendu|in near behind
sleep|slept|dormir|dors dors dort dormons dormez dorment|dormi|in near"""
ETRE_VERBS = ("aller", "venir", "retourner", "rester")  # past with être; the participle agrees with the subject
# English auxiliary, linking words, French present; an infinitive follows
MODALS = """can||peux peux peut pouvons pouvez peuvent
must||dois dois doit devons devez doivent
be|going to|vais vas va allons allez vont
do|want to|veux veux veut voulons voulez veulent"""
ETRE_FORMS = {"be": "suis es est sommes êtes sont", "was": "étais étais était étions étiez étaient"}
AVOIR_FORMS = {"be": "ai as a avons avez ont", "was": "avais avais avait avions aviez avaient"}


class Verb(NamedTuple):
    """A parsed row of the tables above."""

    english: str
    past: str
    infinitive: str
    present: str
    participle: str
    complements: tuple[str, ...]  # kinds of objects, or prepositions


@dataclass(frozen=True)
class Predicate:
    """An English verb with its auxiliary, and the French words before and after 'pas'."""

    aux: str  # be, was, do, did, can, must
    verb: str
    past: str
    rest: str
    finite: str
    clitic: Callable[[Interpretation], str]
    after: Callable[[Interpretation, FrenchPhrase, bool], str]


def _parse_verb(row: str) -> Verb:
    """Parse a row; empty forms are those of regular -er verbs."""
    english, past, infinitive, present, participle, complements = row.split("|")
    stem = infinitive[:-2]
    soft = f"{stem}e" if stem.endswith("g") else stem  # nous mangeons
    present = present or f"{stem}e {stem}es {stem}e {soft}ons {stem}ez {stem}ent"
    return Verb(english, past, infinitive, present, participle or f"{stem}é", tuple(complements.split()))


TRANSITIVE, GIVING, INTRANSITIVE = (
    [_parse_verb(row) for row in table.split("\n")] for table in (TRANSITIVE_ROWS, GIVING_ROWS, INTRANSITIVE_ROWS)
)


def action(
    verb: Verb,
    tense: str,
    direct_object: Phrase | None = None,
    clitic_object: Phrase | None = None,
    *adjuncts: Translatable,
) -> Predicate:
    """A predicate in the present, the past, or with a modal (a row of MODALS)."""
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
        controller = subject if verb.infinitive in ETRE_VERBS else controller
        form = agree(verb.participle, controller.plural, controller.female) if controller else verb.participle
        return f"{form} {complements(reading, subject, negated)}"

    if tense == "present":
        return Predicate("do", verb.english, "", english, verb.present, clitic, complements)
    if tense == "past":
        finite = (ETRE_FORMS if verb.infinitive in ETRE_VERBS else AVOIR_FORMS)["be"]
        return Predicate("did", verb.english, verb.past, english, finite, clitic, participle)
    aux, link, finite = tense.split("|")

    def infinitive(reading: Interpretation, subject: FrenchPhrase, negated: bool) -> str:
        return f"{clitic(reading)} {verb.infinitive} {complements(reading, subject, negated)}"

    return Predicate(aux, f"{link} {verb.english}".strip(), "", english, finite, no_clitic, infinitive)


def no_clitic(reading: Interpretation) -> str:
    return ""


def has_quality(adjective: Adjective, tense: str) -> Predicate:
    """'is' or 'was' with an adjective."""

    def after(reading: Interpretation, subject: FrenchPhrase, negated: bool) -> str:
        return agree(adjective.feminine if subject.female else adjective.masculine.split("/")[0], subject.plural)

    return Predicate(tense, "", "", adjective.english, ETRE_FORMS[tense], no_clitic, after)


def has_job(job: Noun, tense: str, *, plural: bool) -> Predicate:
    """'is' or 'was' with a profession, which has no article in French."""

    def after(reading: Interpretation, subject: FrenchPhrase, negated: bool) -> str:
        return agree(job.french.split("/")[-1 if subject.female else 0], plural)

    english = inflect(job.english) if plural else article(job.english)
    return Predicate(tense, "", "", english, ETRE_FORMS[tense], no_clitic, after)


def has_state(english: str, french: str, finite: dict[str, str], tense: str) -> Predicate:
    """An invariable state: en retard; or, with the forms of avoir, faim."""
    return Predicate(tense, "", "", english, finite[tense], no_clitic, lambda reading, subject, negated: french)


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
    return (
        f"{word} {english}?".strip(),
        lambda reading: f"{mot} est-ce que {to_french(subject, predicate, False, reading)} ?",
    )
