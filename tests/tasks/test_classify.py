"""Classification: its loss, its measures, its weights and its free baselines, against PyTorch and scikit-learn."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from harken.data.labelled.batch import PaddedTexts
from harken.data.labelled.source import TableSource
from harken.errors import BadSetting
from harken.models.heads import BERTHeadSettings, LSTMHeadSettings
from harken.tasks.baselines.linear import bag_of_words
from harken.tasks.classify import ClassifySettings, answers
from harken.tasks.label_task import LabelTask

WORDS = ["red", "green", "blue", "loud", "quiet", "warm", "cold", "tall"]
TINY = {"d": 16, "layers": 1, "heads": 2, "dropout": 0.0}


def rows(many: int = 120, seed: int = 0) -> list[tuple[list[str], float]]:
    """Texts, and an amount that their words decide."""
    rng = np.random.default_rng(seed)
    picks = [rng.choice(8, rng.integers(2, 7)) for _ in range(many)]
    return [([WORDS[k] for k in some], float((some < 4).mean() + 0.01 * n % 0.1)) for n, some in enumerate(picks)]


def opened(tmp_path, answer: str, **how):
    said = {
        "label": lambda x: "high" if x > 0.75 else "middle" if x > 0.4 else "low",
        "number": lambda x: f"{x:.3f}",
        "multilabel": lambda x: "|".join(name for name, on in (("a", x > 0.3), ("b", x > 0.6)) if on),
    }[answer]
    lines = ["text,label", *(f"{' '.join(text)},{said(x)}" for text, x in rows())]
    (tmp_path / "my.csv").write_text("\n".join(lines) + "\n")
    extra = {"separator": "|"} if answer == "multilabel" else {}
    made = {"path": str(tmp_path / "my.csv"), "text": "text", "label": "label", "tokens": "word", **extra, **how}
    return TableSource(**made).load_data()


def bound(data, shape=None, **task):
    return ClassifySettings(**task).bind(data, shape or BERTHeadSettings(**TINY), batch=16, seed=0)


def model_of(data, shape=None):
    torch.manual_seed(0)
    return (shape or BERTHeadSettings(**TINY)).build(data.vocab).eval()


def epoch_loss(task, model) -> float:
    batches = [task.batch(0, step) for step in range(task.steps)]
    assert sum(batch.n_targets for batch in batches) == task.data.train.texts.targets.size
    return float(sum(task.loss(model, batch).total for batch in batches).detach())


@pytest.mark.parametrize("answer", ["label", "number", "multilabel"])
def test_the_loss_of_an_epoch_is_pytorchs_own_of_all_texts(tmp_path, answer):
    data = opened(tmp_path, answer)
    task, model = bound(data), model_of(data)
    y, targets = answers(model, data.train.texts), torch.from_numpy(data.train.texts.targets)
    assert task.answer == answer
    expected = {
        "label": lambda: F.cross_entropy(y, targets, reduction="sum"),
        "number": lambda: F.mse_loss(y, targets, reduction="sum"),
        "multilabel": lambda: F.binary_cross_entropy_with_logits(y, targets, reduction="sum"),
    }[answer]()
    assert epoch_loss(task, model) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("answer", ["label", "multilabel"])
def test_rare_labels_weigh_as_much_as_frequent_ones(tmp_path, answer):
    data = opened(tmp_path, answer)
    task, model = bound(data, weights="balanced"), model_of(data)
    y, targets = answers(model, data.train.texts), torch.from_numpy(data.train.texts.targets)
    if answer == "label":
        each = F.cross_entropy(y, targets, reduction="none")
        share = len(targets) / 3
        expected = sum(each[targets == c].mean() * share for c in range(3))
    else:
        there = targets.sum(0)
        each = F.binary_cross_entropy_with_logits(y, targets, reduction="none")
        expected = sum(each[:, c][targets[:, c] == 0].sum() * 1.0 for c in range(2))
        expected += sum(each[:, c][targets[:, c] == 1].mean() * (len(targets) - there[c]) for c in range(2))
    assert epoch_loss(task, model) == pytest.approx(float(expected), rel=1e-4)
    told = sum(float(task.loss(model, task.batch(0, s)).model_inputs) for s in range(task.steps))
    assert told == pytest.approx(epoch_loss(bound(data), model), rel=1e-5)


def test_packed_and_padded_batches_have_the_same_gradients(tmp_path):
    data = opened(tmp_path, "label")
    task, model = bound(data), model_of(data).double()
    assert task.fixed_shapes
    found = []
    for batches in (task.batches, PaddedTexts(data.train.texts, 16, seed=0)):
        model.zero_grad()
        for step in range(batches.steps):
            task.loss(model, batches.batch(0, step)).total.backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)  # the loss is taken in float32


def test_a_model_that_reads_on_gets_padded_rows(tmp_path):
    data, shape = opened(tmp_path, "label"), LSTMHeadSettings(d=8)
    task, model = bound(data, shape), model_of(data, shape)
    y, targets = answers(model, data.train.texts), torch.from_numpy(data.train.texts.targets)
    assert not task.fixed_shapes
    assert epoch_loss(task, model) == pytest.approx(float(F.cross_entropy(y, targets, reduction="sum")), rel=1e-5)


@pytest.mark.parametrize(
    ("answer", "metrics", "by"),
    [
        ("label", {"loss", "accuracy", "f1", "matthews"}, "accuracy"),
        ("number", {"loss", "pearson", "spearman"}, "pearson"),
        ("multilabel", {"loss", "accuracy", "f1"}, "f1"),
    ],
)
def test_measures_fit_what_is_asked_and_a_model_is_left_as_it_was(tmp_path, answer, metrics, by):
    data = opened(tmp_path, answer)
    task, model = bound(data), model_of(data).train()
    score = task.evaluate(model, "valid")
    assert (score.metrics.keys(), score.primary_metric, model.training) == (metrics, by, True)
    assert score.protocol["texts"] == len(data.splits["valid"])
    assert set(score.parts) == (set() if answer == "number" else {*data.processor.labels})


def test_a_measure_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(BadSetting, match=r"task.metric=pearson: does not fit.* take one of accuracy, f1, matthews"):
        bound(opened(tmp_path, "label"), metric="pearson")
    with pytest.raises(BadSetting, match="numbers have no labels to balance"):
        bound(opened(tmp_path, "number"), weights="balanced")


def test_texts_longer_than_the_context_are_refused_with_the_two_ways_out(tmp_path):
    with pytest.raises(BadSetting, match=r"model.context=5: a text has 8 tokens; set model.context=8 or data"):
        bound(opened(tmp_path, "label"), BERTHeadSettings(**TINY, context=5))


def test_a_perfect_model_has_perfect_measures(tmp_path):
    data = opened(tmp_path, "label")
    task, targets = bound(data), data.splits["valid"].texts.targets
    found = task.metrics(20 * F.one_hot(torch.from_numpy(targets), 3).float(), targets)
    assert found["accuracy"] == found["f1"] == 1
    assert found["matthews"] == pytest.approx(1)
    assert found["loss"] == pytest.approx(0, abs=1e-6)


# --- what costs nothing -----------------------------------------------------------------------------------------------


def test_the_bag_of_words_is_scikit_learns_logistic_regression(tmp_path):
    data = opened(tmp_path, "label")
    split, texts = data.splits["valid"], lambda part: [row.texts[0] for row in part.rows]
    counted = CountVectorizer(binary=True, token_pattern=r"\S+")
    X, V = counted.fit_transform(texts(data.train)), counted.transform(texts(split))
    theirs = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(X, data.train.texts.targets)
    free = bound(data).baselines("valid")["bag of words"]
    p = theirs.predict_proba(V)
    loss = -np.log(p[np.arange(len(p)), split.texts.targets]).mean()
    assert free["loss"] == pytest.approx(loss, abs=2e-2)
    assert free["accuracy"] == pytest.approx((p.argmax(1) == split.texts.targets).mean(), abs=0.02)


def test_the_bag_of_words_of_amounts_is_scikit_learns_ridge(tmp_path):
    data = opened(tmp_path, "number")
    split, texts = data.splits["valid"], lambda part: [row.texts[0] for row in part.rows]
    counted = CountVectorizer(binary=True, token_pattern=r"\S+")
    X, V = counted.fit_transform(texts(data.train)), counted.transform(texts(split))
    said = Ridge(alpha=0.5).fit(X, data.train.texts.targets[:, 0]).predict(V)  # ours has the half at the weights
    free = bound(data).baselines("valid")["bag of words"]
    assert free["pearson"] == pytest.approx(np.corrcoef(said, split.texts.targets[:, 0])[0, 1], abs=1e-3)


def test_the_most_frequent_label_is_what_is_said_without_a_model(tmp_path):
    data = opened(tmp_path, "label")
    share = np.bincount(data.train.texts.targets) / len(data.train)
    gold = data.splits["valid"].texts.targets
    free = bound(data).baselines("valid")["most frequent label"]
    assert free["accuracy"] == pytest.approx((gold == share.argmax()).mean())
    assert free["loss"] == pytest.approx(-np.log(share[gold]).mean(), rel=1e-4)


def test_words_of_both_texts_are_a_word_of_their_own(tmp_path):
    lines = ["a,b,label", *(f"{' '.join(t)},{t[0]} {WORDS[n % 8]},{n % 2}" for n, (t, _) in enumerate(rows()))]
    (tmp_path / "my.csv").write_text("\n".join(lines) + "\n")
    data = TableSource(path=str(tmp_path / "my.csv"), text=["a", "b"], label="label", tokenizer="word").load_data()
    vocab = data.processor.tokenizer.vocab
    found = bag_of_words(data.train.texts, vocab)
    names = data.processor.tokenizer.words
    for n, row in enumerate(data.train.rows[:20]):
        words = found.words[found.starts[n] : found.starts[n + 1]].numpy()
        blocks = [{*names(words[words // vocab == k] % vocab)} - {"<eos>"} for k in range(3)]
        one, two = ({*text.split()} for text in row.texts)
        assert blocks == [one, two, one & two]


def test_the_mean_f1_is_over_the_labels_that_are_there_or_were_said_as_in_scikit_learn():
    from sklearn.metrics import f1_score

    task = LabelTask()
    task.asks(["a", "b", "c", "d", "e"], "label", "auto")
    gold, said = np.array([0, 0, 1, 3, 1]), np.array([0, 1, 1, 1, 0])
    y = torch.nn.functional.one_hot(torch.from_numpy(said), 5).float()
    assert task.metrics(y, gold)["f1"] == pytest.approx(f1_score(gold, said, average="macro", zero_division=0))
