"""French nouns, adjectives and pronouns beside the English ones: gender, number, elision and contraction.

English leaves open who "you" is and whether "I" or "the student" is a woman; French does not. So what is said in
English is heard in French once for each Reading.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .tales import article

# English (irregular plural behind a slash), French, gender; where a woman is called otherwise, both words
NOUNS = {
    "food": """apple pomme f|orange orange f|egg œuf m|cake gâteau m|sandwich sandwich m|tomato tomate f|pear poire f
carrot carotte f|strawberry fraise f|onion oignon m|banana banane f""",
    "dish": "bread pain m|cheese fromage m|soup soupe f|meat viande f|rice riz m|fish poisson m|salad salade f",
    "drink": "water eau f|milk lait m|coffee café m|tea thé m|wine vin m|beer bière f|juice jus m|lemonade limonade f",
    "text": "book livre m|letter lettre f|newspaper journal m|story histoire f|poem poème m|novel roman m",
    "thing": """car voiture f|bicycle vélo m|table table f|chair chaise f|key clé f|watch montre f|bag sac m
lamp lampe f|clock horloge f|umbrella parapluie m|guitar guitare f|boat bateau m|computer ordinateur m
knife/knives couteau m|pencil crayon m|cup tasse f|bottle bouteille f|box boîte f|plate assiette f|phone téléphone m
mirror miroir m""",
    "clothes": """hat chapeau m|coat manteau m|dress robe f|shirt chemise f|skirt jupe f|scarf/scarves écharpe f
jacket veste f|shoe chaussure f|glove gant m""",
    "animal": """dog chien m|cat chat m|horse cheval m|bird oiseau m|mouse/mice souris f|rabbit lapin m|cow vache f
duck canard m|goat chèvre f|bear ours m|donkey âne m""",
    "door": "door porte f|window fenêtre f|drawer tiroir m|cupboard placard m",
    "place": """market marché m|school école f|station gare f|beach plage f|hospital hôpital m|museum musée m
church église f|hotel hôtel m|park parc m|library bibliothèque f|village village m|restaurant restaurant m|bank banque f
garden jardin m|kitchen cuisine f|forest forêt f|shop magasin m|house maison f|castle château m""",
    "person": """boy garçon m|girl fille f|man/men homme m|woman/women femme f|child/children enfant m
neighbour voisin/voisine""",
    "kin": """father père m|mother mère f|brother frère m|sister sœur f|uncle oncle m|aunt tante f|cousin cousin/cousine
son fils m|daughter fille f|friend ami/amie""",
    "job": """student étudiant/étudiante|baker boulanger/boulangère|nurse infirmier/infirmière|singer chanteur/chanteuse
