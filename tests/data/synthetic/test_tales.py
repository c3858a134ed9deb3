"""Generated tales: reproducible, well formed, and consistent about the holder of the thing."""

import re

import pytest

from harken.data.synthetic.tales import HE, SHE, WORDS, article, tales

TALES = list(tales(600, seed=3))
NAMES = "|".join(SHE + HE)
NOUNS = "|".join(noun for noun, *_ in WORDS["things"])
SOLUTIONS = {noun: solution for noun, _, _, solution, _ in WORDS["things"]}


def patterns(templates: str) -> list[str]:
    """One regular expression per template, with the new holder as group T."""
    parts = {"F": f"(?:{NAMES})", "T": f"(?P<T>{NAMES})", "thing": f"(?:{NOUNS})"}
    return [
        re.escape(template).replace(r"\{", "{").replace(r"\}", "}").format(**parts) for template in templates.split("|")
    ]


TRANSFER_PATTERNS = [
    re.compile(pattern) for templates in WORDS["transfers"].values() for pattern in patterns(templates)
]


def transfers(text: str) -> list[tuple[int, str]]:
    """The positions at which the thing is transferred, and its new holders."""
    return sorted((match.start(), match["T"]) for pattern in TRANSFER_PATTERNS for match in pattern.finditer(text))


def holder(text: str, end: int) -> str:
    """The holder of the thing at this position, inferred from the text before it."""
    first = re.search(rf"\b({NAMES}) (?:had|carried|had brought) an? [\w-]+ (?:{NOUNS})\.", text)
    assert first, text
    return [first[1], *(name for position, name in transfers(text) if position < end)][-1]


def test_the_same_seed_gives_the_same_tales() -> None:
    assert list(tales(20, seed=7)) == list(tales(20, seed=7))


def test_another_seed_gives_other_tales() -> None:
    assert not set(tales(20, seed=7)) & set(tales(20, seed=8))


def test_fewer_tales_are_a_prefix_of_more_tales() -> None:
    assert list(tales(30))[:10] == list(tales(10))


def test_the_tales_of_one_seed_differ() -> None:
    assert len(set(TALES)) == len(TALES)


def test_each_tale_has_60_to_150_words_in_one_to_three_paragraphs() -> None:
    assert all(60 <= len(text.split()) <= 150 for text in TALES)
    assert all(1 <= len(text.split("\n")) <= 3 for text in TALES)


def test_2500_tales_are_more_than_a_megabyte() -> None:
    assert 1_100_000 < sum(len(text) + 2 for text in tales(2500)) < 1_500_000


def test_no_placeholder_remains() -> None:
    assert not [text for text in TALES if re.search(r"[{}|>]|\bNone\b|  | \.|^ | $", text, re.MULTILINE)]


def test_sentences_start_with_a_capital_and_end_with_punctuation() -> None:
    for text in TALES:
        for paragraph in text.split("\n"):
            assert re.match(r'"?[A-Z]', paragraph), paragraph
            assert re.search(r'[.!?]"?$', paragraph), paragraph
            assert not re.search(r"\. [a-z]", paragraph), paragraph


def test_the_indefinite_article_matches_the_next_word() -> None:
    text = " ".join(TALES)
    assert not re.findall(r"\ba (?=[aeiou])(?!use)\w+", text)
    assert not re.findall(r"\ban (?![aeiou]|honest|hour)\w+", text)


@pytest.mark.parametrize(
    ("words", "expected"), [("oar", "an oar"), ("useful pan", "a useful pan"), ("honest man", "an honest man")]
)
def test_the_article_follows_the_sound(words: str, expected: str) -> None:
    assert article(words) == expected


def test_the_vocabulary_has_more_than_600_words() -> None:
    assert len(set(re.findall(r"[a-z]+", " ".join(TALES).lower()))) > 600


def test_pronouns_match_the_gender_of_the_name() -> None:
    for text in TALES:
        for name, pronoun in re.findall(rf"\b({NAMES}) was an? [\w-]+ \w+\. [A-Z][^.]* (he|she) met", text):
            assert (pronoun == "she") == (name in SHE), text


def test_the_last_receiver_uses_the_thing() -> None:
    for text in TALES:
        thing = re.search(rf"\b({NOUNS})\.", text)
        assert thing, text
        use = re.search(rf"({NAMES}) {re.escape(SOLUTIONS[thing[1]])}", text)
        assert use, text
        assert use[1] == holder(text, use.start()), text


def test_the_final_holder_takes_the_thing_home() -> None:
    for text in TALES:
        last = re.search(rf"beside ({NAMES})'s bed|At dusk ({NAMES}) carried the", text)
        assert last, text
        assert (last[1] or last[2]) == holder(text, len(text)), text


def test_statements_about_the_holder_are_true() -> None:
    claims = 0
    for text in TALES:
        for match in re.finditer(rf'said ({NAMES})\. "({NAMES}) has it\."|"I have it," said ({NAMES})\.', text):
            claims += 1
            assert (match[2] or match[3]) == holder(text, match.start()), text
            assert match[1] != match[2] or match[1] is None, text
    assert claims > 200


def test_overnight_loans_are_returned_at_the_end() -> None:
    loans = [text for text in TALES if re.search("until tomorrow|overnight", text)]
    assert loans
    assert all(re.search(rf"(back|returned the (?:{NOUNS})) to ({NAMES})\. [^.]+\.$", text) for text in loans)


def test_the_first_holder_does_not_determine_who_helps() -> None:
    n_unchanged = sum(holder(text, 0) == holder(text, text.rindex("\n") + 1) for text in TALES)
    assert 0.3 < n_unchanged / len(TALES) < 0.7


def test_every_event_occurs() -> None:
    traits = ["|".join(event["traits"]) for event in WORDS["events"]]
    assert all(any(re.search(rf"\ban? ({options}) ", text) for text in TALES) for options in traits)
