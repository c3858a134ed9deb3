import json

import pytest

from harken.data.labelled.spans import find_nearest, read_questions, word_spans
from harken.errors import BadInput


def squad(*qas, context="Ada met Bob. Bob ran."):
    return {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(qas)}]}]}


def entry(id_, question, *answers, **more):
    return {"id": id_, "question": question, "answers": [{"text": t, "answer_start": s} for t, s in answers], **more}


def read(tmp_path, content):
    path, notices = tmp_path / "x.json", []
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_questions(path, lambda event, text: notices.append(text)), notices


def test_a_question_has_the_span_of_its_first_answer_and_each_answer_once(tmp_path):
    (question,), notices = read(tmp_path, squad(entry("1", " Who met? ", ("Ada", 0), ("Ada", 0), ("Ada met Bob", 0))))
    assert (question.text, question.answer_span, question.answers) == ("Who met?", (0, 3), ("Ada", "Ada met Bob"))
    assert not notices


def test_a_misplaced_answer_moves_to_its_nearest_occurrence_and_a_missing_one_is_reported(tmp_path):
    questions, notices = read(
        tmp_path, squad(entry("a", "?", ("Bob", 12)), entry("b", "?", ("Cy", 0)), entry("c", "?", ("Bob", 8)))
    )
    assert [q.answer_span for q in questions] == [(13, 16), None, (8, 11)]
    assert questions[1].answers == ("Cy",)
    assert notices == [
        f"{tmp_path}/x.json: answers not at answer_start, located elsewhere in the context: 1 (a)",
        f"{tmp_path}/x.json: answers not in their context: 1 (b)",
    ]


def test_a_v2_question_may_have_no_answer(tmp_path):
    entries = squad(entry("1", "?", is_impossible=True, plausible_answers=[{"text": "Bob"}]))
    (question,), notices = read(tmp_path, entries)
    assert (question.answers, question.answer_span, notices) == ((), None, [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ({"data": {}}, "data is not a list"),
        ({"data": [{"paragraphs": [{"context": 3, "qas": []}]}]}, r"data\[0\].paragraphs\[0\].context is not a string"),
        (squad({"id": "1", "answers": []}), r"paragraphs\[0\].qas\[0\].question is not a string"),
        (squad({"question": "?"}), r"qas\[0\].answers is not a list"),
        (squad({"question": "?", "answers": [7]}), r"answers.text is not a string"),
    ],
)
def test_another_layout_is_refused_with_the_key(tmp_path, content, message):
    with pytest.raises(BadInput, match=message):
        read(tmp_path, content)


def test_the_nearest_of_several_occurrences_is_used():
    assert find_nearest("ab ab ab", "ab", 4) == 3
    assert find_nearest("ab ab ab", "ab", 99) == 6
    assert find_nearest("ab", "x", 0) is None


def test_a_punctuation_mark_is_a_word():
    assert ["24–10, it's"[a:b] for a, b in word_spans("24–10, it's")] == ["24", "–", "10", ",", "it", "'", "s"]