dancer danseur/danseuse|farmer agriculteur/agricultrice|lawyer avocat/avocate|cook cuisinier/cuisinière
musician musicien/musicienne|engineer ingénieur/ingénieure|teacher professeur/professeure|doctor médecin m
journalist journaliste/journaliste|writer écrivain/écrivaine""",
}
MASS = ("dish", "drink")  # not counted: du pain, de la soupe
NAMES = "Paul m|Marie f|Anna f|Hector m|Emma f|Claire f|Alice f|Martin m|Olivier m|Sophie f"
# English, masculine (before a vowel, behind a slash), feminine, side of the noun; what it is said of
ADJECTIVES = """big grand grande before:thing clothes animal door place
small petit petite before:thing clothes animal door place food
beautiful beau/bel belle before:thing clothes animal place
new nouveau/nouvel nouvelle before:thing clothes text door job
old vieux/vieil vieille before:thing clothes animal text door place person
pretty joli jolie before:clothes place
young jeune jeune before:animal person job
good bon bonne before:dish drink text food job
bad mauvais mauvaise before:dish drink text
long long longue before:text
red rouge rouge after:thing clothes door food
green vert verte after:thing clothes door food
blue bleu bleue after:thing clothes door
yellow jaune jaune after:thing clothes
white blanc blanche after:thing clothes door animal place
black noir noire after:thing clothes animal
grey gris grise after:thing clothes animal door
heavy lourd lourde after:thing
expensive cher chère after:thing clothes
clean propre propre after:thing clothes door
dirty sale sale after:thing clothes door
strange étrange étrange after:text animal place
interesting intéressant intéressante after:text
hot chaud chaude after:dish drink
cold froid froide after:dish drink
fresh frais fraîche after:dish
rich riche riche after:person
poor pauvre pauvre after:person
happy heureux heureuse after:person
sad triste triste after:person
tired fatigué fatiguée after:person
sick malade malade after:person
kind gentil gentille after:person
intelligent intelligent intelligente after:person
famous célèbre célèbre after:person job
French français française after:person job
Spanish espagnol espagnole after:person job
busy occupé occupée after:person"""
NUMBERS = """two deux|three trois|four quatre|five cinq|six six|seven sept|eight huit|nine neuf|ten dix|eleven onze
twelve douze"""
OWN = {
    "my": "mon ma mes",
    "his": "son sa ses",
    "her": "son sa ses",
    "our": "notre notre nos",
    "their": "leur leur leurs",
}
VOWEL = "[aeiouyhâàéèêîôœAEIOH]"  # every h of these words is mute


class Reading(NamedTuple):
    """What English leaves open: you are a friend, a stranger or many; who is not said to be a man may be a woman."""

    you: str
    female: bool


class Heard(NamedTuple):
    """French words for someone or something, and what agrees with them: the verb by person 0-5, the adjective."""

    text: str
    person: int
    female: bool
    plural: bool


@dataclass(frozen=True)
class Phrase:
    """Someone or something in both languages. What 'a' or no article is in French depends on the verb (`sense`)."""

    english: str
    be: str  # am, are, is
    hear: Callable[[Reading, str], Heard]


class Noun(NamedTuple):
    """A row of NOUNS."""

    english: str
    french: str
    gender: str
    kind: str


class Adjective(NamedTuple):
    """A row of ADJECTIVES."""

    english: str
    masculine: str
    feminine: str
    side: str
    of: tuple[str, ...]


def rows(table: str) -> list[str]:
    """What stands between the bars and line ends of a table."""
    return re.split(r"[|\n]", table)


def _described(row: str) -> Adjective:
    words, of = row.split(":")
    english, masculine, feminine, side = words.split()
    return Adjective(english, masculine, feminine, side, tuple(of.split()))


def _called(row: str, kind: str) -> Noun:
    english, french, *gender = row.split()
    return Noun(english, french, "".join(gender), kind)


NOUN = {kind: [_called(row, kind) for row in rows(table)] for kind, table in NOUNS.items()}
ADJECTIVE = [_described(row) for row in ADJECTIVES.split("\n")]
NUMBER = dict(row.split() for row in rows(NUMBERS))


def inflected(word: str) -> str:
    """An English verb of the third person, or a plural; of several words the first changes."""
    first, space, rest = word.partition(" ")
    if first == "have":
        first = "has"
    elif re.search("[^aeiou]y$", first):
        first = f"{first[:-1]}ies"
    else:
        first += "es" if re.search("(s|sh|ch|x|o)$", first) else "s"
    return first + space + rest


def agreed(word: str, plural: bool, female: bool = False) -> str:
    """A French noun, adjective or participle: -e for the feminine, then the plural."""
    word += "e" if female else ""
    if not plural or word[-1] in "sxz":
        return word
    return f"{word[:-1]}ux" if word.endswith("al") else f"{word}x" if word.endswith("eau") else f"{word}s"


def capital(text: str) -> str:
    """The text as a sentence begins."""
    return text[0].upper() + text[1:]


def spelled(text: str) -> str:
    """French as it is written: l'arbre for le arbre, mon amie for ma amie, cet homme for ce homme, du for de le."""
    text = " ".join(text.split())
    text = re.sub(rf"\b(j|n|l|d|m|t|qu)(?:e|(?<=l)a) (?={VOWEL})", r"\1'", text)
    text = re.sub(rf"\b([mts])a (?={VOWEL})", r"\1on ", text)
    text = re.sub(rf"\bce (?={VOWEL})", "cet ", text)
    for apart, together in {"de le": "du", "de les": "des", "à le": "au", "à les": "aux"}.items():
        text = re.sub(rf"\b{apart} ", f"{together} ", text)
    return capital(text)


