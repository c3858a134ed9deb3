"""Parser of the bAbI format."""

import unicodedata
from pathlib import Path

import pytest

from harken.data.stories.babi import BabiQuestion, normalize_words, parse_questions, parse_statements, task_name
from harken.data.synthetic.stories import stories

TEXT = """1 Joe went to the kitchen.
2 Joe picked up the milk.
3 Where is the milk?\tkitchen\t2 1
4 Joe went to the bathroom.
5 Where is Joe? \tbathroom\t4
1 Mary is hungry.
2 What is Mary carrying?\tmilk,apple\t
"""


def parse(text: str) -> list[BabiQuestion]:
    return parse_questions(Path("qa2_train.txt"), enumerate(text.splitlines(), 1), pytest.fail)


def test_a_question_has_the_lines_before_it_its_answer_and_its_supporting_facts():
    first, second, third = parse(TEXT)
    assert first.lines == ("Joe went to the kitchen.", "Joe picked up the milk.")
    assert (first.question, first.answer, first.supporting_facts) == ("Where is the milk?", "kitchen", (1, 0))
    assert second.lines == (*first.lines, "Joe went to the bathroom.")  # without the first question
    assert (second.question, second.answer, second.supporting_facts) == ("Where is Joe?", "bathroom", (2,))
    assert (third.lines, third.answer, third.supporting_facts) == (("Mary is hungry.",), "milk,apple", ())
    assert first.story == second.story != third.story
    assert [q.location for q in (first, third)] == ["qa2_train.txt:3", "qa2_train.txt:7"]


def test_a_story_may_have_no_line_numbers_and_a_blank_line_starts_the_next():
    text = "Joe went out.\nWhere is Joe?\n\nMary slept.\nIs Mary awake?"
    assert [(q.lines, q.question, q.answer) for q in parse(text)] == [
        (("Joe went out.",), "Where is Joe?", ""),
        (("Mary slept.",), "Is Mary awake?", ""),
    ]
    assert parse_statements(text.splitlines()) == [["Joe went out."], ["Mary slept."]]
    assert parse_statements(TEXT.splitlines())[1] == ["Mary is hungry."]


def test_a_number_is_a_line_number_only_if_every_line_has_one():
    text = ["Joe went out.", "3 apples lay there.", "1 pear too.", "---", "How many pears were there?"]
    assert parse_statements(text) == [["Joe went out.", "3 apples lay there.", "1 pear too."]]
    numbered = ["1 Joe went out.", "2 ---", "3 3 apples lay there.", "1 Mary slept."]
    assert parse_statements(numbered) == [["Joe went out.", "3 apples lay there."], ["Mary slept."]]


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("2 Joe picked", "Joe picked"), "".join(stories(7, 30))])
def test_the_statements_of_a_story_are_the_lines_of_its_last_question(text):
    last_lines = {q.story: q.lines for q in parse(text)}
    assert [tuple(lines) for lines in parse_statements(text.splitlines())] == [*last_lines.values()]


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("qa10_indefinite-knowledge_train.txt", "task 10"),
        ("qa1_test.txt", "task 1"),
        ("my-stories_train.txt", "my-stories"),
        ("train.txt", "train"),
    ],
)
def test_the_file_name_gives_the_task(name, task):
    assert task_name(Path(name)) == task


def test_words_are_lower_case_and_without_punctuation():
    assert normalize_words("  Joe's half-eaten Apple, (red)? ") == "joe's half-eaten apple red"
    assert normalize_words(unicodedata.normalize("NFD", "Jörg aß.")) == "jörg aß"
