"""Generated phrases: reproducible, unique, short, and grammatical French."""

import re
from collections import defaultdict

import pytest

from harken.data.synthetic.grammar import (
    ADJECTIVES,
    INTRANSITIVE,
    NOUNS,
    NUMBERS,
    TRANSITIVE,
    WORDS,
    action,
    agree,
    apply_elision,
    inflect,
    noun_phrase,
    object_pronoun,
    pronoun,
    sentence,
)
from harken.data.synthetic.phrases import INTERPRETATIONS, phrases

VERB = {verb.english: verb for verb in (*TRANSITIVE, *INTRANSITIVE)}
NOUN = {noun.english.split("/")[0]: noun for kind in NOUNS.values() for noun in kind}
ADJECTIVE = {adjective.english: adjective for adjective in ADJECTIVES}


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return list(phrases(34_000, seed=1))


@pytest.fixture(scope="module")
def french(pairs) -> str:
    return " ".join(french for _, french in pairs)


def translations(pair) -> list[str]:
    """The distinct French translations of a sentence."""
    return list(dict.fromkeys(apply_elision(pair[1](reading)) for reading in INTERPRETATIONS))


def french_noun(*noun, sense: str = "", **options) -> str:
    """The first French translation of a noun phrase."""
    det, word, *plural = noun
    return apply_elision(noun_phrase(det, NOUN[word], *plural, **options).to_french(INTERPRETATIONS[0], sense).text)


# --- the dataset ------------------------------------------------------------------------------------------------------


def test_pairs_depend_on_the_seed_alone() -> None:
    assert list(phrases(200, seed=7)) == list(phrases(200, seed=7))
    assert len(set(phrases(200, seed=7)) & set(phrases(200, seed=8))) < 40


def test_fewer_pairs_are_a_prefix_of_more_pairs() -> None:
    assert list(phrases(300))[:101] == list(phrases(101))


def test_pairs_are_unique_with_more_than_20000_english_sentences_of_at_most_8_words(pairs) -> None:
    assert len(set(pairs)) == len(pairs) == 34_000
    short = {english for english, _ in pairs if len(english.split()) <= 8}
    assert short == {english for english, _ in pairs}
    assert len(short) > 20_000


def test_the_fixed_sentences_come_first() -> None:
    first = list(phrases(3))
    assert ("I am a student.", "Je suis étudiant.") in first
    assert ("I am a student.", "Je suis étudiante.") in first
    assert ("I have a red car.", "J'ai une voiture rouge.") in first


def test_the_sentence_of_the_lecture_is_held_out_and_its_words_are_not(pairs) -> None:
    english = {sentence for sentence, _ in pairs}
    assert "He drives the car." not in english
    assert sum(" drives " in sentence for sentence in english) > 20
    assert sum("the car" in sentence for sentence in english) > 20


def test_the_translations_of_a_sentence_are_adjacent(pairs) -> None:
    runs = [english for i, (english, _) in enumerate(pairs) if i == 0 or pairs[i - 1][0] != english]
    assert len(runs) == len(set(runs))
    assert max(len(groups) for groups in translations_by_sentence(pairs).values()) <= 6


def translations_by_sentence(pairs) -> dict[str, list[str]]:
    groups = defaultdict(list)
    for english, french in pairs:
        groups[english].append(french)
    return groups


def test_sentences_start_with_a_capital_and_end_with_matching_punctuation(pairs) -> None:
    for english, french in pairs:
        assert re.fullmatch(r"[A-Z][A-Za-z' ]*[A-Za-z][.?]", english), english
        assert re.fullmatch(r"[A-ZÀÉÊ][\w' -]*\w( \?|\.)", french), french
        assert "  " not in english + french
        assert english[-1] == french[-1]


def test_the_english_article_matches_the_next_word(pairs) -> None:
    english = " ".join(english for english, _ in pairs).lower()
    assert not re.findall(r"\ba [aeiou]\w+|\ban [^aeiou]\w+", english)