def pronoun(word: str) -> Phrase:
    """I, you, he, she, it, we, they."""

    def hear(r: Reading, sense: str) -> Heard:
        she, many = (r.female or word == "she") and word != "he", r.you == "many"
        you = Heard("tu", 1, she, False) if r.you == "friend" else Heard("vous", 4, she, many)
        third = Heard("elle" if she else "il", 2, she, False)
        they = Heard("elles" if she else "ils", 5, she, True)
        others = {"I": Heard("je", 0, she, False), "we": Heard("nous", 3, she, True), "you": you, "they": they}
        return others.get(word, third)

    return Phrase(word, {"I": "am"}.get(word, "are" if word in ("you", "we", "they") else "is"), hear)


def object_pronoun(word: str) -> Phrase:
    """me, you, him, her, it, us, them: in French they stand before the verb."""
    subject = {"me": "I", "him": "he", "her": "she", "us": "we", "them": "they"}.get(word, word)

    def hear(r: Reading, sense: str) -> Heard:
        heard = pronoun(subject).hear(r, sense)
        weak = {"je": "me", "tu": "te", "il": "le", "elle": "la", "ils": "les", "elles": "les"}
        return heard._replace(text=weak.get(heard.text, heard.text))

    return Phrase(word, "", hear)


def named(row: str) -> Phrase:
    """Who is called so: a row of NAMES."""
    name, gender = row.split()
    return Phrase(name, "is", lambda r, sense: Heard(name, 2, gender == "f", False))


def thing(
    det: str, noun: Noun, plural: bool = False, adjective: Adjective | None = None, owner: Phrase | None = None
) -> Phrase:
    """A noun with its determiner: the, a, this, a number, many, no, my..., or none; or with its owner."""
    one, _, several = noun.english.partition("/")
    words = f"{adjective.english if adjective else ''} {(several or inflected(one)) if plural else one}".strip()
    told = {"a": article(words), "this": f"{'these' if plural else 'this'} {words}"}.get(det, f"{det} {words}".strip())
    if owner:
        told = f"{owner.english}' {words}" if owner.english.endswith("s") else f"{owner.english}'s {words}"

    def hear(r: Reading, sense: str) -> Heard:
        male, _, female = noun.french.partition("/")
        she = r.female if female else noun.gender == "f"
        text = agreed(female if female and she else male, plural)
        before = bool(adjective and adjective.side == "before")
        if adjective:
            plain, _, bound = adjective.masculine.partition("/")
            short = bound if bound and before and not plural and re.match(VOWEL, text) else plain
            said = agreed(adjective.feminine if she else short, plural)
            text = f"{said} {text}" if before else f"{text} {said}"
        text = f"{_determiner(det, 2 if plural else int(she), before, sense, r)} {text}"
        return Heard(f"{text} de {owner.hear(r, '').text}" if owner else text, 5 if plural else 2, she, plural)

    return Phrase(told, "are" if plural else "is", hear)


def _determiner(det: str, form: int, before: bool, sense: str, r: Reading) -> str:
    """The French word for it; form 0, 1, 2: masculine, feminine, plural.

    sense 'not' makes 'pas de' of 'pas un' and 'pas du'; 'all' makes "j'aime les" of "j'aime des".
    """
    the = ("le", "la", "les")[form]
    if det == "your":
        return ("ton ta tes" if r.you == "friend" else "votre votre vos").split()[form]
    if det in OWN:
        return OWN[det].split()[form]
    if det in ("the", "this"):
        return the if det == "the" else ("ce", "cette", "ces")[form]
    if det == "many":
        return "beaucoup de"
    if det in NUMBER:
        return NUMBER[det]
    if det == "no" or sense == "not":
        return "de"
    if det == "a":
        return ("un", "une")[form]
    if sense == "all":
        return the
    return "de" if form == 2 and before else f"de {the}"
