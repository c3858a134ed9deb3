"""Few-shot evaluation: metrics equal those of answers that are computed one by one."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics

import harken
from harken.errors import BadInput
from harken.experiments.choose import choose
from harken.inference.prompt_eval import FewShotPrompt, draw_examples, evaluate_prompt, load_task
from harken.tasks.metrics import generation

TEMPLATE = "Tale: {text} It is"
ADA = {"text": "Ada", "answer_start": 0}


@pytest.fixture(params=["char", "lstm"])
def run(request, folders):
    loaded = harken.load(folders[request.param])
    if loaded.model.context is not None:
        loaded.model.context = 600
    return loaded


@pytest.fixture
def table(tmp_path):
    lines = [f"the {word} went on {n}\t{n % 3 > 0:d}" for n in range(60) for word in ("king", "fox")]
    (tmp_path / "t.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return load_task(choose(str(tmp_path / "t.tsv")).recipe, None)


def test_label_metrics_equal_those_of_classify(run, table):
    task, split = table
    score = evaluate_prompt(run, task, split, FewShotPrompt(TEMPLATE, labels={"0": "sad", "1": "glad"}))
    rows = task.data.splits[split].rows
    messages = run.classify([row.texts[0] for row in rows], prompt=TEMPLATE, labels=["sad", "glad"])
    predicted = np.array([labels[0]["label"] == "glad" for labels in messages])
    gold = np.array([row.labels[0] == "1" for row in rows])
    assert score.metrics["accuracy"] == metrics.accuracy_score(gold, predicted)
    assert score.metrics["matthews"] == pytest.approx(metrics.matthews_corrcoef(gold, predicted))
    assert score.protocol["shots"] == 0
    assert score.primary_metric == "accuracy"


def test_examples_come_from_the_training_split_with_the_given_label_texts(run, table):
    task, split = table
    score = evaluate_prompt(run, task, split, FewShotPrompt(TEMPLATE, 4, 7, {"0": "sad", "1": "glad"}))
    train = [({"text": row.texts[0]}, "glad" if row.labels[0] == "1" else "sad") for row in task.data.train.rows]
    examples = "".join(
        f"Tale: {fields['text']} It is {label}\n\n" for fields, label in draw_examples(train, 4, 7, balanced=True)
    )
    rows = task.data.splits[split].rows
    messages = run.classify([row.texts[0] for row in rows], prompt=examples + TEMPLATE, labels=["sad", "glad"])
    expected = -np.mean(
        [
            np.log(item["probability"])
            for labels, row in zip(messages, rows, strict=True)
            for item in labels
            if item["label"] == ("glad" if row.labels[0] == "1" else "sad")
        ]
    )
    assert score.metrics["loss"] == pytest.approx(expected, abs=1e-4)
    assert (score.protocol["shots"], score.protocol["seed"]) == (4, 7)


def test_examples_that_do_not_fit_are_dropped_with_a_notice(run, table):
    messages = []
    evaluate_prompt(run, *table, FewShotPrompt(TEMPLATE, 40), lambda event, **facts: messages.append(facts.get("text")))
    if run.model.context is None:
        assert not any(messages)
    else:
        assert any("shots=40: exceeds the model's context" in text for text in messages if text)


def test_unknown_labels_are_refused(run, table):
    with pytest.raises(BadInput, match="label '2': not in the data, which has 0, 1"):
        evaluate_prompt(run, *table, FewShotPrompt(TEMPLATE, labels={"2": "glad"}))


@pytest.mark.parametrize("shots", [-1, 2.5, 1000])
def test_an_invalid_number_of_shots_is_refused(run, table, shots):
    with pytest.raises(BadInput, match="shots="):
        evaluate_prompt(run, *table, FewShotPrompt(TEMPLATE, shots))


def test_a_regression_target_is_refused(run, tmp_path):
    lines = [f"a tale {n}\t{n / 7:.3f}" for n in range(150)]
    (tmp_path / "n.tsv").write_text("\n".join(["text\tscore", *lines]) + "\n")
    settings = {"data.kind": "table", "data.text": "text", "data.label": "score"}
    with pytest.raises(BadInput, match="this data has a number"):
        evaluate_prompt(
            run, *load_task(choose(str(tmp_path / "n.tsv"), settings).recipe, None), FewShotPrompt(TEMPLATE)
        )


def greedy(run, text):
    return run.generate(text, max_new_tokens=64, temperature=0.0, stop="\n").strip()


def test_pairs_are_answered_with_the_generated_line(run, pair_file):
    task, split = load_task(choose(str(pair_file)).recipe, "valid")
    task.settings = task.settings.model_copy(update={"eval_pairs": 5})
    score = evaluate_prompt(run, task, split, FewShotPrompt("English: {text} French:", 1))
    [(fields, answer)] = draw_examples([({"text": a}, b) for a, b in task.data.texts()], 1, 0, balanced=False)
    prefix = f"English: {fields['text']} French: {answer}\n\n"
    pairs = task.data.splits[split]
    answers = [greedy(run, f"{prefix}English: {source} French:") for source in pairs.sources[:5]]
    assert score.metrics["exact_match"] == generation.exact_match(answers, pairs.references[:5])
    assert score.metrics["rouge_l"] == pytest.approx(generation.rouge_l(answers, pairs.references[:5]))
    assert score.metrics["chrf"] == pytest.approx(generation.chrf(answers, pairs.references[:5]).score)
    assert score.protocol["pairs"] == 5


@pytest.fixture
def squad(tmp_path):
    def about(n):
        context = f"King {n} went into the wood. There he met an old fox."
        template = {"id": str(n), "question": "Who went?", "answers": [{"text": f"King {n}", "answer_start": 0}]}
        return {"context": context, "qas": [template]}

    loaded = {"data": [{"title": "t", "paragraphs": [about(n) for n in range(60)]}]}
    (tmp_path / "q.json").write_text(json.dumps(loaded))
    return load_task(choose(str(tmp_path / "q.json")).recipe, None)


def test_questions_are_answered_with_the_generated_line(run, squad):
    task, split = squad
    template = "{text} Question: {question} Answer:"
    score = evaluate_prompt(run, task, split, FewShotPrompt(template))
    questions = task.data.splits[split].questions
    answers = [greedy(run, f"{q.context} Question: {q.text} Answer:") for q in questions]
    references = [q.answers for q in questions]
    assert score.metrics["em"] == generation.answer_exact(answers, references)
    assert score.metrics["f1"] == pytest.approx(generation.answer_f1(answers, references))
    assert task.baselines(split)  # there is a baseline


def test_perfect_answers_have_perfect_metrics(run, squad, monkeypatch):
    task, split = squad
    right = [q.answers[0] for q in task.data.splits[split].questions]
    monkeypatch.setattr("harken.inference.prompt_eval._generate_answers", lambda *_: right)
    assert evaluate_prompt(run, task, split, FewShotPrompt("{text} {question}", 2)).metrics == {"em": 1.0, "f1": 1.0}


def test_plain_text_is_refused(run, tales):
    recipe = choose(str(tales)).recipe
    with pytest.raises(BadInput, match="needs texts with labels, pairs or questions"):
        evaluate_prompt(run, *load_task(recipe, "valid"), FewShotPrompt("{text}"))


def test_a_missing_split_is_refused(pair_file):
    recipe = choose(str(pair_file), {"data.test": 0.0}).recipe
    with pytest.raises(BadInput, match="split test: not in this data, which has valid"):
        load_task(recipe, "test")
    assert load_task(recipe, None)[1] == "valid"
    with pytest.raises(BadInput, match="has no held-out split"):
        load_task(replace(recipe, data=recipe.data.model_copy(update={"valid": 0.0})), None)


def test_without_examples_every_row_is_evaluated(run, tmp_path):
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + "".join(f"the fox {n}\t{n % 2}\n" for n in range(12)))
    about = [
        {"context": f"Ada saw {n}.", "qas": [{"id": str(n), "question": "Who?", "answers": [ADA]}]} for n in range(24)
    ]
    (tmp_path / "q.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": about}]}))
    (tmp_path / "p.tsv").write_text("".join(f"the fox {n}\tle renard {n}\n" for n in range(14)))
    for name, count in (("t.tsv", 12), ("q.json", 24), ("p.tsv", 14)):
        task, split = load_task(choose(str(tmp_path / name)).recipe, None, needs_train=False)
        template = "{text} {question}" if name == "q.json" else "{text}"
        protocol = evaluate_prompt(run, task, split, FewShotPrompt(template)).protocol
        assert next(protocol[unit] for unit in ("texts", "questions", "pairs") if unit in protocol) == count
        assert not task.baselines(split).keys() & {"bag of words", "most frequent label"}  # fitted on the same rows


def test_without_examples_held_out_files_and_a_named_split_are_used(tmp_path):
    for name, count in (("train", 30), ("test", 7)):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "".join(f"{name} {n}\t{n % 2}\n" for n in range(count)))
    recipe = choose(str(tmp_path)).recipe
    task, split = load_task(recipe, None, needs_train=False)
    assert (split, len(task.data.splits[split].rows)) == ("test", 7)
    task, split = load_task(choose(str(tmp_path / "train.tsv")).recipe, "valid", needs_train=False)
    assert 0 < len(task.data.splits[split].rows) < 30
