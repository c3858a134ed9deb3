"""French nouns, adjectives and pronouns with their English counterparts: gender, number, elision and contraction.

English does not distinguish who "you" is and whether "I" or "the student" is a woman; French does. So an English
phrase has one French translation per Interpretation.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .tales import article

# English (/ irregular plural), French (masculine/feminine), gender unless there are both forms
NOUN_ROWS = {
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
MASS_KINDS = ("dish", "drink")  # uncountable: du pain, de la soupe
NAME_ROWS = "Paul m|Marie f|Anna f|Hector m|Emma f|Claire f|Alice f|Martin m|Olivier m|Sophie f"
# English, masculine (/ form before a vowel), feminine, side of the noun: kinds of nouns
ADJECTIVE_ROWS = """big grand grande before:thing clothes animal door place
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
NUMBER_ROWS = """two deux|three trois|four quatre|five cinq|six six|seven sept|eight huit|nine neuf|ten dix|eleven onze
twelve douze"""
POSSESSIVES = {
    "my": "mon ma mes",
    "his": "son sa ses",
    "her": "son sa ses",
    "our": "notre notre nos",
    "their": "leur leur leurs",
}
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


@dataclass(frozen=True)
class Phrase:
    """A noun phrase in both languages. The French article for 'a' or none depends on the verb (`sense`)."""

    english: str
    be: str  # am, are, is
    to_french: Callable[[Interpretation, str], FrenchPhrase]


class Noun(NamedTuple):
    """A row of NOUN_ROWS."""

    english: str
    french: str
    gender: str
    kind: str


class Adjective(NamedTuple):
    """A row of ADJECTIVE_ROWS."""

    english: str
    masculine: str
    feminine: str
    side: str
    noun_kinds: tuple[str, ...]


def split_rows(table: str) -> list[str]:
    """The rows of a table, separated by bars and line breaks."""
    return re.split(r"[|\n]", table)


def _parse_adjective(row: str) -> Adjective:
    forms, kinds = row.split(":")
    english, masculine, feminine, side = forms.split()
    return Adjective(english, masculine, feminine, side, tuple(kinds.split()))


def _parse_noun(row: str, kind: str) -> Noun:
    english, french, *gender = row.split()
    return Noun(english, french, "".join(gender), kind)


NOUNS = {kind: [_parse_noun(row, kind) for row in split_rows(table)] for kind, table in NOUN_ROWS.items()}
ADJECTIVES = [_parse_adjective(row) for row in ADJECTIVE_ROWS.split("\n")]
NUMBERS = dict(row.split() for row in split_rows(NUMBER_ROWS))


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
    """A row of NAME_ROWS."""
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
    if det == "your":
        return ("ton ta tes" if reading.you == "friend" else "votre votre vos").split()[form]
    if det in POSSESSIVES:
        return POSSESSIVES[det].split()[form]
    if det in ("the", "this"):
        return the if det == "the" else ("ce", "cette", "ces")[form]
    if det == "many":
        return "beaucoup de"
    if det in NUMBERS:
        return NUMBERS[det]
    if det == "no" or sense == "not":
        return "de"
    if det == "a":
        return ("un", "une")[form]
    if sense == "all":
        return the
    return "de" if form == 2 and adjective_precedes else f"de {the}"
