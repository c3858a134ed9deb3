"""The tales: the same each time, well formed, and true to who holds the thing."""

import re

import pytest

from harken.data.synthetic.tales import EVENTS, HE, PASSES, SHE, THINGS, article, tales

MANY = list(tales(600, seed=3))
NAMES = f"{SHE}|{HE}"
NOUNS = "|".join(line.split("|")[0] for line in THINGS.split("\n"))
DEEDS = {line.split("|")[0]: line.split("|")[3] for line in THINGS.split("\n")}


def patterns(templates: str) -> list[str]:
    """A pattern for each way to say it, in which the new holder is a group named T."""
    parts = {"F": f"(?:{NAMES})", "T": f"(?P<T>{NAMES})", "thing": f"(?:{NOUNS})"}
    return [re.escape(one).replace(r"\{", "{").replace(r"\}", "}").format(**parts) for one in templates.split("|")]


PASSED = [re.compile(pattern) for templates in PASSES.values() for pattern in patterns(templates)]


def handed(text: str) -> list[tuple[int, str]]:
    """Where in the text the thing comes into someone's hands, and whose."""
    return sorted((found.start(), found["T"]) for way in PASSED for found in way.finditer(text))


def holder(text: str, until: int) -> str:
    """Who holds the thing at that place, read from the sentences before it and nothing else."""
    first = re.search(rf"\b({NAMES}) (?:had|carried|had brought) an? [\w-]+ (?:{NOUNS})\.", text)
    assert first, text
    return [first[1], *(name for place, name in handed(text) if place < until)][-1]


def test_the_same_seed_tells_the_same_tales() -> None:
    assert list(tales(20, seed=7)) == list(tales(20, seed=7))


def test_another_seed_tells_other_tales() -> None:
    assert not set(tales(20, seed=7)) & set(tales(20, seed=8))


def test_a_longer_telling_begins_like_a_shorter_one() -> None:
    assert list(tales(30))[:10] == list(tales(10))


def test_the_tales_of_one_seed_differ() -> None:
    assert len(set(MANY)) == len(MANY)


def test_each_tale_has_60_to_150_words_in_one_to_three_paragraphs() -> None:
    assert all(60 <= len(text.split()) <= 150 for text in MANY)
    assert all(1 <= len(text.split("\n")) <= 3 for text in MANY)


def test_2500_tales_are_more_than_a_megabyte() -> None:
    assert 1_100_000 < sum(len(text) + 2 for text in tales(2500)) < 1_500_000


def test_no_placeholder_is_left_over() -> None:
    assert not [text for text in MANY if re.search(r"[{}|>]|\bNone\b|  | \.|^ | $", text, re.MULTILINE)]


def test_every_sentence_begins_with_a_capital_and_ends_with_a_mark() -> None:
    for text in MANY:
        for paragraph in text.split("\n"):
            assert re.match(r'"?[A-Z]', paragraph), paragraph
            assert re.search(r'[.!?]"?$', paragraph), paragraph
            assert not re.search(r"\. [a-z]", paragraph), paragraph


def test_a_stands_before_consonants_and_an_before_vowels() -> None:
    text = " ".join(MANY)
    assert not re.findall(r"\ba (?=[aeiou])(?!use)\w+", text)
    assert not re.findall(r"\ban (?![aeiou]|honest|hour)\w+", text)


@pytest.mark.parametrize(
    ("words", "said"), [("oar", "an oar"), ("useful pan", "a useful pan"), ("honest man", "an honest man")]
)
def test_the_article_follows_the_sound(words: str, said: str) -> None:
    assert article(words) == said


def test_the_vocabulary_has_more_than_600_words() -> None:
    assert len(set(re.findall(r"[a-z]+", " ".join(MANY).lower()))) > 600


def test_a_pronoun_fits_the_person_it_stands_for() -> None:
    for text in MANY:
        for name, pronoun in re.findall(rf"\b({NAMES}) was an? [\w-]+ \w+\. [A-Z][^.]* (he|she) met", text):
            assert (pronoun == "she") == (name in SHE.split("|")), text


def test_who_was_last_said_to_get_the_thing_is_who_uses_it() -> None:
    for text in MANY:
        thing = re.search(rf"\b({NOUNS})\.", text)
        assert thing, text
        used = re.search(rf"({NAMES}) {re.escape(DEEDS[thing[1]])}", text)
        assert used, text
        assert used[1] == holder(text, used.start()), text


def test_who_holds_the_thing_at_the_end_takes_it_home() -> None:
    for text in MANY:
        home = re.search(rf"beside ({NAMES})'s bed|At dusk ({NAMES}) carried the", text)
        assert home, text
        assert (home[1] or home[2]) == holder(text, len(text)), text


def test_whoever_says_who_has_the_thing_is_right() -> None:
    claims = 0
    for text in MANY:
        for found in re.finditer(rf'said ({NAMES})\. "({NAMES}) has it\."|"I have it," said ({NAMES})\.', text):
            claims += 1
            assert (found[2] or found[3]) == holder(text, found.start()), text
            assert found[1] != found[2] or found[1] is None, text
    assert claims > 200


def test_who_borrows_until_tomorrow_gives_it_back_in_the_end() -> None:
    loans = [text for text in MANY if re.search("until tomorrow|overnight", text)]
    assert loans
    assert all(re.search(rf"(back|returned the (?:{NOUNS})) to ({NAMES})\. [^.]+\.$", text) for text in loans)


def test_the_first_owner_alone_does_not_tell_who_helps() -> None:
    same = sum(holder(text, 0) == holder(text, text.rindex("\n") + 1) for text in MANY)
    assert 0.3 < same / len(MANY) < 0.7


def test_every_event_is_told() -> None:
    traits = [block.split("\n")[0] for block in EVENTS.split("\n\n")]
    assert all(any(re.search(rf"\ban? ({block}) ", text) for text in MANY) for block in traits)
