"""Classification: loss, metrics, class weights and baselines against PyTorch and scikit-learn."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import f1_score

from harken.data.labelled.batch import PaddedTexts
from harken.data.labelled.source import TableSource
from harken.errors import BadSetting
from harken.models.heads import BERTHeadSettings, LSTMHeadSettings
from harken.tasks.baselines.linear import bag_of_words
from harken.tasks.classify import ClassifySettings, predict
from harken.tasks.label_task import LabelTask
from harken.tasks.metrics.labels import best_thresholds
from harken.tasks.metrics.weighted import evaluate

WORDS = ["red", "green", "blue", "loud", "quiet", "warm", "cold", "tall"]
TINY = {"d": 16, "layers": 1, "heads": 2, "dropout": 0.0}


def examples(count: int = 120, seed: int = 0) -> list[tuple[list[str], float]]:
    """Texts, and a number that depends on their words."""
    rng = np.random.default_rng(seed)
    choices = [rng.choice(8, rng.integers(2, 7)) for _ in range(count)]
    return [([WORDS[k] for k in ids], float((ids < 4).mean() + 0.01 * n % 0.1)) for n, ids in enumerate(choices)]


def load(tmp_path, target_type: str, **settings):
    cell = {
        "label": lambda x: "high" if x > 0.75 else "middle" if x > 0.4 else "low",
        "number": lambda x: f"{x:.3f}",
        "multilabel": lambda x: "|".join(name for name, on in (("a", x > 0.3), ("b", x > 0.6)) if on),
    }[target_type]
    path = tmp_path / "my.csv"
    path.write_text("\n".join(["text,label", *(f"{' '.join(words)},{cell(x)}" for words, x in examples())]) + "\n")
    separator = {"separator": "|"} if target_type == "multilabel" else {}
    columns = {"path": str(path), "text": "text", "label": "label", "tokenizer": "word"}
    return TableSource(**columns, **separator, **settings).load_data()


def bind(data, model=None, **settings):
    return ClassifySettings(**settings).bind(data, model or BERTHeadSettings(**TINY), batch=16, seed=0)


def build(data, model=None):
    torch.manual_seed(0)
    return (model or BERTHeadSettings(**TINY)).build(data.vocab).eval()


def epoch_loss(task, model) -> float:
    batches = [task.batch(0, step) for step in range(task.steps)]
    assert sum(batch.n_targets for batch in batches) == task.data.train.texts.targets.size
    return float(sum(task.loss(model, batch).total for batch in batches).detach())


@pytest.mark.parametrize("target_type", ["label", "number", "multilabel"])
def test_the_loss_of_an_epoch_is_the_pytorch_loss_of_all_texts(tmp_path, target_type):
    data = load(tmp_path, target_type)
    task, model = bind(data), build(data)
    y, targets = predict(model, data.train.texts), torch.from_numpy(data.train.texts.targets)
    assert task.target_type == target_type
    expected = {
        "label": lambda: F.cross_entropy(y, targets, reduction="sum"),
        "number": lambda: F.mse_loss(y, targets, reduction="sum"),
        "multilabel": lambda: F.binary_cross_entropy_with_logits(y, targets, reduction="sum"),
    }[target_type]()
    assert epoch_loss(task, model) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("target_type", ["label", "multilabel"])
def test_balanced_class_weights_give_every_label_the_same_weight(tmp_path, target_type):
    data = load(tmp_path, target_type)
    task, model = bind(data, class_weights="balanced"), build(data)
    y, targets = predict(model, data.train.texts), torch.from_numpy(data.train.texts.targets)
    if target_type == "label":
        losses = F.cross_entropy(y, targets, reduction="none")
        expected = sum(losses[targets == c].mean() * len(targets) / 3 for c in range(3))
    else:
        counts = targets.sum(0)
        losses = F.binary_cross_entropy_with_logits(y, targets, reduction="none")
        expected = sum(losses[:, c][targets[:, c] == 0].sum() * 1.0 for c in range(2))
        expected += sum(losses[:, c][targets[:, c] == 1].mean() * (len(targets) - counts[c]) for c in range(2))
    assert epoch_loss(task, model) == pytest.approx(float(expected), rel=1e-4)
    reported = sum(float(task.loss(model, task.batch(0, s)).reported) for s in range(task.steps))
    assert reported == pytest.approx(epoch_loss(bind(data), model), rel=1e-5)


def test_packed_and_padded_batches_have_the_same_gradients(tmp_path):
    data = load(tmp_path, "label")
    task, model = bind(data), build(data).double()
    assert task.fixed_shapes
    gradients = []
    for batches in (task.batches, PaddedTexts(data.train.texts, 16, seed=0)):
        model.zero_grad()
        for step in range(batches.steps):
            task.loss(model, batches.batch(0, step)).total.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)  # the loss is float32


def test_a_recurrent_model_trains_on_padded_rows(tmp_path):
    data, settings = load(tmp_path, "label"), LSTMHeadSettings(d=8)
    task, model = bind(data, settings), build(data, settings)
    y, targets = predict(model, data.train.texts), torch.from_numpy(data.train.texts.targets)
    assert not task.fixed_shapes
    assert epoch_loss(task, model) == pytest.approx(float(F.cross_entropy(y, targets, reduction="sum")), rel=1e-5)


@pytest.mark.parametrize(
    ("target_type", "metrics", "primary_metric"),
    [
        ("label", {"loss", "accuracy", "f1", "matthews"}, "accuracy"),
        ("number", {"loss", "pearson", "spearman", "mae", "rmse"}, "pearson"),
        ("multilabel", {"loss", "accuracy", "f1", "f1_micro"}, "f1"),
    ],
)
def test_metrics_depend_on_the_target_type_and_the_training_mode_is_restored(
    tmp_path, target_type, metrics, primary_metric
):
    data = load(tmp_path, target_type)
    task, model = bind(data), build(data).train()
    score = task.evaluate(model, "valid")
    assert (score.metrics.keys(), score.primary_metric, model.training) == (metrics, primary_metric, True)
    assert score.protocol["texts"] == len(data.splits["valid"])
    assert set(score.parts) == (set() if target_type == "number" else {*data.processor.labels})


def test_a_metric_that_does_not_apply_is_rejected(tmp_path):
    accepted = "set it to one of accuracy, f1, matthews, loss"
    with pytest.raises(BadSetting, match=f"task.metric=pearson: does not apply to targets of type label; {accepted}"):
        bind(load(tmp_path, "label"), metric="pearson")
    with pytest.raises(BadSetting, match=r"task.class_weights=balanced: the targets are numbers"):
        bind(load(tmp_path, "number"), class_weights="balanced")


def test_texts_longer_than_the_context_are_rejected_with_both_remedies(tmp_path):
    with pytest.raises(BadSetting, match=r"model.context=5: a text has 8 tokens; set model.context=8 or data"):
        bind(load(tmp_path, "label"), BERTHeadSettings(**TINY, context=5))


def test_a_perfect_model_has_perfect_metrics(tmp_path):
    data = load(tmp_path, "label")
    task, targets = bind(data), data.splits["valid"].texts.targets
    metrics = evaluate(task.outcomes(20 * F.one_hot(torch.from_numpy(targets), 3).float(), targets))
    assert metrics["accuracy"] == metrics["f1"] == 1
    assert metrics["matthews"] == pytest.approx(1)
    assert metrics["loss"] == pytest.approx(0, abs=1e-6)


# --- baselines --------------------------------------------------------------------------------------------------------


def test_the_bag_of_words_baseline_is_the_logistic_regression_of_scikit_learn(tmp_path):
    data = load(tmp_path, "label")
    split, texts = data.splits["valid"], lambda part: [row.texts[0] for row in part.rows]
    vectorizer = CountVectorizer(binary=True, token_pattern=r"\S+")
    X, X_valid = vectorizer.fit_transform(texts(data.train)), vectorizer.transform(texts(split))
    reference = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(X, data.train.texts.targets)
    baseline = bind(data).baselines("valid")["bag of words"]
    p = reference.predict_proba(X_valid)
    loss = -np.log(p[np.arange(len(p)), split.texts.targets]).mean()
    assert baseline["loss"] == pytest.approx(loss, abs=2e-2)
    assert baseline["accuracy"] == pytest.approx((p.argmax(1) == split.texts.targets).mean(), abs=0.02)


def test_eval_examples_limits_the_evaluation_to_texts_spread_over_the_split(tmp_path):
    data = load(tmp_path, "label", valid=0.5)
    n, model = len(data.splits["valid"]), build(data)
    full, limited = bind(data, eval_examples=0), bind(data, eval_examples=7)
    chosen = np.linspace(0, n - 1, 7).astype(int)
    part = data.splits["valid"]
    assert [row.location for row in limited.data.splits["valid"].rows] == [part.rows[i].location for i in chosen]
    y = predict(model, full.data.splits["valid"].texts)
    expected = full.score(y[torch.from_numpy(chosen)], part.texts.targets[chosen]).metrics
    score = limited.evaluate(model, "valid")
    assert score.metrics == pytest.approx(expected, rel=1e-5)
    assert (score.protocol["texts"], score.protocol["texts_of_the_split"]) == (7, n)
    assert "texts_of_the_split" not in full.evaluate(model, "valid").protocol
    low, high = score.intervals["accuracy"]
    assert low < score.metrics["accuracy"] < high


def test_the_bag_of_words_of_a_large_split_is_fitted_to_texts_spread_over_it(tmp_path, monkeypatch):
    monkeypatch.setattr("harken.tasks.classify.BASELINE_TEXTS", 30)
    data = load(tmp_path, "label", valid=0.2)
    task, n = bind(data), len(data.train)
    rows = [data.train.rows[i] for i in np.linspace(0, n - 1, 30).astype(int)]
    counts = CountVectorizer(binary=True, token_pattern=r"\S+")
    X = counts.fit_transform([row.texts[0] for row in rows]).toarray()
    names = [row.labels[0] for row in rows]
    regression = LogisticRegression(C=1.0, max_iter=10_000, tol=1e-9).fit(X, names)
    held_out = data.splits["valid"].rows
    accuracy = regression.score(counts.transform([row.texts[0] for row in held_out]).toarray(), labels_of(held_out))
    assert task.baselines("valid")["bag of words"]["accuracy"] == pytest.approx(accuracy)
    assert task.evaluate(build(data), "valid").protocol["baseline_texts"] == 30


def labels_of(rows) -> list[str]:
    return [row.labels[0] for row in rows]


def test_the_bag_of_words_baseline_of_numbers_is_the_ridge_regression_of_scikit_learn(tmp_path):
    data = load(tmp_path, "number")
    split, texts = data.splits["valid"], lambda part: [row.texts[0] for row in part.rows]
    vectorizer = CountVectorizer(binary=True, token_pattern=r"\S+")
    X, X_valid = vectorizer.fit_transform(texts(data.train)), vectorizer.transform(texts(split))
    reference = Ridge(alpha=0.5).fit(X, data.train.texts.targets[:, 0]).predict(X_valid)  # our penalty is ||W||^2 / 2
    baseline = bind(data).baselines("valid")["bag of words"]
    assert baseline["pearson"] == pytest.approx(np.corrcoef(reference, split.texts.targets[:, 0])[0, 1], abs=1e-3)


def test_the_constant_baseline_predicts_the_label_frequencies(tmp_path):
    data = load(tmp_path, "label")
    frequency = np.bincount(data.train.texts.targets) / len(data.train)
    targets = data.splits["valid"].texts.targets
    baseline = bind(data).baselines("valid")["most frequent label"]
    assert baseline["accuracy"] == pytest.approx((targets == frequency.argmax()).mean())
    assert baseline["loss"] == pytest.approx(-np.log(frequency[targets]).mean(), rel=1e-4)


def test_a_word_in_both_texts_of_a_pair_is_a_feature_of_its_own(tmp_path):
    lines = ["a,b,label", *(f"{' '.join(t)},{t[0]} {WORDS[n % 8]},{n % 2}" for n, (t, _) in enumerate(examples()))]
    (tmp_path / "my.csv").write_text("\n".join(lines) + "\n")
    data = TableSource(path=str(tmp_path / "my.csv"), text=["a", "b"], label="label", tokenizer="word").load_data()
    tokenizer = data.processor.tokenizer
    features = bag_of_words(data.train.texts, tokenizer.vocab)
    for n, row in enumerate(data.train.rows[:20]):
        ids = features.ids[features.offsets[n] : features.offsets[n + 1]].numpy()
        blocks = [
            {*tokenizer.token_texts(ids[ids // tokenizer.vocab == k] % tokenizer.vocab)} - {"<eos>"} for k in range(3)
        ]
        first, second = ({*text.split()} for text in row.texts)
        assert blocks == [first, second, first & second]


def test_macro_f1_is_over_the_labels_that_occur_as_in_scikit_learn():
    task = LabelTask()
    task.set_targets(["a", "b", "c", "d", "e"], "label", "auto")
    targets, predictions = np.array([0, 0, 1, 3, 1]), np.array([0, 1, 1, 1, 0])
    y = torch.nn.functional.one_hot(torch.from_numpy(predictions), 5).float()
    expected = f1_score(targets, predictions, average="macro", zero_division=0)
    assert evaluate(task.outcomes(y, targets))["f1"] == pytest.approx(expected)


def test_micro_and_macro_f1_of_several_labels_are_those_of_scikit_learn():
    task, rng = LabelTask(), np.random.default_rng(0)
    task.set_targets(["a", "b", "c", "d"], "multilabel", "auto")
    y, targets = torch.from_numpy(rng.normal(size=(50, 4))), (rng.random((50, 4)) < 0.3).astype(np.float32)
    y[:, 3], targets[:, 3] = -1, 0  # occurs nowhere
    metrics = evaluate(task.outcomes(y, targets))
    for average, name in (("macro", "f1"), ("micro", "f1_micro")):
        expected = f1_score(targets, (y > 0).numpy(), average=average, zero_division=np.nan)
        assert metrics[name] == pytest.approx(expected)


def test_thresholds_have_the_highest_f1_on_the_validation_split(tmp_path):
    data = load(tmp_path, "multilabel", valid=0.4)
    task, model = bind(data), build(data)
    plain = task.evaluate(model, "valid")
    assert plain.protocol["thresholds"] == "0.5"
    thresholds = task.choose_thresholds(model)
    assert set(thresholds) == {"a", "b"}
    texts = data.splits["valid"].texts
    p, targets = predict(model, texts).double().sigmoid().numpy(), texts.targets > 0.5
    for n, label in enumerate(["a", "b"]):
        candidates = np.unique([0.5, 0.0, *p[:, n]])
        best = max(f1_score(targets[:, n], p[:, n] > cut, zero_division=0) for cut in candidates)
        assert f1_score(targets[:, n], p[:, n] > thresholds[label], zero_division=0) == pytest.approx(best)
    score = task.evaluate(model, "valid")
    assert score.protocol["thresholds"] == "chosen on valid"
    assert score.metrics["f1"] > plain.metrics["f1"]
    other = bind(data)
    other.use_thresholds(thresholds)
    assert other.evaluate(model, "valid").metrics == score.metrics


def test_a_threshold_is_one_half_if_no_other_is_better_or_positives_are_few():
    p = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.3], [0.2, 0.4]])
    targets = np.array([[1, 0], [1, 0], [0, 1], [0, 1]])
    assert best_thresholds(targets, p) == [0.5, 0.25]
    assert best_thresholds(targets, p, 5) == [0.5, 0.5]


def test_labels_without_examples_in_the_split_are_listed_apart():
    task = LabelTask()
    task.set_targets(["a", "b", "c"], "label", "auto")
    y = torch.tensor([[1.0, 0, 0], [0, 0, 1], [1, 0, 0]])
    score = task.score(y, np.array([0, 0, 0]))
    assert set(score.parts) == {"a"}
    assert score.protocol["labels_without_examples"] == "2 ('b', 'c')"
    assert score.protocol["most_frequent_label"] == "'a' (100.0%)"


def test_the_intervals_and_differences_of_grouped_texts_count_the_groups(tmp_path):
    path = tmp_path / "visits.csv"
    rows = (f"{' '.join(words)},{'ab'[x > 0.5]},p{n % 40}" for n, (words, x) in enumerate(examples(400)))
    path.write_text("\n".join(["text,label,patient", *rows]) + "\n")
    columns = {"path": str(path), "text": "text", "label": "label", "tokenizer": "word", "test": 0.4}
    data = TableSource(**columns, group="patient").load_data()
    task, model = bind(data), build(data)
    score, baselines = task.evaluate(model, "test"), task.evaluate_baselines("test")
    n = len({row.group for row in data.splits["test"].rows})
    assert 8 <= n < 30
    assert list(score.protocol)[:2] == ["texts", "groups"]
    assert score.protocol["groups"] == score.n_units == n < score.n_examples
    assert {x.n for outcomes in (score, *baselines.values()) for x in outcomes.outcomes.values()} == {n}
    assert score.compare(baselines).keys() == baselines.keys()
    ungrouped = bind(TableSource(**columns).load_data()).evaluate(model, "test")
    assert "groups" not in ungrouped.protocol
    assert ungrouped.n_units == ungrouped.n_examples
