"""Next-word prediction: loss, metrics, baselines and recurrent state against direct computations."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harken import registry
from harken.data.batch import IGNORE, Batch
from harken.data.text.source import TextSource
from harken.errors import BadSetting
from harken.models import LanguageModel
from harken.tasks import linear_cross_entropy, next_word
from harken.tasks.next_word import NextWordSettings, NextWordTask, nll

TEXT = "the cat saw the dog and the dog saw the cat\n" * 12


def build(kind: str = "gpt", vocab: int = 20, dtype: torch.dtype = torch.float32, **settings) -> LanguageModel:
    tiny = {"d": 16, "layers": 1, "context": 8} | ({"heads": 2} if kind == "gpt" else {}) | settings
    torch.manual_seed(0)
    return registry.find_kind("model", kind)(**tiny).build(vocab).to(dtype)


def bind(path: Path, text: str = TEXT, *, kind: str = "gpt", task: dict | None = None, **data) -> NextWordTask:
    path.mkdir(exist_ok=True)
    (path / "a.txt").write_text(text)
    source = data.pop("source", None) or TextSource(path=str(path / "a.txt"), **data)
    model = registry.find_kind("model", kind)(d=16, layers=1, context=8)
    return NextWordSettings(**task or {}).bind(source.load_data(stateful=model.stateful), model, batch=4, seed=0)


class Uniform(LanguageModel):
    """Predicts the uniform distribution."""

    context = 8

    def forward(self, tokens: Tensor, **_) -> Tensor:
        return torch.zeros(*tokens.shape, 4)

    def __init__(self, vocab: int) -> None:
        super().__init__(vocab, 4)
        nn.init.zeros_(self.head.weight)


class Bigram(LanguageModel):
    """Predicts ln p(next token | token) from a table."""

    def __init__(self, table: Tensor, context: int = 8) -> None:
        super().__init__(len(table), len(table))
        self.table, self.context = table, context
        with torch.no_grad():
            self.head.weight[: len(table)] = torch.eye(len(table))  # the logits are h

    def forward(self, tokens: Tensor, **_) -> Tensor:
        return self.table[tokens]


def bigram_table(vocab: int) -> Tensor:
    return torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(1)).log_softmax(-1)


# --- loss -------------------------------------------------------------------------------------------------------------


def random_batch(vocab: int = 20) -> Batch:
    tokens = torch.randint(vocab, (3, 9), generator=torch.Generator().manual_seed(3))
    targets = tokens[:, 1:].clone()
    targets[0, 3:], targets[2, 0] = IGNORE, IGNORE
    return Batch(tokens[:, :-1], targets)


def test_the_loss_of_a_row_is_minus_ln_p_of_its_targets():
    table, batch = bigram_table(20), random_batch()
    pairs = [zip(a, b, strict=True) for a, b in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True)]
    expected = [-sum(float(table[x, y]) for x, y in row if y != IGNORE) for row in pairs]
    torch.testing.assert_close(nll(Bigram(table), batch)[1], torch.tensor(expected))


def test_the_summed_loss_is_the_sum_over_the_rows():
    total, rows = nll(build(), random_batch())
    torch.testing.assert_close(total.detach(), rows.sum())


@pytest.mark.parametrize("rows", [1, 2, 7, 24, 1000])
def test_chunked_logits_give_the_loss_and_gradients_of_full_ones(monkeypatch, rows):
    monkeypatch.setitem(linear_cross_entropy.CHUNK, "cpu", rows * 64)  # a vocabulary of 20 is padded to 64
    model, batch = build(dtype=torch.float64), random_batch()
    total, _ = nll(model, batch)
    total.backward()
    chunked = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    logits = model.logits(model(batch.tokens)).flatten(0, 1)
    expected = F.cross_entropy(logits, batch.targets.flatten(), reduction="sum")
    expected.backward()
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(chunked, [p.grad for p in model.parameters()])


def test_at_most_one_chunk_of_logits_is_computed_at_a_time(monkeypatch):
    monkeypatch.setitem(linear_cross_entropy.CHUNK, "cpu", 5 * 64)
    sizes = []
    softmax = Tensor.softmax
    monkeypatch.setattr(Tensor, "softmax", lambda logits, dim: (sizes.append(len(logits)), softmax(logits, dim))[1])
    nll(build(), random_batch())
    assert sizes == [5, 5, 5, 3]  # rows without a target are left out


def test_gradients_are_computed_only_if_they_are_needed():
    model, batch = build(), random_batch()
    h, W = model(batch.tokens).detach().flatten(0, 1), model.head.weight.detach()
    for grad in (False, True):
        _, _, dh, dW, _ = linear_cross_entropy._chunked(h, W, None, batch.targets.flatten(), 20, 0.0, grad)
        assert (dh is not None, dW is not None) == (grad, grad)


def test_the_loss_of_a_mixed_batch_has_a_part_per_text(tmp_path):
    for name, text in {"a": "abababab\n" * 9, "b": "aabbaabb\n" * 9}.items():
        (tmp_path / name).write_text(text)
    mix = {str(tmp_path / "a"): 1.0, str(tmp_path / "b"): 1.0}
    task = bind(tmp_path, source=TextSource(mix=mix))
    model = Bigram(bigram_table(task.data.vocab))
    batch = task.batch(0, 0)
    loss = task.loss(model, batch)
    rows = nll(model, batch)[1]
    for s, name in enumerate("ab"):
        total, count = loss.parts[name]
        assert count == int((batch.origin == s).sum()) * 8
        torch.testing.assert_close(total, rows[batch.origin == s].sum())
    assert sum(count for _, count in loss.parts.values()) == batch.n_targets


@pytest.mark.parametrize("rows", [2, 1000])
@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_label_smoothing_is_that_of_pytorch_and_the_reported_loss_is_plain(tmp_path, monkeypatch, kind, rows):
    monkeypatch.setitem(linear_cross_entropy.CHUNK, "cpu", rows * 64)
    task = bind(tmp_path, kind=kind, task={"label_smoothing": 0.1})
    model, batch = build(kind, task.data.vocab, torch.float64), random_batch(task.data.vocab)
    loss = task.loss(model, batch)
    loss.total.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    logits, targets = model.logits(model(batch.tokens)).flatten(0, 1), batch.targets.flatten()
    smoothed, plain = (F.cross_entropy(logits, targets, label_smoothing=e, reduction="sum") for e in (0.1, 0.0))
    smoothed.backward()
    torch.testing.assert_close(loss.total, smoothed)
    torch.testing.assert_close(loss.reported, plain.detach())
    torch.testing.assert_close(gradients, [p.grad for p in model.parameters()])


def test_label_smoothing_does_not_change_the_evaluation(tmp_path):
    plain, smoothed = bind(tmp_path), bind(tmp_path, task={"label_smoothing": 0.4})
    model = build(vocab=plain.data.vocab)
    assert smoothed.evaluate(model, "valid") == plain.evaluate(model, "valid")


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_the_perplexity_of_the_uniform_distribution_is_the_vocabulary_size(tmp_path):
    task = bind(tmp_path)
    metrics = task.evaluate(Uniform(task.data.vocab), "valid").metrics
    assert metrics["perplexity"] == pytest.approx(task.data.vocab, rel=1e-5)
    assert metrics["loss"] == pytest.approx(math.log(task.data.vocab), rel=1e-5)


def test_bits_per_character_of_a_character_model_are_bits_per_token(tmp_path):
    task = bind(tmp_path)
    metrics = task.evaluate(Uniform(task.data.vocab), "valid").metrics
    assert metrics["bits_per_character"] == pytest.approx(math.log2(task.data.vocab), rel=1e-5)


def test_bits_per_character_of_a_word_model_are_divided_by_the_number_of_characters(tmp_path):
    task = bind(tmp_path, tokenizer="word")
    valid = task.data.splits["valid"][0]
    lines = TEXT.splitlines(keepends=True)[-(valid.n_characters // len(TEXT.splitlines()[0] + "\n")) :]
    n_characters, n_tokens = sum(map(len, lines)), sum(len(line.split()) + 1 for line in lines)  # 1: the end token
    metrics = task.evaluate(Uniform(task.data.vocab), "valid").metrics
    expected = math.log2(task.data.vocab) * n_tokens / n_characters
    assert metrics["bits_per_character"] == pytest.approx(expected, rel=1e-5)


def test_every_token_after_the_first_is_scored(tmp_path):
    task = bind(tmp_path)
    stream = torch.from_numpy(task.data.splits["valid"][0].tokens.astype(np.int64))
    table = bigram_table(task.data.vocab)
    score = task.evaluate(Bigram(table), "valid")
    assert score.protocol["tokens"] == len(stream) - 1
    assert score.metrics["loss"] == pytest.approx(-float(table[stream[:-1], stream[1:]].mean()), rel=1e-5)


def test_with_an_end_token_the_first_word_is_scored_too(tmp_path):
    task = bind(tmp_path, tokenizer="word")
    stream = torch.from_numpy(task.data.splits["valid"][0].tokens.astype(np.int64))
    before = torch.cat([torch.tensor([task.data.tokenizer.end_id]), stream[:-1]])
    table = bigram_table(task.data.vocab)
    score = task.evaluate(Bigram(table), "valid")
    assert score.protocol["tokens"] == len(stream)
    assert score.metrics["loss"] == pytest.approx(-float(table[before, stream].mean()), rel=1e-5)


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_every_token_is_scored_by_a_recurrent_model(tmp_path, kind):
    task = bind(tmp_path, TEXT + "and so on" * 3, kind=kind)  # a length that is not a multiple of 16 streams
    stream = task.data.splits["valid"][0].tokens
    assert task.evaluate(build(kind, task.data.vocab), "valid").protocol["tokens"] == len(stream) - 1


def test_a_single_stream_of_a_recurrent_model_is_scored_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(next_word, "EVAL_STREAMS", 1)
    task = bind(tmp_path, kind="lstm")
    model = build("lstm", task.data.vocab)
    stream = torch.from_numpy(task.data.splits["valid"][0].tokens.astype(np.int64))[None]
    expected = nll(model, Batch(stream[:, :-1], stream[:, 1:]))[0].detach() / (stream.numel() - 1)
    assert task.evaluate(model, "valid").metrics["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_parallel_streams_score_every_token(tmp_path, monkeypatch):
    task = bind(tmp_path, kind="gru")
    model = build("gru", task.data.vocab)
    stream = torch.from_numpy(task.data.splits["valid"][0].tokens.astype(np.int64))
    n = len(stream) - 1
    monkeypatch.setattr(next_word, "EVAL_STREAMS", 3)
    boundaries = [0, n // 3, 2 * (n // 3), n]  # the last stream has the remainder
    assert n % 3
    rows = [stream[a : b + 1][None] for a, b in pairwise(boundaries)]
    total = sum(float(nll(model, Batch(row[:, :-1], row[:, 1:]))[1].sum()) for row in rows)
    assert task.evaluate(model, "valid").metrics["loss"] == pytest.approx(total / n, rel=1e-5)


def test_bits_per_character_count_the_characters_of_the_scored_tokens(tmp_path):
    """Long words come first: a limit that covers only them has fewer bits per character."""
    text = "incomprehensible understanding\n" * 9 + "a bb\n" * 60
    (tmp_path / "v.txt").write_text(text)
    task = bind(tmp_path, text, tokenizer="word", valid=str(tmp_path / "v.txt"), task={"eval_tokens": 27})
    for metrics in (task.evaluate(Uniform(task.data.vocab), "valid").metrics, task.baselines("valid")["unigram"]):
        bits = 27 * metrics["loss"] / math.log(2)
        assert metrics["bits_per_character"] == pytest.approx(bits / len("incomprehensible understanding\n" * 9))


@pytest.mark.parametrize(
    ("tokenizer", "text", "n_tokens", "n_characters"),
    [("char", "the ÿÿ the dog\n", 14, 12), ("word", "the ÿÿ dog\nyes\n", 6, len("the dog\n"))],
)
def test_unknown_tokens_are_reported_and_have_no_characters(tmp_path, tokenizer, text, n_tokens, n_characters):
    (tmp_path / "v.txt").write_text(text)
    task = bind(tmp_path, tokenizer=tokenizer, valid=str(tmp_path / "v.txt"))
    score = task.evaluate(Uniform(task.data.vocab), "valid")
    assert score.protocol["tokens"] == n_tokens
    assert score.protocol["unknown"] == pytest.approx(2 / n_tokens, rel=1e-3)
    bits = n_tokens * math.log2(task.data.vocab)
    assert score.metrics["bits_per_character"] == pytest.approx(bits / n_characters, rel=1e-5)


def test_the_protocol_has_context_stride_unknown_fraction_and_baseline_tokens(tmp_path):
    task = bind(tmp_path, task={"stride": 3})
    assert task.evaluate(Uniform(task.data.vocab), "valid").protocol | {"tokens": 0} == {
        "tokens": 0,
        "context": 8,
        "stride": 3,
        "unknown": 0.0,
        "baseline_tokens": len(task.data.train[0].tokens),
    }


def test_a_byte_tokenizer_reports_no_unknown_fraction(tmp_path):
    task = bind(tmp_path, tokenizer="byte")
    assert "unknown" not in task.evaluate(Uniform(task.data.vocab), "valid").protocol


def test_the_protocol_reports_the_training_tokens_of_limited_baselines(tmp_path, monkeypatch):
    monkeypatch.setattr(next_word, "BASELINE_TOKENS", 50)
    task = bind(tmp_path)
    assert task.evaluate(Uniform(task.data.vocab), "valid").protocol["baseline_tokens"] == 50
    p = (np.bincount(task.data.train[0].tokens[:50], minlength=task.data.vocab) + 1) / (50 + task.data.vocab)
    targets = task.data.splits["valid"][0].tokens[1:]
    assert task.baselines("valid")["unigram"]["loss"] == pytest.approx(-np.log(p[targets]).mean(), rel=1e-6)


def test_without_the_training_text_there_are_no_baselines(tmp_path):
    task = bind(tmp_path)
    model = registry.find_kind("model", "gpt")(d=16, layers=1, heads=2, context=8)
    without = NextWordSettings().bind(replace(task.data, has_train=False), model, batch=4, seed=0)
    assert without.baselines("valid") == {}
    assert "baseline_tokens" not in without.evaluate(Uniform(task.data.vocab), "valid").protocol


def test_the_default_stride_is_half_the_context(tmp_path):
    assert bind(tmp_path).stride == 4


def test_the_stride_is_at_most_the_context(tmp_path):
    assert bind(tmp_path, task={"stride": 100}).stride == 8


def test_a_smaller_stride_gives_tokens_more_context(tmp_path):
    """The model repeats the token 7 positions before: with a stride of 1 that token is always in its context."""

    class Echo(Bigram):
        def forward(self, tokens: Tensor, **_) -> Tensor:
            logits = torch.zeros(*tokens.shape, self.vocab)
            logits[:, 7:] = 50.0 * F.one_hot(tokens[:, :-7], self.vocab)
            return logits

    losses = []
    for stride in (1, 4, 8):
        task = bind(tmp_path, "abcdefgh" * 60, task={"stride": stride})
        losses.append(task.evaluate(Echo(bigram_table(task.data.vocab)), "valid").metrics["loss"])
    assert losses[0] < losses[1] < losses[2]


def test_eval_tokens_limits_the_evaluation_to_the_first_tokens(tmp_path):
    task = bind(tmp_path, task={"eval_tokens": 20})
    assert task.evaluate(Uniform(task.data.vocab), "valid").protocol["tokens"] == 19


def test_eval_tokens_limits_all_mixed_texts_together(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(TEXT * 4)
    source = TextSource(mix={str(tmp_path / "a"): 1.0, str(tmp_path / "b"): 1.0}, valid=0.5)
    task = bind(tmp_path, source=source, task={"eval_tokens": 500})
    score = task.evaluate(Uniform(task.data.vocab), "valid")
    assert score.protocol["tokens"] == 500 - 2  # the first token of each text is context
    assert list(score.parts) == ["a", "b"]


@pytest.mark.parametrize("quick", [False, True])
def test_the_evaluation_batch_size_does_not_depend_on_the_training_batch(tmp_path, monkeypatch, quick):
    task, shapes = bind(tmp_path), []
    model = build(vocab=task.data.vocab)
    expected = task.evaluate(model, "valid", quick=quick)
    model.register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape))
    monkeypatch.setattr(next_word, "EVAL_BATCH_TOKENS", 17)
    assert task.evaluate(model, "valid", quick=quick).metrics == pytest.approx(expected.metrics, rel=1e-6)
    assert max(rows for rows, _ in shapes) == 2


def test_evaluation_restores_the_training_mode_and_computes_no_gradients(tmp_path):
    task = bind(tmp_path)
    model = build(vocab=task.data.vocab, dropout=0.5).train()
    first, second = (task.evaluate(model, "valid").metrics["loss"] for _ in range(2))
    assert model.training
    assert first == second
    assert all(p.grad is None for p in model.parameters())


def test_mixed_texts_are_scored_separately_by_name(tmp_path):
    for name, text in {"a": "abababab\n" * 9, "b": "x\n", "c": "aabbaabb\n" * 9}.items():
        (tmp_path / name).write_text(text)
    mix = {str(tmp_path / name): 1.0 for name in ("a", "b", "c")}
    data = TextSource(mix=mix, tokenizer="word").load_data()  # b is one line: it has no validation text
    model = registry.find_kind("model", "gpt")(d=16, layers=1, heads=2, context=1)
    task = NextWordSettings().bind(data, model, batch=4, seed=0)
    score = task.evaluate(Bigram(bigram_table(data.vocab), context=1), "valid")
    assert list(score.parts) == ["a", "c"]


# --- baselines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["char", "word"])
def test_the_unigram_baseline_is_scored_on_the_tokens_of_the_model(tmp_path, tokenizer):
    task = bind(tmp_path, tokenizer=tokenizer)
    train, valid = task.data.train[0].tokens, task.data.splits["valid"][0].tokens
    targets = valid if tokenizer == "word" else valid[1:]
    p = (np.bincount(train, minlength=task.data.vocab) + 1) / (len(train) + task.data.vocab)
    assert task.evaluate(Uniform(task.data.vocab), "valid").protocol["tokens"] == len(targets)
    assert task.baselines("valid")["unigram"]["loss"] == pytest.approx(-np.log(p[targets]).mean(), rel=1e-6)


def test_the_baselines_have_the_metrics_of_the_model(tmp_path):
    task = bind(tmp_path)
    metrics = task.evaluate(Uniform(task.data.vocab), "valid").metrics
    assert {name: list(baseline) for name, baseline in task.baselines("valid").items()} == {
        "unigram": list(metrics),
        "5-gram Kneser-Ney": list(metrics),
    }


# --- recurrent state --------------------------------------------------------------------------------------------------


def test_the_state_is_carried_from_batch_to_batch(tmp_path):
    task = bind(tmp_path, kind="lstm", valid=0.0)
    model = build("lstm", task.data.vocab)
    losses = [float(task.loss(model, task.batch(0, step)).total.detach()) for step in range(task.steps)]
    tokens = torch.cat([task.batch(0, step).tokens for step in range(task.steps)], 1)
    targets = torch.cat([task.batch(0, step).targets for step in range(task.steps)], 1)
    assert sum(losses) == pytest.approx(float(nll(model, Batch(tokens, targets))[1].sum()), rel=1e-5)


def test_a_loaded_state_continues_like_the_saved_one(tmp_path):
    first, second = (bind(tmp_path, kind="lstm") for _ in range(2))
    model = build("lstm", first.data.vocab)
    for step in range(3):
        first.loss(model, first.batch(0, step))
    second.load_state({name: t.clone() for name, t in first.state().items()})
    assert torch.equal(first.loss(model, first.batch(0, 3)).total, second.loss(model, second.batch(0, 3)).total)


def test_state_returns_a_loaded_state_before_the_first_batch(tmp_path):
    """A step that runs out of memory right after resuming is repeated from this state."""
    task, saved = bind(tmp_path, kind="lstm"), {"0": torch.ones(1, 4, 16), "1": torch.zeros(1, 4, 16)}
    task.load_state(saved)
    assert task.state() == saved


def test_a_transformer_trains_on_streams_too(tmp_path):
    task = bind(tmp_path, batching="stream")
    model = build(vocab=task.data.vocab)
    task.loss(model, task.batch(0, 0)).total.backward()
    assert task.loss(model, task.batch(0, 1)).total.isfinite()


def test_a_recurrent_model_rejects_packed_documents(tmp_path):
    task = bind(tmp_path, kind="gru", batching="packed", documents="line")
    with pytest.raises(
        BadSetting, match=r"^data.batching: model.kind=gru cannot separate documents in a row; set data.batching=stream"
    ):
        task.loss(build("gru", task.data.vocab), task.batch(0, 0))


def test_tokens_per_batch_counts_the_rows_that_exist(tmp_path):
    task = bind(tmp_path, "ab" * 12, valid=0)  # two windows of 8 for a batch of four rows
    assert task.tokens_per_batch == task.batch(0, 0).n_targets == 16