# --- spelling ---------------------------------------------------------------------------------------------------------


def test_elision_applies_before_vowels(french) -> None:
    assert not re.findall(r"\b(?:je|ne|le|la|de|que|me|te|ce|ma|ta|sa|beau|nouveau) [aeiouéèêâîôœ]\w*", french)
    assert not re.findall(r"\b[jnldmtc]' |qu' |'[^aeiouyhâàéèêîôœA-Z]", french)


def test_de_and_a_contract_with_le_and_les(french) -> None:
    assert not re.findall(r"\b(?:de|à) les?\b", french)
    assert not re.findall(r"\b(?:du|au) [aeiouéèêâîôœ]\w*", french)
    assert {"du", "des", "au", "aux", "l'", "d'", "j'", "n'", "qu'", "c'"} <= set(
        re.findall(r"[\w-]+'?", french.lower())
    )


@pytest.mark.parametrize(
    ("words", "expected"),
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
def test_spelling_of_examples(words: str, expected: str) -> None:
    assert apply_elision(words) == expected


# --- nouns and adjectives ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("singular", "plural"),
    [("voiture", "voitures"), ("cheval", "chevaux"), ("gâteau", "gâteaux"), ("souris", "souris"), ("bleu", "bleus"),
     ("heureux", "heureux"), ("beau", "beaux"), ("riz", "riz"), ("hôpital", "hôpitaux")],
)  # fmt: skip
def test_the_french_plural(singular: str, plural: str) -> None:
    assert agree(singular, False) == singular
    assert agree(singular, True) == plural


@pytest.mark.parametrize(
    ("word", "inflected"),
    [
        ("key", "keys"),
        ("story", "stories"),
        ("watch", "watches"),
        ("go", "goes"),
        ("look for", "looks for"),
        ("have", "has"),
    ],
)
def test_the_english_inflection(word: str, inflected: str) -> None:
    assert inflect(word) == inflected


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
def test_an_adjective_agrees_and_is_on_its_side_of_the_noun(adjective: str, noun: str, french: str) -> None:
    assert french_noun("a", noun, adjective=ADJECTIVE[adjective]) == french


def test_articles_follow_gender_number_and_negation() -> None:
    assert french_noun("", "car", True) == "Des voitures"
    assert french_noun("", "car", True, adjective=ADJECTIVE["big"]) == "De grandes voitures"
    assert french_noun("", "car", True, adjective=ADJECTIVE["red"]) == "Des voitures rouges"
    assert french_noun("", "water") == "De l'eau"
    assert french_noun("", "bread") == "Du pain"
    assert french_noun("", "bread", sense="not") == "De pain"
    assert french_noun("", "apple", True, sense="all") == "Les pommes"
    assert french_noun("a", "egg", sense="not") == "D'œuf"
    assert french_noun("this", "man") == "Cet homme"
    assert french_noun("my", "scarf") == "Mon écharpe"
    assert french_noun("two", "horse", True) == "Deux chevaux"
    assert french_noun("many", "orange", True) == "Beaucoup d'oranges"
    boys = noun_phrase("the", NOUN["boy"], True)
    assert boys.english == "the boys"
    assert noun_phrase("the", NOUN["dog"], owner=boys).english == "the boys' dog"
    assert french_noun("the", "dog", owner=boys) == "Le chien des garçons"


def test_every_noun_has_a_gender_or_two_forms_and_adjectives_refer_to_known_kinds() -> None:
    assert all((noun.gender in ("m", "f")) != ("/" in noun.french) for noun in NOUN.values())
    assert all(set(adjective.noun_kinds) <= set(NOUNS) for adjective in ADJECTIVES)


