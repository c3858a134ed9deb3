"""The phrases: enough of them, short, the same each time, and French that agrees, elides and contracts."""

import re
from collections import defaultdict

import pytest

from harken.data.synthetic.clauses import BE, HAVE, MODALS, MOVE, VERB, does, said
from harken.data.synthetic.french import (
    ADJECTIVE,
    NOUN,
    NUMBER,
    agreed,
    inflected,
    object_pronoun,
    pronoun,
    spelled,
    thing,
)
from harken.data.synthetic.phrases import READINGS, phrases

MANY = list(phrases(34_000, seed=1))
FRENCH = " ".join(french for _, french in MANY)
WORDS = re.findall(r"[\w-]+'?", FRENCH.lower())
VERBS = {verb.english: verb for verb in (*VERB, *MOVE)}
NOUNS = {noun.english.split("/")[0]: noun for kind in NOUN.values() for noun in kind}
ADJECTIVES = {adjective.english: adjective for adjective in ADJECTIVE}


def translations(made) -> list[str]:
    """All French sentences that a made one stands for."""
    return list(dict.fromkeys(spelled(made[1](reading)) for reading in READINGS))


def heard(*noun, sense: str = "", **more) -> str:
    """A noun with its determiner in French, its first reading."""
    det, word, *plural = noun
    return spelled(thing(det, NOUNS[word], *plural, **more).hear(READINGS[0], sense).text)


# --- the set ----------------------------------------------------------------------------------------------------------


def test_the_same_seed_makes_the_same_pairs_and_another_seed_others() -> None:
    assert list(phrases(200, seed=7)) == list(phrases(200, seed=7))
    assert len(set(phrases(200, seed=7)) & set(phrases(200, seed=8))) < 40


def test_a_longer_set_begins_like_a_shorter_one() -> None:
    assert list(phrases(300))[:101] == list(phrases(101))


def test_no_pair_comes_twice_and_there_are_more_than_20000_english_sentences_of_up_to_8_words() -> None:
    assert len(set(MANY)) == len(MANY) == 34_000
    short = {english for english, _ in MANY if len(english.split()) <= 8}
    assert short == {english for english, _ in MANY}
    assert len(short) > 20_000


def test_the_sentences_that_every_translator_is_asked_for_are_there() -> None:
    first = list(phrases(3))
    assert ("I am a student.", "Je suis étudiant.") in first
    assert ("I am a student.", "Je suis étudiante.") in first
    assert ("I have a red car.", "J'ai une voiture rouge.") in first


def test_all_translations_of_a_sentence_follow_each_other() -> None:
    runs = [english for i, (english, _) in enumerate(MANY) if i == 0 or MANY[i - 1][0] != english]
    assert len(runs) == len(set(runs))
    assert max(len(found) for found in grouped().values()) <= 6


def grouped() -> dict[str, list[str]]:
    found = defaultdict(list)
    for english, french in MANY:
        found[english].append(french)
    return found


def test_every_sentence_begins_with_a_capital_and_ends_with_its_mark() -> None:
    for english, french in MANY:
        assert re.fullmatch(r"[A-Z][A-Za-z' ]*[A-Za-z][.?]", english), english
        assert re.fullmatch(r"[A-ZÀÉÊ][\w' -]*\w( \?|\.)", french), french
        assert "  " not in english + french
        assert english[-1] == french[-1]


def test_english_has_a_before_consonants_and_an_before_vowels() -> None:
    english = " ".join(english for english, _ in MANY).lower()
    assert not re.findall(r"\ba [aeiou]\w+|\ban [^aeiou]\w+", english)


# --- spelling ---------------------------------------------------------------------------------------------------------


def test_nothing_that_elides_stands_before_a_vowel() -> None:
    assert not re.findall(r"\b(?:je|ne|le|la|de|que|me|te|ce|ma|ta|sa|beau|nouveau) [aeiouéèêâîôœ]\w*", FRENCH)
    assert not re.findall(r"\b[jnldmtc]' |qu' |'[^aeiouyhâàéèêîôœA-Z]", FRENCH)


