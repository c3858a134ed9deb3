"""Extractive question answering: loss, span search, SQuAD metrics, and answers across windows."""

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
from harken.data.labelled.spans import END, START, SquadQuestion, encode_questions
from harken.tasks.span import SpanBatch, best_overlap, best_span, em_f1, predict_answers

NAMES, TOWNS = ["Ada", "Bob", "Cy", "Dan"], ["Rome", "New York", "Paris", "Old Town"]


def squad_file(tmp_path, unanswerable=False):
    rng, paragraphs = random.Random(0), []
    for n in range(100):
        name, town = rng.choice(NAMES), rng.choice(TOWNS)
        context = f"{name} lives in {town}. This is story {n}."
        qas = [
            {
                "id": f"{n}",
                "question": f"Where does {name} live?",
                "answers": [{"text": town, "answer_start": context.index(town)}],
            }
        ]
        if unanswerable:
            qas.append({"id": f"{n}x", "question": "Why is the sky blue?", "answers": [], "is_impossible": True})
        paragraphs.append({"context": context, "qas": qas})
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return str(path)


def bind(path, **settings):
    layer = {
        "data.kind": "spans",
        "data.path": path,
        "data.vocab_size": 200,
        "model.size": "tiny",
        "train.batch": 20,
        **settings,
    }
    resolved = recipe.resolve(("test", layer))
    data = resolved.load_data()
    torch.manual_seed(0)
    return resolved.bind(data), resolved.build(data.vocab).eval(), data


@torch.no_grad()
def test_the_loss_is_the_cross_entropy_over_the_words_of_each_window(tmp_path):
    task, model, data = bind(squad_file(tmp_path, unanswerable=True))
    batches = [task.batch(0, step) for step in range(task.steps)]
    texts, total = data.train.texts, 0.0
    for n in range(len(texts)):
        span = slice(texts.tokens.starts[n], texts.tokens.starts[n + 1])
        targets, ids = (
            torch.from_numpy(texts.targets[span]),
            torch.tensor([[*texts.tokens[n].tolist(), data.processor.end_id]]),
        )
        segments = (torch.arange(ids.shape[1]) >= int(texts.segment_starts[n, 0])).long()[None]
        y = model.predict(model(ids, segments=segments))[0, :-1][targets != IGNORE]
        words = targets[targets != IGNORE]
        for k, bit in enumerate((START, END)):
            total -= float(y[:, k].log_softmax(0)[(words & bit > 0).int().argmax()])
    assert sum(float(task.loss(model, b).total) for b in batches) == pytest.approx(total, rel=1e-4)
    assert sum(b.n_targets for b in batches) == 2 * len(texts)
    assert all(isinstance(b.slice_rows(0, 1), SpanBatch) for b in batches)


@torch.no_grad()
def test_the_losses_of_micro_batches_add_up(tmp_path):
    task, model, _ = bind(squad_file(tmp_path))
    batch = task.batch(0, 0)
    rows = [batch.slice_rows(n, n + 1) for n in range(len(batch.tokens))]
    assert len(rows) > 1
    assert sum(float(task.loss(model, row).total) for row in rows) == pytest.approx(
        float(task.loss(model, batch).total), rel=1e-5
    )


def test_a_subset_has_evenly_spaced_questions_with_all_their_windows(tmp_path):
    _, _, data = bind(squad_file(tmp_path))
    questions = [SquadQuestion(f"q{n}", "Where?", f"{n} is a number. " * (1 + 9 * n), None, ()) for n in range(7)]
    subset = encode_questions(questions, data.processor, 80, 16).subset(3)
    expected = encode_questions([questions[0], questions[3], questions[6]], data.processor, 80, 16)
    assert subset.questions == expected.questions
    assert (subset.question_index, subset.word_spans) == (expected.question_index, expected.word_spans)
    assert len({*subset.question_index}) < len(subset.question_index)
    assert subset.texts.tokens.ids.tolist() == expected.texts.tokens.ids.tolist()
    assert subset.texts.targets.tolist() == expected.texts.targets.tolist()


def test_the_best_span_is_the_most_likely_of_all_allowed_spans():
    rng = torch.Generator().manual_seed(0)
    for n in range(1, 12):
        for max_length in (1, 3, 20):
            start, end = torch.randn(2, n, generator=rng).log_softmax(1)
            scores = {(i, j): float(start[i] + end[j]) for i in range(n) for j in range(i, min(n, i + max_length))}
            i, j, p = best_span(start, end, max_length)
            assert (i, j) == max(scores, key=scores.get)
            assert p == pytest.approx(math.exp(scores[i, j]))