def test_determiners_agree_in_gender_with_the_next_word(french) -> None:
    feminine = {noun.french for noun in NOUN.values() if noun.gender == "f"}
    masculine = {noun.french for noun in NOUN.values() if noun.gender == "m"}
    assert not set(re.findall(r"\b(?:une|cette) (\w+)", french)) & masculine
    assert not set(re.findall(r"\b(?:un|cet?|du|au) (\w+)", french)) & feminine


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
    assert VERB[verb].present == forms


def test_every_paradigm_has_six_forms_with_regular_endings() -> None:
    for forms in (*(verb.present for verb in VERB.values()), *(row.split("|")[2] for row in WORDS["modals"])):
        je, tu, il, nous, vous, ils = forms.split()
        assert je[-1] in "esxi", forms
        assert tu[-1] in "sx", forms
        assert il[-1] in "etda", forms
        assert nous.endswith("ons"), forms
        assert vous.endswith("ez"), forms
        assert ils.endswith(("ent", "ont")), forms
    assert all(len(forms.split()) == 6 for forms in (*WORDS["etre"].values(), *WORDS["avoir"].values()))


def test_a_participle_agrees_with_a_preceding_object_or_with_the_subject_of_etre() -> None:
    saw = action(VERB["see"], "past", None, object_pronoun("her"))
    assert translations(sentence(pronoun("I"), saw, "not")) == ["Je ne l'ai pas vue."]
    took = action(VERB["take"], "past", None, object_pronoun("them"))
    assert translations(sentence(pronoun("he"), took)) == ["Il les a pris.", "Il les a prises."]
    went = action(VERB["go"], "past")
    assert translations(sentence(pronoun("we"), went)) == ["Nous sommes allés.", "Nous sommes allées."]
    assert translations(sentence(pronoun("she"), went, "?")) == ["Est-ce qu'elle est allée ?"]
    ate = action(VERB["eat"], "past", noun_phrase("the", NOUN["apple"]))
    assert translations(sentence(pronoun("she"), ate)) == ["Elle a mangé la pomme."]


def test_you_and_your_are_informal_formal_or_plural_together() -> None:
    pair = sentence(pronoun("you"), action(VERB["wash"], "present", noun_phrase("your", NOUN["dog"])))
    assert pair[0] == "you wash your dog."
    assert translations(pair) == ["Tu laves ton chien.", "Vous lavez votre chien."]
    stayed = translations(sentence(pronoun("you"), action(VERB["stay"], "past")))
    assert stayed == [
        "Tu es resté.", "Tu es restée.", "Vous êtes resté.", "Vous êtes restée.", "Vous êtes restés.",
        "Vous êtes restées.",
    ]  # fmt: skip


def test_negation_encloses_the_verb_and_changes_the_article_to_de() -> None:
    pair = sentence(pronoun("he"), action(VERB["have"], "present", noun_phrase("a", NOUN["umbrella"])), "not")
    assert (pair[0], translations(pair)) == ("he does not have an umbrella.", ["Il n'a pas de parapluie."])
    modal = WORDS["modals"][0]
    pair = sentence(pronoun("they"), action(VERB["drink"], modal, None, object_pronoun("it")), "not")
    assert pair[0] == "they cannot drink it."
    assert translations(pair) == ["Ils ne peuvent pas le boire.", "Elles ne peuvent pas la boire."]


def test_aimer_takes_the_definite_article() -> None:
    pair = sentence(pronoun("I"), action(VERB["like"], "present", noun_phrase("", NOUN["dog"], True)), "not")
    assert (pair[0], translations(pair)) == ("I do not like dogs.", ["Je n'aime pas les chiens."])


def test_french_is_negated_exactly_if_english_is(pairs) -> None:
    for english, french in pairs:
        assert bool(re.search(r"\bn(e |').* pas\b", french)) == bool(re.search(r"\b(not|cannot|no)\b", english)), (
            english
        )


def test_numbers_are_translated(pairs) -> None:
    for english, french in pairs:
        for word in set(english.split()) & set(NUMBERS):
            assert NUMBERS[word] in french.split(), english
