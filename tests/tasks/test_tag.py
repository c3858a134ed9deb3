import random
from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from harken import recipe
from harken.data.labelled.conll import to_bio2
from harken.tasks.tag import entity_f1_by_label, viterbi, transition_scores, tag_metrics, predict_tags

TAGS = ["O", "B-A", "I-A", "B-B", "I-B"]


def drawn(many, seed):
    dice = random.Random(seed)
    return [to_bio2(dice.choices(TAGS, [4, 2, 3, 1, 2], k=dice.randint(1, 12))) for _ in range(many)]


def shaken(gold, seed):
    dice = random.Random(seed)
    return [to_bio2([tag if dice.random() < 0.8 else dice.choice(TAGS) for tag in tags]) for tags in gold]


@pytest.mark.parametrize("seed", range(5))
def test_f1_equals_nervaluates_strict(seed):
    import nervaluate

    gold = drawn(40, seed)
    found = shaken(gold, seed + 100)
    result = nervaluate.Evaluator(gold, found, tags=["A", "B"], loader="list").evaluate()
    ours, strict = tag_metrics(gold, found, TAGS), result["overall"]["strict"]
    for name in ("precision", "recall", "f1"):
        assert ours[name] == pytest.approx(getattr(strict, name))
    each = entity_f1_by_label(gold, found)
    for label in "AB":
        assert each[label]["f1"] == pytest.approx(result["entities"][label]["strict"].f1)


def test_an_entity_counts_only_with_its_label_and_both_ends():
    gold = [["B-A", "I-A", "O", "B-B"]]
    assert tag_metrics(gold, gold, TAGS) == {"f1": 1.0, "precision": 1.0, "recall": 1.0, "accuracy": 1.0}
    assert tag_metrics(gold, [["B-B", "I-B", "O", "B-B"]], TAGS)["f1"] == 0.5
    half = {"f1": 0.5, "precision": 0.5, "recall": 0.5, "accuracy": 0.75}
    assert tag_metrics(gold, [["B-A", "O", "O", "B-B"]], TAGS) == half
    assert tag_metrics(gold, [["O"] * 4], TAGS)["f1"] == 0.0


def test_tags_that_mark_nothing_have_an_accuracy_alone():
    assert tag_metrics([["NN", "VB"]], [["NN", "NN"]], ["NN", "VB"]) == {"accuracy": 0.5}


def test_a_part_without_an_entity_has_an_f1_all_the_same():
    none = {"f1": 0.0, "precision": 0.0, "recall": 0.0, "accuracy": 1.0}
    assert tag_metrics([["O", "O"]], [["O", "O"]], TAGS) == none


def test_the_likeliest_tags_are_the_best_of_all_that_may_follow_each_other():
    dice = np.random.default_rng(0)
    for words in (0, 1, 2, 4):
        p = np.log(dice.dirichlet(np.ones(len(TAGS)), words))
        allowed = [path for path in product(range(len(TAGS)), repeat=words) if _is_bio2([TAGS[i] for i in path])]
        best = max(allowed, key=lambda path: sum(p[n, i] for n, i in enumerate(path)))
        assert tuple(viterbi(p, transition_scores(TAGS))) == best


def _is_bio2(tags):
    return to_bio2(tags) == tags


# --- on data ----------------------------------------------------------------------------------------------------------


def toy(tmp_path, pos=False):
    dice, blocks = random.Random(0), []
    for n in range(120):
        person, place = dice.choice(["Ada", "Bob", "Johnson"]), dice.choice(["Rome", "New York"])
        rows = [(person, "NNP" if pos else "B-PER"), (f"met{n}", "VBD" if pos else "O")]
        rows += [(w, "NNP" if pos else ("I-LOC" if k else "B-LOC")) for k, w in enumerate(place.split())]
        blocks.append("\n".join(f"{w} {t}" for w, t in rows))
    (tmp_path / "toy.conll").write_text("\n\n".join(blocks))
    return str(tmp_path / "toy.conll")


def bound(path, **settings):
    layer = {
        "data.kind": "tags",
        "data.path": path,
        "data.vocab_size": 150,
        "model.size": "tiny",
        "train.batch": 40,
        **settings,
    }
    made = recipe.resolve(("test", layer))
    data = made.load_data()
    torch.manual_seed(0)
    return made.bind(data), made.build(data.vocab).eval(), data


@torch.no_grad()
def test_the_loss_is_the_cross_entropy_of_each_words_tag(tmp_path):
    task, model, data = bound(toy(tmp_path))
    batch, total = task.batch(0, 0), 0.0
    part = data.train
    everything = [task.batch(0, step) for step in range(task.steps)]
    for n in range(len(part.texts)):
        ids = torch.tensor([[*part.texts.tokens[n].tolist(), data.processor.end_id]])
        targets = part.texts.targets[part.texts.tokens.starts[n] : part.texts.tokens.starts[n + 1]]
        y = model.predict(model(ids))[0, :-1]
        total += float(F.cross_entropy(y, torch.from_numpy(targets), reduction="sum"))
    packed = sum(float(task.loss(model, some).total) for some in everything)
    assert packed == pytest.approx(total, rel=1e-4)
    assert sum(some.n_targets for some in everything) == sum(len(s.words) for s in part.sentences)
    assert batch.doc.max() > 1  # several sentences in a row


@pytest.mark.parametrize("kind", ["bert", "gpt", "lstm"])
def test_a_few_steps_learn_the_tags(tmp_path, kind):
    context = {"model.context": 256} if kind == "gpt" else {}
    task, model, _ = bound(toy(tmp_path), **{"model.kind": kind, **context})
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


def test_the_free_baseline_is_the_tag_a_word_had_most_often(tmp_path):
    task, _, data = bound(toy(tmp_path))
    (free,) = task.baselines("valid").values()
    some = data.splits["valid"].sentences
    other = Counter(tag for s in data.train.sentences for tag in s.tags).most_common(1)[0][0]
    new = sum(word.startswith("met") for s in some for word in s.words)  # each of them is new
    assert free["recall"] == 1.0
    assert free["accuracy"] == pytest.approx(1 - new * (other != "O") / sum(len(s.words) for s in some))


def test_parts_of_speech_are_judged_by_accuracy(tmp_path):
    task, model, _ = bound(toy(tmp_path, pos=True))
    score = task.evaluate(model, "valid")
    assert score.primary_metric == "accuracy"
    assert "f1" not in score.metrics


def test_a_sentence_in_parts_is_tagged_as_one(tmp_path):
    _, model, data = bound(toy(tmp_path), **{"data.max_length": 8, "data.tokenizer": "char"})
    part = data.splits["valid"]
    assert len(part.texts) > len(part.sentences)
    tags, sure, loss = predict_tags(model, part, data.processor.labels)
    assert [len(some) for some in tags] == [len(s.words) for s in part.sentences]
    assert all(0 < p <= 1 for some in sure for p in some)
    assert loss > 0