def squad_words(text):
    """The words of an answer as the published evaluation script defines them."""
    bare = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def squad_em_f1(answer, references):
    em = max(float(squad_words(answer) == squad_words(r)) for r in references)
    best = 0.0
    for reference in references:
        a, b = squad_words(answer), squad_words(reference)
        common = sum((collections.Counter(a) & collections.Counter(b)).values())
        if not (a and b):
            best = max(best, float(a == b))
        elif common:
            precision, recall = common / len(a), common / len(b)
            best = max(best, 2 * precision * recall / (precision + recall))
    return em, best


def test_em_and_f1_are_those_of_squad():
    rng, words = random.Random(0), ["the", "a", "New", "york,", "York", "in", "1990", "it's", "its", "Bob."]
    for _ in range(300):
        answer, *references = (" ".join(rng.choices(words, k=rng.randint(1, 4))) for _ in range(4))
        assert em_f1(answer, references) == pytest.approx(squad_em_f1(answer, references))


def test_without_references_the_empty_answer_is_correct():
    assert em_f1("", []) == (1.0, 1.0)
    assert em_f1("Bob", []) == (0.0, 0.0)
    assert em_f1("", ["Bob"]) == (0.0, 0.0)


def test_the_baseline_is_the_sentence_with_most_words_of_the_question(tmp_path):
    assert best_overlap("Where does Ada live?", "Bob ran. Ada does not live here. Ada!") == "Ada does not live here."
    task, *_ = bind(squad_file(tmp_path, unanswerable=True))
    baselines = task.baselines("valid")
    assert set(baselines) == {"sentence with most words of the question", "no answer"}
    assert baselines["no answer"]["em"] == 0.5


@pytest.mark.parametrize("kind", ["bert", "gru"])
def test_a_short_training_learns_answers_and_unanswerable_questions(tmp_path, kind):
    task, model, data = bind(squad_file(tmp_path, unanswerable=True), **{"model.kind": kind, "model.size": "tiny"})
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
    part = data.splits["valid"]
    answers, _ = predict_answers(model, part, 30, allow_no_answer=False)
    assert all(answer.text for answer in answers)
    assert all(q.context[a.start : a.end] == a.text for q, a in zip(part.questions, answers, strict=True))


class TokenFinder(torch.nn.Module):
    """Predicts one token as the answer, and no answer in windows without it."""

    def __init__(self, token, end_id):
        super().__init__()
        self.W = torch.nn.Parameter(torch.zeros(1))
        self.token, self.end_id = token, end_id

    def forward(self, tokens, **inputs):
        is_end = tokens == self.end_id
        return 18.0 * (tokens == self.token) + 9.0 * (is_end & (is_end.cumsum(1) == 1))

    def predict(self, h):
        return h[..., None].expand(-1, -1, 2)


def test_an_answer_is_found_in_the_only_window_that_contains_it(tmp_path):
    _, _, data = bind(squad_file(tmp_path))
    processor, context = data.processor, "This is story 3. " * 100 + "Cy lives in Rome. " + "This is story 4. " * 100
    (rome,) = processor.tokenizer.encode("Rome").tolist()
    start = context.index("Rome")
    question = SquadQuestion("1", "Where?", context, (start, start + 4), ("Rome",))
    windows = encode_questions([question], processor, 96, 16)
    (best,), losses = predict_answers(TokenFinder(rome, processor.end_id), windows, 30, allow_no_answer=True)
    assert len(windows.texts) > 5
    assert (best.text, best.start, best.end) == ("Rome", start, start + 4)
    assert best.score > 0.9
    assert best.no_answer < 0.1
    (empty,), _ = predict_answers(TokenFinder(-1, processor.end_id), windows, 30, allow_no_answer=True)
    assert (empty.text, empty.score) == ("", pytest.approx(empty.no_answer))
    assert losses[0] / (2 * len(windows.texts)) < 0.1


def test_an_answer_has_at_most_max_answer_length_words(tmp_path):
    _, model, data = bind(squad_file(tmp_path))
    for max_length in (1, 2):
        answers, _ = predict_answers(model, data.splits["valid"], max_length, allow_no_answer=False)
        assert all(len(re.findall(r"\w+|[^\w\s]", answer.text)) <= max_length for answer in answers)