def test_de_and_a_contract_with_le_and_les_only() -> None:
    assert not re.findall(r"\b(?:de|à) les?\b", FRENCH)
    assert not re.findall(r"\b(?:du|au) [aeiouéèêâîôœ]\w*", FRENCH)
    assert {"du", "des", "au", "aux", "l'", "d'", "j'", "n'", "qu'", "c'"} <= set(WORDS)


@pytest.mark.parametrize(
    ("apart", "written"),
    [
        ("je ai le ami de le homme", "J'ai l'ami de l'homme"),
        ("il ne y a pas de eau", "Il n'y a pas d'eau"),
        ("ma amie va à le marché", "Mon amie va au marché"),
        ("ce oiseau vient de les jardins", "Cet oiseau vient des jardins"),
        ("que est-ce que elle donne à les enfants ?", "Qu'est-ce qu'elle donne aux enfants ?"),
        ("elle me a aidé", "Elle m'a aidé"),
        ("il est beau aujourd'hui", "Il est beau aujourd'hui"),
    ],
)
def test_spelling_of_examples(apart: str, written: str) -> None:
    assert spelled(apart) == written


# --- nouns and adjectives ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "many"),
    [("voiture", "voitures"), ("cheval", "chevaux"), ("gâteau", "gâteaux"), ("souris", "souris"), ("bleu", "bleus"),
     ("heureux", "heureux"), ("beau", "beaux"), ("riz", "riz"), ("hôpital", "hôpitaux")],
)  # fmt: skip
def test_the_french_plural(one: str, many: str) -> None:
    assert agreed(one, False) == one
    assert agreed(one, True) == many


@pytest.mark.parametrize(
    ("word", "s"),
    [
        ("key", "keys"),
        ("story", "stories"),
        ("watch", "watches"),
        ("go", "goes"),
        ("look for", "looks for"),
        ("have", "has"),
    ],
)
def test_the_english_s(word: str, s: str) -> None:
    assert inflected(word) == s


@pytest.mark.parametrize(
    ("adjective", "noun", "french"),
    [
        ("red", "car", "Une voiture rouge"),
        ("big", "car", "Une grande voiture"),
        ("old", "man", "Un vieil homme"),
        ("old", "boy", "Un vieux garçon"),
        ("beautiful", "bird", "Un bel oiseau"),
        ("new", "computer", "Un nouvel ordinateur"),
        ("white", "dress", "Une robe blanche"),
        ("expensive", "watch", "Une montre chère"),
    ],
)
def test_an_adjective_agrees_and_stands_on_its_side(adjective: str, noun: str, french: str) -> None:
    assert heard("a", noun, adjective=ADJECTIVES[adjective]) == french


def test_articles_follow_gender_number_and_negation() -> None:
    assert heard("", "car", True) == "Des voitures"
    assert heard("", "car", True, adjective=ADJECTIVES["big"]) == "De grandes voitures"
    assert heard("", "car", True, adjective=ADJECTIVES["red"]) == "Des voitures rouges"
    assert heard("", "water") == "De l'eau"
    assert heard("", "bread") == "Du pain"
    assert heard("", "bread", sense="not") == "De pain"
    assert heard("", "apple", True, sense="all") == "Les pommes"
    assert heard("a", "egg", sense="not") == "D'œuf"
    assert heard("this", "man") == "Cet homme"
    assert heard("my", "scarf") == "Mon écharpe"
    assert heard("two", "horse", True) == "Deux chevaux"
    assert heard("many", "orange", True) == "Beaucoup d'oranges"
    boys = thing("the", NOUNS["boy"], True)
    assert boys.english == "the boys"
    assert thing("the", NOUNS["dog"], owner=boys).english == "the boys' dog"
    assert heard("the", "dog", owner=boys) == "Le chien des garçons"


def test_every_noun_has_a_gender_or_two_forms_and_every_adjective_a_noun() -> None:
    assert all((noun.gender in ("m", "f")) != ("/" in noun.french) for noun in NOUNS.values())
    assert all(set(adjective.of) <= set(NOUN) for adjective in ADJECTIVE)


