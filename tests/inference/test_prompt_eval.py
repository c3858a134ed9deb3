"""How well a prompt answers data of each kind: as answers given one by one are judged."""

import json
from dataclasses import replace

import numpy as np
import pytest

import harken
from harken.errors import BadInput
from harken.experiments.choose import choose
from harken.inference.prompt import drawn
from harken.inference.prompt_eval import Prompt, by_prompt, opened
from harken.tasks.metrics import classification, generation

ASK = "Tale: {text} It is"


@pytest.fixture(params=["char", "lstm"])
def run(request, folders):
    made = harken.load(folders[request.param])
    if made.model.context is not None:
        made.model.context = 600
    return made


@pytest.fixture
def table(tmp_path):
    lines = [f"the {word} went on {n}\t{n % 3 > 0:d}" for n in range(60) for word in ("king", "fox")]
    (tmp_path / "t.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return opened(choose(str(tmp_path / "t.tsv")).recipe, None)


def test_labels_are_judged_as_the_answers_of_classify_are(run, table):
    task, split = table
    score = by_prompt(run, task, split, Prompt(ASK, labels={"0": "sad", "1": "glad"}))
    rows = task.data.splits[split].rows
    said = run.classify([row.texts[0] for row in rows], prompt=ASK, labels=["sad", "glad"])
    found = np.array([each[0]["label"] == "glad" for each in said])
    gold = np.array([row.labels[0] == "1" for row in rows])
    assert score.metrics["accuracy"] == classification.accuracy(gold, found)
    assert score.metrics["matthews"] == pytest.approx(classification.matthews(gold.astype(int), found.astype(int), 2))
    assert score.protocol["shots"] == 0
    assert score.by == "accuracy"


def test_examples_are_those_of_the_training_split_in_the_words_that_are_given(run, table):
    task, split = table
    score = by_prompt(run, task, split, Prompt(ASK, 4, 7, {"0": "sad", "1": "glad"}))
    known = [({"text": row.texts[0]}, "glad" if row.labels[0] == "1" else "sad") for row in task.data.train.rows]
    shown = "".join(f"Tale: {fields['text']} It is {label}\n\n" for fields, label in drawn(known, 4, 7, balanced=True))
    rows = task.data.splits[split].rows
    said = run.classify([row.texts[0] for row in rows], prompt=shown + ASK, labels=["sad", "glad"])
    wanted = -np.mean(
        [
            np.log(one["probability"])
            for each, row in zip(said, rows, strict=True)
            for one in each
            if one["label"] == ("glad" if row.labels[0] == "1" else "sad")
        ]
    )
    assert score.metrics["loss"] == pytest.approx(wanted, abs=1e-4)
    assert (score.protocol["shots"], score.protocol["seed"]) == (4, 7)


def test_examples_that_do_not_fit_are_left_out_and_that_is_told(run, table):
    said = []
    by_prompt(run, *table, Prompt(ASK, 40), lambda event, **facts: said.append(facts.get("text")))
    if run.model.context is None:
        assert not any(said)
    else:
        assert any("shots=40: more than the model's context holds" in text for text in said if text)


def test_labels_of_the_data_that_are_not_there_are_refused(run, table):
    with pytest.raises(BadInput, match="label '2': not in the data, which has 0, 1"):
        by_prompt(run, *table, Prompt(ASK, labels={"2": "glad"}))


@pytest.mark.parametrize("shots", [-1, 2.5, 1000])
def test_shots_that_cannot_be_shown_are_refused(run, table, shots):
    with pytest.raises(BadInput, match="shots="):
        by_prompt(run, *table, Prompt(ASK, shots))


def test_numbers_are_not_asked_for_by_a_prompt(run, tmp_path):
    lines = [f"a tale {n}\t{n / 7:.3f}" for n in range(150)]
    (tmp_path / "n.tsv").write_text("\n".join(["text\tscore", *lines]) + "\n")
    settings = {"data.kind": "table", "data.text": "text", "data.label": "score"}
    with pytest.raises(BadInput, match="and this data for a number"):
        by_prompt(run, *opened(choose(str(tmp_path / "n.tsv"), settings).recipe, None), Prompt(ASK))


def greedy(run, text):
    return run.generate(text, tokens=64, temperature=0.0, stop="\n").strip()


def test_pairs_are_answered_by_the_line_that_is_written(run, pair_file):
    task, split = opened(choose(str(pair_file)).recipe, "valid")
    task.task = task.task.model_copy(update={"eval_pairs": 5})
    score = by_prompt(run, task, split, Prompt("English: {text} French:", 1))
    [(fields, answer)] = drawn([({"text": a}, b) for a, b in task.data.texts()], 1, 0, balanced=False)
    before = f"English: {fields['text']} French: {answer}\n\n"
    pairs = task.data.splits[split]
    answers = [greedy(run, f"{before}English: {source} French:") for source in pairs.sources[:5]]
    assert score.metrics["exact_match"] == generation.exact_match(answers, pairs.references[:5])
    assert score.metrics["rouge_l"] == pytest.approx(generation.rouge_l(answers, pairs.references[:5]))
    assert score.metrics["chrf"] == pytest.approx(generation.chrf(answers, pairs.references[:5]).score)
    assert score.protocol["pairs"] == 5


@pytest.fixture
def squad(tmp_path):
    def about(n):
        context = f"King {n} went into the wood. There he met an old fox."
        ask = {"id": str(n), "question": "Who went?", "answers": [{"text": f"King {n}", "answer_start": 0}]}
        return {"context": context, "qas": [ask]}

    made = {"data": [{"title": "t", "paragraphs": [about(n) for n in range(60)]}]}
    (tmp_path / "q.json").write_text(json.dumps(made))
    return opened(choose(str(tmp_path / "q.json")).recipe, None)


def test_questions_are_answered_by_the_line_that_is_written(run, squad):
    task, split = squad
    ask = "{text} Question: {question} Answer:"
    score = by_prompt(run, task, split, Prompt(ask))
    questions = task.data.splits[split].questions
    answers = [greedy(run, f"{q.context} Question: {q.text} Answer:") for q in questions]
    references = [q.answers for q in questions]
    assert score.metrics["em"] == generation.answer_exact(answers, references)
    assert score.metrics["f1"] == pytest.approx(generation.answer_f1(answers, references))
    assert task.baselines(split)  # something free stands beside it


def test_a_perfect_writer_has_the_best_of_all_scores(run, squad, monkeypatch):
    task, split = squad
    right = [q.answers[0] for q in task.data.splits[split].questions]
    monkeypatch.setattr("harken.inference.prompt_eval._written", lambda *_: right)
    assert by_prompt(run, task, split, Prompt("{text} {question}", 2)).metrics == {"em": 1.0, "f1": 1.0}


def test_a_text_is_no_data_for_a_prompt(run, tales):
    recipe = choose(str(tales)).recipe
    with pytest.raises(BadInput, match="texts with labels, by pairs or by questions"):
        by_prompt(run, *opened(recipe, "valid"), Prompt("{text}"))


def test_a_split_that_is_not_there_is_refused(pair_file):
    recipe = choose(str(pair_file), {"data.test": 0.0}).recipe
    with pytest.raises(BadInput, match="split test: not in this data, which has valid"):
        opened(recipe, "test")
    assert opened(recipe, None)[1] == "valid"
    with pytest.raises(BadInput, match="held nothing out"):
        opened(replace(recipe, data=recipe.data.model_copy(update={"valid": 0.0})), None)
