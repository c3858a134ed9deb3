import json

import pytest

from harken.data.labelled.squad import Lost, nearest, questions, words
from harken.errors import BadInput


def squad(*qas, context="Ada met Bob. Bob ran."):
    return {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(qas)}]}]}


def asked(id_, question, *answers, **more):
    return {"id": id_, "question": question, "answers": [{"text": t, "answer_start": s} for t, s in answers], **more}


def read(tmp_path, content):
    path, lost = tmp_path / "x.json", Lost()
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return list(questions(path, lost)), lost


def test_a_question_has_the_place_of_its_first_answer_and_each_answer_once(tmp_path):
    (found,), lost = read(tmp_path, squad(asked("1", " Who met? ", ("Ada", 0), ("Ada", 0), ("Ada met Bob", 0))))
    assert (found.text, found.place, found.answers) == ("Who met?", (0, 3), ("Ada", "Ada met Bob"))
    assert not list(lost.notices())


def test_an_answer_elsewhere_is_moved_to_its_nearest_place_and_one_nowhere_is_lost(tmp_path):
    found, lost = read(
        tmp_path, squad(asked("a", "?", ("Bob", 12)), asked("b", "?", ("Cy", 0)), asked("c", "?", ("Bob", 8)))
    )
    assert [q.place for q in found] == [(13, 16), None, (8, 11)]
    assert found[1].answers == ("Cy",)
    assert list(lost.notices()) == [
        "answers not at their place, found elsewhere: 1 (a)",
        "answers not in their context: 1 (b)",
    ]


def test_a_question_of_v2_may_have_no_answer(tmp_path):
    (found,), lost = read(tmp_path, squad(asked("1", "?", is_impossible=True, plausible_answers=[{"text": "Bob"}])))
    assert (found.answers, found.place, lost.lost) == ((), None, [])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ({"data": {}}, "data is no list"),
        ({"data": [{"paragraphs": [{"context": 3, "qas": []}]}]}, r"data\[0\].paragraphs\[0\].context is no text"),
        (squad({"id": "1", "answers": []}), r"paragraphs\[0\].qas\[0\].question is no text"),
        (squad({"question": "?"}), r"qas\[0\].answers is no list"),
        (squad({"question": "?", "answers": [7]}), r"answers.text is no text"),
    ],
)
def test_another_layout_is_refused_with_its_place(tmp_path, content, told):
    with pytest.raises(BadInput, match=told):
        read(tmp_path, content)


def test_the_nearest_of_several_places_is_taken():
    assert nearest("ab ab ab", "ab", 4) == 3
    assert nearest("ab ab ab", "ab", 99) == 6
    assert nearest("ab", "x", 0) is None


def test_a_sign_is_a_word_of_its_own():
    assert ["24–10, it's"[a:b] for a, b in words("24–10, it's")] == ["24", "–", "10", ",", "it", "'", "s"]
