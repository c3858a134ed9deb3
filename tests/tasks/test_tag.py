"""Tagging: entity metrics against nervaluate, Viterbi against brute force, and short trainings."""

import random
from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from harken import recipe
from harken.data.labelled.tags import to_bio2
from harken.tasks.tag import entity_f1_by_label, predict_tags, tag_metrics, transition_scores, viterbi

TAGS = ["O", "B-A", "I-A", "B-B", "I-B"]


def random_tags(count, seed):
    rng = random.Random(seed)
    return [to_bio2(rng.choices(TAGS, [4, 2, 3, 1, 2], k=rng.randint(1, 12))) for _ in range(count)]


def with_errors(sentences, seed):
    rng = random.Random(seed)
    return [to_bio2([tag if rng.random() < 0.8 else rng.choice(TAGS) for tag in tags]) for tags in sentences]


@pytest.mark.parametrize("seed", range(5))
def test_f1_equals_the_strict_f1_of_nervaluate(seed):
    import nervaluate

    targets = random_tags(40, seed)
    predictions = with_errors(targets, seed + 100)
    reference = nervaluate.Evaluator(targets, predictions, tags=["A", "B"], loader="list").evaluate()
    metrics, strict = tag_metrics(targets, predictions, TAGS), reference["overall"]["strict"]
    for name in ("precision", "recall", "f1"):
        assert metrics[name] == pytest.approx(getattr(strict, name))
    by_label = entity_f1_by_label(targets, predictions)
    for label in "AB":
        assert by_label[label]["f1"] == pytest.approx(reference["entities"][label]["strict"].f1)


def test_an_entity_is_correct_only_with_its_label_and_both_ends():
    targets = [["B-A", "I-A", "O", "B-B"]]
    assert tag_metrics(targets, targets, TAGS) == {"f1": 1.0, "precision": 1.0, "recall": 1.0, "accuracy": 1.0}
    assert tag_metrics(targets, [["B-B", "I-B", "O", "B-B"]], TAGS)["f1"] == 0.5
    half = {"f1": 0.5, "precision": 0.5, "recall": 0.5, "accuracy": 0.75}
    assert tag_metrics(targets, [["B-A", "O", "O", "B-B"]], TAGS) == half
    assert tag_metrics(targets, [["O"] * 4], TAGS)["f1"] == 0.0


def test_tags_without_entities_have_an_accuracy_only():
    assert tag_metrics([["NN", "VB"]], [["NN", "NN"]], ["NN", "VB"]) == {"accuracy": 0.5}


def test_f1_is_0_without_any_entity():
    expected = {"f1": 0.0, "precision": 0.0, "recall": 0.0, "accuracy": 1.0}
    assert tag_metrics([["O", "O"]], [["O", "O"]], TAGS) == expected


def test_viterbi_finds_the_most_likely_of_all_valid_sequences():
    rng = np.random.default_rng(0)
    for n_words in (0, 1, 2, 4):
        log_p = np.log(rng.dirichlet(np.ones(len(TAGS)), n_words))
        valid = [path for path in product(range(len(TAGS)), repeat=n_words) if _is_bio2([TAGS[i] for i in path])]
        best = max(valid, key=lambda path: sum(log_p[n, i] for n, i in enumerate(path)))
        assert tuple(viterbi(log_p, transition_scores(TAGS))) == best


def _is_bio2(tags):
    return to_bio2(tags) == tags


# --- training ---------------------------------------------------------------------------------------------------------


def conll_file(tmp_path, pos=False):
    rng, blocks = random.Random(0), []
    for n in range(120):
        person, place = rng.choice(["Ada", "Bob", "Johnson"]), rng.choice(["Rome", "New York"])
        rows = [(person, "NNP" if pos else "B-PER"), (f"met{n}", "VBD" if pos else "O")]
        rows += [(w, "NNP" if pos else ("I-LOC" if k else "B-LOC")) for k, w in enumerate(place.split())]
        blocks.append("\n".join(f"{w} {t}" for w, t in rows))
    (tmp_path / "toy.conll").write_text("\n\n".join(blocks))
    return str(tmp_path / "toy.conll")


