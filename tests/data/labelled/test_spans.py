import json

import pytest

from harken.data.batch import IGNORE
from harken.data.labelled.spans import END, START, SpanSource, asked
from harken.data.labelled.squad import Question

CONTEXT = "Ada met Bob in New York. " + " ".join(f"Then word{n} came." for n in range(60))


def question(text, answer, context=CONTEXT):
    at = context.index(answer) if answer else None
    return Question("1", text, context, None if at is None else (at, at + len(answer)), (answer,) if answer else ())


@pytest.fixture
def data(tmp_path):
    def paragraph(n):
        context = f"{n} {CONTEXT}"
        answers = [{"text": "New York", "answer_start": context.index("New York")}]
        lost = [{"text": "nowhere", "answer_start": 0}]
        qas = [
            {"id": f"{n}a", "question": "Where did they meet?", "answers": answers},
            {"id": f"{n}b", "question": "Where else?", "answers": [], "is_impossible": True},
            {"id": f"{n}c", "question": "And where not?", "answers": lost},
        ]
        return {"context": context, "qas": qas}

    path = tmp_path / "toy.json"
    path.write_text(json.dumps({"version": "v2.0", "data": [{"paragraphs": [paragraph(n) for n in range(40)]}]}))
    told = []
    made = SpanSource(path=str(path), vocab=200, longest=96, overlap=24).open(
        listen=lambda kind, **facts: told.append(facts.get("text"))
    )
    return made, [text for text in told if text]


def test_a_lost_answer_is_told_and_not_learned_from_but_judged(data):
    made, told = data
    assert any("answers not in their context: 40 (0c, 1c, 2c, ...)" in text for text in told)
    assert not any(q.answers == ("nowhere",) for q in made.train.questions)
    assert any(q.answers == ("nowhere",) for q in made.splits["valid"].questions)


def test_questions_about_a_paragraph_stand_on_one_side(data):
    made, _ = data
    held = {q.context for part in made.splits.values() for q in part.questions}
    assert not held & {q.context for q in made.train.questions}


def test_each_window_asks_for_one_start_and_one_end_and_the_mark_stands_for_none(data):
    made, _ = data
    part = made.train
    for n, (of, places) in enumerate(zip(part.of, part.places, strict=True)):
        span = slice(part.texts.side.starts[n], part.texts.side.starts[n + 1])
        targets, ids = part.texts.targets[span], part.texts.side.ids[span]
        words = targets[targets != IGNORE]
        assert (words & START > 0).sum() == (words & END > 0).sum() == 1
        assert len(words) == len(places) + 1
        assert ids[part.texts.second[n] - 1] == made.words.edge
        q = part.questions[of]
        first, last = ((words & mark > 0).argmax() for mark in (START, END))
        inside = bool(q.answers) and places[0][0] <= q.place[0] and q.place[1] <= places[-1][1]
        assert (first > 0) == (last > 0) == inside
        if inside:
            assert q.context[places[first - 1][0] : places[last - 1][1]] == "New York"


def test_windows_overlap_and_hold_the_whole_paragraph(data):
    made, _ = data
    part = asked([question("Where?", "New York")], made.words, 96, 24)
    assert len(part.texts) > 2
    assert part.texts.lengths.max() <= 96
    seen = [place for places in part.places for place in places]
    assert len(seen) > len(set(seen))
    assert "".join(CONTEXT[a:b] for a, b in sorted(set(seen))) == CONTEXT.replace(" ", "")


def test_an_answer_inside_a_word_becomes_the_word(data):
    made, _ = data
    part = asked([question("Which?", "ord7 c")], made.words, 384, 0)
    words = part.texts.targets[part.texts.targets != IGNORE]
    first, last = ((words & mark > 0).argmax() - 1 for mark in (START, END))
    assert CONTEXT[part.places[0][first][0] : part.places[0][last][1]] == "word7 came"


def test_a_long_question_is_cut_and_leaves_room(data):
    made, _ = data
    part = asked([question("why " * 500, "Ada")], made.words, 96, 0)
    assert part.texts.lengths.max() <= 96
    assert part.texts.second[0] == 64 + 2
