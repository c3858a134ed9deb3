import collections
import json
import math
import random
import re
import string

import pytest
import torch

from harken import recipe
from harken.data.batch import IGNORE
from harken.data.labelled.spans import END, START, encode_questions
from harken.data.labelled.squad import SquadQuestion
from harken.tasks.span import SpanBatch, predict_answers, best_span, em_f1, best_overlap

NAMES, TOWNS = ["Ada", "Bob", "Cy", "Dan"], ["Rome", "New York", "Paris", "Old Town"]


def toy(tmp_path, allow_no_answer=False):
    dice, paragraphs = random.Random(0), []
    for n in range(100):
        name, town = dice.choice(NAMES), dice.choice(TOWNS)
        context = f"{name} lives in {town}. This is story {n}."
        qas = [
            {
                "id": f"{n}",
                "question": f"Where does {name} live?",
                "answers": [{"text": town, "answer_start": context.index(town)}],
            }
        ]
        if none:
            qas.append({"id": f"{n}x", "question": "Why is the sky blue?", "answers": [], "is_impossible": True})
        paragraphs.append({"context": context, "qas": qas})
    path = tmp_path / "toy.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return str(path)


def bound(path, **settings):
    layer = {
        "data.kind": "spans",
        "data.path": path,
        "data.vocab_size": 200,
        "model.size": "tiny",
        "train.batch": 20,
        **settings,
    }
    made = recipe.resolve(("test", layer))
    data = made.load_data()
    torch.manual_seed(0)
    return made.bind(data), made.build(data.vocab).eval(), data


@torch.no_grad()
def test_the_loss_is_that_of_a_softmax_over_the_words_of_each_window(tmp_path):
    task, model, data = bound(toy(tmp_path, allow_no_answer=True))
    batches = [task.batch(0, step) for step in range(task.steps)]
    texts, total = data.train.texts, 0.0
    for n in range(len(texts)):
        span = slice(texts.tokens.starts[n], texts.tokens.starts[n + 1])
        targets, ids = (
            torch.from_numpy(texts.targets[span]),
            torch.tensor([[*texts.tokens[n].tolist(), data.processor.end_id]]),
        )
        segments = (torch.arange(ids.shape[1]) >= int(texts.second_start[n])).long()[None]
        y = model.predict(model(ids, segments=segments))[0, :-1][targets != IGNORE]
        words = targets[targets != IGNORE]
        for k, mark in enumerate((START, END)):
            total -= float(y[:, k].log_softmax(0)[(words & mark > 0).int().argmax()])
    assert sum(float(task.loss(model, b).total) for b in batches) == pytest.approx(total, rel=1e-4)
    assert sum(b.n_targets for b in batches) == 2 * len(texts)
    assert all(isinstance(b.slice_rows(0, 1), SpanBatch) for b in batches)


@torch.no_grad()
def test_the_loss_of_parts_of_a_batch_adds_up(tmp_path):
    task, model, _ = bound(toy(tmp_path))
    batch = task.batch(0, 0)
    rows = [batch.slice_rows(n, n + 1) for n in range(len(batch.tokens))]
    assert len(rows) > 1
    assert sum(float(task.loss(model, row).total) for row in rows) == pytest.approx(
        float(task.loss(model, batch).total), rel=1e-5
    )


def test_a_look_asks_questions_from_everywhere_each_with_all_its_windows(tmp_path):
    _, _, data = bound(toy(tmp_path))
    words = data.processor
    some = [SquadQuestion(f"q{n}", "Where?", f"{n} is a number. " * (1 + 9 * n), None, ()) for n in range(7)]
    part, few = encode_questions(some, words, 80, 16), encode_questions([some[0], some[3], some[6]], words, 80, 16)
    look = part.subset(3)
    assert look.questions == few.questions
    assert (look.question_index, look.word_spans) == (few.question_index, few.word_spans)
    assert len({*look.question_index}) < len(look.question_index)
    assert look.texts.tokens.ids.tolist() == few.texts.tokens.ids.tolist()
    assert look.texts.targets.tolist() == few.texts.targets.tolist()


def test_the_best_span_is_the_best_of_all_that_are_allowed():
    dice = torch.Generator().manual_seed(0)
    for n in range(1, 12):
        for longest in (1, 3, 20):
            start, end = torch.randn(2, n, generator=dice).log_softmax(1)
            all_ = {(i, j): float(start[i] + end[j]) for i in range(n) for j in range(i, min(n, i + longest))}
            i, j, p = best_span(start, end, longest)
            assert (i, j) == max(all_, key=all_.get)
            assert p == pytest.approx(math.exp(all_[i, j]))


