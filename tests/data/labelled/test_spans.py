import json

import pytest

from harken.data.batch import IGNORE
from harken.data.labelled.spans import END, START, SpanSource, SquadQuestion, encode_questions

CONTEXT = "Ada met Bob in New York. " + " ".join(f"Then word{n} came." for n in range(60))


def make_question(text, answer, context=CONTEXT):
    start = context.index(answer)
    return SquadQuestion("1", text, context, (start, start + len(answer)), (answer,))


@pytest.fixture
def loaded(tmp_path):
    """Data with 40 paragraphs of three questions each, and the notices of loading it."""

    def paragraph(n):
        context = f"{n} {CONTEXT}"
        answers = [{"text": "New York", "answer_start": context.index("New York")}]
        missing = [{"text": "nowhere", "answer_start": 0}]
        qas = [
            {"id": f"{n}a", "question": "Where did they meet?", "answers": answers},
            {"id": f"{n}b", "question": "Where else?", "answers": [], "is_impossible": True},
            {"id": f"{n}c", "question": "And where not?", "answers": missing},
        ]
        return {"context": context, "qas": qas}

    path = tmp_path / "toy.json"
    path.write_text(json.dumps({"version": "v2.0", "data": [{"paragraphs": [paragraph(n) for n in range(40)]}]}))
    texts = []
    data = SpanSource(path=str(path), vocab_size=200, max_length=96, overlap=24).load_data(
        listen=lambda kind, **facts: texts.append(facts.get("text"))
    )
    return data, [text for text in texts if text]


def test_a_question_with_a_missing_answer_is_reported_and_evaluated_but_not_trained_on(loaded):
    data, notices = loaded
    assert any("answers not in their context: 40 (0c, 1c, 2c, ...)" in text for text in notices)
    assert not any(q.answers == ("nowhere",) for q in data.train.questions)
    assert any(q.answers == ("nowhere",) for q in data.splits["valid"].questions)


def test_questions_about_a_paragraph_are_in_one_split(loaded):
    data, _ = loaded
    held_out = {q.context for part in data.splits.values() for q in part.questions}
    assert not held_out & {q.context for q in data.train.questions}


def test_each_window_has_one_start_and_one_end_and_the_separator_means_no_answer(loaded):
    data, _ = loaded
    part, tokens = data.train, data.train.texts.tokens
    for n, (index, spans) in enumerate(zip(part.question_index, part.word_spans, strict=True)):
        window = slice(tokens.starts[n], tokens.starts[n + 1])
        targets, ids = part.texts.targets[window], tokens.ids[window]
        word_targets = targets[targets != IGNORE]
        assert (word_targets & START > 0).sum() == (word_targets & END > 0).sum() == 1
        assert len(word_targets) == len(spans) + 1
        assert ids[part.texts.segment_starts[n, 0] - 1] == data.processor.end_id
        q = part.questions[index]
        first, last = ((word_targets & flag > 0).argmax() for flag in (START, END))
        inside = bool(q.answers) and spans[0][0] <= q.answer_span[0] and q.answer_span[1] <= spans[-1][1]
        assert (first > 0) == (last > 0) == inside
        if inside:
            assert q.context[spans[first - 1][0] : spans[last - 1][1]] == "New York"


def test_windows_overlap_and_cover_the_paragraph(loaded):
    data, _ = loaded
    part = encode_questions([make_question("Where?", "New York")], data.processor, 96, 24)
    assert len(part.texts) > 2
    assert part.texts.lengths.max() <= 96
    spans = [span for window in part.word_spans for span in window]
    assert len(spans) > len(set(spans))
    assert "".join(CONTEXT[a:b] for a, b in sorted(set(spans))) == CONTEXT.replace(" ", "")


def test_an_answer_inside_a_word_is_extended_to_the_word(loaded):
    data, _ = loaded
    part = encode_questions([make_question("Which?", "ord7 c")], data.processor, 384, 0)
    word_targets = part.texts.targets[part.texts.targets != IGNORE]
    first, last = ((word_targets & flag > 0).argmax() - 1 for flag in (START, END))
    assert CONTEXT[part.word_spans[0][first][0] : part.word_spans[0][last][1]] == "word7 came"


def test_a_long_question_is_truncated(loaded):
    data, _ = loaded
    part = encode_questions([make_question("why " * 500, "Ada")], data.processor, 96, 0)
    assert part.texts.lengths.max() <= 96
    assert part.texts.segment_starts[0, 0] == 64 + 2