def test_after_a_determiner_comes_a_noun_or_adjective_of_its_gender() -> None:
    feminine = {noun.french for noun in NOUNS.values() if noun.gender == "f"}
    masculine = {noun.french for noun in NOUNS.values() if noun.gender == "m"}
    assert not set(re.findall(r"\b(?:une|cette) (\w+)", FRENCH)) & masculine
    assert not set(re.findall(r"\b(?:un|cet?|du|au) (\w+)", FRENCH)) & feminine


# --- verbs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        ("eat", "mange manges mange mangeons mangez mangent"),
        ("like", "aime aimes aime aimons aimez aiment"),
        ("swim", "nage nages nage nageons nagez nagent"),
        ("go", "vais vas va allons allez vont"),
    ],
)
def test_the_present_of_verbs(verb: str, forms: str) -> None:
    assert VERBS[verb].present == forms


def test_every_paradigm_has_six_forms_that_end_as_french_verbs_do() -> None:
    for forms in (*(verb.present for verb in VERBS.values()), *(row.split("|")[2] for row in MODALS.split("\n"))):
        je, tu, il, nous, vous, ils = forms.split()
        assert je[-1] in "esxi", forms
        assert tu[-1] in "sx", forms
        assert il[-1] in "etda", forms
        assert nous.endswith("ons"), forms
        assert vous.endswith("ez"), forms
        assert ils.endswith(("ent", "ont")), forms
    assert all(len(forms.split()) == 6 for forms in (*BE.values(), *HAVE.values()))


def test_a_participle_agrees_with_the_pronoun_before_it_and_with_who_went() -> None:
    saw = does(VERBS["see"], "past", None, object_pronoun("her"))
    assert translations(said(pronoun("I"), saw, "not")) == ["Je ne l'ai pas vue."]
    took = does(VERBS["take"], "past", None, object_pronoun("them"))
    assert translations(said(pronoun("he"), took)) == ["Il les a pris.", "Il les a prises."]
    went = does(VERBS["go"], "past")
    assert translations(said(pronoun("we"), went)) == ["Nous sommes allés.", "Nous sommes allées."]
    assert translations(said(pronoun("she"), went, "?")) == ["Est-ce qu'elle est allée ?"]
    ate = does(VERBS["eat"], "past", thing("the", NOUNS["apple"]))
    assert translations(said(pronoun("she"), ate)) == ["Elle a mangé la pomme."]


def test_you_is_a_friend_a_stranger_or_many_and_your_goes_with_it() -> None:
    made = said(pronoun("you"), does(VERBS["wash"], "present", thing("your", NOUNS["dog"])))
    assert made[0] == "you wash your dog."
    assert translations(made) == ["Tu laves ton chien.", "Vous lavez votre chien."]
    stayed = translations(said(pronoun("you"), does(VERBS["stay"], "past")))
    assert stayed == [
        "Tu es resté.", "Tu es restée.", "Vous êtes resté.", "Vous êtes restée.", "Vous êtes restés.",
        "Vous êtes restées.",
    ]  # fmt: skip


def test_negation_goes_around_the_verb_and_makes_de_of_the_article() -> None:
    made = said(pronoun("he"), does(VERBS["have"], "present", thing("a", NOUNS["umbrella"])), "not")
    assert (made[0], translations(made)) == ("he does not have an umbrella.", ["Il n'a pas de parapluie."])
    modal = MODALS.split("\n")[0]
    made = said(pronoun("they"), does(VERBS["drink"], modal, None, object_pronoun("it")), "not")
    assert made[0] == "they cannot drink it."
    assert translations(made) == ["Ils ne peuvent pas le boire.", "Elles ne peuvent pas la boire."]


def test_what_one_likes_is_all_of_its_kind() -> None:
    made = said(pronoun("I"), does(VERBS["like"], "present", thing("", NOUNS["dog"], True)), "not")
    assert (made[0], translations(made)) == ("I do not like dogs.", ["Je n'aime pas les chiens."])


def test_a_negated_french_sentence_belongs_to_a_negated_english_one() -> None:
    for english, french in MANY:
        assert bool(re.search(r"\bn(e |').* pas\b", french)) == bool(re.search(r"\b(not|cannot|no)\b", english)), (
            english
        )


def test_a_number_is_the_same_in_both_languages() -> None:
    for english, french in MANY:
        for word in set(english.split()) & set(NUMBER):
            assert NUMBER[word] in french.split(), english