def squad_words(text):
    """The words of an answer as the published evaluation defines them, written anew."""
    kept = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def squad(answer, references):
    em = max(float(squad_words(answer) == squad_words(r)) for r in references)
    best = 0.0
    for reference in references:
        a, b = squad_words(answer), squad_words(reference)
        same = sum((collections.Counter(a) & collections.Counter(b)).values())
        if not (a and b):
            best = max(best, float(a == b))
        elif same:
            best = max(best, 2 * (same / len(a)) * (same / len(b)) / (same / len(a) + same / len(b)))
    return em, best


def test_em_and_f1_are_squads():
    dice, words = random.Random(0), ["the", "a", "New", "york,", "York", "in", "1990", "it's", "its", "Bob."]
    for _ in range(300):
        answer, *references = (" ".join(dice.choices(words, k=dice.randint(1, 4))) for _ in range(4))
        assert em_f1(answer, references) == pytest.approx(squad(answer, references))


def test_where_there_is_no_answer_none_is_right():
    assert em_f1("", []) == (1.0, 1.0)
    assert em_f1("Bob", []) == (0.0, 0.0)
    assert em_f1("", ["Bob"]) == (0.0, 0.0)


def test_the_free_baseline_is_the_sentence_that_shares_most_words(tmp_path):
    assert best_overlap("Where does Ada live?", "Bob ran. Ada does not live here. Ada!") == "Ada does not live here."
    task, *_ = bound(toy(tmp_path, allow_no_answer=True))
    free = task.baselines("valid")
    assert set(free) == {"sentence with most words of the question", "no answer"}
    assert free["no answer"]["em"] == 0.5


@pytest.mark.parametrize("kind", ["bert", "gru"])
def test_a_few_steps_learn_where_the_answer_stands_and_when_there_is_none(tmp_path, kind):
    task, model, data = bound(toy(tmp_path, allow_no_answer=True), **{"model.kind": kind, "model.size": "tiny"})
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    model.train()
    for step in range(60):
        batch = task.batch(*divmod(step, task.steps))
        (task.loss(model, batch).total / batch.n_targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    score = task.evaluate(model, "valid")
    assert score.primary_metric == "f1"
    assert score.metrics["f1"] > 0.8
    assert set(score.parts) == {"answerable", "unanswerable"}
    assert score.parts["unanswerable"]["em"] > 0.8
    quick = task.evaluate(model, "valid", quick=True)
    assert quick.protocol["questions"] <= score.protocol["questions"]
    found, _ = predict_answers(model, data.splits["valid"], 30, allow_no_answer=False)
    assert all(answer.text for answer in found)  # without leave to say none, there is always one
    assert all(q.context[a.start : a.end] == a.text for q, a in zip(data.splits["valid"].questions, found, strict=True))


class Finds(torch.nn.Module):
    """Sure that an answer is the one token it knows; elsewhere that there is none."""

    def __init__(self, token, edge):
        super().__init__()
        self.W = torch.nn.Parameter(torch.zeros(1))
        self.token, self.edge = token, edge

    def forward(self, tokens, **told):
        first = (tokens == self.edge) & ((tokens == self.edge).cumsum(1) == 1)
        return 18.0 * (tokens == self.token) + 9.0 * first

    def answers(self, h):
        return h[..., None].expand(-1, -1, 2)


def test_an_answer_is_found_in_the_one_window_that_holds_it(tmp_path):
    _, _, data = bound(toy(tmp_path))
    words, context = data.processor, "This is story 3. " * 100 + "Cy lives in Rome. " + "This is story 4. " * 100
    rome = int(words.tokenizer.encode("Rome")[0])
    assert len(words.tokenizer.encode("Rome")) == 1
    at = context.index("Rome")
    part = encode_questions([SquadQuestion("1", "Where?", context, (at, at + 4), ("Rome",))], words, 96, 16)
    (best,), loss = predict_answers(Finds(rome, words.end_id), part, 30, allow_no_answer=True)
    assert len(part.texts) > 5
    assert (best.text, best.start, best.end) == ("Rome", at, at + 4)
    assert best.score > 0.9
    assert best.none < 0.1
    (none,), _ = predict_answers(Finds(-1, words.end_id), part, 30, allow_no_answer=True)
    assert (none.text, none.score) == ("", pytest.approx(none.none))
    assert loss < 0.1


def test_an_answer_has_no_more_words_than_it_may(tmp_path):
    _, model, data = bound(toy(tmp_path))
    for longest in (1, 2):
        found, _ = predict_answers(model, data.splits["valid"], longest, allow_no_answer=False)
        assert all(len(re.findall(r"\w+|[^\w\s]", answer.text)) <= longest for answer in found)