def bind(path, **settings):
    layer = {
        "data.kind": "tags",
        "data.path": path,
        "data.vocab_size": 150,
        "model.size": "tiny",
        "train.batch": 40,
        **settings,
    }
    resolved = recipe.resolve(("test", layer))
    data = resolved.load_data()
    torch.manual_seed(0)
    return resolved.bind(data), resolved.build(data.vocab).eval(), data


@torch.no_grad()
def test_the_loss_is_the_cross_entropy_of_the_tags(tmp_path):
    task, model, data = bind(conll_file(tmp_path))
    part, total = data.train, 0.0
    batches = [task.batch(0, step) for step in range(task.steps)]
    for n in range(len(part.texts)):
        ids = torch.tensor([[*part.texts.tokens[n].tolist(), data.processor.end_id]])
        targets = part.texts.targets[part.texts.tokens.starts[n] : part.texts.tokens.starts[n + 1]]
        y = model.predict(model(ids))[0, :-1]
        total += float(F.cross_entropy(y, torch.from_numpy(targets), reduction="sum"))
    packed = sum(float(task.loss(model, batch).total) for batch in batches)
    assert packed == pytest.approx(total, rel=1e-4)
    assert sum(batch.n_targets for batch in batches) == sum(len(s.words) for s in part.sentences)
    assert batches[0].doc.max() > 1  # several sentences per row


@pytest.mark.parametrize("kind", ["bert", "gpt", "lstm"])
def test_a_short_training_learns_the_tags(tmp_path, kind):
    context = {"model.context": 256} if kind == "gpt" else {}
    task, model, _ = bind(conll_file(tmp_path), **{"model.kind": kind, **context})
    before = task.evaluate(model, "valid").metrics["f1"]
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    model.train()
    for step in range(60):
        batch = task.batch(*divmod(step, task.steps))
        (task.loss(model, batch).total / batch.n_targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    score = task.evaluate(model, "valid")
    assert model.training
    assert score.primary_metric == "f1"
    assert score.metrics["f1"] > max(0.9, before)
    assert set(score.parts) == {"LOC", "PER"}


def test_the_baseline_is_the_most_frequent_tag_of_each_word(tmp_path):
    task, _, data = bind(conll_file(tmp_path))
    (baseline,) = task.baselines("valid").values()
    sentences = data.splits["valid"].sentences
    most_frequent = Counter(tag for s in data.train.sentences for tag in s.tags).most_common(1)[0][0]
    n_unknown = sum(word.startswith("met") for s in sentences for word in s.words)
    n_wrong = n_unknown * (most_frequent != "O")
    assert baseline["recall"] == 1.0
    assert baseline["accuracy"] == pytest.approx(1 - n_wrong / sum(len(s.words) for s in sentences))


def test_accuracy_is_the_primary_metric_of_parts_of_speech(tmp_path):
    task, model, _ = bind(conll_file(tmp_path, pos=True))
    score = task.evaluate(model, "valid")
    assert score.primary_metric == "accuracy"
    assert "f1" not in score.metrics


def test_a_split_sentence_is_tagged_as_one(tmp_path):
    _, model, data = bind(conll_file(tmp_path), **{"data.max_length": 8, "data.tokenizer": "char"})
    part = data.splits["valid"]
    assert len(part.texts) > len(part.sentences)
    tags, probabilities, losses = predict_tags(model, part, data.processor.labels)
    assert [len(row) for row in tags] == [len(s.words) for s in part.sentences]
    assert all(0 < p <= 1 for row in probabilities for p in row)
    assert len(losses) == len(part.sentences)
    assert (losses > 0).all()
