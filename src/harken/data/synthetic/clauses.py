"""Whole sentences in both languages: verbs, their persons and tenses, negation, questions, and where pronouns stand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .french import Adjective, Heard, Noun, Phrase, Reading, agreed, inflected
from .tales import article

Made = tuple[str, Callable[[Reading], str]]  # English, and what it is in French
# base, past (none: a state), infinitive, present and participle (none: as -er verbs do), what it is done to
VERBS = """eat|ate|manger|||food dish
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
GIVING = "give|gave|donner|||\nshow|showed|montrer|||\nlend|lent|prêter|||\nbring|brought|apporter|||"
# the prepositions that go with them stand last
MOVING = """go|went|aller|vais vas va allons allez vont|allé|to
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
ETRE = ("aller", "venir", "retourner", "rester")  # their past is made with être, and agrees with who did it
# the auxiliary, what follows it, the French present; an infinitive stands behind them
MODALS = """can||peux peux peut pouvons pouvez peuvent
must||dois dois doit devons devez doivent
be|going to|vais vas va allons allez vont
do|want to|veux veux veut voulons voulez veulent"""
BE = {"be": "suis es est sommes êtes sont", "was": "étais étais était étions étiez étaient"}
HAVE = {"be": "ai as a avons avez ont", "was": "avais avais avait avions aviez avaient"}


class Verb(NamedTuple):
    """A row of VERBS, GIVING or MOVING, made whole."""

    english: str
    past: str
    infinitive: str
    present: str
    participle: str
    goes_with: tuple[str, ...]


@dataclass(frozen=True)
class Predicate:
    """What is said of someone: an English verb with its auxiliary, and the French words before and after 'pas'."""

    aux: str  # be, was, do, did, can, must
    verb: str
    past: str
    rest: str
    finite: str
    clitic: Callable[[Reading], str]
    after: Callable[[Reading, Heard, bool], str]


def _whole(row: str) -> Verb:
    """The verb of a row; what the row leaves out is as -er verbs have it."""
    english, past, infinitive, present, participle, goes_with = row.split("|")
    stem = infinitive[:-2]
    soft = f"{stem}e" if stem.endswith("g") else stem  # nous mangeons
    present = present or f"{stem}e {stem}es {stem}e {soft}ons {stem}ez {stem}ent"
    return Verb(english, past, infinitive, present, participle or f"{stem}é", tuple(goes_with.split()))


VERB, GIVE, MOVE = ([_whole(row) for row in table.split("\n")] for table in (VERBS, GIVING, MOVING))


def does(verb: Verb, how: str, what: Phrase | None = None, weak: Phrase | None = None, *more: Made) -> Predicate:
    """Someone does something now (present), has done it (past), or can, must, wants to (a row of MODALS)."""
    english = " ".join([*(phrase.english for phrase in (weak, what) if phrase), *(made[0] for made in more)])

    def clitic(r: Reading) -> str:
        return weak.hear(r, "").text if weak else ""

    def rest(r: Reading, who: Heard, negated: bool) -> str:
        sense = "all" if verb.infinitive == "aimer" else "not" if negated else ""
        return " ".join([what.hear(r, sense).text if what else "", *(made[1](r) for made in more)])

    def done(r: Reading, who: Heard, negated: bool) -> str:
        by = who if verb.infinitive in ETRE else weak.hear(r, "") if weak else None  # what the participle agrees with
        return f"{agreed(verb.participle, by.plural, by.female) if by else verb.participle} {rest(r, who, negated)}"

    if how == "present":
        return Predicate("do", verb.english, "", english, verb.present, clitic, rest)
    if how == "past":
        finite = BE["be"] if verb.infinitive in ETRE else HAVE["be"]
        return Predicate("did", verb.english, verb.past, english, finite, clitic, done)
    aux, link, finite = how.split("|")

    def after(r: Reading, who: Heard, negated: bool) -> str:
        return f"{clitic(r)} {verb.infinitive} {rest(r, who, negated)}"

    return Predicate(aux, f"{link} {verb.english}".strip(), "", english, finite, nothing, after)


def nothing(r: Reading) -> str:
    """No pronoun before the verb."""
    return ""


def is_like(adjective: Adjective, tense: str) -> Predicate:
    """Someone or something is (be) or was so."""

    def after(r: Reading, who: Heard, negated: bool) -> str:
        return agreed(adjective.feminine if who.female else adjective.masculine.split("/")[0], who.plural)

    return Predicate(tense, "", "", adjective.english, BE[tense], nothing, after)


def is_a(job: Noun, tense: str, *, plural: bool) -> Predicate:
    """Someone is or was a student, say: without an article in French."""

    def after(r: Reading, who: Heard, negated: bool) -> str:
        return agreed(job.french.split("/")[-1 if who.female else 0], plural)

    english = inflected(job.english) if plural else article(job.english)
    return Predicate(tense, "", "", english, BE[tense], nothing, after)


def is_still(english: str, french: str, finite: dict[str, str], tense: str) -> Predicate:
    """What agrees with nobody: en retard; or, with the forms of avoir, faim."""
    return Predicate(tense, "", "", english, finite[tense], nothing, lambda r, who, negated: french)


def in_english(who: Phrase, it: Predicate, mood: str) -> str:
    """The English sentence without its mark; mood: 'not', '?' or none."""
    are = who.be == "are"
    aux = {"be": who.be, "was": "were" if are else "was", "do": "does" if who.be == "is" else "do"}.get(it.aux, it.aux)
    if mood == "?":
        said = f"{aux} {who.english} {it.verb}"
    elif mood == "not":
        said = f"{who.english} {'cannot' if aux == 'can' else f'{aux} not'} {it.verb}"
    elif it.aux in ("do", "did"):
        said = f"{who.english} {it.past or (inflected(it.verb) if aux == 'does' else it.verb)}"
    else:
        said = f"{who.english} {aux} {it.verb}"
    return " ".join(f"{said} {it.rest}".split())


def in_french(who: Phrase, it: Predicate, negated: bool, r: Reading) -> str:
    """The French sentence without its mark."""
    heard = who.hear(r, "")
    verb = f"{it.clitic(r)} {it.finite.split()[heard.person]}"
    return f"{heard.text} {f'ne {verb} pas' if negated else verb} {it.after(r, heard, negated)}".strip()


def said(who: Phrase, it: Predicate, mood: str = "", ask: str = ":") -> Made:
    """A statement, its negation ('not') or a question ('?'), perhaps behind a question word such as 'why:pourquoi'."""
    told = in_english(who, it, mood)
    if mood != "?":
        return f"{told}.", lambda r: f"{in_french(who, it, mood == 'not', r)}."
    word, mot = ask.split(":")
    return f"{word} {told}?".strip(), lambda r: f"{mot} est-ce que {in_french(who, it, False, r)} ?"
